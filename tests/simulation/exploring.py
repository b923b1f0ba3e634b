"""Schedules with new seeds, a few hundred at a time, for the test suite."""

from __future__ import annotations

import os
import time
import traceback
from typing import Final, NoReturn

import pytest

from tests.simulation import schedule

#: How many schedules the suite runs in all; in two files, so that two processes share them.
SCHEDULES: Final = int(os.environ.get("ZKMQ_SCHEDULES", "20000"))
CHUNK: Final = 500
CHUNKS: Final = -(-SCHEDULES // (2 * CHUNK))


def explore(number: int) -> None:
    """Run so many schedules that nobody has run before; fail with the seed and the trace of a short one."""
    first = f"{time.time_ns():x}-{os.getpid()}-{number}"
    for count in range(CHUNK):
        seed = f"{first}-{count}"
        result = _tried(seed)
        if result.violation is not None:
            _fail(f"{result.violation}; seed {seed}", schedule.report(result))


def _tried(seed: str) -> schedule.Result:
    try:
        return schedule.run(schedule.plan(seed))
    except Exception:  # noqa: BLE001  whatever it is: without its seed nobody can look into it
        _fail(f"the schedule ended by an error; seed {seed}", traceback.format_exc())


def _fail(found: str, details: str) -> NoReturn:
    """What is kept of a long log is its begin, its end, or one line of it: each of them tells which schedule it was."""
    pytest.fail(f"{found}\n{details}\n{found}", pytrace=False)
