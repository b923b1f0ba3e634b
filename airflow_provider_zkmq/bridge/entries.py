"""A task as a message of a file, and what a message asks for."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from airflow_provider_zkmq.bridge.header import MARKS
from airflow_provider_zkmq.bridge.payload import (
    BASE64,
    TEXT,
    Refusal,
    Spelled,
    blank_lines,
    clipped,
    spell,
    understand,
    visible,
)
from airflow_provider_zkmq.engine import ConfigError, Task, check_name
from airflow_provider_zkmq.textqueue import Message, Status, TextQueue

_NAMES: Final = ("id", "attempts", "error", "filters", "encoding", "blank", "version")
_NUMBER: Final = re.compile(r"[0-9]{1,19}\Z")


def append_task(file: TextQueue, task: Task) -> None:
    """Write a task as a message at the end of a file.

    The version comes last: a file that was cut off somewhere has none for its last message, or another one.
    """
    spelled = spell(task.data)
    file.append(spelled.data, list(_variables(task, spelled)), status=MARKS[task.state])


def _variables(task: Task, spelled: Spelled) -> Sequence[str]:
    variables = {"id": task.id, "attempts": str(task.attempt)}
    if task.error is not None:
        variables["error"] = visible(task.error)
    if task.filters:
        variables["filters"] = spell_filters(task)
    if spelled.encoding != TEXT:
        variables["encoding"] = spelled.encoding
    if spelled.blank:
        variables["blank"] = str(spelled.blank)
    return [f"{name}={value}" for name, value in (variables | {"version": str(task.version)}).items()]


def spell_filters(task: Task) -> str:
    """A task's filters on one line."""
    return visible(", ".join(f"{name}={value}" for name, value in sorted(task.filters.items())))


@dataclass(frozen=True, slots=True)
class Entry:
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
    task_id = _checked_id(variables)
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


def _checked_id(variables: dict[str, str]) -> str:
    if "id" not in variables:
        raise Refusal("it has no id=: tasks are not added by an import (zkmq enqueue does that)")
    try:
        return check_name("task id", clipped(variables["id"]))  # what is clipped, or was not printable, is no id either
    except ConfigError as error:
        raise Refusal(str(error)) from None


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
