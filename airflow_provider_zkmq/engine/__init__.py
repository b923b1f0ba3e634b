"""The queue engine: it knows ZooKeeper, and nothing of Airflow or Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine.config import ConnectionConfig, Tls
    from airflow_provider_zkmq.engine.connect import Zkmq
    from airflow_provider_zkmq.engine.core.model.filters import Integer, OrderedEnum, String
    from airflow_provider_zkmq.engine.core.model.policy import ConsumeOnce, ConsumeTimes, RetryPolicy
    from airflow_provider_zkmq.engine.core.model.records import Attempt, Message
    from airflow_provider_zkmq.engine.core.model.selectors import AllOf, AnyOf, Condition, parse_selector
    from airflow_provider_zkmq.engine.core.model.states import State, Status
    from airflow_provider_zkmq.engine.core.reading.explain import Explanation
    from airflow_provider_zkmq.engine.core.reading.inspect import Task
    from airflow_provider_zkmq.engine.core.tasks.batches import Batch
    from airflow_provider_zkmq.engine.errors import (
        AccessDenied,
        ClaimLost,
        ConfigError,
        CorruptRecord,
        DuplicateTask,
        IllegalTransition,
        OutcomeUnknown,
        QueueError,
        QueueFull,
        QueuePaused,
        SessionLost,
        TaskNotFound,
        TaskTooLarge,
        TransportError,
        Unavailable,
        WaitTimeout,
        ZkmqError,
    )
    from airflow_provider_zkmq.engine.fronts.aqueue import AsyncClaim, AsyncQueue
    from airflow_provider_zkmq.engine.fronts.client import AsyncZkmq
    from airflow_provider_zkmq.engine.fronts.queue import Claim, Queue
    from airflow_provider_zkmq.engine.fronts.transaction import AsyncUnitOfWork, UnitOfWork
    from airflow_provider_zkmq.engine.outcomes import Error, Retry, Snooze, Success
    from airflow_provider_zkmq.engine.working.aworker import AsyncWorker
    from airflow_provider_zkmq.engine.working.handling import Running, RunningAsync
    from airflow_provider_zkmq.engine.working.monitoring import Poll, monitor
    from airflow_provider_zkmq.engine.working.worker import Worker

_HOME = {
    "fronts.aqueue": ("AsyncClaim", "AsyncQueue"),
    "working.aworker": ("AsyncWorker",),
    "connect": ("Zkmq",),
    "fronts.client": ("AsyncZkmq",),
    "config": ("ConnectionConfig", "Tls"),
    "core.tasks.batches": ("Batch",),
    "core.reading.explain": ("Explanation",),
    "core.model.filters": ("Integer", "OrderedEnum", "String"),
    "core.reading.inspect": ("Task",),
    "core.model.policy": ("ConsumeOnce", "ConsumeTimes", "RetryPolicy"),
    "core.model.records": ("Attempt", "Message"),
    "core.model.selectors": ("AllOf", "AnyOf", "Condition", "parse_selector"),
    "core.model.states": ("State", "Status"),
    "errors": (
        "AccessDenied", "ClaimLost", "ConfigError", "CorruptRecord", "DuplicateTask", "IllegalTransition",
        "OutcomeUnknown", "QueueError", "QueueFull", "QueuePaused", "SessionLost", "TaskNotFound", "TaskTooLarge",
        "TransportError", "Unavailable", "WaitTimeout", "ZkmqError",
    ),
    "working.handling": ("Running", "RunningAsync"),
    "working.monitoring": ("Poll", "monitor"),
    "outcomes": ("Error", "Retry", "Snooze", "Success"),
    "fronts.queue": ("Claim", "Queue"),
    "fronts.transaction": ("AsyncUnitOfWork", "UnitOfWork"),
    "working.worker": ("Worker",),
}  # fmt: skip
_WHERE = {name: module for module, names in _HOME.items() for name in names}
__all__ = sorted(_WHERE)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Import on first use: neither `zkmq --help` nor Airflow's provider scan pays for kazoo."""
    if name not in _WHERE:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
