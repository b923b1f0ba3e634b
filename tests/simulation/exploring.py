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
#: So many characters of a schedule's report at the most.
MOST: Final = 6_000
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
    """Of a long log a part is kept, any one: so it is short, and says which schedule it was at its begin and its end.

    The whole trace is what replaying the seed prints.
    """
    short = details if len(details) < MOST else f"{details[: MOST // 4]}\n…\n{details[-3 * MOST // 4 :]}"
    pytest.fail(f"{found}\n{short}\n{found}", pytrace=False)
