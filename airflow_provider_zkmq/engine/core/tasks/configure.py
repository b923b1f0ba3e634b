"""What an operator does to a queue: configure, pause, resume, publish its archive."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_zkmq.engine.core.client.context import Context
from airflow_provider_zkmq.engine.core.model.codec import MAX_ZXID, abbreviated, dump, whole_number
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.model.selectors import FilterType, check_types, encode_types
from airflow_provider_zkmq.engine.core.model.time import Duration, interval_seconds, seconds, spell_seconds
from airflow_provider_zkmq.engine.core.protocol.ops import Exists, Failure, Get, Node, Ops, Procedure
from airflow_provider_zkmq.engine.core.protocol.transact import failed_at, never, refused, transact
from airflow_provider_zkmq.engine.core.read.configuration import ORDERS, defaults, read_conf
from airflow_provider_zkmq.engine.core.read.nodes import MARKS, create_skeleton, queue_missing, refuse_missing
from airflow_provider_zkmq.engine.core.read.server_clock import Archive
from airflow_provider_zkmq.engine.errors import ConfigError


def configure(
    context: Context,
    *,
    filters: Mapping[str, FilterType] | None = None,
    task_gc_lifetime: Duration | None = None,
    task_gc_interval: Duration | None = None,
    policy: RetryPolicy | None = None,
    lock: Duration | None = None,
    order: str | None = None,
    archive: bool | None = None,
    follow: bool | None = None,
) -> Procedure[None]:
    """Create the queue if it does not exist and set the given values; what is not given stays as it is.

    ``filters`` replaces the declaration of filter types. ``task_gc_lifetime``: how long a finished task is kept,
    ``task_gc_interval``: how often clean-up runs, every second at the most; seconds or a duration. ``policy``: when
    failed tasks run again. ``lock``: how long a claim holds without being extended, also while its session lives (0:
    without bound, the default). ``order``: ``"fifo"``: claims happen in the order in which enqueues were committed;
    ``"default"``: nearly so, consumers keeping out of each other's way. ``archive=True``: the queue is archived, so
    that clean-up keeps what no archive holds, also before the first run of one; ``False``: it is not any more, and
    clean-up waits for none. ``follow=True``: streams follow what ends here, so that runs which leave before their time
    (redriven, dropped, run anew) are kept for them for as long as ended tasks are.
    Raises `ConfigError` for values that are refused, `QueueNotFound` while the queue is being deleted; then nothing is
    written.
    """
    values: dict[str, bytes] = {}
    if filters is not None:
        values["filters"] = encode_types(check_types(filters))
    if task_gc_lifetime is not None:
        values["task_gc_lifetime"] = spell_seconds(seconds("task_gc_lifetime", task_gc_lifetime))
    if task_gc_interval is not None:
        values["task_gc_interval"] = spell_seconds(interval_seconds("task_gc_interval", task_gc_interval))
    if policy is not None:
        values["policy"] = policy.encode()
    if lock is not None:
        values["lock"] = spell_seconds(seconds("lock", lock))
    if order is not None:
        values["order"] = _order(order).encode()
    marks = {"archive": _yes_or_no("archive", archive), "followed": _yes_or_no("follow", follow)}
    created = yield from create_skeleton(context, defaults() | values, [name for name, yes in marks.items() if yes])
    if not created and (yield Exists(context.paths.at("deleting"))) is not None:
        raise (yield from queue_missing(context))
    requested = {name: yes for name, yes in marks.items() if yes is not None}
    if not created and (values or requested):
        yield from _set(context, values, requested)


def _yes_or_no(name: str, value: object) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    msg = f"{name} {value!r} is not understood: True or False"
    raise ConfigError(msg)


def _order(value: str) -> str:
    if value not in ORDERS:
        msg = f"order {value!r} is unknown: use one of {', '.join(ORDERS)}"
        raise ConfigError(msg)
    return value


def _set(context: Context, values: Mapping[str, bytes], marks: dict[str, bool]) -> Procedure[None]:
    """Write several values at once; one that somebody deleted is created again.

    `marks`: whether there is to be a mark how far the archive, or trimming, has come; one that is there tells more, and
    stays.
    """
    missing: set[str] = set()
    wanted = {context.paths.at(name): (name, yes) for name, yes in marks.items()}
    while True:
        ops = Ops()
        for name, value in values.items():
            path = context.paths.conf(name)
            _ = ops.create(path, value) if path in missing else ops.set(path, value, -1)
        for mark, (name, yes) in wanted.items():
            _ = ops.create(mark, MARKS[name]) if yes else ops.delete(mark)
        if not ops.items:
            return
        outcome = yield from transact(ops.multi(), never)
        if outcome.committed:
            return
        path = failed_at(outcome, ops.multi())
        if path in wanted and outcome.failure in {Failure.NODE_EXISTS, Failure.NO_NODE}:
            del wanted[path]  # it is as it is to be
        elif outcome.failure is Failure.NO_NODE and path not in missing:
            missing.add(path)
        elif outcome.failure is Failure.NODE_EXISTS:
            missing.discard(path)
        else:
            raise refused("configuring the queue", outcome, ops.multi())


def pause(context: Context) -> Procedure[bool]:
    """Hand out nothing until `resume`; True if it was not paused before."""
    return (yield from _set_paused(context, paused=True))


def resume(context: Context) -> Procedure[bool]:
    """Hand out tasks again; True if it was paused."""
    return (yield from _set_paused(context, paused=False))


def _set_paused(context: Context, *, paused: bool) -> Procedure[bool]:
    yield from read_conf(context)
    ops = Ops()
    path = context.paths.at("paused")
    _ = ops.create(path) if paused else ops.delete(path)
    outcome = yield from transact(ops.multi(), never)
    done = Failure.NODE_EXISTS if paused else Failure.NO_NODE
    if not outcome.committed and outcome.failure is not done:
        raise refused("pausing the queue" if paused else "resuming the queue", outcome, ops.multi())
    return bool(outcome.committed)


def set_archive(context: Context, record: bytes, version: int | None) -> Procedure[None]:
    """Publish how far the archive has come: the znode's version must be `version` (None: it must not exist)."""
    path = context.paths.at("archive")
    ops = Ops()
    _ = ops.create(path, record) if version is None else ops.set(path, record, version)
    outcome = yield from transact(ops.multi(), never)
    if outcome.committed:
        return
    if outcome.failure in {Failure.BAD_VERSION, Failure.NODE_EXISTS, Failure.NO_NODE}:
        node: Node | None = yield Get(path)
        if node is not None and node.data == record:
            return
        msg = f"{path} was changed by another archive run; run this one again"
        raise ConfigError(msg)
    raise refused("publishing the archive", outcome, ops.multi())


def publish_archive(context: Context, reached: Archive) -> Procedure[None]:
    """Say how far the archive has come; clean-up deletes up to there. `reached` is an `archive()` with other values.

    Raises `ConfigError` for a watermark that is no zxid, and where another run has written since ``reached.version``
    was read; `OutcomeUnknown`.
    """
    watermark = whole_number("watermark", reached.watermark)
    if watermark > MAX_ZXID:
        msg = f"watermark {abbreviated(watermark)} is not allowed: no transaction of ZooKeeper has such a number"
        raise ConfigError(msg)
    yield from refuse_missing(context)
    record = {"watermark": watermark, "directory": reached.directory, "run": reached.run}
    yield from set_archive(context, dump(record), reached.version)
