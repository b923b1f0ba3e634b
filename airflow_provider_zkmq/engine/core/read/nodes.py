"""Reading znodes, several in one request, and listings that watches keep true."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final, Literal, TypeAlias, TypeVar

from ...errors import ConfigError, CorruptRecord, QueueNotFound, TaskNotFound, ZkmqError
from .. import protocol as zk
from ..context import CachedRead, Context
from ..model.names import Paths, check_layout, check_name
from ..model.records import TaskState
from ..model.values import Duration, Moment, dump, moment_of, optional_seconds
from ..protocol import Procedure, refused

# --- How long a caller waits.


@dataclass(frozen=True, slots=True)
class Deadline:
    """The moment at which a wait ends, by the driver's monotonic clock; None: it has no bound."""

    context: Context
    at: float | None
    span: float | None = None
    """The seconds that were given for it."""

    @classmethod
    def after(cls, context: Context, timeout: Duration | None) -> Procedure[Deadline]:
        """`timeout` (seconds or a duration, None without bound) from now, for the whole call. Raises `ConfigError`."""
        span = optional_seconds("timeout", timeout)
        if span:  # who does not wait at all waits for the servers all the same
            yield zk.SetTimeout(span)
        return cls(context, None if span is None else context.run.monotonic() + span, span)

    @property
    def left(self) -> float | None:
        """For how many seconds it may be waited still."""
        return None if self.at is None else max(0.0, self.at - self.context.run.monotonic())

    @property
    def passed(self) -> bool:
        """Whether the time is over."""
        return self.left == 0.0

    def __str__(self) -> str:
        return f"timeout ({self.span or 0:g} s)"

    def wait(self, signal: zk.Signal, seen: int) -> Procedure[None]:
        """Wait until `signal` has happened more than `seen` times, or the time is over."""
        yield zk.Wait(signal, seen, self.left)


# --- Many znodes, read in requests of a bearable size; what does not hold what it should is reported, once.
#
# No other module of the core asks for several znodes in one request, or steps over a corrupt one: what cannot be
# read is told apart here from what is not there, and `Context.report` tells people of it, by its path.

#: So many znodes are read in one request. A record seldom has a kilobyte and never more than twenty or so, so that a
#: reply stays bearable. Payloads do not: whoever reads them asks for so few that each may hold a megabyte (`trees`).
AT_ONCE: Final = 160
#: A queue is there as long as this znode of it is.
THERE: Final = "conf"
T = TypeVar("T")


class Unread(Enum):
    """Why there is no record of a task to go by; a corrupt one was reported."""

    MISSING = "missing"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True)
class Record:
    """A task's record as it was read, and the Stat of its znode."""

    task_id: str
    stat: zk.Stat
    state: TaskState


def chunked(items: Sequence[T], size: int = AT_ONCE) -> Iterator[Sequence[T]]:
    """The items, so many at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))


def read_nodes(paths: Sequence[str], at_once: int = AT_ONCE, in_flight: int = 1) -> Procedure[list[zk.Node | None]]:
    """Znodes in the order of their paths, None for what is missing. Not a snapshot of one moment.

    `at_once`: how many are asked for in one request; `in_flight`: so many requests are on their way together.
    """
    nodes: list[zk.Node | None] = []
    for requests in chunked([zk.GetMany(tuple(chunk)) for chunk in chunked(paths, at_once)], in_flight):
        replies = [(yield requests[0])] if len(requests) == 1 else (yield zk.Pipeline(tuple(requests)))
        for reply in replies:
            nodes += reply
    return nodes


def read_stats(paths: Sequence[str]) -> Procedure[list[zk.Stat | None]]:
    """The Stats of znodes, all requests in flight together."""
    stats: list[zk.Stat | None] = yield zk.Pipeline(tuple(zk.Exists(path) for path in paths))
    return stats


def list_children(paths: Sequence[str]) -> Procedure[list[list[str]]]:
    """The names under each path, sorted, all requests in flight together; none under what is missing."""
    listings: list[list[str] | None] = yield zk.Pipeline(tuple(zk.Children(path) for path in paths))
    return [sorted(names or ()) for names in listings]


def read_records(context: Context, task_ids: Sequence[str], consequence: str = "") -> Procedure[list[Record | Unread]]:
    """The records of tasks in the order of the ids; `consequence`: what becomes of a corrupt one, for the report."""
    nodes = yield from read_nodes([context.paths.task(each, "state") for each in task_ids])
    return [record_of(context, each, node, consequence) for each, node in zip(task_ids, nodes, strict=True)]


def record_of(context: Context, task_id: str, node: zk.Node | None, consequence: str = "") -> Record | Unread:
    """The record that a task's ``state`` holds, as it was read; a corrupt one is reported, with `consequence`."""
    if node is None:
        return Unread.MISSING
    path = context.paths.task(task_id, "state")
    state = unless_corrupt(context, path, partial(TaskState.decode, path, node.data), consequence)
    return Unread.CORRUPT if state is None else Record(task_id, node.stat, state)


def unless_corrupt(context: Context, path: str, read: Callable[[], T], consequence: str = "") -> T | None:
    """What `read` makes of what stands at `path`; None where that is corrupt, which is reported once by the path."""
    try:
        return read()
    except CorruptRecord as error:
        context.report(path, f"{error}; {consequence}" if consequence else str(error), damage=str(error))
        return None


# --- What all threads of a client need at the same moment is asked for once: when they begin, and when it has changed.


def single_flight(
    context: Context, what: str, is_done: Callable[[], object], procedure: Callable[[], Procedure[T]]
) -> Procedure[T | None]:
    """Carry a procedure out, unless another thread of this client is at it and that will do: None then.

    Who has waited for another in vain, which was refused or cut off, does it by itself, beside whoever else does.
    """
    busy: zk.Signal | None = context.shared.get(what)
    if busy is not None:
        yield zk.Wait(busy, 0, turn=True)
        if is_done():
            return None
    mine = context.run.new_signal()
    try:
        context.shared.setdefault(what, mine)
        return (yield from procedure())
    finally:  # without a call before it is taken off, at which an interrupt could come: all others would wait for ever
        if what in context.shared and context.shared[what] is mine:
            del context.shared[what]
        mine.fire()


# --- A root: the version of its layout, which its own data are, and the queues under it.


def queue_names(root: str) -> Procedure[list[str]]:
    """The names of the queues under `root`, sorted, none without a root; one whose deletion has begun is left out."""
    names = sorted((yield zk.Children(root)) or ())
    stats = yield from read_stats([Paths(f"{root}/{name}").at(THERE) for name in names])
    return [name for name, stat in zip(names, stats, strict=True) if stat is not None]


def now_below(root: str) -> Procedure[Moment]:
    """The time by ZooKeeper's clock, in UTC, whatever queues there are.

    Costs one small write, which leaves nothing; where there is no root, that is created. Queues have no such name.
    """
    path = f"{root}/~now"
    multi = zk.Multi((zk.Create(path), zk.SetData(path, b"", -1), zk.Delete(path)))
    outcome = yield from zk.transact(multi, zk.never)
    if outcome.failure is zk.Failure.NO_NODE:
        yield zk.EnsureRoot(root)
        outcome = yield from zk.transact(multi, zk.never)
    if not outcome.committed:
        raise refused("reading the server's clock", outcome, multi)
    if outcome.time is None:
        raise ZkmqError(f"ZooKeeper did not say the time of a write to {path}")
    return moment_of(outcome.time)


def refuse_another_layout(root: str) -> Procedure[None]:
    """Raise `ConfigError` where what stands under the root is not of our layout. A root may be missing, or empty."""
    node: zk.Node | None = yield zk.Get(root)
    if node is not None and (node.data or (yield from queue_names(root))):
        check_layout(root, node.data)


# --- A queue's permanent znodes.


def restored(context: Context, path: str) -> Procedure[bool]:
    """Whether something failed at `path` since a permanent znode of the queue was missing, which is there again now.

    Only of a queue that has its ``conf``: what was deleted as a whole, or is being so, is not to come back in parts.
    """
    permanent, there = set(context.paths.skeleton()[2:]), zk.Check(context.paths.at(THERE))
    made = False
    for each in (path.rpartition("/")[0], path):
        outcome: zk.Outcome | None = (yield zk.Multi((there, zk.Create(each)))) if each in permanent else None
        if outcome is not None and outcome.committed:
            context.warn_once(each, "it was missing; made anew")
            made = True
    return made


#: What a queue's marks hold at first: that of an archive with nothing in it, and that of streams.
MARKS: Final = {"archive": dump({"watermark": 0}), "followed": dump({})}


def create_skeleton(
    context: Context, settings: bytes, times: Mapping[str, bytes], marks: Iterable[str] = ()
) -> Procedure[bool]:
    """Create the queue's permanent znodes in one transaction; False if the queue was there already."""
    yield zk.EnsureRoot(context.root)
    conf = context.paths.at(THERE)
    ops = [zk.Create(path, settings if path == conf else b"") for path in context.paths.skeleton()]
    ops += [zk.Create(context.paths.at("conf", name), value) for name, value in times.items()]
    ops += [zk.Create(context.paths.at(name), MARKS[name]) for name in marks]
    multi = zk.Multi(tuple(ops))
    outcome = yield from zk.transact(multi, zk.never)
    context.clock.learn(outcome)
    if not outcome.committed and outcome.failure is not zk.Failure.NODE_EXISTS:
        raise refused("creating the queue", outcome, multi)
    return bool(outcome.committed)


# --- Whether a queue is there, and the error for one that is not: it names those that come close.


def never_stopping() -> bool:
    """The `stopping` of whoever waits to the end."""
    return False


def exists(
    context: Context, timeout: Duration | None = 0, *, stopping: Callable[[], bool] = never_stopping
) -> Procedure[bool]:
    """Whether the queue is there; waits for it at most `timeout` seconds (None: without bound), by a watch.

    `stopping` ends the wait early; it is asked whenever the queue is woken.
    """
    deadline, path = (yield from Deadline.after(context, timeout)), context.paths.at(THERE)
    if (yield zk.Exists(path)) is not None:
        return True
    yield zk.Sync(context.root)  # the server that we read from may lag behind
    if deadline.passed:
        return (yield zk.Exists(path)) is not None
    watch = context.new_watch()
    try:
        while True:
            seen, watch = context.signal.count, context.new_watch()
            if (yield zk.Exists(path, watch)) is not None:
                return True
            if stopping() or deadline.passed:
                return False
            yield from deadline.wait(context.signal, seen)
    finally:
        watch.fired = True  # nobody relies on it any more
        context.run.unwatch(path)


def queue_missing(context: Context) -> Procedure[QueueNotFound]:
    """The error for the queue where it is not there; what this client remembered of it is forgotten."""
    context.forget_queue()
    if (yield zk.Exists(context.paths.at("deleting"))) is not None:
        return QueueNotFound(
            f"queue {context.queue!r} is being deleted under {context.root!r}, or its deletion was cut off: "
            "delete_queue() goes on with that, and is to be called before the queue can be created again"
        )
    try:
        names = yield from queue_names(context.root)
    except ZkmqError:  # that the queue is not there is known all the same
        names = []
    return QueueNotFound.among(context.queue, f"under {context.root!r}", names)


def refuse_missing(context: Context) -> Procedure[None]:
    """Raise `QueueNotFound` unless the queue is there: for what would else answer that there is nothing."""
    if not (yield from exists(context)):
        raise (yield from queue_missing(context))


def unless_missing(context: Context, procedure: Procedure[T]) -> Procedure[T]:
    """Carry a procedure out; where it fails since there is no such queue, that is the error."""
    try:
        return (yield from procedure)
    except ZkmqError as error:
        missing = yield from missing_queue(context, error)
        if missing is None:
            raise
        raise missing from error


def missing_queue(context: Context, error: ZkmqError) -> Procedure[QueueNotFound | None]:
    """After an error: that there is no such queue, where this is why. What goes well costs nothing more."""
    if not (isinstance(error, TaskNotFound | CorruptRecord) or type(error) is ZkmqError):
        return None
    try:
        there = yield from exists(context)
    except ZkmqError:  # nobody can tell
        return None
    return None if there else (yield from queue_missing(context))


# --- The znodes of several tasks in one request, whole or without what the caller has no use for.

#: What may be left out of a task that is read. Its record, with state, filters, error and history, is always read.
Part: TypeAlias = Literal["data", "metadata", "result", "progress"]
_ZNODE: Final[dict[Part, str]] = {"data": "data", "metadata": "metadata", "result": "result", "progress": "claim"}
PARTS: Final = frozenset(_ZNODE)
#: So many tasks are read in one request: a reply stays bearable when each holds a megabyte, or has nothing large.
WHOLE_AT_ONCE: Final = 32
SLIM_AT_ONCE: Final = 128


def checked_parts(parts: Collection[str]) -> frozenset[str]:
    """The names of parts, or `ConfigError` naming those that are unknown."""
    if isinstance(parts, str) or not PARTS.issuperset(parts):
        raise ConfigError(f"parts {parts!r} are not understood: a list of some of {', '.join(sorted(PARTS))}")
    return frozenset(parts)


def at_once(parts: Collection[str]) -> int:
    """How many tasks to read in one request."""
    return SLIM_AT_ONCE if {"data", "result"}.isdisjoint(parts) else WHOLE_AT_ONCE


def read_trees(
    context: Context, ids: Sequence[str], parts: Collection[str]
) -> Procedure[list[tuple[str, list[zk.Node | None]]]]:
    """Each task's record, data, metadata, result and claim, with None for what is missing or was not asked for."""
    wanted = ["state", *(znode for part, znode in _ZNODE.items() if part in parts)]
    paths = [context.paths.task(each, znode) for each in ids for znode in wanted]
    rows = iter((yield from read_nodes(paths, len(wanted) * at_once(parts))))
    trees = [{znode: next(rows) for znode in wanted} for _ in ids]
    if "data" not in parts:  # without the payloads: it tells when the present run of an id was enqueued
        stats = yield from read_stats([context.paths.task(each, "data") for each in ids])
        for tree, stat in zip(trees, stats, strict=True):
            tree["data"] = None if stat is None else zk.Node(b"", stat)
    return [
        (each, [tree.get(znode) for znode in ("state", *_ZNODE.values())])
        for each, tree in zip(ids, trees, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Znode:
    """One znode of a task's tree: its size and the transactions that created and last changed it."""

    path: str
    bytes: int
    czxid: int
    mzxid: int


def read_tree(context: Context, task_id: str) -> Procedure[list[Znode]]:
    """Every znode of a task, to see what one enqueue wrote: equal czxids are one transaction."""
    base = context.paths.task(check_name("task id", task_id))
    parts = sorted((yield zk.Children(base)) or ())
    filters = sorted((yield zk.Children(f"{base}/filters")) or ())
    paths = (base, *(f"{base}/{part}" for part in parts), *(f"{base}/filters/{name}" for name in filters))
    nodes = yield from read_nodes(paths)
    if nodes[0] is None:
        yield from refuse_missing(context)
    return [
        Znode(path, len(node.data), node.stat.czxid, node.stat.mzxid)
        for path, node in zip(paths, nodes, strict=True)
        if node is not None
    ]


# --- Cached listings, kept true by watches.


@dataclass(slots=True, eq=False)
class Relay:
    """The signal of a watch that hands on what happens: that fires a signal, and wakes others."""

    signal: zk.Signal
    hand_on: Callable[[], None]

    @property
    def count(self) -> int:
        """How often the signal has fired."""
        return self.signal.count

    def fire(self) -> None:
        """Hand it on."""
        self.hand_on()

    notify = fire

    def notify_one(self, kind: Hashable) -> None:
        """Nobody sits here."""


def listing(context: Context, path: str, *, max_age: float | None = None) -> Procedure[list[str] | None]:
    """The children of `path`, from memory while the watch on them has not fired; None without the znode.

    `max_age`: seconds for which names are good enough although the watch has fired. Several threads that need the same
    listing read it once.
    """
    while True:
        entry = context.listings.at(path)
        young = max_age is not None and context.run.monotonic() - entry.read_at < max_age
        if entry.fresh or (young and entry.watch is not None):
            return entry.value  # type: ignore[no-any-return]
        if not entry.pending:
            break
        yield zk.Wait(entry.signal, entry.signal.count, turn=True)
    watch, read_at = context.new_watch(), context.run.monotonic()
    entry.pending = True
    try:
        names = yield zk.Children(path, watch)
        if names is None and (yield from restored(context, f"{path}/-")):  # what stays missing can be watched by nobody
            names = yield zk.Children(path, watch)
    finally:
        entry.pending = False
        entry.signal.fire()
    if names is None:  # ZooKeeper sets no watch on the children of what does not exist
        context.listings.forget(path)
        return None
    for gone in set(entry.value or ()) - set(names):
        context.listings.forget(f"{path}/{gone}")
    entry.watch, entry.value, entry.read_at, entry.cached_entries = watch, sorted(names), read_at, None
    context.listings.readings[path] = entry  # another thread may have forgotten it meanwhile
    return entry.value  # type: ignore[no-any-return]


def shared_nodes(context: Context, paths: list[str], mine: zk.Signal) -> Procedure[list[zk.Node | None]]:
    """Read znodes under watches that all waiters of the process share: one watch and one read for each.

    `mine` is fired when one of them changes. A waiter that finds another's read under way waits for its result.
    """
    entries = [context.listings.at(path) for path in paths]
    for entry in entries:
        entry.subscribers[mine] = None
    read: set[int] = set()  # a missing znode bears no watch: what was read of it is never fresh
    while True:
        seen = [entry.signal.count for entry in entries]
        stale = [at for at, entry in enumerate(entries) if not entry.fresh and at not in read]
        if not stale:
            return [entry.value for entry in entries]
        free = [at for at in stale if not entries[at].pending]
        if not free:
            yield zk.Wait(entries[stale[0]].signal, seen[stale[0]], turn=True)
            continue
        watches = [zk.Watch(Relay(entries[at].signal, partial(_wake, entries[at]))) for at in free]
        for at in free:
            entries[at].pending = True
        try:
            nodes = yield zk.Pipeline(tuple(zk.Get(paths[at], watch) for at, watch in zip(free, watches, strict=True)))
            for at, watch, node in zip(free, watches, nodes, strict=True):
                entries[at].value, entries[at].watch = node, None if node is None else watch
        except BaseException:
            for watch in watches:
                watch.fired = True  # nobody relies on what was not read
            raise
        finally:
            for at in free:
                entries[at].pending = False
                entries[at].signal.fire()
        read.update(at for at in free if entries[at].value is None)


def _wake(entry: CachedRead) -> None:
    """Wake those who wait for one entry, and nobody else."""
    entry.signal.fire()
    for subscriber in tuple(entry.subscribers):
        subscriber.fire()


def unsubscribe(context: Context, paths: list[str], mine: zk.Signal) -> None:
    """End a wait; what nobody waits for any more is forgotten, and its watch on the server goes."""
    for path in paths:
        entry = context.listings.readings.get(path)
        if entry is not None and mine in entry.subscribers:
            del entry.subscribers[mine]
            if not entry.subscribers:
                context.listings.readings.pop(path, None)
                if entry.watch is not None:
                    entry.watch.fired = True  # nobody relies on it, whoever still holds it
                context.run.unwatch(path)
