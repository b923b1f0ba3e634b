"""The public names of the engine: importable, told to type checkers, and the only ones that its users import."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from airflow_provider_zkmq import engine
from airflow_provider_zkmq.engine import AsyncQueue, Queue, model
from airflow_provider_zkmq.filequeue import FileQueue

READS = {"conf", "consumers", "ids", "read_many", "follow", "zxid", "ended_between", "archive", "publish_archive"}
READS |= {"departed_between", "read_departed", "scan"}


@pytest.mark.parametrize("name", engine.__all__)
def test_a_public_name_is_where_the_table_says(name: str) -> None:
    """Each is found at its first use."""
    assert getattr(engine, name) is not None


def test_type_checkers_are_told_the_same_names() -> None:
    """What is imported for type checkers, the table and `__all__` are the same names."""
    tree = ast.parse(Path(engine.__file__).read_text())
    told = {
        (alias.name, str(node.module).removeprefix("airflow_provider_zkmq.engine."))
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert told == {(name, module) for module, names in engine._HOME.items() for name in names}
    assert sorted(engine.__all__) == sorted(name for name, _ in told)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """As of any module."""
    with pytest.raises(AttributeError, match="'nonsense'"):
        _ = engine.nonsense  # type: ignore[attr-defined]


def test_the_model_exports_what_it_imports() -> None:
    """Nothing is imported there for its own sake."""
    assert all(hasattr(model, name) for name in model.__all__)


def test_a_file_queue_has_every_method_of_a_queue() -> None:
    """What it cannot do it refuses; nothing ends in an `AttributeError`. Both fronts have the same verbs."""
    public = {name for name in dir(Queue) if not name.startswith("_")}
    assert public >= READS
    assert public - set(dir(FileQueue)) == {"name"}, "which an instance has"
    assert {name for name in dir(AsyncQueue) if not name.startswith("_")} == public
