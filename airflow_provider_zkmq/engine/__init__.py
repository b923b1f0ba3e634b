"""The queue engine: it knows ZooKeeper, and nothing of Airflow or Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine.aqueue import AsyncClaim, AsyncQueue
    from airflow_provider_zkmq.engine.aworker import AsyncWorker
    from airflow_provider_zkmq.engine.client import AsyncZkmq, Zkmq
    from airflow_provider_zkmq.engine.config import ConnectionConfig, Tls
    from airflow_provider_zkmq.engine.core.batch import Batch
    from airflow_provider_zkmq.engine.core.explain import Explanation
    from airflow_provider_zkmq.engine.core.filters import Integer, OrderedEnum, String
    from airflow_provider_zkmq.engine.core.inspect import Task
    from airflow_provider_zkmq.engine.core.policy import ConsumeOnce, ConsumeTimes, RetryPolicy
    from airflow_provider_zkmq.engine.core.records import Attempt, Message
    from airflow_provider_zkmq.engine.core.selectors import AllOf, AnyOf, Condition, parse_selector
    from airflow_provider_zkmq.engine.core.states import State, Status
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
    from airflow_provider_zkmq.engine.handling import Running, RunningAsync
    from airflow_provider_zkmq.engine.monitoring import Poll, monitor
    from airflow_provider_zkmq.engine.outcomes import Error, Retry, Snooze, Success
    from airflow_provider_zkmq.engine.queue import Claim, Queue
    from airflow_provider_zkmq.engine.unit_of_work import AsyncUnitOfWork, UnitOfWork
    from airflow_provider_zkmq.engine.worker import Worker

_HOME = {
    "aqueue": ("AsyncClaim", "AsyncQueue"),
    "aworker": ("AsyncWorker",),
    "client": ("AsyncZkmq", "Zkmq"),
    "config": ("ConnectionConfig", "Tls"),
    "core.batch": ("Batch",),
    "core.explain": ("Explanation",),
    "core.filters": ("Integer", "OrderedEnum", "String"),
    "core.inspect": ("Task",),
    "core.policy": ("ConsumeOnce", "ConsumeTimes", "RetryPolicy"),
    "core.records": ("Attempt", "Message"),
    "core.selectors": ("AllOf", "AnyOf", "Condition", "parse_selector"),
    "core.states": ("State", "Status"),
    "errors": (
        "AccessDenied", "ClaimLost", "ConfigError", "CorruptRecord", "DuplicateTask", "IllegalTransition",
        "OutcomeUnknown", "QueueError", "QueueFull", "QueuePaused", "SessionLost", "TaskNotFound", "TaskTooLarge",
        "TransportError", "Unavailable", "WaitTimeout", "ZkmqError",
    ),
    "handling": ("Running", "RunningAsync"),
    "monitoring": ("Poll", "monitor"),
    "outcomes": ("Error", "Retry", "Snooze", "Success"),
    "queue": ("Claim", "Queue"),
    "unit_of_work": ("AsyncUnitOfWork", "UnitOfWork"),
    "worker": ("Worker",),
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
