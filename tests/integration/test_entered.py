"""How much of the package a warm call enters, in the thread that makes it: what a reader has to follow."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import pytest

from airflow_provider_zkmq.engine import Queue

#: The most modules and functions that a warm call enters. A claim also lists the segment that it has taken from before.
MODULES: Final = {"enqueue": 15, "claim": 25, "complete": 15}
FUNCTIONS: Final = {"enqueue": 90, "claim": 220, "complete": 80}


def entered(call: Callable[[], Any]) -> tuple[Any, set[tuple[str, int]]]:
    """What a call returns, and the functions of the package that it enters, each by its module and its line."""
    functions: set[tuple[str, int]] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        _, package, module = frame.f_code.co_filename.rpartition("airflow_provider_zkmq/")
        if event == "call" and package:
            functions.add((module, frame.f_code.co_firstlineno))

    sys.setprofile(note)
    try:
        result = call()
    finally:
        sys.setprofile(None)
    return result, functions


def test_a_warm_call_enters_few_modules_and_functions(q: Queue, subtests: pytest.Subtests) -> None:
    """In the thread that makes it: so much a reader has to follow, and so much is paid for each call."""
    for _ in range(4):
        q.enqueue(b"x")
        claim = q.claim()
        assert claim is not None
        claim.complete()
    counts: dict[str, set[tuple[str, int]]] = {}
    _, counts["enqueue"] = entered(lambda: q.enqueue(b"x"))
    claim, counts["claim"] = entered(q.claim)
    assert claim is not None
    _, counts["complete"] = entered(claim.complete)
    for verb, functions in counts.items():
        with subtests.test(verb):
            modules = {module for module, _ in functions}
            assert len(modules) <= MODULES[verb], sorted(modules)
            assert len(functions) <= FUNCTIONS[verb], sorted(functions)
