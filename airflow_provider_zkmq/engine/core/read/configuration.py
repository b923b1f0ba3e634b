"""A queue's configuration as a client knows it, its settings and its consumers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Final, TypedDict

from ...errors import CorruptRecord
from ..client_state import CachedRead, Context
from ..model.filters import FilterType
from ..model.settings import Conf, Limit, RetryPolicy, Settings, load_settings
from ..model.values import SHORTEST_INTERVAL, Zxid, load, seconds, spell_seconds
from ..model.znode_names import Paths
from ..zk_operations import Exists, Get, Node, Pipeline, Procedure, Stat, Sync, Watch
from .bulk_read import read_nodes, unless_corrupt
from .queue_existence import THERE, create_skeleton, queue_missing, refuse_missing
from .watch_cache import Relay, single_flight

# --- A queue's configuration: read under watches, so that a change takes effect everywhere without a restart.

DEFAULT_GC_LIFETIME: Final = 86_400.0
DEFAULT_GC_INTERVAL: Final = 300.0
#: What a new queue is configured with: its settings, and what stands below them.
DEFAULT_SETTINGS: Final = Settings()
DEFAULT_TIMES: Final = {
    "task_gc_lifetime": spell_seconds(DEFAULT_GC_LIFETIME),
    "task_gc_interval": spell_seconds(DEFAULT_GC_INTERVAL),
}


def default_conf() -> Conf:
    """The configuration of a queue that is created by an enqueue."""
    return Conf({}, RetryPolicy(), DEFAULT_GC_LIFETIME, DEFAULT_GC_INTERVAL, paused=False)


def fresh_conf(context: Context) -> Conf | None:
    """The configuration that this client remembers, as long as nothing has changed."""
    known = context.configuration
    if known.conf is None or known.watch is None:
        return None
    for part in known.parts:
        if not part.fresh:
            return None
    return known.conf


def read_conf(context: Context, *, create: bool = False) -> Procedure[Conf]:
    """The queue's configuration, from memory while nothing changed.

    `create`: make the queue with default values where it does not exist. Raises `QueueNotFound` where it does not
    exist, and `CorruptRecord` for settings that this client never could read.
    """
    known = fresh_conf(context)
    if known is not None:
        return known
    read = yield from single_flight(
        context, "conf", lambda: fresh_conf(context), lambda: _read_conf(context, create=create)
    )
    return read or fresh_conf(context) or (yield from _read_conf(context, create=create))


def _read_conf(context: Context, *, create: bool) -> Procedure[Conf]:
    parts = {name: context.listings.at(path) for name, path in _part_paths(context.paths).items()}
    if context.configuration.watch is None:
        for part in parts.values():
            part.watch = None
    yield from _reread(context, parts)
    if parts[THERE].value is None and not create:
        yield Sync(context.root)  # the server that we read from may lag behind
        yield from _reread(context, parts)
    if parts[THERE].value is None and create:
        yield from create_skeleton(context, DEFAULT_SETTINGS.encode(), DEFAULT_TIMES)
        yield from _reread(context, parts)
    context.configuration.conf = None  # what is refused below must not be followed by what stood before
    if parts[THERE].value is None:
        paths = (context.paths.at(THERE), context.paths.at("tasks"), context.paths.at("deleting"))
        there, tasks, deleting = yield from read_nodes(paths)  # at one moment: it may have been created since
        if tasks is not None and there is None and deleting is None:
            raise CorruptRecord(
                f"{paths[0]} is missing, although queue {context.queue!r} is there: "
                "create it anew, empty, and configure the queue, or delete the queue by force"
            )
        raise (yield from queue_missing(context))
    context.configuration.conf = _parse(context, {name: part.value for name, part in parts.items()})
    context.configuration.parts = tuple(parts.values())
    context.configuration.born = parts[THERE].value.stat.czxid
    return context.configuration.conf


_NAMES: Final = ("task_gc_lifetime", "task_gc_interval")
_MARKS: Final = ("archive", "followed")


@lru_cache(maxsize=256)
def _part_paths(paths: Paths) -> Mapping[str, str]:
    """Where each part stands: every call of a queue's asks for all of them."""
    return {name: paths.at(name) for name in (THERE, *_MARKS)} | {name: paths.at("conf", name) for name in _NAMES}


def _reread(context: Context, parts: dict[str, CachedRead]) -> Procedure[None]:
    """Read what has changed. What is missing from a queue is looked for again under a watch that sees it come."""
    context.configuration.watch = context.new_watch()
    stale = [name for name, part in parts.items() if not part.fresh]
    yield from _read(context, parts, stale, _MARKS)
    missing = [name for name in stale if parts[name].value is None and name not in _MARKS]
    if missing and parts[THERE].value is not None:
        yield from _read(context, parts, missing, missing)


def _read(
    context: Context, parts: dict[str, CachedRead], names: Sequence[str], optional: Sequence[str]
) -> Procedure[None]:
    """Read parts; only the watch of those that are `optional` stands on a missing znode too."""
    ops: list[Get | Exists] = []
    relay, paths = Relay(context.signal, partial(_changed, context)), _part_paths(context.paths)
    watches = {name: Watch(relay) for name in names}
    for name, watch in watches.items():
        if name in optional:
            ops.append(Exists(paths[name], watch))
        if name != "followed":  # of that it matters only whether it is there
            ops.append(Get(paths[name], watch))
    nodes = dict(zip([op.path for op in ops], (yield Pipeline(tuple(ops))), strict=False))
    for name, watch in watches.items():
        value = nodes[paths[name]]
        parts[name].value, parts[name].watch = value, watch if value is not None or name in optional else None


def _changed(context: Context) -> None:
    """A part has changed: mark the configuration as a whole, and wake whoever waits for the queue."""
    if context.configuration.watch is not None:
        context.configuration.watch.fired = True
    context.configuration.changed()
    context.signal.fire()


def known_conf(context: Context) -> Procedure[Conf]:
    """The configuration as this client read it last, changed or not since; read now only where it never was.

    For what goes on in the middle of a write: a queue that is deleted meanwhile must be refused by the write itself.
    """
    return context.configuration.conf or (yield from read_conf(context))


def _parse(context: Context, nodes: dict[str, Any]) -> Conf:
    """What was read; who has read the settings before goes on with those while they are damaged."""
    path, known = context.paths.at(THERE), context.configuration.settings
    try:
        settings, types = context.configuration.settings = load_settings(path, nodes[THERE].data)
    except CorruptRecord as error:
        if known is None:
            raise
        context.warn_once(path, f"{error}; what was read before holds", str(error))
        settings, types = known
    lifetime = _number(context, nodes, "task_gc_lifetime", DEFAULT_GC_LIFETIME)
    interval = max(SHORTEST_INTERVAL, _number(context, nodes, "task_gc_interval", DEFAULT_GC_INTERVAL))
    archived: ArchiveRecord | None = None
    if nodes["archive"] is not None:
        mark, data = context.paths.at("archive"), nodes["archive"].data
        read = lambda: load(mark, data, ArchiveRecord, _ARCHIVE)  # noqa: E731  of one kind for the type checker
        archived = unless_corrupt(context, mark, read, "nothing is collected") or {}
    return Conf(
        types=types,
        policy=settings.policy,
        gc_lifetime=lifetime,
        gc_interval=interval,
        paused=settings.paused,
        lock=settings.lock or None,
        order=settings.order,
        limit=settings.limit or None,
        archive=None if archived is None else archived.get("watermark", 0),
        follow=nodes["followed"] is not None,
    )


def _number(context: Context, nodes: dict[str, Node | None], name: str, default: float) -> float:
    """A number of seconds; an unreadable one is reported and the default used: it must not stop the queue."""
    node = nodes[name]
    data = b"" if node is None else node.data.strip()
    try:
        return seconds(name, float(data)) if data else default
    except ValueError as error:
        context.report(context.paths.at("conf", name), f"not a number of seconds, using {default:.0f}: {error}")
        return default


_ARCHIVE: Final = "an archive's record"


class ArchiveRecord(TypedDict, total=False):
    """What the mark of an archive holds."""

    watermark: Zxid
    directory: str | None
    run: str | None


# --- How far the archive of a queue has come.


@dataclass(frozen=True, slots=True)
class Archive:
    """How far the archive of a queue has come.

    ``watermark``: up to this zxid clean-up may delete what has ended. ``directory``, ``run``: where the archive is, and
    a mark of whoever wrote this. ``version``: how often it was written; None where there is no archive yet.
    ``born``: the transaction that made the queue, by which it is told from another one of its name; it is not written.
    """

    watermark: int = 0
    directory: str | None = None
    run: str | None = None
    version: int | None = None
    born: int = 0


def archive(context: Context) -> Procedure[Archive]:
    """How far the queue's archive has come. Raises `CorruptRecord` for what is no such record, `QueueNotFound`."""
    path = context.paths.at("archive")
    node: Node | None = yield Get(path)
    record: ArchiveRecord = {} if node is None else load(path, node.data, ArchiveRecord, _ARCHIVE)
    stat: Stat | None = yield Exists(context.paths.base)
    if node is None or stat is None:
        yield from refuse_missing(context)
    version, born = None if node is None else node.stat.version, 0 if stat is None else stat.czxid
    return Archive(**record, version=version, born=born)


# --- A queue's configuration as its users see it.


@dataclass(frozen=True, slots=True)
class QueueConf:
    """How a queue is configured, by the names that `configure` takes; times in seconds.

    ``task_gc_lifetime``: how long an ended task is kept, ``task_gc_interval``: how often clean-up runs (None: never,
    as in a queue file). ``lock``: how long a claim holds without being extended; None: as long as its session.
    ``order``: ``"default"`` or ``"fifo"``. ``paused``: nothing is handed out. ``archive``: the queue is archived, and
    clean-up keeps what its archive does not hold; ``archived``: up to which zxid that is, None without an archive.
    ``follow``: streams follow what ends, and runs that leave before they were taken are kept for them. ``limit``: how
    many tasks are claimed at once, or in a period.
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
    limit: Limit = field(default_factory=Limit)


def conf(context: Context) -> Procedure[QueueConf]:
    """The queue's configuration, from this client's memory while nothing has changed.

    Raises `QueueNotFound`, and `CorruptRecord` for settings that this client never could read.
    """
    known = yield from read_conf(context)
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
        limit=known.limit or Limit(),
    )
