"""A package whose public names are imported on first use; its stub, ``__init__.pyi``, is the only list of them."""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Callable
from importlib import import_module


def lazily(package: str) -> tuple[list[str], Callable[[str], object]]:
    """Return the ``__all__`` and the ``__getattr__`` of a package (PEP 562), as its stub tells them.

    The stub has a ``from … import … as …`` for each module that holds public names. Type checkers read the same file.
    """
    stub = ast.parse(pkgutil.get_data(package, "__init__.pyi") or b"")
    holders = {
        name.name: "." * node.level + str(node.module)
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }

    def get(name: str) -> object:
        if name not in holders:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(holders[name], package), name)

    return list(holders), get
