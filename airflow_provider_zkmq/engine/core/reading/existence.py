"""Whether a queue is there, and the error for one that is not: it names those that come close."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.durations import Duration
from airflow_provider_zkmq.engine.core.protocol.ops import Exists, Procedure, Sync
from airflow_provider_zkmq.engine.core.reading.deadline import Deadline
from airflow_provider_zkmq.engine.core.reading.parts import THERE
from airflow_provider_zkmq.engine.core.reading.roots import queue_names
from airflow_provider_zkmq.engine.errors import CorruptRecord, QueueNotFound, TaskNotFound, ZkmqError

T = TypeVar("T")


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
    if (yield Exists(path)) is not None:
        return True
    yield Sync(context.root)  # the server that we read from may lag behind
    if deadline.passed:
        return (yield Exists(path)) is not None
    return (yield from _awaited(context, path, deadline, stopping))


def _awaited(context: Context, path: str, deadline: Deadline, stopping: Callable[[], bool]) -> Procedure[bool]:
    """Wait for a znode; the watch goes with the wait."""
    watch = context.new_watch()
    try:
        while True:
            seen, watch = context.signal.count, context.new_watch()
            if (yield Exists(path, watch)) is not None:
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
    if (yield Exists(context.paths.at("deleting"))) is not None:
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
    """Carry a procedure out; where there is no such queue, that is what its caller is told it failed for.

    Asked only once it has failed: what goes well costs nothing more.
    """
    try:
        return (yield from procedure)
    except ZkmqError as error:
        vague = isinstance(error, TaskNotFound | CorruptRecord) or type(error) is ZkmqError
        if not vague or (yield from _is_there(context)):
            raise
        raise (yield from queue_missing(context)) from error


def _is_there(context: Context) -> Procedure[bool]:
    """Whether the queue is there, as far as can be found out."""
    try:
        return (yield from exists(context))
    except ZkmqError:
        return True
