"""Which tasks somebody means: by their ids, or by what they are; and the kinds of their errors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..error_texts import masked
from .records import iso

if TYPE_CHECKING:
    from ..engine import AnyQueue, Part, Task, ZkmqError

#: The word of ``status`` for a status of tasks.
SCHEDULED: Final = "scheduled"
BACKOFF: Final = "queued-with-backoff"


@dataclass(frozen=True, slots=True)
class Selection:
    """Either the ids of tasks, or what the tasks have in common; ``all``: nothing, and that is meant.

    ``state``: a state, or a status. ``error``: what the text of the error has in it, as it is or masked; ``*`` stands
    for any text.
    """

    tasks: list[str] | None = None
    state: str | None = None
    selector: str | None = None
    batch: str | None = None
    error: str | None = None
    limit: int | None = None
    all: bool = False

    @property
    def conditions(self) -> list[str]:
        """The names of what is given besides ids."""
        return [name for name, value in asdict(self).items() if name != "tasks" and value not in (None, False)]

    @property
    def reads_errors(self) -> bool:
        """Whether it asks for what went wrong."""
        return self.error is not None

    def find(self, queue: AnyQueue, parts: Collection[Part], *states: str) -> list[Task]:
        """The tasks in the queue, at most ``limit``. `states`: of those whose state is not asked for."""
        from ..engine import State

        word = BACKOFF if self.state == SCHEDULED else self.state or (states[0] if len(states) == 1 else None)
        which: dict[str, Any] = {"state": word} if word is None or word in set(State) else {"status": word}
        which |= {"ids": self.tasks} if self.tasks else {"batch": self.batch}
        late = self.reads_errors or (len(states) > 1 and self.state is None)
        found = queue.tasks(**which, selector=self.selector, parts=parts, limit=None if late else self.limit)
        if late and self.state is None and states:
            found = [task for task in found if task.state in states]
        return [task for task in found if self.accepts(task)][: self.limit]

    def accepts(self, task: Task) -> bool:
        """Whether a task's batch and error are those asked for."""
        if self.batch is not None and task.batch != self.batch:
            return False
        if self.error is None:
            return True
        return any(has_in_order(text, self.error.split("*")) for text in (task.error or "", kind_of_error(task)))

    def ids(self, queue: AnyQueue, *states: str) -> list[str]:
        """The ids of the tasks, as `find`; all that are named, there or not. Raises `ConfigError` for a bad one."""
        from ..engine import State, check_name
        from ..engine.queue_internals import internals

        if self.tasks:
            return [check_name("task id", task) for task in dict.fromkeys(self.tasks)]
        wanted = (self.state,) if self.state else states
        readless = self.selector is self.batch is None and not self.reads_errors
        if readless and set(wanted) <= set(State):  # no task need be read
            return [task for state in wanted for task in internals(queue).ids(state)][: self.limit]
        return [task.id for task in self.find(queue, (), *states)]


def has_in_order(text: str, parts: Sequence[str]) -> bool:
    """Whether a text has all parts, each behind the one before; a regular expression could take very long over it."""
    at = 0
    for part in parts:
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def one_by_one(act: Callable[[str], object], ids: Sequence[str]) -> dict[str, ZkmqError]:
    """Do something to tasks one after the other, and give those that refuse it, with their errors."""
    from ..engine import CorruptRecord, IllegalTransition, TaskNotFound

    refused: dict[str, ZkmqError] = {}
    for task in ids:
        try:
            act(task)
        except (CorruptRecord, IllegalTransition, TaskNotFound) as error:
            refused[task] = error
    return refused


def done_story(
    queue: str, done: str, ids: Sequence[str], refused: Mapping[str, ZkmqError], *, named: bool
) -> tuple[dict[str, Any], str]:
    """To which tasks something was done, by the word for that, and which refused it: a record, and a text for people.

    Unless they were `named`, those are passed over that somebody else was faster with.
    """
    from ..engine import CorruptRecord

    reached = [task for task in ids if task not in refused]
    reported = {task: why for task, why in refused.items() if named or isinstance(why, CorruptRecord)}
    value: dict[str, Any] = {"queue": queue, done: reached}
    value["refused"] = [{"id": task, "reason": str(why)} for task, why in reported.items()]
    for why in reversed(reported.values()):
        value |= {"error": type(why).__name__, "message": str(why)}  # of the first in the end
    text = "\n".join(f"{done} {task}" for task in reached) if named else f"{len(reached)} {done}"
    return value, text or f"nothing {done}"


class HasFailed(Protocol):
    """What is to be known of a task to tell its kind of error."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def error(self) -> str | None:
        """What went wrong."""

    @property
    def ended_ms(self) -> int | None:
        """When it ended."""


def kind_of_error(task: HasFailed) -> str:
    """The kind of a task's error, and its text without what differs from task to task."""
    kind, text = masked(task.error or "", task.id)
    return ": ".join(filter(None, (kind, text))) or "no error told"


@dataclass(frozen=True)
class GroupSelection(Selection):
    """A selection that may be one of the groups of `by_error`: ``kind``, its error exactly as it is named there."""

    kind: str | None = None

    @property
    def reads_errors(self) -> bool:
        """Whether it asks for what went wrong."""
        return self.error is not None or self.kind is not None

    def accepts(self, task: Task) -> bool:
        """Whether a task's batch, error and kind of error are those asked for."""
        return super().accepts(task) and self.kind in (None, kind_of_error(task))


def by_error(tasks: Collection[HasFailed]) -> list[dict[str, Any]]:
    """Tasks that have ended by the kinds of their errors, the most frequent first, the latest ids last."""
    groups = defaultdict[str, list[HasFailed]](list)
    for task in sorted(tasks, key=lambda task: (task.ended_ms or 0, task.id)):
        groups[kind_of_error(task)].append(task)
    return [
        {
            "error": text,
            "count": len(alike),
            "example": alike[-1].error,
            "latest_at": iso(alike[-1].ended_ms),
            "ids": [task.id for task in alike],
        }
        for text, alike in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    ]
