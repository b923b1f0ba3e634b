"""The queue engine: it knows ZooKeeper, and nothing of Airflow or Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine.config import ConnectionConfig, Tls
    from airflow_provider_zkmq.engine.connect import AnyClaim, AnyClient, AnyQueue, Zkmq
    from airflow_provider_zkmq.engine.core.model.conditions import Condition
    from airflow_provider_zkmq.engine.core.model.durations import Duration, parse_duration, spell_duration
    from airflow_provider_zkmq.engine.core.model.filters import (
        FilterType,
        FilterTypes,
        Integer,
        OrderedEnum,
        String,
        parse_type,
    )
    from airflow_provider_zkmq.engine.core.model.letters import Ended, Unreadable
    from airflow_provider_zkmq.engine.core.model.messages import Message, NewTasks, idempotency_series
    from airflow_provider_zkmq.engine.core.model.moments import Moment, parse_moment
    from airflow_provider_zkmq.engine.core.model.outcomes import Error, Retry, Snooze, Success
    from airflow_provider_zkmq.engine.core.model.paths import check_name
    from airflow_provider_zkmq.engine.core.model.policy import ConsumeOnce, ConsumeTimes, RetryPolicy
    from airflow_provider_zkmq.engine.core.model.records import Attempt
    from airflow_provider_zkmq.engine.core.model.selectors import AllOf, AnyOf, Selector, parse_selector
    from airflow_provider_zkmq.engine.core.model.states import State, Status
    from airflow_provider_zkmq.engine.core.model.waits import WaitFor, wait_event
    from airflow_provider_zkmq.engine.core.reading.archiving import Archive
    from airflow_provider_zkmq.engine.core.reading.explain import ConsumerVerdict, Explanation
    from airflow_provider_zkmq.engine.core.reading.inspect import Task
    from airflow_provider_zkmq.engine.core.reading.register import Consumer
    from airflow_provider_zkmq.engine.core.reading.scanning import Scanned
    from airflow_provider_zkmq.engine.core.reading.settings import QueueConf
    from airflow_provider_zkmq.engine.core.reading.trees import Part, Znode
    from airflow_provider_zkmq.engine.core.reading.trimmed import Trimmed
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
    from airflow_provider_zkmq.engine.fronts.aqueue import AsyncClaim, AsyncQueue
    from airflow_provider_zkmq.engine.fronts.client import AsyncZkmq
    from airflow_provider_zkmq.engine.fronts.loops import AsyncClaims, Claims
    from airflow_provider_zkmq.engine.fronts.queue import Claim, Queue
    from airflow_provider_zkmq.engine.fronts.transaction import AsyncUnitOfWork, UnitOfWork
    from airflow_provider_zkmq.engine.model import MAX_PAYLOAD
    from airflow_provider_zkmq.engine.working.async_worker import AsyncWorker
    from airflow_provider_zkmq.engine.working.handling import Monitor, Poll, Running, RunningAsync, monitor
    from airflow_provider_zkmq.engine.working.worker import Worker

#: The public names by the modules that hold them.
_HOME = {
    "connect": ("AnyClaim", "AnyClient", "AnyQueue", "Zkmq"),
    "config": ("ConnectionConfig", "Tls"),
    "core.model.conditions": ("Condition",),
    "core.model.durations": ("Duration", "parse_duration", "spell_duration"),
    "core.model.filters": ("FilterType", "FilterTypes", "Integer", "OrderedEnum", "String", "parse_type"),
    "core.model.moments": ("Moment", "parse_moment"),
    "core.model.outcomes": ("Error", "Retry", "Snooze", "Success"),
    "core.model.paths": ("check_name",),
    "core.model.policy": ("ConsumeOnce", "ConsumeTimes", "RetryPolicy"),
    "core.model.messages": ("Message", "NewTasks", "idempotency_series"),
    "core.model.letters": ("Ended", "Unreadable"),
    "core.model.records": ("Attempt",),
    "core.model.selectors": ("AllOf", "AnyOf", "Selector", "parse_selector"),
    "core.model.states": ("State", "Status"),
    "core.model.waits": ("WaitFor", "wait_event"),
    "core.reading.archiving": ("Archive",),
    "core.reading.explain": ("ConsumerVerdict", "Explanation"),
    "core.reading.inspect": ("Task",),
    "core.reading.register": ("Consumer",),
    "core.reading.scanning": ("Scanned",),
    "core.reading.settings": ("QueueConf",),
    "core.reading.trees": ("Part", "Znode"),
    "core.reading.trimmed": ("Trimmed",),
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
    "fronts.aqueue": ("AsyncClaim", "AsyncQueue"),
    "fronts.loops": ("AsyncClaims", "Claims"),
    "fronts.client": ("AsyncZkmq",),
    "fronts.queue": ("Claim", "Queue"),
    "fronts.transaction": ("AsyncUnitOfWork", "UnitOfWork"),
    "model": ("MAX_PAYLOAD",),
    "working.aworker": ("AsyncWorker",),
    "working.handling": ("Running", "RunningAsync"),
    "working.monitoring": ("Monitor", "Poll", "monitor"),
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
    "ConsumerVerdict",
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
    "Trimmed",
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
