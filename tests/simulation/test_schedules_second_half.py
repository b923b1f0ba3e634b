"""The second half of the schedules that each run of the suite explores."""

from __future__ import annotations

import pytest

from tests.simulation.exploring import CHUNKS, explore


@pytest.mark.parametrize("number", range(CHUNKS))
def test_no_schedule_breaks_a_promise(number: int) -> None:
    """Whatever the interleaving and the faults: safety after each step, and everybody goes on once they stop."""
    explore(number)
