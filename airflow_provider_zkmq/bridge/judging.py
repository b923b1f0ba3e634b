"""What a message asks for, held against the task as it is now."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_zkmq.bridge.entries import Entry, digest, spell_filters
from airflow_provider_zkmq.bridge.payload import BASE64, Refusal, clipped, spell
from airflow_provider_zkmq.engine import State, Task
from airflow_provider_zkmq.textqueue import Status


class Action(StrEnum):
    """What is done with a task."""

    REDRIVE = "redrive"
    REPLACE = "replace"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Step:
    """What is done with a task, and whether its payload is replaced."""

    action: Action
    new_data: bool = False


def judge(entry: Entry, task: Task | None) -> Step | None:
    """What is to be done about a message; None: nothing. Raises `Refusal`."""
    if task is None:
        raise Refusal("the task is not in the queue any more, or its record cannot be read")
    if task.version != entry.version:
        raise Refusal(f"the task has changed since it was exported: it is {task.state} by now, attempt {task.attempt}")
    filters = spell_filters(task)
    if entry.filters not in {None, filters.strip()}:
        raise Refusal(f"an import changes no filters; they are {clipped(filters)!r}")
    changed = _changed(entry, task)
    match task.state, entry.mark:
        case State.DEAD | State.CANCELLED | State.INSERTED, Status.PROCESSED:
            return Step(Action.DROP)
        case State.DEAD | State.CANCELLED, Status.QUEUED:
            return Step(Action.REDRIVE, new_data=changed)
        case State.DEAD | State.CANCELLED, Status.ERROR:
            if changed:
                raise Refusal("its text was changed, and ! leaves a task alone: mark it - to redrive with the new text")
            return None
        case State.INSERTED, Status.QUEUED:
            return Step(Action.REPLACE, new_data=True) if changed else None
        case State.INSERTED, _:
            raise Refusal("the task is queued: only - (leave it) and = (drop it) can be asked for")
    raise Refusal(f"the task is {task.state}: an import is about dead, cancelled and queued ones")


def is_done(entry: Entry, task: Task | None) -> bool:
    """Whether a task that has changed since it was exported is as its message wants it: whoever did that.

    What was to go is gone; what was to run has been put back since, with the file's payload, whatever became of it.
    """
    if entry.mark == Status.PROCESSED:
        return task is None
    put_back = task is not None and task.version > entry.version and entry.digest == digest(task.data)
    return entry.mark == Status.QUEUED and put_back


def _changed(entry: Entry, task: Task) -> bool:
    """Whether the file's payload is another. Raises `Refusal` for base64 that lost the line which says so."""
    if entry.digest == digest(task.data):
        return False
    spelled = spell(task.data)
    if entry.plain and spelled.encoding == BASE64 and entry.digest == digest(spelled.data):
        raise Refusal(f"its payload is base64 still: put encoding={BASE64} back, or plain text in its place")
    return True
