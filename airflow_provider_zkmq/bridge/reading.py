"""A file of tasks as a person gave it back: read in bounded memory, every message judged alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from airflow_provider_zkmq.bridge.entries import Entry, entry_of
from airflow_provider_zkmq.bridge.header import Origin, origin_of
from airflow_provider_zkmq.bridge.payload import Refusal, clipped
from airflow_provider_zkmq.engine import ConfigError
from airflow_provider_zkmq.textqueue import Limits, Message, Status, TextQueue, TextQueueError

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


@dataclass(slots=True)
class Draft:
    """What a file asks for: where its tasks are from, its messages in order, and those that are not understood."""

    origin: Origin | None = None
    entries: list[Entry] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)


@contextlib.contextmanager
def opened(path: str | os.PathLike[str], limits: Limits = LIMITS) -> Iterator[TextQueue]:
    """A file open for reading, looked through for what no text file holds. Raises `OSError`, `BadFile`."""
    try:
        with TextQueue.open(_in_its_folder(Path(path)), write=False, limits=limits) as file:
            survey(file)
            yield file
    except TextQueueError as error:
        raise BadFile(str(error)) from error


def _in_its_folder(path: Path) -> Path:
    """Where a file is. Its name may be a symbolic link, as in a folder that Kubernetes mounts, which does not lead out.

    Whoever may put edited files into a folder is thus not given what others keep elsewhere. Raises `BadFile`.
    """
    if not path.is_symlink():
        return path
    try:
        there = path.resolve()
    except (OSError, RuntimeError) as error:  # links in a circle
        raise BadFile(f"{path} is a symbolic link that leads nowhere: {error}") from error
    if not there.is_relative_to(path.parent.resolve()):
        raise BadFile(
            f"{path} is a symbolic link to {there}, out of its folder, and is not followed: name the file itself"
        )
    return there


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


def exported_from(path: str | os.PathLike[str]) -> Origin | None:
    """Where a file's tasks are from, as its header says; None where it has none. Raises `OSError`, `BadFile`."""
    with opened(path) as file:
        for message in _bounded(file):
            if message.status is not Status.COMMENT:
                break
            if origin := origin_of(message):
                return origin
    return None


def _bounded(file: TextQueue) -> Iterator[Message]:
    for number, message in enumerate(file.messages("all")):
        if number >= MOST_MESSAGES:
            raise BadFile(f"{file.path} has more than {MOST_MESSAGES:,} messages and comments")
        yield message


def read(file: TextQueue) -> Draft:
    """What a file asks for. Raises `BadFile` for headers that contradict each other, and for what is too large.

    A message after one without an id is refused, too: it may be a line of that one which lacks its space, and the
    variables after it the other's.
    """
    draft, lines, seen, astray = Draft(), _Lines(file), set[str](), 0
    for message in _bounded(file):
        line = lines.at(message.offset)
        if message.status is Status.COMMENT:
            _note_origin(file, draft, message)
            continue
        try:
            entry = entry_of(message, line)
            _check_neighbours(entry, seen, astray)
        except Refusal as refusal:
            draft.refused.append(Refused(_said_id(message), message.offset, line, str(refusal)))
        else:
            draft.entries.append(entry)
        said = _said_id(message)
        astray = line if said is None else 0
        seen.add(said or "")
    draft.refused += _not_understood(file)
    return draft


def _check_neighbours(entry: Entry, seen: set[str], astray: int) -> None:
    if entry.id in seen:
        raise Refusal("this id stands in the file before")
    if astray:
        raise Refusal(
            f"the message at line {astray} has no id: if this is a line of its text, put a space in front of it, "
            "else remove that message"
        )


def _said_id(message: Message) -> str | None:
    """The id that a message says, fit to be told."""
    said = next((text[3:].strip() for text in message.variables if text.startswith("id=")), None)
    return None if said is None else clipped(said)


def _note_origin(file: TextQueue, draft: Draft, comment: Message) -> None:
    origin = origin_of(comment)
    if origin is None:
        return
    if draft.origin not in {None, origin}:
        raise BadFile(f"{file.path} names two origins, {draft.origin} and {origin}: import one export at a time")
    draft.origin = origin


def _not_understood(file: TextQueue) -> list[Refused]:
    """The lines that the format does not know: a sign that was mistyped, or a line of text without its space."""
    if len(file.reports) >= file.limits.variables:
        raise BadFile(f"{file.path} has {len(file.reports)} lines or more that are not understood: is it an export?")
    lines = _Lines(file)
    return [Refused(None, offset, lines.at(offset), why) for offset, why in sorted(file.reports.items())]


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
