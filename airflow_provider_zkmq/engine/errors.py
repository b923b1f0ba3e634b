"""The exceptions of the engine: one tree.

::

    ZkmqError
    ├── ConfigError (also ValueError)   what was asked for cannot be; nothing was written
    │   ├── AccessDenied                the credentials do not open the queue's znodes
    │   ├── BadMessage                  one of many messages is refused; it says which, and which part of it
    │   ├── QueueNotFound               there is no such queue; the message names those that come close
    │   ├── NotSecured                  credentials were given, and anyone may use what is there already
    │   └── Unsupported                 a queue file cannot promise it
    ├── TransportError
    │   ├── Unavailable                 no server answered in time; nothing was written
    │   │   ├── HostNotFound            none of the servers' names is known
    │   │   └── TlsRefused              we and the servers do not accept each other's certificates
    │   ├── SessionLost                 the ZooKeeper session expired or was closed
    │   └── OutcomeUnknown              a write may or may not have happened
    ├── QueueError
    │   ├── TaskNotFound                never enqueued, or already collected
    │   ├── DuplicateTask               the task id is in use
    │   ├── TaskTooLarge                would not fit into one ZooKeeper request
    │   └── WaitTimeout (also TimeoutError)  what was waited for did not happen in time
    ├── ClaimLost                       the claim is no longer the current one
    ├── IllegalTransition               the task's state does not allow the event
    └── CorruptRecord                   a znode of ours holds what we did not write
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Self


class ZkmqError(Exception):
    """Whatever the engine raises on purpose."""


class ConfigError(ZkmqError, ValueError):
    """An argument or a configured value is refused; nothing was written."""


class AccessDenied(ConfigError):
    """ZooKeeper refused the credentials, or their lack, for the queue's znodes."""


class BadMessage(ConfigError):
    """One of many messages is refused; nothing was written.

    ``position``: which, from 0. ``part``: the part of it that is refused, such as ``"priority"``; None for all of it.
    """

    def __init__(self, message: str, *, position: int, part: str | None = None) -> None:
        super().__init__(message)
        self.position, self.part = position, part


class QueueNotFound(ConfigError):
    """There is no queue of this name: mistyped, not created yet, or deleted. Nothing was created.

    ``similar``: the names of queues that come close to the one that was asked for. ``fact``: the message without the
    methods that create the ``queue``; None where it cannot be created now.
    """

    def __init__(
        self, message: str, *, similar: Sequence[str] = (), queue: str | None = None, remedy: str | None = None
    ) -> None:
        super().__init__(message if remedy is None else f"{message}; {remedy}")
        self.similar, self.queue = tuple(similar), queue
        self.fact = None if remedy is None else message

    @classmethod
    def among(cls, queue: str, where: str, names: Sequence[str]) -> Self:
        """The error for a queue that is none of the `names` of those that are `where`, such as ``under '/zkmq'``."""
        similar = get_close_matches(queue, [name for name in names if name != queue])  # it may have come meanwhile
        hint = f" (did you mean {' or '.join(map(repr, similar))}?)" if similar else ""
        msg, remedy = f"queue {queue!r} does not exist {where}{hint}", "create it with configure() or enqueue()"
        return cls(msg, similar=similar, queue=queue, remedy=remedy)


class NotSecured(ConfigError):
    """Credentials were given, but anyone may read or change what is there already; ``allow_open`` allows that."""


class Unsupported(ConfigError, AttributeError):
    """A queue in a file cannot promise what was asked for; ZooKeeper can.

    It is an `AttributeError`, too, so that `hasattr` says no where a verb is asked for that a file has not.
    """


class TransportError(ZkmqError):
    """The way to ZooKeeper failed."""


class Unavailable(TransportError):
    """No ZooKeeper server answered in time; nothing that the call asks for was written.

    A call over many tasks, such as `clear` or `collect_garbage`, may have dealt with some of them. ``met``: what was in
    the way to each server, for people; ``nobody_listens``: each of them refused the connection.
    """

    def __init__(self, message: str, *, met: str = "", nobody_listens: bool = False) -> None:
        super().__init__(message)
        self.met, self.nobody_listens = met, nobody_listens


class HostNotFound(Unavailable):
    """None of the servers' names can be resolved; the message says which, and why."""


class TlsRefused(Unavailable):
    """The servers were reached, but we do not accept their certificates, or they do not accept ours."""


class SessionLost(TransportError):
    """The session ended, or was closed; what it held is given back. Never raised for a connection merely lost."""


class OutcomeUnknown(TransportError):
    """A write was sent, its reply was lost, and what became of it could not be found out in time.

    The same call made again, on the same claim or transaction, tells, and goes on if it was not carried out. A claim
    needs no such call: what it took is given back before the client claims again.

    ``task_ids``: of an enqueue, the ids of its messages, in their order, whether they were written or not. The same
    messages with these ids, enqueued again by the same client, are the same tasks, and each is written once. ``final``:
    what would tell has gone; the same call made again does not learn it either.
    """

    def __init__(self, message: str, *, task_ids: Sequence[str] = (), final: bool = False) -> None:
        super().__init__(message)
        self.task_ids = tuple(task_ids)
        self.final = final


class QueueError(ZkmqError):
    """The queue refuses the operation."""


class TaskNotFound(QueueError):
    """No such task: it was never enqueued, or it has been collected."""


class DuplicateTask(QueueError):
    """One or more task ids are in use.

    ``status`` is the status of the (first) task that holds the id, ``duplicates`` the refused ids,
    ``enqueued`` the ids of the same call that were written all the same.
    """

    def __init__(
        self, message: str, *, status: str | None = None, duplicates: Sequence[str] = (), enqueued: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.duplicates = tuple(duplicates)
        self.enqueued = tuple(enqueued)


class TaskTooLarge(QueueError):
    """The task or its result exceeds what ZooKeeper takes in one request; nothing was written."""


class WaitTimeout(QueueError, TimeoutError):
    """What was waited for did not happen in time; nothing was changed.

    ``left``: the tasks that were not there yet; of a search, its selector.
    """

    def __init__(self, message: str, *, left: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.left = tuple(left)


class ClaimLost(ZkmqError):
    """The claim was lost: settled by another, expired, or its session ended. Nothing was changed."""


class IllegalTransition(ZkmqError):
    """The task's present state does not allow it; of a rollback: the commit, of unknown outcome, had happened."""


class CorruptRecord(ZkmqError):
    """A znode is missing, or does not hold what this library writes there; the message names its path."""
