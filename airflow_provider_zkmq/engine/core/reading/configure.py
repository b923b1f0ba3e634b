"""A queue's configuration: read under watches, so that a change takes effect everywhere without a restart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.conf import Conf
from airflow_provider_zkmq.engine.core.model.durations import lock_seconds as lock_seconds  # noqa: PLC0414
from airflow_provider_zkmq.engine.core.model.durations import optional_seconds as optional_seconds  # noqa: PLC0414
from airflow_provider_zkmq.engine.core.model.durations import seconds as seconds  # noqa: PLC0414
from airflow_provider_zkmq.engine.core.model.durations import spell_seconds
from airflow_provider_zkmq.engine.core.model.filters import FilterType, check_types, decode_types, encode_types
from airflow_provider_zkmq.engine.core.model.paths import LAYOUT
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.model.records import load
from airflow_provider_zkmq.engine.core.protocol.ops import Failure, Get, Node, Ops, Procedure, Sync
from airflow_provider_zkmq.engine.core.protocol.transact import failed_at, never, refused, transact
from airflow_provider_zkmq.engine.core.reading.parts import reread, watched_parts
from airflow_provider_zkmq.engine.core.reading.skeleton import create_skeleton
from airflow_provider_zkmq.engine.errors import ConfigError, CorruptRecord

DEFAULT_GC_LIFETIME: Final = 86_400.0
DEFAULT_GC_INTERVAL: Final = 300.0
ORDERS: Final = ("default", "fifo")


def configure(
    context: Context,
    *,
    filters: Mapping[str, FilterType] | None = None,
    task_gc_lifetime: object = None,
    task_gc_interval: object = None,
    policy: RetryPolicy | None = None,
    lock: object = None,
    order: str | None = None,
) -> Procedure[None]:
    """Create the queue if it does not exist and set the given values; what is not given stays as it is.

    ``filters`` replaces the declaration of filter types. ``task_gc_lifetime``: how long a finished task is kept,
    ``task_gc_interval``: how often clean-up runs; seconds or a duration. ``policy``: when failed tasks run again.
    ``lock``: how long a claim holds without being extended, also while its session lives (0: without bound, the
    default). ``order``: ``"fifo"``: claims happen in the order in which enqueues were committed; ``"default"``: nearly
    so, consumers keeping out of each other's way.
    Raises `ConfigError` for values that are refused; then nothing is written.
    """
    values: dict[str, bytes] = {}
    if filters is not None:
        values["filters"] = encode_types(check_types(filters))
    if task_gc_lifetime is not None:
        values["task_gc_lifetime"] = spell_seconds(seconds("task_gc_lifetime", task_gc_lifetime))
    if task_gc_interval is not None:
        values["task_gc_interval"] = spell_seconds(seconds("task_gc_interval", task_gc_interval))
    if policy is not None:
        values["policy"] = policy.encode()
    if lock is not None:
        values["lock"] = spell_seconds(seconds("lock", lock))
    if order is not None:
        values["order"] = _order(order).encode()
    created = yield from create_skeleton(context, _defaults() | values)
    if not created:
        yield from _refuse_another_layout(context)
    if not created and values:
        yield from _set(context, values)


def _refuse_another_layout(context: Context) -> Procedure[None]:
    """Raise `ConfigError` before anything is written into a queue of another version's layout."""
    path = context.paths.conf("layout")
    node: Node | None = yield Get(path)
    if node is not None:
        _check_layout(path, node.data)


def _check_layout(path: str, data: bytes) -> None:
    if data != str(LAYOUT).encode():
        found = data[:20]
        msg = f"{path} is {found!r}: this version reads layout {LAYOUT}; upgrade airflow-provider-zkmq on this machine"
        raise ConfigError(msg)


def _order(value: str) -> str:
    if value not in ORDERS:
        msg = f"order {value!r} is unknown: use one of {', '.join(ORDERS)}"
        raise ConfigError(msg)
    return value


def _defaults() -> dict[str, bytes]:
    return {
        "layout": str(LAYOUT).encode(),
        "filters": b"{}",
        "policy": RetryPolicy().encode(),
        "task_gc_lifetime": spell_seconds(DEFAULT_GC_LIFETIME),
        "task_gc_interval": spell_seconds(DEFAULT_GC_INTERVAL),
        "lock": b"0",
        "order": b"default",
    }


def _set(context: Context, values: Mapping[str, bytes]) -> Procedure[None]:
    """Write several values at once; one that somebody deleted is created again."""
    missing: set[str] = set()
    while True:
        ops = Ops()
        for name, value in values.items():
            path = context.paths.conf(name)
            _ = ops.create(path, value) if path in missing else ops.set(path, value, -1)
        outcome = yield from transact(ops.multi(), never)
        if outcome.committed:
            return
        path = failed_at(outcome, ops.multi())
        if outcome.failure is Failure.NO_NODE and path not in missing:
            missing.add(path)
        elif outcome.failure is Failure.NODE_EXISTS:
            missing.discard(path)
        else:
            raise refused("configuring the queue", outcome, ops.multi())


def read_conf(context: Context, *, create: bool = False) -> Procedure[Conf]:
    """The queue's configuration, from memory while nothing changed.

    `create`: make the queue with default values where it does not exist. Raises `ConfigError` where it does not
    exist, or was written by a newer layout, and `CorruptRecord` for filters or a policy that cannot be read.
    """
    parts = watched_parts(context)
    whole = context.configuration.watch
    if whole is not None and context.configuration.conf is not None and all(part.fresh for part in parts.values()):
        return context.configuration.conf
    if whole is None:
        for part in parts.values():
            part.watch = None
    yield from reread(context, parts)
    if parts["layout"].value is None and not create:
        yield Sync(context.root)  # the server that we read from may lag behind
        yield from reread(context, parts)
    if parts["layout"].value is None and create:
        yield from create_skeleton(context, _defaults())
        yield from reread(context, parts)
    context.configuration.conf = None  # what is refused below must not be followed by what stood before
    context.configuration.conf = _parse(context, {name: part.value for name, part in parts.items()})
    return context.configuration.conf


def _parse(context: Context, nodes: dict[str, Any]) -> Conf:
    layout, archive = nodes["layout"], nodes["archive"]
    if layout is None:
        msg = f"queue {context.queue!r} does not exist under {context.root!r}; create it with configure() or enqueue()"
        raise ConfigError(msg)
    _check_layout(context.paths.conf("layout"), layout.data)
    return Conf(
        types=decode_types(context.paths.conf("filters"), _data(nodes["filters"])),
        policy=RetryPolicy.decode(context.paths.conf("policy"), _data(nodes["policy"])),
        gc_lifetime=_number(context, nodes, "task_gc_lifetime", DEFAULT_GC_LIFETIME),
        gc_interval=_number(context, nodes, "task_gc_interval", DEFAULT_GC_INTERVAL),
        paused=nodes["paused"] is not None,
        lock=_number(context, nodes, "lock", 0.0) or None,
        order=_known_order(context, _data(nodes["order"])),
        archive=None if archive is None else _watermark(context.paths.at("archive"), archive.data),
    )


def _data(node: Node | None) -> bytes:
    return b"" if node is None else node.data


def _number(context: Context, nodes: dict[str, Node | None], name: str, default: float) -> float:
    """A number of seconds; an unreadable one is reported and the default used: it must not stop the queue."""
    data = _data(nodes[name]).strip()
    try:
        return seconds(name, float(data)) if data else default
    except ValueError as error:
        context.report(context.paths.conf(name), f"not a number of seconds, using {default:.0f}: {error}")
        return default


def _known_order(context: Context, data: bytes) -> str:
    order = data.decode(errors="replace").strip() or "default"
    if order not in ORDERS:
        context.report(context.paths.conf("order"), f"{order!r} is no order of ours, using 'fifo', which serves any")
        return "fifo"
    return order


def _watermark(path: str, data: bytes) -> int:
    """Up to which zxid finished tasks are archived; an unreadable mark allows nothing to be collected."""
    try:
        return int(load(path, data).get("watermark", 0))
    except (CorruptRecord, TypeError, ValueError):
        return 0


def pause(context: Context) -> Procedure[bool]:
    """Hand out nothing until `resume`; True if it was not paused before."""
    return (yield from _set_paused(context, paused=True))


def resume(context: Context) -> Procedure[bool]:
    """Hand out tasks again; True if it was paused."""
    return (yield from _set_paused(context, paused=False))


def _set_paused(context: Context, *, paused: bool) -> Procedure[bool]:
    yield from read_conf(context, create=True)
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


def read_archive(context: Context) -> Procedure[tuple[dict[str, Any], int | None]]:
    """The archive's record and version; ({}, None) where no archive was made yet."""
    path = context.paths.at("archive")
    node: Node | None = yield Get(path)
    return ({}, None) if node is None else (load(path, node.data), node.stat.version)
