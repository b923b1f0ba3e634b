"""Every znode name, built and parsed here and nowhere else.

The root's own data are the `LAYOUT` of what stands below it. The tree under ``/<root>/<queue>``, which is there as
long as its ``conf`` is::

    conf/{task_gc_lifetime,task_gc_interval,filters,policy,lock,order}
    queue/<lane>/<segment>/<entry>      pending tasks; at most a few hundred entries a segment
    scheduled/<bucket>/<entry>          tasks not to be handled before a time
    tasks/<task>/{data,metadata,state,filters/<name>,claim,result,requeue}
    consumers/<consumer>/current/<task> what each consumer is working on; written when one of these is cancelled
    live/<consumer>                     ephemeral: the consumer's session lives
    leases/<lease>                      claims that outlive their process
    locks/<lease>                       deadlines of claims that end with their session, or before it
    requeued/<bucket>/<entry>           finished tasks with a run in escrow, by the end of their dedupe window
    finished/<bucket>/<entry>           for garbage collection; cancelled/ likewise
    unarchived/<bucket>/<entry>         dead letters that left an archived queue, until its archive has them
    dlq/<task>                          dead letters
    batches/<batch>/{open,failed}/<task> members that have not ended, and those that ended dead or cancelled;
                                        ``then``: the task to enqueue at the end
    batches-done/<bucket>/<entry>       for garbage collection
    clock, gc                           written to read the server's time; last clean-up
    lock                                ephemeral: maintenance is running
    paused                              present while the queue is paused
    archive                             how far the archive has come
    deleting                            present while the queue is deleted, in place of ``conf``
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from airflow_provider_zkmq.engine.errors import ConfigError

_NAME: Final = re.compile(r"[A-Za-z0-9._:+@=-]{1,128}\Z")

#: An entry is ``<stamp>~<task>``; no name may hold the separator.
SEPARATOR: Final = "~"

#: The version of the tree that this code reads and writes.
LAYOUT: Final = 1


def check_name(kind: str, name: object) -> str:
    """`name` if it may become a znode's name, else `ConfigError` naming `kind` and the rule."""
    if isinstance(name, str) and is_name(name):
        return name
    msg = (
        f"{kind} {name!r} is not allowed: 1 to 128 characters of A-Z a-z 0-9 . _ : + @ = - "
        "and neither '.' alone nor '..' anywhere"
    )
    raise ConfigError(msg)


def check_root(root: object) -> str:
    """A root such as ``/zkmq`` or ``/team/queues``, each part a valid name; not ``/`` alone, nor ZooKeeper's own."""
    if not isinstance(root, str) or not root.startswith("/") or root == "/":
        msg = f"root {root!r} is not allowed: give an absolute znode path such as '/zkmq'"
        raise ConfigError(msg)
    parts = root.rstrip("/")[1:].split("/")
    if parts[0] == "zookeeper":
        msg = f"root {root!r} is not allowed: below /zookeeper stands what ZooKeeper keeps for itself, such as quotas"
        raise ConfigError(msg)
    return "".join("/" + check_name("root", part) for part in parts)


def check_layout(root: str, data: bytes) -> None:
    """Raise `ConfigError` unless the data of a root say that it has our layout."""
    if data == str(LAYOUT).encode():
        return
    if data.isdigit() and len(data) < 5:
        msg = (
            f"what stands under {root} has layout {data.decode()}, and this version knows layout {LAYOUT}: install the "
            "version of airflow-provider-zkmq that wrote it, or choose another root"
        )
    else:
        msg = (
            f"{root} holds {data[:20]!r}, which is no version of a layout: choose another root; or, if its queues were "
            f"written by this version, set it to {LAYOUT}"
        )
    raise ConfigError(msg)


def entry_name(stamp: str, task_id: str) -> str:
    """An index entry that sorts by `stamp` and names its task."""
    return f"{stamp}{SEPARATOR}{task_id}"


def entry_task(entry: str) -> str | None:
    """The task an entry stands for; None for a foreign name."""
    stamp, separator, task_id = entry.partition(SEPARATOR)
    return task_id if separator and stamp and is_name(task_id) else None


def lease_task(lease: str) -> str | None:
    """The task that the deadline of a claim is about; None for a foreign name."""
    task_id, separator, _ = lease.partition(SEPARATOR)
    return task_id if separator and is_name(task_id) else None


def is_name(name: str) -> bool:
    """Whether something may become a znode's name, by our rules."""
    return bool(_NAME.match(name)) and ".." not in name and name != "."


@dataclass(frozen=True, slots=True)
class Paths:
    """The znodes of one queue."""

    base: str

    @classmethod
    def of(cls, root: str, queue: str) -> Paths:
        """The paths of `queue` under `root`. Raises `ConfigError` for a bad name."""
        return cls(f"{check_root(root)}/{check_name('queue name', queue)}")

    def at(self, *parts: str) -> str:
        """A path below the queue's own."""
        return "/".join((self.base, *parts))

    def conf(self, name: str) -> str:
        """A configuration value."""
        return self.at("conf", name)

    def task(self, task_id: str, *parts: str) -> str:
        """The task's tree, or a znode in it."""
        return "/".join((self.base, "tasks", task_id, *parts))

    def consumer(self, consumer: str, *parts: str) -> str:
        """A consumer's record, or a znode in it."""
        return self.at("consumers", consumer, *parts)

    def current(self, consumer: str, task_id: str) -> str:
        """The note that `consumer` is working on `task_id`."""
        return self.at("consumers", consumer, "current", task_id)

    def live(self, consumer: str) -> str:
        """The ephemeral that says the consumer's session lives."""
        return self.at("live", consumer)

    def batch(self, name: str, *parts: str) -> str:
        """A batch, or a znode in it."""
        return self.at("batches", name, *parts)

    def entry(self, place: str) -> str:
        """The pending entry at `place` (``<lane>/<segment>/<entry>``)."""
        return self.at("queue", place)

    def skeleton(self) -> tuple[str, ...]:
        """The queue's permanent znodes without configuration, parents first."""
        names = (
            "conf",
            "queue",
            "tasks",
            "consumers",
            "live",
            "leases",
            "locks",
            "scheduled",
            "requeued",
            "finished",
            "cancelled",
            "dlq",
            "batches",
            "batches-done",
            "clock",
            "gc",
        )
        return (self.base, *(self.at(name) for name in names))

    def resembles(self, names: Iterable[str]) -> bool:
        """Whether something is a queue, be it a damaged one, by the names of what stands directly below it."""
        own = {path.rpartition("/")[2] for path in self.skeleton()[1:]}
        return len(own & set(names)) > len(own) / 2

    def foreign(self, names: Iterable[str]) -> list[str]:
        """Those names of what stands directly below the queue that are not a queue's, sorted."""
        own = {path.rpartition("/")[2] for path in self.skeleton()[1:]}
        return sorted(set(names) - own - {"lock", "paused", "archive", "followed", "unarchived", "deleting"})
