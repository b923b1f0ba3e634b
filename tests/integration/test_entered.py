"""How much of the package a warm call enters, in the thread that makes it: what a reader has to follow."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import pytest

from airflow_provider_zkmq.engine import Queue

#: The most modules that a warm call enters.
MODULES: Final = {"enqueue": 19, "claim": 32, "complete": 15}


def entered(call: Callable[[], Any]) -> tuple[Any, set[str]]:
    """What a call returns, and the modules of the package whose functions it enters."""
    modules: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        _, package, module = frame.f_code.co_filename.rpartition("airflow_provider_zkmq/")
        if event == "call" and package:
            modules.add(module)

    sys.setprofile(note)
    try:
        result = call()
    finally:
        sys.setprofile(None)
    return result, modules


def test_a_warm_call_enters_few_modules(q: Queue, subtests: pytest.Subtests) -> None:
    for _ in range(3):
        q.enqueue(b"x")
        claim = q.claim()
        assert claim is not None
        claim.complete()
    counts: dict[str, set[str]] = {}
    _, counts["enqueue"] = entered(lambda: q.enqueue(b"x"))
    claim, counts["claim"] = entered(q.claim)
    assert claim is not None
    _, counts["complete"] = entered(claim.complete)
    for verb, modules in counts.items():
        with subtests.test(verb):
            assert len(modules) <= MODULES[verb], sorted(modules)
