"""The head of an export: a comment for people, with variables that say where the tasks are from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from airflow_provider_zkmq.bridge.payload import visible
from airflow_provider_zkmq.engine import AnyQueue, State
from airflow_provider_zkmq.textqueue import Message, Status, TextQueue

#: The sign that a task has in an export; whoever edits the file changes it.
MARKS: Final = {State.DEAD: Status.ERROR, State.CANCELLED: Status.ERROR, State.INSERTED: Status.QUEUED}
_COUNT: Final = "tasks="
_ENDED: Final = """\
  !  leave it alone: it stays {state}
  -  redrive it: it is queued again, its attempts counted anew, with the text that stands here
  =  drop it: it is deleted for good"""
_PENDING: Final = """\
  -  leave it queued, with the text that stands here
  =  drop it: it is deleted for good"""
_RULES: Final = """\
 The text of a message with - may be changed. Each of its lines but the first begins with one space more, an empty
 one is that space alone. For plain text instead of base64, remove encoding=base64. Leave id= and version= as they are:
 a task that somebody else changed meanwhile is refused. Messages may be removed, and comments such as this added."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a file's tasks are from."""

    queue: str
    root: str


def origin_of_queue(queue: AnyQueue) -> Origin:
    """Where a queue is. Raises `ConfigError` where it does not exist."""
    queue.conf()
    return Origin(queue.name, queue.root)


def write_header(file: TextQueue, origin: Origin, state: State, selector: object = None) -> None:
    """Begin a file. How many tasks follow is noted by `note_count`."""
    signs = (_PENDING if state is State.INSERTED else _ENDED).format(state=state)
    text = (
        f" The {state} tasks of a zkmq queue, to be edited and given back with: zkmq import FILE\n"
        f" The sign in front of a task says what becomes of it then:\n{signs}\n{_RULES}"
    )
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    variables = [f"queue={origin.queue}", f"root={origin.root}", f"exported={now}", f"state={state}"]
    chosen = [] if selector is None else [f"selector={visible(str(selector))}"]
    file.append(text, [*variables, *chosen, _COUNT.ljust(16)], status=Status.COMMENT)


def note_count(file: TextQueue, count: int) -> None:
    """Write the number of tasks into the room that the header has for it."""
    header = next(file.messages("all"))
    header.set_variable(len(header.variables) - 1, f"{_COUNT}{count}")


def origin_of(comment: Message) -> Origin | None:
    """What a comment says about where the tasks are from; None if it is no header."""
    variables = dict(text.strip().partition("=")[::2] for text in comment.variables)
    # A task that was commented out has an id.
    return (
        Origin(variables["queue"], variables["root"])
        if {"queue", "root"} <= variables.keys() and "id" not in variables
        else None
    )
