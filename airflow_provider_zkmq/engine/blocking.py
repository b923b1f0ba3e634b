"""Coroutines that block where they wait: what threads and event loops do alike is written once, as coroutines."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_blocking(steps: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that blocks the thread where it waits, and never suspends."""
    try:
        steps.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    raise AssertionError("a coroutine that was to block has nobody to give way to")
