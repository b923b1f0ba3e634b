"""The drawing of the house in `docs/architecture.md`, made from the folders: ``python -m tests.house.drawing --write``.

It has the folders, each on the lowest floor that is above all it imports, so that every import leads to a floor further
down.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

from tests.house.package import PACKAGE, TOP, Module, imports, modules

PAGE = TOP / "docs" / "architecture.md"
MARKERS = ("<!-- house: begin -->", "<!-- house: end -->")
#: Folders that are no floor themselves: what stands in them is.
CONTAINERS = ("engine/core", "engine", "")
WIDTH, MARGIN = 118, 25


def _unit(name: str) -> str:
    """The folder of a module, by its dotted name; a module that stands in a container is one of its own."""
    path = name.replace(".", "/").removeprefix(PACKAGE).removeprefix("/")
    if path in CONTAINERS:
        return path
    inside = next(container for container in CONTAINERS if path.startswith(f"{container}/") or not container)
    return "/".join(path.split("/")[: len(inside.split("/")) + bool(inside)])


@cache
def edges() -> dict[str, frozenset[str]]:
    """Each folder and the folders that its modules import. The lazy lists of public names are left out."""
    folders: dict[str, set[str]] = defaultdict(set)
    for name, imported in imports().items():
        if _unit(name) not in CONTAINERS:
            folders[_unit(name)] |= {_unit(other) for other in imported} - {_unit(name), *CONTAINERS}
    return {unit: frozenset(others) for unit, others in folders.items()}


def floors() -> list[list[str]]:
    """The folders by floors, the highest first. Folders that import each other in a circle share one."""
    left, placed = dict(edges()), list[list[str]]()
    while left:
        free = [unit for unit, others in left.items() if not others & left.keys()]
        placed.append(sorted(free) or _circle(left))
        for unit in placed[-1]:
            del left[unit]
    return placed[::-1]


def _circle(left: dict[str, frozenset[str]]) -> list[str]:
    """Of folders none of which is free, the fewest that import nothing but each other."""
    closures = []
    for unit in left:
        closure = {unit}
        while grown := {other for near in closure for other in left[near] & left.keys()} - closure:
            closure |= grown
        closures.append(sorted(closure))
    return min(closures, key=len)


@cache
def _in_order() -> list[str]:
    """The folders from the top of the house to the bottom."""
    return [unit for floor in floors() for unit in floor]


def _module(unit: str) -> Module:
    """The module whose docstring speaks for a folder: its `__init__`, or itself."""
    path = f"{PACKAGE}/{unit}"
    known = {module.path: module for module in modules()}
    return known.get(f"{path}/__init__.py") or known[f"{path}.py"]


def _beside(name: str, text: str, margin: int, width: int, indent: str = "") -> list[str]:
    """A name at the left, and a text in lines beside it."""
    lines = textwrap.wrap(text, width - margin, break_on_hyphens=False, subsequent_indent=indent) or [""]
    return [f"{name if at == 0 else '':{margin}}{line}".rstrip() for at, line in enumerate(lines)]


def _floor(units: list[str]) -> Iterator[str]:
    for unit in units:
        yield from _beside(unit, _module(unit).sentence, MARGIN, WIDTH - 4)
        below, beside = edges()[unit] - set(units), edges()[unit] & set(units)
        for arrow, others in (("↓", below), ("↔", beside)):
            names = ", ".join(unit.removeprefix("engine/") for unit in _in_order() if unit in others)
            yield from _beside("", f"{arrow} {names}", MARGIN, WIDTH - 4, "  ") if names else ()


def _house() -> Iterator[str]:
    rule = "─" * (WIDTH - 2)
    for at, units in enumerate(floors()):
        yield f"{'├' if at else '┌'}{rule}{'┤' if at else '┐'}"
        yield from (f"│ {line:{WIDTH - 4}} │" for line in _floor(units))
    yield f"└{rule}┘"


def drawing() -> str:
    """What stands between the markers."""
    return "```text\n" + "\n".join(_house()) + "\n```"


def drawn() -> str:
    """The page with a drawing of the house as it is now."""
    begin, end = map(re.escape, MARKERS)
    text, count = re.subn(
        rf"({begin}\n).*?({end})",
        lambda match: f"{match[1]}{drawing()}\n{match[2]}",
        PAGE.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
    if count != 1:
        raise ValueError(f"{PAGE} must have the markers {' and '.join(MARKERS)} once")
    return text


def main() -> None:
    """Print the drawing, or write it into the page."""
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(drawn(), encoding="utf-8")
    else:
        sys.stdout.write(drawing() + "\n")


if __name__ == "__main__":
    main()
