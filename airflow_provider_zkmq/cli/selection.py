"""The options that say which tasks a verb is about, given alike to all verbs on several tasks; what is done to each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, get_args

from ..inspection.selection import BACKOFF, Selection, done_story
from ..inspection.terminal import progress
from .connection import Cli
from .options import STATES, State, UsageError, flag, operand, option
from .output import warn

if TYPE_CHECKING:
    from ..engine import AnyQueue, ZkmqError

#: The statuses that tell more than the state does.
_Open = Literal["queued", "queued-with-backoff", "locked", "locked-with-requeue"]
Status = Literal[_Open, "done-awaiting-gc", "done-with-backoff", "done-with-requeue"]
_STATE = (
    f"a state ({', '.join(STATES)}) or a status ({', '.join(get_args(Status))}); scheduled: those of the inserted "
    f"that wait for their time, {BACKOFF}"
)
_which = partial(option, rich_help_panel="Which tasks")
_TOGETHER: Final = 64


@dataclass(frozen=True)
class Chosen(Selection):
    """A selection as a command line gives it: ids, or other options, or neither."""

    tasks: list[str] | None = operand("[TASK…]", "their ids", None)
    state: Literal[State, Status, "scheduled"] | None = _which(_STATE, "WORD")
    selector: str | None = _which("by their filters, such as 'region==eu, any(1, a==1, b==2)'", "TEXT")
    batch: str | None = _which("members of a batch", "NAME")
    error: str | None = _which("whose error has this in it; * stands for any text", "PATTERN")
    limit: int | None = _which("at most N tasks", "N", min=0)
    all: bool = flag("--all", "each that the verb is about", rich_help_panel="Which tasks")

    def __post_init__(self) -> None:
        if self.tasks and self.conditions:
            raise UsageError(f"--{self.conditions[0]} goes without task ids: name the tasks, or say what they are")


@dataclass(frozen=True)
class Needed(Chosen):
    """The same for a verb that has to be told which tasks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.tasks and not self.conditions:
            raise UsageError("zkmq needs to know which tasks: their ids, --all, or what they are, as by --error")


def do_to_each(
    cli: Cli,
    queue: AnyQueue,
    done: str,
    ids: Sequence[str],
    act: Callable[[Sequence[str]], dict[str, ZkmqError]],
    *,
    named: bool,
) -> int:
    """Do something to tasks, and say to which it was done, as `done_story` has it; 1 if one refused it."""
    refused: dict[str, ZkmqError] = {}
    count = 0
    with progress(queue.name, len(ids), lambda: count):
        for count in range(0, len(ids), _TOGETHER):
            refused |= act(ids[count : count + _TOGETHER])
    value, text = done_story(queue.name, done, ids, refused, named=named)
    for each in value["refused"]:
        warn(each["reason"])
    return cli.say(value, text, 1 if value["refused"] else 0)
