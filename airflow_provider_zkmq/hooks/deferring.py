"""Deferring a wait to the triggerer: until when, and whether the triggerer may end the Airflow task."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from airflow.sdk import BaseOperator, conf

# Airflow's scheduler takes the end of the process that deferred for a failure
# where it hears of it when the task runs again already: so no event comes within seconds of the deferral.

#: So many seconds after the deferral an event is told at the earliest.
HELD_BACK: Final = 6.0
#: A deferral lasts so much longer than an event may be held back: Airflow's own time-out must not come before it.
_ROOM: Final = 4.0
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


def wait_limit(operator: Any) -> float | None:
    """Return for how many seconds an operator waits: its timeout, else its `execution_timeout`; None: no bound."""
    timeout, limit = getattr(operator, "timeout", None), operator.execution_timeout
    return limit.total_seconds() if timeout is None and limit is not None else timeout


def naming(message: str, span: float | None) -> str:
    """Return the message of a wait that was not in time, with the seconds that a user gave for those that were left."""
    return message if span is None else _LIMIT.sub(f"timeout ({span:g} s)", message)


def pushed_for(operator: BaseOperator, context: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the task instance whose XCom the triggerer writes, as `XCom.set` takes it; None: there is to be none."""
    if not operator.do_xcom_push:
        return None
    return {name: getattr(context["ti"], name) for name in ("dag_id", "run_id", "task_id", "map_index")}


def may_end_in_triggerer(operator: BaseOperator, context: Mapping[str, Any]) -> bool:
    """Whether nothing is lost where the triggerer ends a deferred task: no worker runs once more then.

    It emits no asset events, writes XComs past another backend, records no length by which others are mapped, splits no
    value into several XComs, and calls no hook, method of a subclass, or callback of the operator's.
    """
    backend = conf.get("core", "xcom_backend", fallback=_CORE_XCOM)
    if operator.outlets or operator.on_success_callback or backend != _CORE_XCOM:
        return False
    if operator.multiple_outputs or getattr(operator, "_post_execute_hook", None) is not None:
        return False
    methods = (getattr(type(operator), name, None) for name in ("post_execute", "execute_complete"))
    if not all(str(getattr(method, "__module__", "")).startswith(_KNOWN) for method in methods):
        return False
    if context["ti"].map_index is not None and context["ti"].map_index >= 0:
        return True
    return operator.get_dag() is None or next(operator.iter_mapped_dependants(), None) is None


#: Whose methods are known here: Airflow's own, and ours.
_KNOWN: Final = ("airflow.sdk.", "airflow_provider_zkmq.")
_CORE_XCOM: Final = "airflow.sdk.execution_time.xcom.BaseXCom"


def deferral(operator: Any, trigger: Callable[..., Any], kwargs: dict[str, Any], **wanted: Any) -> Any:
    """Return what Airflow is given to go on in `execute_complete`, with `kwargs`, when the trigger has fired.

    `kwargs` has the deadline; `wanted`: what else the trigger is given.
    """
    deadline = kwargs["deadline"]
    fired = trigger(**wanted, zkmq_conn_id=operator.zkmq_conn_id, deadline=deadline, deferred_at=time.time())
    limit = deferral_limit(deadline)
    return {"trigger": fired, "method_name": "execute_complete", "kwargs": kwargs, "timeout": limit}
