"""The state machine: only the listed rows are allowed."""

from __future__ import annotations

import itertools

import pytest

from airflow_provider_zkmq.engine.core.model.states import ENDED, TRANSITIONS, Event, State, Status, derive_status, step
from airflow_provider_zkmq.engine.errors import IllegalTransition

ROWS = {
    "inserted": {
        "claim": "claimed",
        "promote": "inserted",
        "cancel": "cancelled",
        "update": "inserted",
        "exhaust": "dead",
        "rerun": "inserted",
    },
    "claimed": {
        "complete": "finished",
        "fail": "inserted",
        "fail-final": "dead",
        "release": "inserted",
        "rescue": "inserted",
        "rescue-final": "dead",
        "extend": "claimed",
        "cancel": "cancelled",
        "requeue": "claimed",
        "rerun": "inserted",
    },
    "finished": {
        "requeue": "finished",
        "rerun": "inserted",
        "enqueue-again": "inserted",
        "give-up-run": "finished",
    },
    "dead": {"redrive": "inserted"},
    "cancelled": {"redrive": "inserted", "enqueue-again": "inserted"},
}


@pytest.mark.parametrize(("state", "event"), itertools.product(State, Event))
def test_only_the_listed_rows_are_allowed(state, event):
    after = ROWS[state].get(event)
    assert ((state, event) in TRANSITIONS) == (after is not None)
    if after is None:
        with pytest.raises(IllegalTransition, match="task 't'"):
            step("t", state, event)
    else:
        assert step("t", state, event) == after


def test_ended_states_are_those_no_work_changes():
    assert {"finished", "dead", "cancelled"} == ENDED


def test_a_status_is_derived_from_the_stored_state():
    assert derive_status(State.INSERTED, scheduled=False) is Status.QUEUED
    assert derive_status(State.INSERTED, scheduled=True) is Status.QUEUED_WITH_BACKOFF
    names = {
        State.CLAIMED: "locked",
        State.FINISHED: "done-awaiting-gc",
        State.DEAD: "dead",
        State.CANCELLED: "cancelled",
    }
    for state, status in names.items():
        assert derive_status(state, scheduled=False) == status
    assert derive_status(State.CLAIMED, scheduled=False, requeue=True) == "locked-with-requeue"
    assert derive_status(State.FINISHED, scheduled=False, window=True) == "done-with-backoff"
    assert derive_status(State.FINISHED, scheduled=False, requeue=True) == "done-with-requeue"
    assert derive_status(State.FINISHED, scheduled=False, requeue=True, window=True) == "done-with-requeue"
