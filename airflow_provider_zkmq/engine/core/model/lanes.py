"""Lanes: all pending tasks of one priority with the same filters.

A lane's name says what it stands for, so that one listing of ``queue`` decides which lanes a selector wants:
a foreign backlog of any size costs nothing more. Its data hold the same as JSON. A lane is split into segments
of bounded size, so that one listing is short however many tasks are pending.

The number of lanes is bounded: past `MAX_LANES`, tasks with filters go to their priority's mixed lane, whose
entries are judged one by one (their records are read in large requests, and each verdict is remembered).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

from airflow_provider_zkmq.engine.core.model import checks
from airflow_provider_zkmq.engine.core.model.checks import MAX_PRIORITY
from airflow_provider_zkmq.engine.core.model.stored import corrupt_unless_read, dump, load
from airflow_provider_zkmq.engine.errors import ConfigError

MAX_LANES: Final = 256
MAX_NAME: Final = 200
SEGMENT_ENTRIES: Final = 512
_MIXED: Final = "*"
_FILTERS: Final = checks.optional(checks.mapping(checks.text, checks.text))


@dataclass(frozen=True, slots=True)
class Lane:
    """What a lane stands for; ``filters`` is None for a mixed lane."""

    priority: int
    filters: Mapping[str, str] | None

    @property
    def name(self) -> str:
        """The znode's name; names sort by falling priority."""
        return _name(self.priority, None if self.filters is None else tuple(self.filters.items()))

    def encode(self) -> bytes:
        """The znode's data."""
        return dump({"priority": self.priority, "filters": None if self.filters is None else dict(self.filters)})

    @classmethod
    def decode(cls, path: str, data: bytes) -> Lane:
        """Read a lane's data. Raises `CorruptRecord`."""
        record = load(path, data)
        with corrupt_unless_read(path, "a lane"):
            return cls(checks.priority(record.get("priority", 0)), _FILTERS(record.get("filters")))

    def mixed(self) -> Lane:
        """The mixed lane of the same priority."""
        return Lane(self.priority, None)


@lru_cache(maxsize=4 * MAX_LANES)
def _name(priority: int, filters: tuple[tuple[str, str], ...] | None) -> str:
    """The name of a lane: asked for several times for each task, and the same for many."""
    head = f"p{MAX_PRIORITY - priority:05d}"
    if filters is None:
        return f"{head};{_MIXED}"
    spelled = "".join(f";{_quote(name)}={_quote(value)}" for name, value in sorted(filters))
    if len(spelled) <= MAX_NAME:
        return head + spelled
    return f"{head};#{hashlib.sha256(spelled.encode()).hexdigest()[:24]}"


def _quote(text: str) -> str:
    return quote(text, safe="")


@lru_cache(maxsize=4 * MAX_LANES)
def parse_lane(name: str) -> Lane | None:
    """The lane a name spells; None for a shortened name (read its data) or a foreign one."""
    head, *parts = name.split(";")
    if not (head.startswith("p") and head[1:].isascii() and head[1:].isdigit() and len(head) == 6):
        return None
    priority = MAX_PRIORITY - int(head[1:])
    if parts == [_MIXED]:
        return Lane(priority, None)
    filters = dict(part.split("=", 1) for part in parts if part.count("=") == 1)
    if len(filters) != len(parts):
        return None
    return Lane(priority, {unquote(key): unquote(value) for key, value in filters.items()})


def priority_of(name: str) -> str:
    """The part of a lane's name that stands for its priority."""
    return name[:6]


def is_shortened(name: str) -> bool:
    """Whether the name is a digest, its filters to be read from the data."""
    return name[:1] == "p" and name[6:8] == ";#"


def is_lane(name: str) -> bool:
    """Whether a name is a lane's of ours, spelt out or shortened."""
    return is_shortened(name) or parse_lane(name) is not None


def check_priority(priority: object) -> int:
    """A priority in range, else `ConfigError`."""
    if isinstance(priority, int) and not isinstance(priority, bool) and abs(priority) <= MAX_PRIORITY:
        return priority
    msg = f"priority {priority!r} is not allowed: a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}, higher first"
    raise ConfigError(msg)


def segment_name(number: int) -> str:
    """A segment's name; names sort by number."""
    return f"{number:08d}"


def segments_of(names: Iterable[str]) -> list[str]:
    """Those of a lane's children that are segments of ours."""
    return [name for name in names if len(name) == 8 and name.isascii() and name.isdigit()]


def next_segment(names: list[str]) -> str:
    """The name after the last of a lane's segments."""
    return segment_name(max(map(int, names), default=0) + 1)
