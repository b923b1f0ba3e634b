"""How far a stream has come, as Spark's checkpoint holds it: a position in each queue, by zxid."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from airflow_provider_zkmq.spark.source.errors import SourceError

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_EXAMPLE: Final = '{"census": 4294967300, "other": "latest"}'


class Position(NamedTuple):
    """Where a batch ends in a queue: it has the runs whose ends are numbered above ``after``, up to ``zxid``.

    That a batch says itself where it begins makes it the same batch again when it is repeated: Spark keeps the ends of
    batches only, and asks anew where the first one begins. ``mark``: the number of the mark by which the queue keeps
    what ended for streams; another queue by that name has another one. ``trimmed``: up to where clean-up had deleted
    when the stream began, or when it last lost something.
    """

    zxid: int
    after: int
    mark: int
    trimmed: int


@dataclass(frozen=True, slots=True)
class Offset:
    """The end of a batch: a position in each queue, and how many runs the batch has, damaged ones included.

    ``noted`` is False of a beginning that holds for this moment only, until a first, empty batch has noted it.
    """

    queues: Mapping[str, Position] = field(default_factory=dict)
    runs: int = 0
    noted: bool = True

    def encode(self) -> dict[str, Any]:
        """What Spark stores as JSON: of equal offsets always the same text."""
        queues = {name: self.queues[name]._asdict() for name in sorted(self.queues)}
        return {"queues": queues, "runs": self.runs} | ({} if self.noted else {"noted": False})

    @classmethod
    def decode(cls, stored: Mapping[str, Any]) -> Self:
        """Read what `encode` made. Raises `SourceError` for anything else."""
        try:
            queues = {name: Position(**position) for name, position in stored["queues"].items()}
            return cls(queues, stored["runs"], stored.get("noted", True))
        except (KeyError, TypeError, AttributeError):
            msg = f"the checkpoint's offset is not one of a stream of zkmq: {stored}; give the query another checkpoint"
            raise SourceError(msg) from None


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a stream without a checkpoint begins: the option ``startingOffsets``."""

    everywhere: str = EARLIEST
    queues: Mapping[str, str | int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Read the option: a word, or JSON with a word or a zxid for each queue. Raises `SourceError`.

        The offset that a query's progress shows is taken as well. A queue that is not named begins at its earliest.
        """
        if text is None or text.lower() in (EARLIEST, LATEST):
            return cls((text or EARLIEST).lower())
        try:
            told = json.loads(text)
        except ValueError:
            told = None
        if isinstance(told, dict) and isinstance(told.get("queues"), dict):
            told = {name: position.zxid for name, position in Offset.decode(told).queues.items()}
        if not isinstance(told, dict) or not all(map(_is_start, told.values())):
            raise SourceError(f"option startingOffsets must be earliest, latest or JSON like {_EXAMPLE}, not {text!r}")
        return cls(EARLIEST, told)

    def of(self, queue: str) -> str | int:
        """A word, or the number after which a queue's runs are wanted."""
        return self.queues.get(queue, self.everywhere)


def _is_start(value: object) -> bool:
    return value in (EARLIEST, LATEST) or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)
