"""A queue's configuration as its users see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.filters import FilterType
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.core.reading.configuration import read_conf
from airflow_provider_zkmq.engine.errors import CorruptRecord


@dataclass(frozen=True, slots=True)
class QueueConf:
    """How a queue is configured, by the names that `configure` takes; times in seconds.

    ``task_gc_lifetime``: how long an ended task is kept, ``task_gc_interval``: how often clean-up runs (None: never,
    as in a queue file). ``lock``: how long a claim holds without being extended; None: as long as its session.
    ``order``: ``"default"`` or ``"fifo"``. ``paused``: nothing is handed out. ``archive``: the queue is archived, and
    clean-up keeps what its archive does not hold; ``archived``: up to which zxid that is, None without an archive.
    ``follow``: streams follow what ends, and runs that leave before they were taken are kept for them.
    """

    filters: Mapping[str, FilterType]
    policy: RetryPolicy
    task_gc_lifetime: float | None
    task_gc_interval: float | None
    lock: float | None
    order: str
    paused: bool
    archived: int | None
    archive: bool = False
    follow: bool = False


def conf(context: Context) -> Procedure[QueueConf]:
    """The queue's configuration, from this client's memory while nothing has changed.

    Raises `QueueNotFound`, and `CorruptRecord` for filters or a policy that cannot be read.
    """
    known = yield from read_conf(context)
    if known.policy_error is not None:
        raise CorruptRecord(known.policy_error)
    return QueueConf(
        filters=dict(known.types),
        policy=known.policy,
        task_gc_lifetime=known.gc_lifetime,
        task_gc_interval=known.gc_interval,
        lock=known.lock,
        order=known.order,
        paused=known.paused,
        archived=known.archive,
        archive=known.archive is not None,
        follow=known.follow,
    )
