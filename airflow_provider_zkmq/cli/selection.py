"""The options that say which tasks a verb is about: declared once, and given alike to all verbs on several tasks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..inspection.selection import BACKOFF, SCHEDULED, Selection
from .connection import Cli
from .options import STATES, STATUSES, UsageError, choice, flag, operand, option
from .output import progress, warn

if TYPE_CHECKING:
    from ..engine import ZkmqError

_ALL: Final[dict[str, Any]] = {"rich_help_panel": "Which tasks"}


def take_selection(
    tasks: list[str] | None = operand("[TASK…]", "their ids", None),
    state: str | None = choice(
        (*STATES, *STATUSES, SCHEDULED),
        f"a state ({', '.join(STATES)}) or a status ({', '.join(STATUSES)}); scheduled: those of the inserted "
        f"that wait for their time, {BACKOFF}",
        metavar="WORD",
        **_ALL,
    ),
    selector: str | None = option("by their filters, such as 'region==eu, any(1, a==1, b==2)'", "TEXT", **_ALL),
    batch: str | None = option("members of a batch", "NAME", **_ALL),
    error: str | None = option("whose error has this in it; * stands for any text", "PATTERN", **_ALL),
    limit: int | None = option("at most N tasks", "N", **_ALL),
    all: bool = flag("--all", "each that the verb is about", **_ALL),  # noqa: A002  the option's name
) -> None:
    """Declare the options that say which tasks a verb is about."""


SELECTION: Final = inspect.signature(take_selection, eval_str=True).parameters
#: In a verb's parameters: these options stand here.
CHOSEN: Any = None


def check(chosen: Selection, *, required: str = "") -> None:
    """Raise `UsageError` for ids beside other options; `required`: the verb that needs one of both."""
    if chosen.tasks and chosen.conditions:
        raise UsageError(f"--{chosen.conditions[0]} goes without task ids: name the tasks, or say what they are")
    if chosen.limit is not None and chosen.limit < 0:
        raise UsageError(f"--limit {chosen.limit} is not allowed: 0 or more")
    if required and not chosen.tasks and not chosen.conditions:
        raise UsageError(f"{required} needs to know which tasks: their ids, --all, or what they are, as by --error")


# --- What is done to each of them.

_TOGETHER: Final = 64


def do_to_each(
    cli: Cli,
    queue: str,
    done: str,
    ids: Sequence[str],
    act: Callable[[Sequence[str]], dict[str, ZkmqError]],
    *,
    named: bool,
) -> int:
    """Do something to tasks, and say to which it was done, by the word for that, and which refused it; 1 if one did.

    Unless they were `named`, those are passed over that somebody else was faster with.
    """
    from ..engine import CorruptRecord

    refused: dict[str, ZkmqError] = {}
    count = 0
    with progress(queue, len(ids), lambda: count):
        for count in range(0, len(ids), _TOGETHER):
            refused |= act(ids[count : count + _TOGETHER])
    reported = {task: why for task, why in refused.items() if named or isinstance(why, CorruptRecord)}
    value: dict[str, object] = {"queue": queue, done: [task for task in ids if task not in refused]}
    for why in reported.values():
        value |= {"error": type(why).__name__, "message": str(why)} if "error" not in value else {}
        warn(str(why))
    if reported:
        value["refused"] = {task: str(why) for task, why in reported.items()}
    count = len(ids) - len(refused)
    text = "\n".join(f"{done} {task}" for task in ids if task not in refused) if named else f"{count} {done}"
    return cli.say(value, text or f"nothing {done}", 1 if reported else 0)
