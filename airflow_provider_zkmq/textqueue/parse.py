"""Lines to messages: what belongs together, and what is not understood."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from airflow_provider_zkmq.textqueue.errors import HostileFile
from airflow_provider_zkmq.textqueue.lines import Limits, Line


class Status(StrEnum):
    """What a message is, in the seed's words."""

    QUEUED = "queued"
    PROCESSED = "processed"
    ERROR = "error"
    COMMENT = "comment"


CONTROL: Final = {b"-": Status.QUEUED, b"=": Status.PROCESSED, b"!": Status.ERROR, b"#": Status.COMMENT}
BYTE: Final = {status: byte for byte, status in CONTROL.items()}
CONTINUATION: Final = b" "
VARIABLE: Final = b"\\"
_ATTACHED: Final = frozenset({CONTINUATION, VARIABLE})


@dataclass(slots=True)
class Record:
    """A message or comment as it stands in the file.

    ``offset``: of its control byte; ``end``: after its last line. ``head`` is its first line. Each variable is the
    offset of its text and the text.
    """

    status: Status
    offset: int
    end: int
    head: bytes
    parts: list[bytes]
    variables: list[tuple[int, bytes]] = field(default_factory=list)

    @property
    def data(self) -> bytes:
        """The message: its lines without their first byte, joined by newlines."""
        return b"\n".join(self.parts)


Report = Callable[[int, str], None]


def records(name: str, lines: Iterable[Line], limits: Limits, report: Report) -> Iterator[Record]:
    """The messages and comments, in order. Raises `HostileFile`.

    A line with a control byte that is not known is reported and stepped over with its continuations and variables,
    so that files of later versions can be read. Blank lines end nothing: a continuation after one still belongs to
    the message before it.
    """
    record: Record | None = None
    skipping = False  # the lines of something unknown
    for line in lines:
        control = line.control
        if control in _ATTACHED:
            if record is not None:
                _add(name, record, line, limits)
            elif not skipping:
                report(line.offset, f"{control!r} follows no message; stepped over")
            continue
        if record is not None:
            yield record
        status = CONTROL.get(control)
        skipping = status is None
        record = None if status is None else Record(status, line.offset, line.end, line.body, [line.rest])
        if skipping:
            report(line.offset, f"unknown control byte {control!r}; stepped over")
    if record is not None:
        yield record


def _add(name: str, record: Record, line: Line, limits: Limits) -> None:
    if line.control == CONTINUATION:
        record.parts.append(line.rest)
    else:
        record.variables.append((line.offset + 1, line.rest))
    record.end = line.end
    if record.end - record.offset > limits.message or len(record.variables) > limits.variables:
        msg = (
            f"{name}: the message at byte {record.offset} is larger than {limits.message:,} bytes "
            f"or has more than {limits.variables:,} variables"
        )
        raise HostileFile(msg)
