"""A queue's configuration: read under watches, so that a change takes effect everywhere without a restart."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model import checks
from airflow_provider_zkmq.engine.core.model.conf import Conf
from airflow_provider_zkmq.engine.core.model.durations import SHORTEST_INTERVAL, seconds, spell_seconds
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.model.stored import corrupt_unless_read, load
from airflow_provider_zkmq.engine.core.protocol.ops import Get, Node, Procedure, Sync
from airflow_provider_zkmq.engine.core.reading.existence import queue_missing
from airflow_provider_zkmq.engine.core.reading.nodes import read_nodes, unless_corrupt
from airflow_provider_zkmq.engine.core.reading.once import once
from airflow_provider_zkmq.engine.core.reading.parts import THERE, reread, watched_parts
from airflow_provider_zkmq.engine.core.reading.readable import declarations, retry_policy
from airflow_provider_zkmq.engine.core.reading.skeleton import create_skeleton
from airflow_provider_zkmq.engine.errors import CorruptRecord, ZkmqError

DEFAULT_GC_LIFETIME: Final = 86_400.0
DEFAULT_GC_INTERVAL: Final = 300.0
ORDERS: Final = ("default", "fifo")


def defaults() -> dict[str, bytes]:
    """What a new queue is configured with."""
    return {
        "filters": b"{}",
        "policy": RetryPolicy().encode(),
        "task_gc_lifetime": spell_seconds(DEFAULT_GC_LIFETIME),
        "task_gc_interval": spell_seconds(DEFAULT_GC_INTERVAL),
        "lock": b"0",
        "order": b"default",
    }


def default_conf() -> Conf:
    """The configuration of a queue that is created by an enqueue."""
    return Conf({}, RetryPolicy(), DEFAULT_GC_LIFETIME, DEFAULT_GC_INTERVAL, paused=False)


def fresh_conf(context: Context) -> Conf | None:
    """The configuration that this client remembers, as long as nothing has changed."""
    parts = watched_parts(context).values()
    known = context.configuration.watch is not None and all(part.fresh for part in parts)
    return context.configuration.conf if known else None


def read_conf(context: Context, *, create: bool = False) -> Procedure[Conf]:
    """The queue's configuration, from memory while nothing changed.

    `create`: make the queue with default values where it does not exist. Raises `QueueNotFound` where it does not
    exist, and `CorruptRecord` for filters or a policy that cannot be read.
    """
    known = fresh_conf(context)
    if known is not None:
        return known
    read = yield from once(context, "conf", lambda: fresh_conf(context), lambda: _read_conf(context, create=create))
    return read or fresh_conf(context) or (yield from _read_conf(context, create=create))


def _read_conf(context: Context, *, create: bool) -> Procedure[Conf]:
    parts = watched_parts(context)
    if context.configuration.watch is None:
        for part in parts.values():
            part.watch = None
    yield from reread(context, parts)
    if parts[THERE].value is None and not create:
        yield Sync(context.root)  # the server that we read from may lag behind
        yield from reread(context, parts)
    if parts[THERE].value is None and create:
        yield from create_skeleton(context, defaults())
        yield from reread(context, parts)
    context.configuration.conf = None  # what is refused below must not be followed by what stood before
    if parts[THERE].value is None:
        raise (yield from _not_there(context))
    context.configuration.conf = _parse(context, {name: part.value for name, part in parts.items()})
    return context.configuration.conf


def _not_there(context: Context) -> Procedure[ZkmqError]:
    """The error for a queue without configuration: it is damaged, or is not there, or being deleted."""
    parts = (context.paths.at(THERE), context.paths.at("tasks"), context.paths.at("deleting"))
    there, tasks, deleting = yield from read_nodes(parts)  # at one moment: it may have been created since
    if tasks is not None and there is None and deleting is None:
        return CorruptRecord(
            f"{parts[0]} is missing, although queue {context.queue!r} is there: "
            "create it anew, empty, and configure the queue, or delete the queue by force"
        )
    return (yield from queue_missing(context))


def known_conf(context: Context) -> Procedure[Conf]:
    """The configuration as this client read it last, changed or not since; read now only where it never was.

    For what goes on in the middle of a write: a queue that is deleted meanwhile must be refused by the write itself.
    """
    return context.configuration.conf or (yield from read_conf(context))


def _parse(context: Context, nodes: dict[str, Any]) -> Conf:
    policy, policy_error = retry_policy(context, nodes["policy"])
    return Conf(
        types=declarations(context, nodes["filters"]),
        policy=policy,
        policy_error=policy_error,
        gc_lifetime=_number(context, nodes, "task_gc_lifetime", DEFAULT_GC_LIFETIME),
        gc_interval=max(SHORTEST_INTERVAL, _number(context, nodes, "task_gc_interval", DEFAULT_GC_INTERVAL)),
        paused=nodes["paused"] is not None,
        lock=_number(context, nodes, "lock", 0.0) or None,
        order=_known_order(context, _data(nodes["order"])),
        archive=None if nodes["archive"] is None else _archived(context, nodes["archive"]).get("watermark", 0),
        follow=nodes["followed"] is not None,
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


def _archived(context: Context, node: Node) -> dict[str, Any]:
    """How far the queue is archived; an unreadable mark allows nothing to be collected."""
    path = context.paths.at("archive")
    return unless_corrupt(context, path, partial(load_archive, path, node.data), "nothing is collected") or {}


_ARCHIVE: Final[dict[str, checks.Check[Any]]] = {
    "watermark": checks.zxid,
    "directory": checks.optional(checks.shown),
    "run": checks.optional(checks.text),
}


def load_archive(path: str, data: bytes) -> dict[str, Any]:
    """How far an archive has come. Raises `CorruptRecord`."""
    record = load(path, data)
    with corrupt_unless_read(path, "an archive's record"):
        return {name: check(record[name]) for name, check in _ARCHIVE.items() if name in record}


def read_archive(context: Context) -> Procedure[tuple[dict[str, Any], int | None]]:
    """The archive's record and version; ({}, None) where no archive was made yet."""
    path = context.paths.at("archive")
    node: Node | None = yield Get(path)
    return ({}, None) if node is None else (load_archive(path, node.data), node.stat.version)
