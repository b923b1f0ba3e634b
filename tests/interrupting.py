"""Code that is interrupted at one of its lines, as a signal's handler does it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any


def keyboard() -> None:
    """What Ctrl-C does."""
    raise KeyboardInterrupt


def interrupted(
    job: Callable[[], object],
    number: int,
    lines_of: Callable[[CodeType], bool],
    *,
    act: Callable[[], object] = keyboard,
    events: frozenset[str] = frozenset({"call", "line", "return"}),
) -> bool:
    """Do a job, and `act` at this one of the chosen code's lines, counted from 0; whether it has so many."""
    left, former = number, sys.gettrace()

    def trace(frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal left
        if left < 0 or not lines_of(frame.f_code):
            return None
        if event in events:
            left -= 1
            if left < 0:
                act()
        return trace

    sys.settrace(trace)
    try:
        next(_apart(job))
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(former)
    return left < 0


def _apart(job: Callable[[], object]) -> Iterator[object]:
    """The job, by a generator: what it leaves as "being handled" ends with it.

    CPython 3.11 does not take an exception off where a trace function raises in the last line of its handler. Each
    exception that the test's process raises later, in whatever test, would have it as its context.
    """
    yield job()
