"""Schedules of the simulator, some hundreds to a test.

Their seeds are always the same, so that what passes once passes again: a change is judged, not luck. What a seed plays
changes with the code all the same. `make soak` looks for more with new seeds.
"""

from __future__ import annotations

import os
import traceback
from typing import Final, NoReturn

import pytest

from tests.simulation import schedule

#: How many schedules the suite runs in all: `make test-all` asks for 20 000.
SCHEDULES: Final = int(os.environ.get("ZKMQ_SCHEDULES", "1000"))
CHUNK: Final = 250
#: So many characters of a schedule's report at the most.
MOST: Final = 6_000


@pytest.mark.parametrize(
    "number",
    [pytest.param(n, marks=pytest.mark.xdist_group(f"schedules-{n}")) for n in range(-(-SCHEDULES // CHUNK))],
)
def test_no_schedule_breaks_a_promise(number: int) -> None:
    """Whatever the interleaving and the faults: safety after each step, and everybody goes on once they stop."""
    for count in range(CHUNK):
        seed = f"suite-{number}-{count}"
        result = _run(seed)
        if result.violation is not None:
            _fail(f"{result.violation}; seed {seed}", seed, schedule.report(result))


def _run(seed: str) -> schedule.Result:
    try:
        return schedule.run(schedule.plan(seed))
    except Exception:  # noqa: BLE001  whatever it is: without its seed nobody can look into it
        _fail(f"the schedule ended by an error; seed {seed}", seed, traceback.format_exc())


def _fail(found: str, seed: str, details: str) -> NoReturn:
    """Fail with the seed first and last, and shortly: a long log is cut. Replaying the seed prints the whole trace."""
    short = details if len(details) < MOST else f"{details[: MOST // 4]}\n…\n{details[-3 * MOST // 4 :]}"
    replay = f"replay it: python -m tests.simulation --replay {seed} --shrink"
    pytest.fail(f"{found}\n{replay}\n{short}\n{found}\n{replay}", pytrace=False)
