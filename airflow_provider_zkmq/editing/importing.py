"""A file back to the queue: what each message asks for, held against the task as it is now."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import Final, Literal

from ..engine import MAX_PAYLOAD, AnyQueue, ConfigError, State, Task, TransportError, ZkmqError
from ..engine.queue_internals import internals
from ..textqueue import Status, TextQueue, TextQueueError
from . import file_format
from .exporting import AT_ONCE

# --- What a message asks for, held against the task as it is now.


@dataclass(frozen=True, slots=True)
class Applied:
    """What was done with a task, or would be: ``redrive``, ``replace`` or ``drop``, and if its payload is new."""

    id: str
    action: Literal["redrive", "replace", "drop"]
    new_data: bool = False


def judge(entry: file_format.Entry, task: Task | None) -> Applied | None:
    """What is to be done about a message; None: nothing. Raises `Refusal`."""
    if task is None:
        raise file_format.Refusal("the task is not in the queue any more, or its record cannot be read")
    if task.version != entry.version:
        raise file_format.Refusal(
            f"the task has changed since it was exported: it is {task.state} by now, attempt {task.attempt}"
        )
    filters = file_format.spell_filters(task)
    if entry.filters not in {None, filters.strip()}:
        raise file_format.Refusal(f"an import changes no filters; they are {file_format.clipped(filters)!r}")
    changed = _changed(entry, task)
    match task.state, entry.mark:
        case State.DEAD | State.CANCELLED | State.INSERTED, Status.PROCESSED:
            return Applied(entry.id, "drop")
        case State.DEAD | State.CANCELLED, Status.QUEUED:
            return Applied(entry.id, "redrive", new_data=changed)
        case State.DEAD | State.CANCELLED, Status.ERROR:
            if changed:
                raise file_format.Refusal(
                    "its text was changed, and ! leaves a task alone: mark it - to redrive with the new text"
                )
            return None
        case State.INSERTED, Status.QUEUED:
            return Applied(entry.id, "replace", new_data=True) if changed else None
        case State.INSERTED, _:
            raise file_format.Refusal("the task is queued: only - (leave it) and = (drop it) can be asked for")
    raise file_format.Refusal(f"the task is {task.state}: an import is about dead, cancelled and queued ones")


def is_done(entry: file_format.Entry, task: Task | None) -> bool:
    """Whether a task that has changed since it was exported is as its message wants it: whoever did that."""
    if entry.mark == Status.PROCESSED:
        return task is None
    # It has been put back since, with the file's payload, whatever became of it.
    put_back = task is not None and task.version > entry.version and entry.digest == file_format.digest(task.data)
    return entry.mark == Status.QUEUED and put_back


def _changed(entry: file_format.Entry, task: Task) -> bool:
    """Whether the file's payload is another. Raises `Refusal` for base64 that lost the line which says so."""
    if entry.digest == file_format.digest(task.data):
        return False
    spelled = file_format.spell(task.data)
    if entry.plain and spelled.encoding == file_format.BASE64 and entry.digest == file_format.digest(spelled.data):
        raise file_format.Refusal(
            f"its payload is base64 still: put encoding={file_format.BASE64} back, or plain text in its place"
        )
    return True


# --- A file back to the queue, each message for itself.

_DONE: Final = {"redrive": "redriven", "replace": "replaced", "drop": "dropped"}


@dataclass(slots=True)
class Imported:
    """What became of a file's messages; in a dry run, what would. ``refused`` is in the order of the file.

    ``before``: the tasks for which an earlier import of the file, which was cut off, had done what it asks for.
    """

    queue: str
    dry_run: bool
    applied: list[Applied] = field(default_factory=list)
    refused: list[file_format.Refused] = field(default_factory=list)
    unchanged: int = 0
    before: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, object]:
        """The same for JSON."""
        return {
            "queue": self.queue,
            "applied": [asdict(line) for line in self.applied],
            "refused": [asdict(line) for line in self.refused],
            "unchanged": self.unchanged,
            "dry_run": self.dry_run,
            **({"before": self.before} if self.before else {}),
        }

    def in_words(self) -> str:
        """The same for people, but for what was refused: a line for each task, and the numbers."""
        lines = [f"{_DONE[each.action]} {each.id}{', with new text' * each.new_data}" for each in self.applied]
        plan = "; a dry run: nothing was written" if self.dry_run else ""
        counts = f"{len(self.applied)} applied, {len(self.refused)} refused, {self.unchanged} unchanged{plan}"
        return "\n".join([*lines, counts])


def import_file(
    queue: AnyQueue,
    path: str | os.PathLike[str],
    dry_run: bool = False,
    *,
    elsewhere: bool = False,
    again: bool = False,
) -> Imported:
    """Do what a file asks for, each message for itself, in the order of the file.

    A task is only touched as it was exported: whatever happened to it since refuses its message. The file is read
    to its end before anything is written. `dry_run`: nothing is. `elsewhere`: also from another queue or root.
    `again`: an earlier import of the file was cut off: a task that is by now as its message wants it is not refused.

    Raises `BadFile` for what cannot be read as an export, or is another queue's, `ConfigError` where the queue does not
    exist, `OSError` where the file cannot be opened; then nothing was written. `TransportError`: ZooKeeper went away;
    the message says how many were applied. Importing again is safe.
    """
    with file_format.opened(path) as file:
        (written, entries, refused), own = file_format.read(file), file_format.origin_of_queue(queue)
        if written != own and not elsewhere:
            source = "does not say where its tasks are from"
            if written is not None:
                source = f"is from {written.root}/{written.queue}"
            raise file_format.BadFile(
                f"{file.path} {source}: to import it into {own.root}/{own.queue}, say so explicitly"
            )
        done = Imported(queue.name, dry_run, refused=refused)
        try:
            for start in range(0, len(entries), AT_ONCE):
                chunk = entries[start : start + AT_ONCE]
                tasks = {task.id: task for task in queue.tasks(ids=[entry.id for entry in chunk], parts=["data"])}
                for entry in chunk:
                    _one(queue, file, entry, tasks.get(entry.id), done, again=again)
        except TransportError as error:
            msg = f"{error}; {len(done.applied)} message(s) were applied before: import again, those will be refused"
            raise type(error)(msg) from error
    done.refused.sort(key=lambda refusal: refusal.offset)
    return done


def _one(
    queue: AnyQueue, file: TextQueue, entry: file_format.Entry, task: Task | None, done: Imported, *, again: bool
) -> None:
    try:
        step = judge(entry, task)
        if step is None:
            done.unchanged += 1
            return
        data = None
        if step.new_data:  # read again
            message = next(file.messages("all", start=entry.offset), None)
            data = b"" if message is None else file_format.payload_of(message, file_format.variables_of(message))
            if file_format.digest(data) != entry.digest:
                raise file_format.Refusal("the file was changed while it was read; import it again")
            if len(data) > MAX_PAYLOAD:
                raise file_format.Refusal(f"its payload has {len(data):,} bytes; ZooKeeper takes {MAX_PAYLOAD:,}")
        if not done.dry_run:
            _carry_out(queue, entry, step, data)
    except (TransportError, ConfigError):
        raise
    except (file_format.Refusal, ZkmqError, TextQueueError) as why:
        if again and isinstance(why, file_format.Refusal) and is_done(entry, task):
            done.before.append(entry.id)
        else:
            done.refused.append(file_format.Refused(entry.id, entry.offset, entry.line, str(why)))
    else:
        done.applied.append(step)


def _carry_out(queue: AnyQueue, entry: file_format.Entry, step: Applied, data: bytes | None) -> None:
    match step.action:
        case "redrive":
            queue.redrive(entry.id, version=entry.version, data=data)
        case "replace":
            internals(queue).replace(entry.id, data or b"", version=entry.version)
        case "drop":
            queue.drop(entry.id, version=entry.version)
