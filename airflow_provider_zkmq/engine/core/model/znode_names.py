"""Every znode name, built and parsed here and nowhere else.

The root's own data are the `LAYOUT` of what stands below it. The tree under ``/<root>/<queue>``, which is there
as long as its ``conf`` is::

    conf                                 the queue's settings, JSON: filters, policy, lock, order, paused
    conf/{task_gc_lifetime,task_gc_interval}
    queue/<lane>/<segment>/<entry>      pending tasks; at most a few hundred entries a segment
    scheduled/<bucket>/<entry>          tasks not to be handled before a time
    tasks/<task>/{data,metadata,state,filters/<name>,claim,result,requeue}
    consumers/<consumer>/current/<task> what each consumer is working on; written when one of these is cancelled
    live/<consumer>                     ephemeral: the consumer's session lives
    leases/<lease>                      claims that outlive their process
    slots/<key>/<number>                what a claim holds of a limit of concurrency: the id of its task
    rates/<key>                         how many tasks were claimed of late, where the queue has a limit by time
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
    archive                             how far the archive has come
    deleting                            present while the queue is deleted, in place of ``conf``
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, unquote

from ...errors import ConfigError, CorruptRecord
from .values import MAX_PRIORITY, Priority, dump, load

_NAME: Final = re.compile(r"[A-Za-z0-9._:+@=-]{1,128}\Z")

#: An entry is ``<stamp>~<task>``; no name may hold the separator.
SEPARATOR: Final = "~"

#: The version of the tree that this code reads and writes.
LAYOUT: Final = 1


def check_name(kind: str, name: object) -> str:
    """`name` if it may become a znode's name, else `ConfigError` naming `kind` and the rule."""
    if isinstance(name, str) and is_name(name):
        return name
    raise ConfigError(
        f"{kind} {name!r} is not allowed: 1 to 128 characters of A-Z a-z 0-9 . _ : + @ = - "
        "and neither '.' alone nor '..' anywhere"
    )


def check_root(root: object) -> str:
    """A root such as ``/zkmq`` or ``/team/queues``, each part a valid name; not ``/`` alone, nor ZooKeeper's own."""
    if not isinstance(root, str) or not root.startswith("/") or root == "/":
        raise ConfigError(f"root {root!r} is not allowed: give an absolute znode path such as '/zkmq'")
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
        raise ConfigError(
            f"what stands under {root} has layout {data.decode()}, and this version knows layout {LAYOUT}: install the "
            "version of airflow-provider-zkmq that wrote it, or choose another root"
        )
    raise ConfigError(
        f"{root} holds {data[:20]!r}, which is no version of a layout: choose another root; or, if its queues were "
        f"written by this version, set it to {LAYOUT}"
    )


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
        indexes = ("scheduled", "requeued", "finished", "cancelled", "dlq", "batches", "batches-done")
        names = (
            "conf",
            "queue",
            "tasks",
            "consumers",
            "live",
            "leases",
            "locks",
            "slots",
            "rates",
            *indexes,
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
        return sorted(set(names) - own - {"lock", "archive", "followed", "unarchived", "deleting"})


# --- Time-ordered indexes: what is due when, what ended when.
#
# An index is ``<index>/<bucket>/<milliseconds>~<task>``; a bucket is one minute of the server's clock. Looking for
# what is due reads the buckets' names and the entries of those whose time has come, however much lies ahead.

BUCKET_MS: Final = 60_000


def bucket_of(when_ms: int) -> str:
    """The bucket that holds a time; names sort by time."""
    return f"{max(0, when_ms) // BUCKET_MS:010d}"


def bucket_start(name: str) -> int | None:
    """When a bucket begins, in milliseconds; None for a foreign name."""
    return int(name) * BUCKET_MS if name.isascii() and name.isdigit() and len(name) == 10 else None


def index_path(index: str, when_ms: int, task_id: str) -> str:
    """The entry, relative to the queue."""
    return f"{index}/{bucket_of(when_ms)}/{entry_name(f'{max(0, when_ms):015d}', task_id)}"


def entry_time(name: str) -> int | None:
    """The time an entry stands for, in milliseconds; None for a foreign name."""
    stamp = name[:15]
    good = stamp.isascii() and stamp.isdigit() and name[15:16] == "~" and entry_task(name) is not None
    return int(stamp) if good else None


# --- Claims prefetched: what says that the handler of a claim has not begun.
#
# It stands where it goes with the claim: in the note of a consumer that works on the task, or, as a claim that
# outlives its session has none, in the claim's znode. Beginning takes it away. Whatever cannot be read says that it
# had begun: a delivery that is counted in vain costs an attempt, one that is not counted could kill its consumers
# for ever.

_PREFETCHED: Final = {"ahead": True}


def consumer_note(*, prefetched: bool) -> bytes:
    """What the note of a consumer that works on a task holds."""
    return dump(_PREFETCHED) if prefetched else b""


def claim_note(claim: Mapping[str, Any], *, prefetched: bool) -> bytes:
    """What the znode of a claim holds."""
    return dump({**claim, **_PREFETCHED} if prefetched else claim)


def is_prefetched(path: str, data: bytes) -> bool:
    """Whether a note says that no handler has begun."""
    try:
        return bool(data) and load(path, data).get("ahead") is True
    except CorruptRecord:
        return False


# --- Lanes: all pending tasks of one priority with the same filters.
#
# A lane's name says what it stands for, so that one listing of ``queue`` decides which lanes a selector wants:
# a foreign backlog of any size costs nothing more. Its data hold the same as JSON. A lane is split into segments
# of bounded size, so that one listing is short however many tasks are pending.
#
# The number of lanes is bounded: past `MAX_LANES`, tasks with filters go to their priority's mixed lane, whose
# entries are judged one by one (their records are read in large requests, and each verdict is remembered).

MAX_LANES: Final = 256
MAX_NAME: Final = 200
SEGMENT_ENTRIES: Final = 512
_MIXED: Final = "*"
#: The key of a limit that all tasks of a queue share.
WHOLE_QUEUE: Final = "*"


@dataclass(frozen=True, slots=True)
class Lane:
    """What a lane stands for; ``filters`` is None for a mixed lane."""

    priority: Priority = 0
    filters: Mapping[str, str] | None = None

    @property
    def name(self) -> str:
        """The znode's name; names sort by falling priority."""
        return _name(self.priority, None if self.filters is None else tuple(self.filters.items()))

    def encode(self) -> bytes:
        """The znode's data."""
        return dump(self)

    @classmethod
    def decode(cls, path: str, data: bytes) -> Lane:
        """Read a lane's data. Raises `CorruptRecord`."""
        return load(path, data, cls, "a lane")

    def mixed(self) -> Lane:
        """The mixed lane of the same priority."""
        return Lane(self.priority, None)


@lru_cache(maxsize=4 * MAX_LANES)
def _name(priority: int, filters: tuple[tuple[str, str], ...] | None) -> str:
    """The name of a lane: asked for several times for each task, and the same for many."""
    head = f"p{MAX_PRIORITY - priority:05d}"
    if filters is None:
        return f"{head};{_MIXED}"
    spelled = "".join(f";{quote(name, safe='')}={quote(value, safe='')}" for name, value in sorted(filters))
    if len(spelled) <= MAX_NAME:
        return head + spelled
    return f"{head};#{hashlib.sha256(spelled.encode()).hexdigest()[:24]}"


@lru_cache(maxsize=4 * MAX_LANES)
def parse_lane(name: str) -> Lane | None:
    """The lane a name spells; None for a shortened name (read its data) or a foreign one."""
    head, *parts = name.split(";")
    if not (head.startswith("p") and head[1:].isascii() and head[1:].isdigit() and len(head) == 6):
        return None
    priority = MAX_PRIORITY - int(head[1:])
    if parts == [_MIXED]:
        return Lane(priority, None)
    filters = dict(part.split("=", 1) for part in parts if part.count("=") == 1)
    if len(filters) != len(parts):
        return None
    return Lane(priority, {unquote(key): unquote(value) for key, value in filters.items()})


def priority_of(name: str) -> str:
    """The part of a lane's name that stands for its priority."""
    return name[:6]


def is_shortened(name: str) -> bool:
    """Whether the name is a digest, its filters to be read from the data."""
    return name[:1] == "p" and name[6:8] == ";#"


def is_mixed(name: str) -> bool:
    """Whether a name is a mixed lane's."""
    return name[6:] == f";{_MIXED}"


def is_lane(name: str) -> bool:
    """Whether a name is a lane's of ours, spelt out or shortened."""
    return is_shortened(name) or parse_lane(name) is not None


def check_priority(priority: object) -> int:
    """A priority in range, else `ConfigError`."""
    if isinstance(priority, int) and not isinstance(priority, bool) and abs(priority) <= MAX_PRIORITY:
        return priority
    msg = f"priority {priority!r} is not allowed: a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}, higher first"
    raise ConfigError(msg)


@lru_cache(maxsize=4 * MAX_LANES)
def limit_key(name: str, value: str) -> str:
    """Under which name one value of a filter is limited; that of a queue as a whole is `WHOLE_QUEUE`."""
    spelled = quote(value, safe="")
    return (
        f"{name}={spelled}" if len(spelled) <= MAX_NAME else f"{name}#{hashlib.sha256(value.encode()).hexdigest()[:24]}"
    )


def segments_of(names: Iterable[str]) -> list[str]:
    """Those of a lane's children that are segments of ours."""
    return [name for name in names if len(name) == 8 and name.isascii() and name.isdigit()]


def next_segment(names: list[str]) -> str:
    """The name after the last of a lane's segments; names sort by number."""
    return f"{max(map(int, names), default=0) + 1:08d}"
