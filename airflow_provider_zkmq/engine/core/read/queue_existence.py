"""Whether a queue is there: its permanent znodes, created and restored, and the error for one that is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, TypeVar

from ...errors import CorruptRecord, QueueNotFound, TaskNotFound, ZkmqError
from .. import zk_operations as zk
from ..client_state import Context, Deadline, never_stopping
from ..model.values import Duration, dump
from ..model.znode_names import Paths, check_layout
from ..transaction_retries import refused, transact
from ..zk_operations import Procedure, explained
from .bulk_read import read_stats

T = TypeVar("T")

#: A queue is there as long as this znode of it is.
THERE: Final = "conf"


# --- A root: the version of its layout, which its own data are, and the queues under it.


def queue_names(root: str) -> Procedure[list[str]]:
    """The names of the queues under `root`, sorted, none without a root; one whose deletion has begun is left out."""
    names = sorted((yield zk.Children(root)) or ())
    stats = yield from read_stats([Paths(f"{root}/{name}").at(THERE) for name in names])
    return [name for name, stat in zip(names, stats, strict=True) if stat is not None]


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
    outcome = yield from transact(multi)
    context.clock.learn(outcome)
    if not outcome.committed and outcome.failure is not zk.Failure.NODE_EXISTS:
        raise refused("creating the queue", outcome, multi)
    return bool(outcome.committed)


# --- Whether a queue is there, and the error for one that is not: it names those that come close.


def exists(
    context: Context, timeout: Duration | None = 0, *, stopping: Callable[[], bool] = never_stopping
) -> Procedure[bool]:
    """Whether the queue is there; waits for it at most `timeout` seconds (None: without bound), by a watch.

    `stopping` ends the wait early; it is asked whenever the queue is woken. Raises `ConfigError` for a bad `timeout`.
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
    return explained(procedure, partial(missing_queue, context))


def missing_queue(context: Context, error: ZkmqError) -> Procedure[QueueNotFound | None]:
    """After an error: that there is no such queue, where this is why. What goes well costs nothing more.

    A `TransportError` says all there is to say: to ask again could only be cut off, too.
    """
    if not (isinstance(error, TaskNotFound | CorruptRecord) or type(error) is ZkmqError):
        return None
    try:
        there = yield from exists(context)
    except ZkmqError:  # nobody can tell
        return None
    return None if there else (yield from queue_missing(context))
