"""What a worker's keeper does for its queue while every slot of the worker is busy: idle ones do it themselves."""

from __future__ import annotations

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.durations import Duration, seconds
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure, Wait
from airflow_provider_zkmq.engine.core.upkeep.rescue import tend


def look_after(context: Context) -> Procedure[None]:
    """Rescue and promote what is due, as a claim would; nothing is done by a client that has not claimed yet."""
    if context.registration.consumer is not None:
        yield from tend(context)


def wait_for_change(context: Context, seen: int, timeout: Duration) -> Procedure[bool]:
    """Wait until the queue has changed since its `changes` were `seen`, at most for `timeout`; whether it has."""
    return bool((yield Wait(context.signal, seen, seconds("timeout", timeout))))
