"""Enqueueing, claiming and settling, within the lock of the file."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias, TypeVar

from ..engine.core.model.filters import Selector, parse_filters
from ..engine.core.model.new_message import Message, check_on_conflict, encode_data, encode_metadata
from ..engine.core.model.states import State
from ..engine.core.model.values import dump, lock_seconds
from ..engine.core.model.znode_names import check_name
from ..engine.core.read.inspect import Task
from ..engine.core.zk_operations import MAX_PAYLOAD
from ..engine.errors import BadMessage, ClaimLost, ConfigError, DuplicateTask, TaskTooLarge
from ..textqueue import StaleMessage, Status, message_mutex
from .refusals import ESCROW, PRIORITIES, UPDATES, refuse
from .task_store import ROOMS, FileConf, QueueFile, TaskLines, body_of, clipped, lock_span, spell_time

# --- Enqueue: what a message becomes in the file.

T = TypeVar("T")


@dataclass(slots=True)
class Putting:
    """Messages on their way into a file; carried on with, where the file is replaced meanwhile."""

    messages: Sequence[Message]
    only_new: bool = False
    """What is there stays as it is: no id is refused, and none runs again."""
    ids: list[str] = field(init=False)
    written: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.ids = [
            self._at(position, "task_id", partial(self._id, each)) for position, each in enumerate(self.messages)
        ]
        twin, most = Counter(self.ids).most_common(1)[0] if self.ids else ("", 0)
        if most > 1:
            msg = f"task id {twin!r} stands twice in the same call; nothing was written"
            raise ConfigError(msg)

    def _id(self, message: Message) -> str:
        if not isinstance(message, Message):
            msg = f"enqueue_many takes Message objects, not {type(message).__name__}"
            raise ConfigError(msg)
        check_on_conflict(message.on_conflict)
        refuse({PRIORITIES: message.priority, UPDATES: message.replaces, ESCROW: message.requeues})
        if message.task_id is None and self.only_new:
            msg = "task id None is not allowed: only by an id of its own can be told whether a task is there"
            raise ConfigError(msg)
        if message.task_id is not None:
            return check_name("task id", message.task_id)
        return f"{time.time_ns():016x}-{os.urandom(4).hex()}"  # no other task's; later ones sort after earlier ones

    def _at(self, position: int, part: str | None, check: Callable[[], T]) -> T:
        """What a check of one message returns; where only what is new is written, its error says which one it is."""
        try:
            return check()
        except (ConfigError, TaskTooLarge) as error:
            if not self.only_new:
                raise
            raise BadMessage(str(error), position=position, part=part) from error

    def write(self, queue_file: QueueFile) -> list[str]:
        """Validate every message, then append those whose ids are free; returns the ids in order.

        Raises `ConfigError`, `TaskTooLarge`, and `DuplicateTask`, which tells what was refused and what was written.
        """
        pairs = enumerate(zip(self.messages, self.ids, strict=True))
        spelled = [self._at(position, None, partial(spell_message, queue_file.conf, *pair)) for position, pair in pairs]
        used = {name: queue_file.task(queue_file.tasks[name]) for name in self.ids if name in queue_file.tasks}
        taken = {name: task for name, task in used.items() if name not in self.written}
        refused = [name for name, task in taken.items() if task.state is not State.FINISHED and not self.only_new]
        for name, (text, values) in zip(self.ids, spelled, strict=True):
            if name in refused or (name in used and (self.only_new or name not in taken)):
                continue
            if name in taken:  # another run: its tokens go on, so that a late owner has none
                values["claims"] = str(taken[name].version)
            queue_file.append(text, values)
            self.written.add(name)
        if refused:
            status = str(used[refused[0]].status)
            more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
            msg = f"task id {refused[0]!r}{more} is in use (status: {status}); choose another or delete its lines"
            enqueued = [name for name in self.ids if name not in refused]
            raise DuplicateTask(msg, status=status, duplicates=refused, enqueued=enqueued)
        return self.ids


def spell_message(conf: FileConf, message: Message, task_id: str) -> tuple[str, dict[str, str]]:
    """A message's text and variables. Raises `ConfigError`, `TaskTooLarge`."""
    data, metadata = encode_data("data", message.data), encode_metadata(message.metadata)
    if (size := len(data) + len(metadata)) > MAX_PAYLOAD:
        msg = f"task {task_id!r} has {size:,} bytes; as in ZooKeeper, {MAX_PAYLOAD:,} are taken"
        raise TaskTooLarge(msg)
    filters = parse_filters(conf.types, message.filters)
    lock = lock_seconds(message.lock)
    now, (delay, moment) = time.time(), message.times()
    due = now + (delay or 0.0) if moment is None else moment / 1000
    body, encoding = body_of(data)
    return body, {
        "id": task_id,
        "attempts": "0",
        "claims": "0",
        "due": spell_time(due) if due > now else "",  # blank: at once
        "enqueued": spell_time(now),
        "filters": dump(filters).decode() if filters else "",
        "metadata": metadata.decode() if message.metadata else "",
        "policy": "" if message.policy is None else dump(message.policy).decode(),
        "lock": "" if lock is None else repr(lock_span("lock", lock)),
        "encoding": encoding,
    }


# --- Claiming and settling, within the lock of the file.
#
# The order of the writes is such that a process that is killed between two of them leaves a task that goes on: before
# the mutex is freed, or after it is taken, the claim simply expires.

#: A task with how long its claim holds, or None; and when another may be there without any change.
Taken: TypeAlias = tuple[tuple[Task, float] | None, float | None]
EXPIRED: Final = "the claim was not extended in time, and it was the last that the policy allows"


def take(queue_file: QueueFile, owner: str, selector: Selector, lease: float | None) -> Taken:
    """Claim the first task that fits; for `lease` seconds, else as long as its own lock or the queue's says."""
    times: list[float] = []
    for lines in _fitting(queue_file, selector, times, marks=True):
        with queue_file.stepping_over():
            return _claim(queue_file, queue_file.whole(lines), owner, lease), None
    return None, min(times, default=None)


def find_ready(queue_file: QueueFile, selector: Selector) -> tuple[bool | None, float | None]:
    """Whether a task that fits could be claimed now, or None; and when one may be there without any change."""
    times: list[float] = []
    ready = next(_fitting(queue_file, selector, times), None) is not None
    return ready or None, None if ready else min(times, default=None)


def _fitting(
    queue_file: QueueFile, selector: Selector, times: list[float], *, marks: bool = False
) -> Iterator[TaskLines]:
    """The tasks that fit and are due; when others may be is noted in `times`. `marks`: mark those that are dead."""
    for lines in queue_file.unended():
        match queue_file.state(lines):
            case State.DEAD if marks:
                with queue_file.stepping_over():
                    if lines.message.status is Status.QUEUED:  # its last claim expired
                        whole = queue_file.whole(lines)
                        whole.set("error", clipped(EXPIRED))
                        whole.message.mark_error()
            case State.CLAIMED if lines.holder is not None:
                times.append(lines.holder[1])
            case State.INSERTED if selector.matches(lines.filters, queue_file.conf.types):
                if lines.due <= queue_file.now:
                    yield lines
                else:
                    times.append(lines.due)


def take_one(queue_file: QueueFile, owner: str, task_id: str, lease: float | None, attempt: int | None) -> Taken:
    """Claim this task if it is pending and due; `attempt`: only as its delivery of that number."""
    lines = queue_file.tasks.get(task_id)
    if lines is None or queue_file.state(lines) is not State.INSERTED or lines.due > queue_file.now:
        return None, None
    if attempt not in {None, lines.number("attempts") + 1}:
        return None, None
    return _claim(queue_file, queue_file.whole(lines), owner, lease), None


def _claim(queue_file: QueueFile, lines: TaskLines, owner: str, lease: float | None) -> tuple[Task, float]:
    span = lease or lines.span(queue_file.conf)
    lines.set("claims", _count(lines, "claims", 1))
    if not lines.message.try_lock(owner, span):
        msg = f"{lines.message!r} was edited while it was claimed"
        raise StaleMessage(msg)
    lines.set("attempts", _count(lines, "attempts", 1))
    return queue_file.task(lines), span


def _count(lines: TaskLines, name: str, more: int) -> str:
    return str(min(max(0, lines.number(name) + more), 10 ** ROOMS[name] - 1))


def current(queue_file: QueueFile, task_id: str, token: int) -> tuple[TaskLines, str]:
    """The task that a token's claim holds now, and its owner. Raises `TaskNotFound`, `ClaimLost`, `ConfigError`."""
    if isinstance(token, bool) or not isinstance(token, int):
        msg = f"token {token!r} is not allowed: the whole number that the claim got"
        raise ConfigError(msg)
    lines = queue_file.find(task_id)
    state, holder = queue_file.state(lines), lines.holder
    if state is not State.CLAIMED or holder is None or lines.number("claims") != token:
        now = f"the task is {state}, attempt {lines.number('attempts')}"
        msg = f"claim {token} of task {task_id!r} is not the current one; {now}; nothing was changed"
        raise ClaimLost(msg)
    return queue_file.whole(lines), holder[0]


def complete(queue_file: QueueFile, task_id: str, token: int, result: bytes) -> None:
    """Finish the task and keep its result. Raises `ClaimLost`."""
    lines, owner = current(queue_file, task_id, token)
    queue_file.keep_result(lines, result)
    lines.set("error", "")
    lines.message.settle(owner, Status.PROCESSED)


def fail(
    queue_file: QueueFile, task_id: str, token: int, error: str | BaseException, *, retry: bool, wait: float | None
) -> State:
    """Give the task back until its policy's backoff, or `wait`, is over; or end it as dead. Raises `ClaimLost`."""
    lines, owner = current(queue_file, task_id, token)
    policy, attempt = lines.policy(queue_file.conf), lines.number("attempts")
    text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
    lines.set("error", clipped(text))
    if not retry or policy.exhausted(attempt) or policy.is_final(error):
        lines.message.settle(owner, Status.ERROR)
        return State.DEAD
    _give_back(queue_file, lines, owner, policy.backoff(attempt, random.random()) if wait is None else wait)  # noqa: S311
    return State.INSERTED


def release(queue_file: QueueFile, task_id: str, token: int, delay: float) -> None:
    """Give the task back for so long; the claim counts as no attempt. Raises `ClaimLost`."""
    lines, owner = current(queue_file, task_id, token)
    lines.set("attempts", _count(lines, "attempts", -1))
    _give_back(queue_file, lines, owner, delay)


def _give_back(queue_file: QueueFile, lines: TaskLines, owner: str, delay: float) -> None:
    lines.set("due", spell_time(queue_file.now + delay) if delay >= 0.001 else "")
    lines.message.settle(owner, None)


def extend(queue_file: QueueFile, task_id: str, token: int, span: float) -> None:
    """Hold the claim so many seconds from now. Raises `ClaimLost`."""
    lines, owner = current(queue_file, task_id, token)
    lines.message.try_lock(owner, span)


def expire(queue_file: QueueFile, task_id: str, token: int) -> None:
    """End the claim as if its time were over; the next one is another attempt. Raises `ClaimLost`."""
    lines, owner = current(queue_file, task_id, token)
    lines.set("mutex", message_mutex.held(owner, queue_file.now - 1))
