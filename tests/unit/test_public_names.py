"""The public names of the engine: importable, told to type checkers, and the only ones that its users import."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from airflow_provider_zkmq import engine
from airflow_provider_zkmq.engine import model


def test_public_names_are_where_the_table_says_and_type_checkers_are_told_the_same() -> None:
    """Each is found at its first use; an unknown name is an attribute error. The model exports what it imports."""
    assert all(getattr(engine, name) is not None for name in engine.__all__)
    with pytest.raises(AttributeError, match="'nonsense'"):
        _ = engine.nonsense  # type: ignore[attr-defined]
    told = {
        (alias.name, str(node.module).removeprefix("airflow_provider_zkmq.engine."))
        for block in ast.parse(Path(engine.__file__).read_text()).body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert told == {(name, module) for module, names in engine._HOME.items() for name in names}
    assert sorted(engine.__all__) == sorted(name for name, _ in told)
    assert all(hasattr(model, name) for name in model.__all__)
