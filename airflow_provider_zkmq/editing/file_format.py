"""The file of an export: its head, each task as a message, payloads as text, and how it is read back."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from ..engine import AnyQueue, ConfigError, State, Task, check_name
from ..inspection.wording import one_line
from ..textqueue import Limits, Message, Status, TextQueue, TextQueueError

# --- Payloads as text that people read and editors keep, or else as base64.
#
# Text is kept from editors that strip spaces at the ends of lines, change how lines end, or know what is invisible
# better than its author: what they might damage is spelled as base64. Empty lines stay, since texts have many; how
# many is noted, so that their loss is seen.

TEXT: Final = "text"
BASE64: Final = "base64"
#: Controls but newline and tab, line and paragraph separators, what turns the direction of text, a byte order mark.
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufeff]")
_STRIPPED: Final = re.compile(r"[^\S\n](?=\n|\Z)|\n\Z")


class Refusal(Exception):
    """Why one message is left alone."""


class Spelled(NamedTuple):
    """A payload as it stands in a file: its bytes, how they are to be read, how many of its further lines are empty."""

    data: bytes
    encoding: str = TEXT
    blank: int = 0


def spell(payload: bytes) -> Spelled:
    """A payload as text, where an editor gives it back as it was, else as base64 in lines of 76 characters."""
    with contextlib.suppress(UnicodeDecodeError):
        text = payload.decode()
        if not (_CONTROL.search(text) or _STRIPPED.search(text)):
            return Spelled(payload, blank=blank_lines(payload))
    return Spelled(base64.encodebytes(payload).removesuffix(b"\n"), BASE64)


def blank_lines(payload: bytes) -> int:
    """How many lines after the first are empty: in a file they are a space alone, which editors may strip."""
    return payload.split(b"\n")[1:].count(b"")


def understand(data: bytes, encoding: str) -> bytes:
    """The payload that stands in a file. Raises `Refusal`."""
    try:
        if encoding == BASE64:
            return base64.b64decode(b"".join(data.split()), validate=True)
        if encoding != TEXT:
            raise Refusal(f"encoding={clipped(encoding)} is not known: {TEXT} (or no such line) or {BASE64}")
        control = _CONTROL.search(data.decode())
    except binascii.Error as error:
        raise Refusal(f"broken base64: {error}; for plain text remove the line encoding={BASE64}") from None
    except UnicodeDecodeError as error:
        raise Refusal(f"the text is no UTF-8: {error.reason} at its byte {error.start}; save it as UTF-8") from None
    if control:
        raise Refusal(
            f"the text holds {control.group()!r} at its character {control.start()}, which editors damage: "
            f"write it as base64, with encoding={BASE64}"
        )
    return data


def clipped(text: str, most: int = 140) -> str:
    """What of a text, made one line, is told."""
    return one_line(text if len(text) <= most else text[: most - 1] + "…")


# --- The head of an export: a comment for people, with variables that say where the tasks are from.

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
    chosen = [] if selector is None else [f"selector={one_line(str(selector))}"]
    file.append(text, [*variables, *chosen, _COUNT.ljust(16)], status=Status.COMMENT)


def note_count(file: TextQueue, count: int) -> None:
    """Write the number of tasks into the room that the header has for it."""
    header = next(file.messages("all"))
    header.set_variable(len(header.variables) - 1, f"{_COUNT}{count}")


def origin_of(comment: Message) -> Origin | None:
    """What a comment says about where the tasks are from; None if it is no header."""
    variables = dict(text.strip().partition("=")[::2] for text in comment.variables)
    if "id" in variables or not {"queue", "root"} <= variables.keys():  # a task that was commented out has an id
        return None
    return Origin(variables["queue"], variables["root"])


# --- A task as a message of a file, and what a message asks for.

_NAMES: Final = ("id", "attempts", "error", "filters", "encoding", "blank", "version")
_NUMBER: Final = re.compile(r"[0-9]{1,19}\Z")


def append_task(file: TextQueue, task: Task) -> None:
    """Write a task as a message at the end of a file."""
    spelled = spell(task.data)
    variables = {"id": task.id, "attempts": str(task.attempt)}
    if task.error is not None:
        variables["error"] = one_line(task.error)
    if task.filters:
        variables["filters"] = spell_filters(task)
    if spelled.encoding != TEXT:
        variables["encoding"] = spelled.encoding
    if spelled.blank:
        variables["blank"] = str(spelled.blank)
    variables["version"] = str(task.version)  # last: a file that was cut off has none for its last message
    lines = [f"{name}={value}" for name, value in variables.items()]
    file.append(spelled.data, lines, status=MARKS[task.state])


def spell_filters(task: Task) -> str:
    """A task's filters on one line."""
    return one_line(", ".join(f"{name}={value}" for name, value in sorted(task.filters.items())))


class Entry(NamedTuple):
    """What a message asks for. The payload is left in the file; here is its digest."""

    id: str
    version: int
    mark: Status
    digest: bytes
    plain: bool
    filters: str | None
    offset: int
    line: int


def entry_of(message: Message, line: int) -> Entry:
    """What a message of a file asks for. Raises `Refusal`."""
    variables = variables_of(message)
    if "id" not in variables:
        raise Refusal("it has no id=: tasks are not added by an import (zkmq enqueue does that)")
    try:
        task_id = check_name("task id", clipped(variables["id"]))  # what is clipped or not printable is no id either
    except ConfigError as error:
        raise Refusal(str(error)) from None
    version = variables.get("version")
    if version is None:
        raise Refusal("it has no version=, which says how the task was when it was exported")
    if not _NUMBER.match(version):
        raise Refusal(f"version={clipped(version)} is no number")
    payload = payload_of(message, variables)
    plain = variables.get("encoding") != BASE64
    return Entry(
        task_id, int(version), message.status, digest(payload), plain, variables.get("filters"), message.offset, line
    )


def variables_of(message: Message) -> dict[str, str]:
    r"""The variables by their names. Raises `Refusal` for one twice, and for one that an export does not write.

    That may be a line of text which begins with ``\`` and lacks its space: it must not vanish from the payload.
    """
    variables: dict[str, str] = {}
    for text in message.variables:
        name, equals, value = text.partition("=")
        if not equals or name not in _NAMES:
            raise Refusal(f"\\{clipped(text, 40)} is no variable of a task; a line of text begins with a space")
        if name in variables:
            raise Refusal(f"{name}= stands twice")
        variables[name] = value.strip()
    return variables


def payload_of(message: Message, variables: dict[str, str]) -> bytes:
    """The payload of a message with these variables. Raises `Refusal`."""
    encoding, blank = variables.get("encoding", TEXT), variables.get("blank", "0")
    payload = understand(message.data, encoding)
    if not _NUMBER.match(blank):
        raise Refusal(f"blank={clipped(blank)} is no number")
    if encoding == TEXT and blank_lines(payload) < int(blank):
        raise Refusal(
            f"the text has {blank_lines(payload)} empty line(s) of {blank}: an editor that strips spaces loses them; "
            "restore them (a space alone), or remove blank= if that is meant"
        )
    return payload


def digest(payload: bytes) -> bytes:
    """What tells payloads apart."""
    return hashlib.sha256(payload).digest()


# --- A file of tasks as a person gave it back: read in bounded memory, every message judged alone.

#: A payload has a megabyte at the most, which base64, or a newline at each character, makes twice as long at the worst.
LIMITS: Final = Limits(line=2 << 20, message=4 << 20, variables=100, file=256 << 20)
MOST_MESSAGES: Final = 200_000
MOST_LINES: Final = 5_000_000
_CHUNK: Final = 1 << 20


class BadFile(ConfigError):
    """The file is not what an export makes, or too large: nothing of it is carried out."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A message that is left alone: its task's id where it says one, its byte and line in the file, and why."""

    id: str | None
    offset: int
    line: int
    reason: str


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[TextQueue]:
    """A file open for reading, looked through for what no text file holds. Raises `OSError`, `BadFile`."""
    place = Path(path)
    if place.is_symlink():
        # So are files in a folder that Kubernetes mounts. Who may put edited files into a folder is not given what
        # others keep elsewhere.
        try:
            there = place.resolve()
        except (OSError, RuntimeError) as error:  # links in a circle
            raise BadFile(f"{place} is a symbolic link that leads nowhere: {error}") from error
        if not there.is_relative_to(place.parent.resolve()):
            where = f"{place} is a symbolic link to {there}, out of its folder"
            raise BadFile(f"{where}, and is not followed: name the file itself")
        place = there
    try:
        with TextQueue.open(place, write=False, limits=LIMITS) as file:
            survey(file)
            yield file
    except TextQueueError as error:
        raise BadFile(str(error)) from error


def survey(file: TextQueue, most: int = MOST_LINES) -> None:
    """Look at every byte of a file. Raises `BadFile` for one with NUL bytes or too many lines."""
    offset = lines = 0
    while chunk := file.read(_CHUNK, offset):
        if (at := chunk.find(b"\0")) >= 0:
            raise BadFile(f"{file.path} holds a NUL byte at byte {offset + at}: it is no text in UTF-8")
        lines += chunk.count(b"\n")
        if lines > most:
            raise BadFile(f"{file.path} has more than {most:,} lines")
        offset += len(chunk)


def queue_named_in(path: str | os.PathLike[str]) -> str:
    """The queue that a file is from, by its header. Raises `ConfigError` where it has none, `OSError`, `BadFile`."""
    with opened(path) as file:
        for message in _bounded(file):
            if message.status is not Status.COMMENT:
                break
            if origin := origin_of(message):
                return origin.queue
    raise ConfigError(f"{path} does not say which queue its tasks are from: add --queue NAME, or give zkmq_queue")


def _bounded(file: TextQueue) -> Iterator[Message]:
    for number, message in enumerate(file.messages("all")):
        if number >= MOST_MESSAGES:
            raise BadFile(f"{file.path} has more than {MOST_MESSAGES:,} messages and comments")
        yield message


def read(file: TextQueue) -> tuple[Origin | None, list[Entry], list[Refused]]:
    """Where a file's tasks are from, its messages in order, and what is not understood of it.

    A message after one without an id is refused, too: it may be a line of that one which lacks its space, and the
    variables after it the other's. Raises `BadFile` for headers that contradict each other, and for what is too large.
    """
    origin: Origin | None = None
    entries: list[Entry] = []
    refused: list[Refused] = []
    lines, seen, astray = _Lines(file), set[str](), 0
    for message in _bounded(file):
        line = lines.at(message.offset)
        if message.status is Status.COMMENT:
            other = origin_of(message)
            if None not in {origin, other} and origin != other:
                raise BadFile(f"{file.path} names two origins, {origin} and {other}: import one export at a time")
            origin = origin or other
            continue
        try:
            entry = entry_of(message, line)
            if entry.id in seen:
                raise Refusal("this id stands in the file before")
            if astray:
                raise Refusal(
                    f"the message at line {astray} has no id: if this is a line of its text, put a space in front of "
                    "it, else remove that message"
                )
        except Refusal as refusal:
            refused.append(Refused(_said_id(message), message.offset, line, str(refusal)))
        else:
            entries.append(entry)
        said = _said_id(message)
        astray = line if said is None else 0
        seen.add(said or "")
    # Now the lines that the format does not know: a sign that was mistyped, a line of text without its space.
    if len(file.reports) >= file.limits.variables:
        raise BadFile(f"{file.path} has {len(file.reports)} lines or more that are not understood: is it an export?")
    lines = _Lines(file)
    for offset, why in sorted(file.reports.items()):
        refused.append(Refused(None, offset, lines.at(offset), why))
    return origin, entries, refused


def _said_id(message: Message) -> str | None:
    """The id that a message says, fit to be told."""
    said = next((text[3:].strip() for text in message.variables if text.startswith("id=")), None)
    return None if said is None else clipped(said)


class _Lines:
    """Numbers of lines, from 1, for offsets that rise."""

    def __init__(self, file: TextQueue) -> None:
        self._file = file
        self._offset = 0
        self._number = 1

    def at(self, offset: int) -> int:
        """The number of the line at an offset."""
        while self._offset < offset:
            chunk = self._file.read(min(_CHUNK, offset - self._offset), self._offset)
            self._number += chunk.count(b"\n")
            self._offset += len(chunk) or offset
        return self._number
