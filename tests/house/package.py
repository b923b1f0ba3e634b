"""The package as its source reads: its modules, and who imports whom. Nothing of it is imported."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import grimp

TOP = Path(__file__).parents[2]
PACKAGE = "airflow_provider_zkmq"


@dataclass(frozen=True)
class Module:
    """A module of the package, by its path in the repository."""

    path: str

    @cached_property
    def text(self) -> str:
        return (TOP / self.path).read_text(encoding="utf-8")

    @property
    def sentence(self) -> str:
        """The first sentence of its docstring, up to the end of its first paragraph."""
        paragraph = (ast.get_docstring(ast.parse(self.text)) or "").split("\n\n")[0]
        return re.split(r"(?<=[.?!])\s+(?=[A-Z`])", " ".join(paragraph.split()))[0]


@cache
def modules() -> list[Module]:
    """Every module of the package, `__init__` included."""
    return [Module(str(path.relative_to(TOP))) for path in sorted((TOP / PACKAGE).rglob("*.py"))]


@cache
def imports() -> dict[str, frozenset[str]]:
    """Each module, and the package's modules that it imports, also inside functions and for type checkers."""
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    return {name: frozenset(graph.find_modules_directly_imported_by(name)) for name in sorted(graph.modules)}


def circles() -> list[frozenset[str]]:
    """The largest sets of modules that import each other in a circle, directly or not."""
    reach = {name: _reached(name) for name in imports()}
    knots = {frozenset({name, *(other for other in reach[name] if name in reach[other])}) for name in imports()}
    return sorted((knot for knot in knots if len(knot) > 1), key=sorted)


def _reached(name: str) -> set[str]:
    """The modules that a module imports, and what they import."""
    reached: set[str] = set()
    ahead = set(imports()[name])
    while ahead:
        reached |= ahead
        ahead = {far for near in ahead for far in imports()[near]} - reached
    return reached
