"""Claiming and settling, within the lock of the file.

The order of the writes is such that a process that is killed between two of them leaves a task that goes on: before
the mutex is freed, or after it is taken, the claim simply expires.
"""

from __future__ import annotations

import random
from typing import Final, TypeAlias

from airflow_provider_zkmq.engine.errors import ClaimLost, ConfigError
from airflow_provider_zkmq.engine.model import Selector, State, Task
from airflow_provider_zkmq.filequeue.book import Book
from airflow_provider_zkmq.filequeue.items import Item
from airflow_provider_zkmq.filequeue.variables import ROOMS, clipped, spell_time
from airflow_provider_zkmq.textqueue import StaleMessage, Status, mutex

#: A task with how long its claim holds, or None; and when another may be there without any change.
Taken: TypeAlias = tuple[tuple[Task, float] | None, float | None]
#: Whether a task was found, or None; and when one may be there without any change.
Seen: TypeAlias = tuple[bool | None, float | None]
EXPIRED: Final = "the claim was not extended in time, and it was the last that the policy allows"


def take(book: Book, owner: str, selector: Selector, lease: float | None) -> Taken:
    """Claim the first task that fits; for `lease` seconds, else as long as its own lock or the queue's says."""
    times: list[float] = []
    for item in book.kept.unended():
        with book.stepping_over():
            match book.state(item):
                case State.DEAD:
                    _bury(book, item)
                case State.CLAIMED if item.holder is not None:
                    times.append(item.holder[1])
                case State.INSERTED if selector.matches(item.filters, book.conf.types):
                    if item.due <= book.now:
                        return _claim(book, book.whole(item), owner, lease), None
                    times.append(item.due)
    return None, min(times, default=None)


def take_one(book: Book, owner: str, task_id: str, lease: float | None, attempt: int | None) -> Taken:
    """Claim this task if it is pending and due; `attempt`: only as its delivery of that number."""
    item = book.tasks.get(task_id)
    if item is None or book.state(item) is not State.INSERTED or item.due > book.now:
        return None, None
    if attempt not in {None, item.number("attempts") + 1}:
        return None, None
    return _claim(book, book.whole(item), owner, lease), None


def find_ready(book: Book, selector: Selector) -> Seen:
    """Whether a task that fits could be claimed now."""
    times: list[float] = []
    for item in book.kept.unended():
        with book.stepping_over():
            match book.state(item):
                case State.CLAIMED if item.holder is not None:
                    times.append(item.holder[1])
                case State.INSERTED if selector.matches(item.filters, book.conf.types):
                    if item.due <= book.now:
                        return True, None
                    times.append(item.due)
    return None, min(times, default=None)


def _bury(book: Book, item: Item) -> None:
    """Mark a task whose last claim expired."""
    if item.message.status is Status.QUEUED:
        item = book.whole(item)
        item.set("error", clipped(EXPIRED))
        item.message.mark_error()


def _claim(book: Book, item: Item, owner: str, lease: float | None) -> tuple[Task, float]:
    span = lease or item.span(book.conf)
    item.set("claims", _count(item, "claims", 1))
    if not item.message.try_lock(owner, span):
        msg = f"{item.message!r} was edited while it was claimed"
        raise StaleMessage(msg)
    item.set("attempts", _count(item, "attempts", 1))
    return book.task(item), span


def _count(item: Item, name: str, more: int) -> str:
    return str(min(max(0, item.number(name) + more), 10 ** ROOMS[name] - 1))


def current(book: Book, task_id: str, token: int) -> tuple[Item, str]:
    """The task that a token's claim holds now, and its owner. Raises `TaskNotFound`, `ClaimLost`, `ConfigError`."""
    if isinstance(token, bool) or not isinstance(token, int):
        msg = f"token {token!r} is not allowed: the whole number that the claim got"
        raise ConfigError(msg)
    item = book.find(task_id)
    state, holder = book.state(item), item.holder
    if state is not State.CLAIMED or holder is None or item.number("claims") != token:
        now = f"the task is {state}, attempt {item.number('attempts')}"
        msg = f"claim {token} of task {task_id!r} is not the current one; {now}; nothing was changed"
        raise ClaimLost(msg)
    return book.whole(item), holder[0]


def complete(book: Book, task_id: str, token: int, result: bytes) -> None:
    """Finish the task and keep its result. Raises `ClaimLost`."""
    item, owner = current(book, task_id, token)
    book.keep_result(item, result)
    item.set("error", "")
    item.message.settle(owner, Status.PROCESSED)


def fail(book: Book, task_id: str, token: int, error: str | BaseException, *, retry: bool, wait: float | None) -> State:
    """Give the task back until its policy's backoff, or `wait`, is over; or end it as dead. Raises `ClaimLost`."""
    item, owner = current(book, task_id, token)
    policy, attempt = item.policy(book.conf), item.number("attempts")
    text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
    item.set("error", clipped(text))
    if not retry or policy.exhausted(attempt) or policy.is_final(error):
        item.message.settle(owner, Status.ERROR)
        return State.DEAD
    _give_back(book, item, owner, policy.backoff(attempt, random.random()) if wait is None else wait)  # noqa: S311
    return State.INSERTED


def release(book: Book, task_id: str, token: int, delay: float) -> None:
    """Give the task back for so long; the claim counts as no attempt. Raises `ClaimLost`."""
    item, owner = current(book, task_id, token)
    item.set("attempts", _count(item, "attempts", -1))
    _give_back(book, item, owner, delay)


def _give_back(book: Book, item: Item, owner: str, delay: float) -> None:
    item.set("due", spell_time(book.now + delay) if delay >= 0.001 else "")
    item.message.settle(owner, None)


def extend(book: Book, task_id: str, token: int, span: float) -> None:
    """Hold the claim so many seconds from now. Raises `ClaimLost`."""
    item, owner = current(book, task_id, token)
    item.message.try_lock(owner, span)


def expire(book: Book, task_id: str, token: int) -> None:
    """End the claim as if its time were over; the next one is another attempt. Raises `ClaimLost`."""
    item, owner = current(book, task_id, token)
    item.set("mutex", mutex.held(owner, book.now - 1))
