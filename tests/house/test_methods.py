"""What is generated is current, and nobody has changed it by hand."""

from __future__ import annotations

import ast

import pytest

from tests.house.methods import FOLDER, MODULES, Written, module


def statements(text: str) -> list[str]:
    """The imports and the classes of a module, however they are formatted and sorted."""
    body = ast.parse(text).body
    for node in body:
        if isinstance(node, ast.ImportFrom):
            node.names.sort(key=lambda it: it.name)
    return sorted(map(ast.dump, body))


@pytest.mark.parametrize("written", MODULES, ids=lambda written: written.module)
def test_the_methods_of_both_apis_are_those_of_the_procedures(written: Written) -> None:
    """`python -m tests.house.methods` writes them again."""
    text = (FOLDER / f"{written.module}.py").read_text(encoding="utf-8")
    assert statements(text) == statements(module(written))
