"""``zkmq examples``: the example DAGs that come with the package."""

from __future__ import annotations

from pathlib import Path

from ..inspection.wording import table
from .connection import Cli
from .options import UsageError, operand, option
from .verbs import verb

PACKAGE = Path(__file__).parents[1]
#: In an installed package, and in a checkout.
PLACES = (PACKAGE / "example_dags", PACKAGE.parent / "example_dags")


@verb("examples", example="zkmq examples --to dags zkmq_events")
def examples(
    cli: Cli,
    names: list[str] | None = operand("[NAME…]", "which, such as zkmq_events; default: all", None),
    to: Path | None = option("copy them there; default: only name them", "FOLDER"),
) -> int:
    """Name the example DAGs, or copy them into a folder. No file is replaced."""
    home = next(place for place in PLACES if place.is_dir())
    known = {path.stem: path for path in sorted(home.glob("*.py")) if path.stem != "demo"}
    if unknown := [name for name in names or () if name not in known]:
        raise UsageError(f"there is no example {unknown[0]!r}: there are {', '.join(known)}")
    chosen = names or list(known)
    if to is None:
        rows = [{"name": name, "about": known[name].read_text("utf-8").split("\n", 1)[0].strip('"')} for name in chosen]
        return cli.say({"examples": rows}, table(rows, "name about"))
    targets = {name: to / known[name].name for name in chosen}
    if there := [str(path) for path in targets.values() if path.exists()]:
        raise UsageError(f"{there[0]} is there already, and is not replaced")
    to.mkdir(parents=True, exist_ok=True)
    for name, target in targets.items():
        target.write_bytes(known[name].read_bytes())
    paths = [str(path) for path in targets.values()]
    return cli.say({"paths": paths}, "\n".join(paths))
