"""Schedules with new seeds, a few hundred at a time, for the test suite."""

from __future__ import annotations

import os
import time
from typing import Final

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
        result = schedule.run(schedule.plan(f"{first}-{count}"))
        if result.violation is not None:
            # What is kept of a long log is its end, or one line of it: each of them tells which schedule it was.
            found = f"{result.violation}; seed {result.plan.seed}"
            pytest.fail(f"{found}\n{schedule.report(result)}\n{found}")
