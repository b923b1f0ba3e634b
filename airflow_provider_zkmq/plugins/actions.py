"""What somebody may do from the page: to tasks, a group at a time so that it can be stopped, and to whole queues."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..engine import ConfigError, ZkmqError
from ..inspection.selection import GroupSelection, one_by_one

if TYPE_CHECKING:
    from ..engine import AnyQueue

#: So many tasks are dealt with between two lines that tell how far it is.
_TOGETHER: Final = 64
_MOST_NAMED: Final = 10_000
#: So many refusals are told in a line; the others are counted.
_MOST_REFUSED: Final = 64
#: An action on a large queue takes minutes; a proxy ends what says nothing for about one.
_SILENT_SECONDS: Final = 15.0
_NAME: Final = Field(max_length=128)
_TEXT: Final = Field(default=None, max_length=4_096)


class Wanted(BaseModel):
    """Which tasks somebody means by what they have in common."""

    model_config = ConfigDict(extra="forbid")
    state: str | None = _TEXT
    selector: str | None = _TEXT
    error: str | None = _TEXT
    kind: str | None = _TEXT
    batch: str | None = _TEXT
    all: bool = False


class Action(BaseModel):
    """What somebody wants done in a queue; to `tasks` by their ids, or to those of a `selection`."""

    model_config = ConfigDict(extra="forbid")
    queue: str = _NAME
    action: Literal["redrive", "cancel", "release", "pause", "resume", "clean"]
    tasks: list[str] | None = Field(default=None, max_length=_MOST_NAMED)
    selection: Wanted | None = None


#: In which states tasks are that an action is for.
_STATES: Final = {"redrive": ("dead",), "cancel": ("inserted", "claimed"), "release": ("claimed",)}


def carry_out(queue: AnyQueue, wanted: Action) -> Iterator[str]:
    """Do it, and tell in lines of JSON how far it is; whoever stops reading stops it.

    Raises `ConfigError` before anything is done, for what is not understood.
    """
    if wanted.action not in _STATES:
        if wanted.tasks is not None or wanted.selection is not None:
            raise ConfigError(f"{wanted.action} is about the whole queue: name no tasks")
        return _of_whole(queue, wanted.action)
    act: Callable[[Sequence[str]], dict[str, ZkmqError]] = {
        "redrive": queue.redrive_many,
        "cancel": partial(one_by_one, queue.cancel),
        "release": partial(one_by_one, queue.revoke),
    }[wanted.action]
    return _of_tasks(act, _chosen(wanted).ids(queue, *_STATES[wanted.action]))


def _chosen(wanted: Action) -> GroupSelection:
    """Raises `ConfigError`."""
    if (wanted.tasks is None) == (wanted.selection is None):
        raise ConfigError("name the tasks, or say what they have in common")
    what = {"tasks": wanted.tasks} if wanted.selection is None else wanted.selection.model_dump()
    chosen = GroupSelection(**what)
    if not (chosen.tasks or chosen.conditions):
        raise ConfigError("say which tasks: by their ids, by what they have in common, or all of them")
    return chosen


def _of_tasks(act: Callable[[Sequence[str]], dict[str, ZkmqError]], ids: Sequence[str]) -> Iterator[str]:
    yield _line(of=len(ids))
    done = refused = 0
    try:
        for start in range(0, len(ids), _TOGETHER):
            group = ids[start : start + _TOGETHER]
            why = act(group)
            done, refused = done + len(group) - len(why), refused + len(why)
            refusals = [{"id": task, "reason": str(error)} for task, error in why.items()]
            yield _line(done=len(group) - len(why), refused=refusals[:_MOST_REFUSED])
    except ZkmqError as error:
        yield _line(over=True, done=done, refused=refused, message=f"stopped: {error}", error=True)
        return
    yield _line(over=True, done=done, refused=refused, message="")


def _of_whole(queue: AnyQueue, action: str) -> Iterator[str]:
    thread = ThreadPoolExecutor(1)
    doing = thread.submit(_of_queue, queue, action)
    thread.shutdown(wait=False)  # whoever reads no more waits for nothing
    while not wait([doing], timeout=_SILENT_SECONDS).done:
        yield _line(done=0, refused=[])
    try:
        yield _line(over=True, done=1, refused=0, message=doing.result())
    except ZkmqError as error:
        yield _line(over=True, done=0, refused=1, message=str(error), error=True)


def _of_queue(queue: AnyQueue, action: str) -> str:
    """Do something to a queue as a whole, and tell of it."""
    if action == "pause":
        return "paused" if queue.pause() else "it was paused already"
    if action == "resume":
        return "resumed" if queue.resume() else "it was not paused"
    did = queue.collect_garbage()
    return f"{did.collected} deleted, {did.rescued} given back" if did.ran else "another clean-up is running"


def _line(**values: Any) -> str:
    return json.dumps(values) + "\n"
