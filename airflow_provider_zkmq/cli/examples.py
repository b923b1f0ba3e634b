"""``zkmq examples``: the example DAGs that come with the package."""

from __future__ import annotations

import argparse
from pathlib import Path

from .options import Common, UsageError
from .output import say

PACKAGE = Path(__file__).parents[1]
#: In an installed package, and in a checkout.
PLACES = (PACKAGE / "example_dags", PACKAGE.parent / "example_dags")


def add_examples(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``examples``."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="which, such as zkmq_events; default: all")
    parser.add_argument("--to", metavar="FOLDER", type=Path, help="copy them there; default: only name them")


def examples(args: argparse.Namespace, options: Common) -> int:
    """Name the example DAGs, or copy them into a folder. No file is replaced."""
    home = next(place for place in PLACES if place.is_dir())
    known = {path.stem: path for path in sorted(home.glob("*.py")) if path.stem != "demo"}
    if unknown := [name for name in args.names if name not in known]:
        raise UsageError(f"there is no example {unknown[0]!r}: there are {', '.join(known)}")
    chosen = args.names or list(known)
    if args.to is None:
        about = {name: known[name].read_text(encoding="utf-8").split("\n", 1)[0].strip('"') for name in chosen}
        say(about, "\n".join(f"{name}: {line}" for name, line in about.items()), as_json=options.as_json)
        return 0
    targets = {name: args.to / known[name].name for name in chosen}
    if there := [str(path) for path in targets.values() if path.exists()]:
        raise UsageError(f"{there[0]} is there already, and is not replaced")
    args.to.mkdir(parents=True, exist_ok=True)
    for name, target in targets.items():
        target.write_bytes(known[name].read_bytes())
    say([str(path) for path in targets.values()], "\n".join(map(str, targets.values())), as_json=options.as_json)
    return 0
