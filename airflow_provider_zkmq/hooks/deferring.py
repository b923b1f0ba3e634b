"""Deferring a wait to the triggerer: what it is given to wait for, until when, and since when.

Airflow's scheduler takes the end of the process that deferred for a failure where it hears of it when the task runs
again already. So no event is told within seconds of the deferral, whatever has happened by then.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from airflow_provider_zkmq.engine import TransportError
from airflow_provider_zkmq.hooks.naming import ARGUMENT_BYTES, EVENT_BYTES, first_fitting, fits, series_ids

#: So many seconds after the deferral an event is told at the earliest.
HELD_BACK: Final = 6.0
#: A deferral lasts so much longer than an event may be held back: Airflow's own time-out must not come before it.
_ROOM: Final = 4.0
#: ZooKeeper does not answer now: the trigger waits for it.
AWAY: Final = TransportError
#: How a wait that was not in time tells of its limit.
_LIMIT: Final = re.compile(r"\btimeout \([^)]* s\)")


def hold_back(deferred_at: float | None, now: float) -> float:
    """Return for how many seconds an event is held back: at most `HELD_BACK`, however the machines' clocks differ."""
    return 0.0 if deferred_at is None else min(HELD_BACK, max(0.0, deferred_at + HELD_BACK - now))


def deferral_limit(deadline: float | None) -> timedelta | None:
    """Return how long Airflow waits for the trigger, which ends by itself at the `deadline`, in seconds since 1970."""
    if deadline is None:
        return None
    return timedelta(seconds=math.ceil(max(HELD_BACK + _ROOM, deadline - time.time())))


def seconds_left(deadline: float | None) -> float | None:
    """Return how long it is until a deadline, in seconds since 1970: 0 after it; None without one."""
    return None if deadline is None else max(0.0, deadline - time.time())


def naming(message: str, span: float | None) -> str:
    """Return the message of a wait that was not in time, with the seconds that a user gave for those that were left."""
    return message if span is None else _LIMIT.sub(f"timeout ({span:g} s)", message)


def awaited_ids(ids: Sequence[str], key: str | None, left: Sequence[str] = ()) -> dict[str, Any]:
    """Return a trigger's arguments for tasks: few of them by their ids, a series by its key and their number.

    Many others are waited for in rounds: the trigger is given the first of those that are `left`, and when they have
    ended, the Airflow task looks at all of them and defers for the next.
    """
    if fits(ids, EVENT_BYTES):
        return {"task_ids": list(ids)}
    if key is not None and list(ids) == series_ids(key, len(ids)):
        return {"series": [key, len(ids)]}
    return {"task_ids": first_fitting(left or ids, ARGUMENT_BYTES), "partial": True}
