"""The queue engine: it knows ZooKeeper, and nothing of Airflow or Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine.api.aqueue import AsyncClaim, AsyncQueue
    from airflow_provider_zkmq.engine.api.client import AsyncZkmq
    from airflow_provider_zkmq.engine.api.loops import AsyncClaims, Claims
    from airflow_provider_zkmq.engine.api.queue import Claim, Queue
    from airflow_provider_zkmq.engine.api.unit_of_work import AsyncUnitOfWork, UnitOfWork
    from airflow_provider_zkmq.engine.config import ConnectionConfig, Tls
    from airflow_provider_zkmq.engine.connect import AnyClaim, AnyClient, AnyQueue, Zkmq
    from airflow_provider_zkmq.engine.core.model.messages import Message, NewTasks, idempotency_series
    from airflow_provider_zkmq.engine.core.model.names import check_name
    from airflow_provider_zkmq.engine.core.model.policy import (
        ConsumeOnce,
        ConsumeTimes,
        Error,
        Retry,
        RetryPolicy,
        Snooze,
        Success,
    )
    from airflow_provider_zkmq.engine.core.model.records import Attempt, Ended, Unreadable
    from airflow_provider_zkmq.engine.core.model.selectors import (
        AllOf,
        AnyOf,
        Condition,
        FilterType,
        FilterTypes,
        Integer,
        OrderedEnum,
        Selector,
        String,
        parse_selector,
        parse_type,
    )
    from airflow_provider_zkmq.engine.core.model.states import State, Status
    from airflow_provider_zkmq.engine.core.model.time import (
        Duration,
        Moment,
        WaitFor,
        parse_duration,
        parse_moment,
        spell_duration,
        wait_event,
    )
    from airflow_provider_zkmq.engine.core.read.configuration import Consumer, QueueConf, Truncation
    from airflow_provider_zkmq.engine.core.read.explain import ConsumerMatch, Explanation
    from airflow_provider_zkmq.engine.core.read.inspect import Task
    from airflow_provider_zkmq.engine.core.read.nodes import Part, Znode
    from airflow_provider_zkmq.engine.core.read.scan import Scanned
    from airflow_provider_zkmq.engine.core.read.server_clock import Archive
    from airflow_provider_zkmq.engine.core.tasks.batches import Batch
    from airflow_provider_zkmq.engine.errors import (
        AccessDenied,
        BadMessage,
        ClaimLost,
        ConfigError,
        CorruptRecord,
        DuplicateTask,
        HostNotFound,
        IllegalTransition,
        NotSecured,
        OutcomeUnknown,
        QueueError,
        QueueNotFound,
        SessionLost,
        TaskNotFound,
        TaskTooLarge,
        TlsRefused,
        TransportError,
        Unavailable,
        Unsupported,
        WaitTimeout,
        ZkmqError,
    )
    from airflow_provider_zkmq.engine.model import MAX_PAYLOAD
    from airflow_provider_zkmq.engine.working.async_worker import AsyncWorker
    from airflow_provider_zkmq.engine.working.handling import Monitor, Poll, Running, RunningAsync, monitor
    from airflow_provider_zkmq.engine.working.worker import Worker

#: The public names by the modules that hold them.
_HOME = {
    "connect": (
        "AnyClaim",
        "AnyClient",
        "AnyQueue",
        "Zkmq",
    ),
    "config": (
        "ConnectionConfig",
        "Tls",
    ),
    "core.model.selectors": (
        "AllOf",
        "AnyOf",
        "Condition",
        "FilterType",
        "FilterTypes",
        "Integer",
        "OrderedEnum",
        "Selector",
        "String",
        "parse_selector",
        "parse_type",
    ),
    "core.model.time": (
        "Duration",
        "Moment",
        "WaitFor",
        "parse_duration",
        "parse_moment",
        "spell_duration",
        "wait_event",
    ),
    "core.model.policy": (
        "ConsumeOnce",
        "ConsumeTimes",
        "Error",
        "Retry",
        "RetryPolicy",
        "Snooze",
        "Success",
    ),
    "core.model.names": ("check_name",),
    "core.model.messages": (
        "Message",
        "NewTasks",
        "idempotency_series",
    ),
    "core.model.records": (
        "Attempt",
        "Ended",
        "Unreadable",
    ),
    "core.model.states": (
        "State",
        "Status",
    ),
    "core.read.server_clock": ("Archive",),
    "core.read.explain": (
        "ConsumerMatch",
        "Explanation",
    ),
    "core.read.inspect": ("Task",),
    "core.read.configuration": (
        "Consumer",
        "QueueConf",
        "Truncation",
    ),
    "core.read.scan": ("Scanned",),
    "core.read.nodes": (
        "Part",
        "Znode",
    ),
    "core.tasks.batches": ("Batch",),
    "errors": (
        "AccessDenied",
        "BadMessage",
        "ClaimLost",
        "ConfigError",
        "CorruptRecord",
        "DuplicateTask",
        "HostNotFound",
        "IllegalTransition",
        "NotSecured",
        "OutcomeUnknown",
        "QueueError",
        "QueueNotFound",
        "SessionLost",
        "TaskNotFound",
        "TaskTooLarge",
        "TlsRefused",
        "TransportError",
        "Unavailable",
        "Unsupported",
        "WaitTimeout",
        "ZkmqError",
    ),
    "api.aqueue": (
        "AsyncClaim",
        "AsyncQueue",
    ),
    "api.loops": (
        "AsyncClaims",
        "Claims",
    ),
    "api.client": ("AsyncZkmq",),
    "api.queue": (
        "Claim",
        "Queue",
    ),
    "api.unit_of_work": (
        "AsyncUnitOfWork",
        "UnitOfWork",
    ),
    "model": ("MAX_PAYLOAD",),
    "working.async_worker": ("AsyncWorker",),
    "working.handling": (
        "Monitor",
        "Poll",
        "Running",
        "RunningAsync",
        "monitor",
    ),
    "working.worker": ("Worker",),
}
_WHERE = {name: module for module, names in _HOME.items() for name in names}
__all__ = [
    "MAX_PAYLOAD",
    "AccessDenied",
    "AllOf",
    "AnyClaim",
    "AnyClient",
    "AnyOf",
    "AnyQueue",
    "Archive",
    "AsyncClaim",
    "AsyncClaims",
    "AsyncQueue",
    "AsyncUnitOfWork",
    "AsyncWorker",
    "AsyncZkmq",
    "Attempt",
    "BadMessage",
    "Batch",
    "Claim",
    "ClaimLost",
    "Claims",
    "Condition",
    "ConfigError",
    "ConnectionConfig",
    "ConsumeOnce",
    "ConsumeTimes",
    "Consumer",
    "ConsumerMatch",
    "CorruptRecord",
    "DuplicateTask",
    "Duration",
    "Ended",
    "Error",
    "Explanation",
    "FilterType",
    "FilterTypes",
    "HostNotFound",
    "IllegalTransition",
    "Integer",
    "Message",
    "Moment",
    "Monitor",
    "NewTasks",
    "NotSecured",
    "OrderedEnum",
    "OutcomeUnknown",
    "Part",
    "Poll",
    "Queue",
    "QueueConf",
    "QueueError",
    "QueueNotFound",
    "Retry",
    "RetryPolicy",
    "Running",
    "RunningAsync",
    "Scanned",
    "Selector",
    "SessionLost",
    "Snooze",
    "State",
    "Status",
    "String",
    "Success",
    "Task",
    "TaskNotFound",
    "TaskTooLarge",
    "Tls",
    "TlsRefused",
    "TransportError",
    "Truncation",
    "Unavailable",
    "UnitOfWork",
    "Unreadable",
    "Unsupported",
    "WaitFor",
    "WaitTimeout",
    "Worker",
    "Zkmq",
    "ZkmqError",
    "Znode",
    "check_name",
    "idempotency_series",
    "monitor",
    "parse_duration",
    "parse_moment",
    "parse_selector",
    "parse_type",
    "spell_duration",
    "wait_event",
]


def __getattr__(name: str) -> object:
    """Import on first use: neither `zkmq --help` nor Airflow's provider scan pays for kazoo."""
    if name not in _WHERE:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
