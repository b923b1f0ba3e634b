"""``zkmq examples``: the example DAGs that come with the package."""

from __future__ import annotations

from pathlib import Path

from ..inspection.wording import table
from .options import operand, option, refuse
from .output import Output
from .verbs import verb

_PACKAGE = Path(__file__).parents[1]
#: In an installed package, and in a checkout.
_PLACES = (_PACKAGE / "example_dags", _PACKAGE.parent / "example_dags")


@verb("examples", example="zkmq examples --to dags zkmq_events")
def examples(
    cli: Output,
    names: list[str] | None = operand("[NAME…]", "which, such as zkmq_events; default: all", None),
    to: Path | None = option("copy them there; default: only name them", "FOLDER"),
) -> int:
    """Name the example DAGs, or copy them into a folder. No file is replaced."""
    home = next(place for place in _PLACES if place.is_dir())
    known = {path.stem: path for path in sorted(home.glob("*.py")) if path.stem != "demo"}
    refuse(
        *((name not in known, f"there is no example {name!r}: there are {', '.join(known)}") for name in names or ())
    )
    chosen = [known[name] for name in names or known]
    if to is None:
        rows = [{"name": path.stem, "about": path.read_text("utf-8").split("\n", 1)[0].strip('"')} for path in chosen]
        return cli.say({"examples": rows}, table(rows, "name about"))
    targets = {to / path.name: path.read_bytes() for path in chosen}
    refuse(*((path.exists(), f"{path} is there already, and is not replaced") for path in targets))
    to.mkdir(parents=True, exist_ok=True)
    for path, text in targets.items():
        path.write_bytes(text)
    return cli.say({"paths": [str(path) for path in targets]}, "\n".join(map(str, targets)))
