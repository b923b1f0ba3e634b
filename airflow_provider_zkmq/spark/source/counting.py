"""What a read found gone or corrupt: told in the log where it was read, and in files that a caller can sum up."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from airflow_provider_zkmq.engine import Scanned
from airflow_provider_zkmq.spark.source.errors import SourceError

_LOG: Final = logging.getLogger(__name__)
#: So many ids are named in a line of the log.
_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class ReadReport:
    """What a read came to: its rows, and the ids, by queue, of those that were listed and are none.

    ``vanished``: deleted between the listing and the reading. ``corrupt``: their records cannot be read.
    """

    rows: int
    vanished: dict[str, list[str]]
    corrupt: dict[str, list[str]]


@dataclass(slots=True)
class Tally:
    """What one partition comes to."""

    number: int
    queue: str
    rows: int = 0
    vanished: list[str] = field(default_factory=list)
    corrupt: list[str] = field(default_factory=list)

    def add(self, rows: int, scanned: Scanned) -> None:
        """Count what was read."""
        self.rows += rows
        self.vanished += scanned.vanished
        self.corrupt += scanned.corrupt

    def tell(self, folder: str | None) -> None:
        """Log what is missing, and write it all to a folder; a partition that is read again replaces its file."""
        for ids, why in ((self.vanished, "vanished before they were read"), (self.corrupt, "cannot be read")):
            if ids:
                named = ", ".join(ids[:_NAMED]) + (", …" if len(ids) > _NAMED else "")
                _LOG.warning("queue %s: %d task(s) %s and are no rows: %s", self.queue, len(ids), why, named)
        if folder is not None:
            with _written(folder) as home:
                draft = home / f".{self.number}-{os.getpid()}"
                draft.write_text(json.dumps(asdict(self)))
                draft.replace(home / f"part-{self.number:05}.json")


@contextlib.contextmanager
def _written(folder: str) -> Iterator[Path]:
    """The folder, made if missing. Raises `SourceError` where nothing can be written there."""
    home = Path(folder)
    try:
        home.mkdir(parents=True, exist_ok=True)
        yield home
    except OSError as error:
        raise SourceError(f"option report: nothing can be written to {folder!r}: {error.strerror or error}") from None


def begin_report(folder: str | None) -> None:
    """A read was planned that will report here: what is left of the one before is deleted. Raises `SourceError`."""
    if folder is not None:
        with _written(folder) as home:
            for path in home.glob("part-*.json"):
                path.unlink(missing_ok=True)


def read_report(folder: str | os.PathLike[str]) -> ReadReport:
    """What the last read with the option ``report`` of this folder came to, as far as its partitions have been read."""
    parts = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("part-*.json"))]
    missing: dict[str, dict[str, list[str]]] = {"vanished": {}, "corrupt": {}}
    for part in parts:
        for kind, queues in missing.items():
            if part[kind]:
                queues.setdefault(part["queue"], []).extend(part[kind])
    return ReadReport(sum(part["rows"] for part in parts), **missing)
