"""A table's manifest: the pointer by which readers find complete parts, replaced at one stroke.

Bronze, silver and gold have one each, in their folder. What it does not name is not read: a part that was staged and
never published, or one that another has replaced.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from airflow_provider_zkmq.engine import ConfigError, CorruptRecord

NAME: Final = "MANIFEST.json"
#: Of what is written here, and of the tables' files.
VERSION: Final = 1
#: The folders of tables beside bronze's own parts.
SILVER: Final = "silver"
GOLD: Final = "gold"


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that came into a table together: their place below its folder, and the zxids they cover (`first`, `last`].

    The folder's own folder says what the rows are (``runs``, ``hourly``). ``days``: those of its days that are read.
    """

    path: str
    rows: int
    first: int
    last: int
    days: tuple[str, ...]

    @property
    def kind(self) -> str:
        """What its rows are."""
        return self.path.partition("/")[0]

    def encode(self) -> dict[str, object]:
        """Return it as it is spelt in a manifest."""
        span = {"from": self.first, "to": self.last}
        return {"path": self.path, "rows": self.rows, **span, "days": list(self.days)}

    @classmethod
    def decode(cls, part: dict[str, Any]) -> Part:
        """Read what `encode` wrote. Raises `KeyError`, `TypeError` or `ValueError`."""
        days = tuple(map(str, part["days"]))
        return cls(str(part["path"]), int(part["rows"]), int(part["from"]), int(part["to"]), days)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The parts that readers may read, and the zxid up to which every ended task is in one of them.

    ``queue``: whose they are. ``born``: the transaction that made that queue; 0 where nothing is archived yet.
    ``horizon``: the first day that retention has left, or none. ``seen``: when the latest delivery that silver
    holds was claimed. ``damaged``: tasks whose records could not be read so far, which are looked at again by each run.
    ``retired``: folders that were replaced, and when, which somebody may still be reading.
    """

    watermark: int = 0
    runs: tuple[Part, ...] = ()
    queue: str = ""
    horizon: str = ""
    seen: int = 0
    retired: tuple[tuple[str, int], ...] = field(default=())
    damaged: tuple[str, ...] = ()
    born: int = 0

    @property
    def rows(self) -> int:
        """How many rows the parts hold."""
        return sum(part.rows for part in self.runs)

    def of(self, kind: str) -> tuple[Part, ...]:
        """The parts with rows of one kind."""
        return tuple(part for part in self.runs if part.kind == kind)

    def encode(self) -> str:
        """Return the JSON text of the file."""
        record = {
            "version": VERSION,
            "queue": self.queue,
            "watermark": self.watermark,
            "horizon": self.horizon,
            "seen": self.seen,
            "runs": [part.encode() for part in self.runs],
            "retired": [list(each) for each in self.retired],
            "damaged": list(self.damaged),
            "born": self.born,
        }
        return json.dumps(record, indent=1)

    @classmethod
    def decode(cls, text: str) -> Manifest:
        """Read what `encode` wrote. Raises `ConfigError` for another version's, or what `Part.decode` does."""
        record = json.loads(text)
        version = int(record["version"])
        if version != VERSION:
            raise ConfigError(f"it has version {version}, this is version {VERSION}: use the release that wrote it")
        return cls(
            int(record["watermark"]),
            tuple(Part.decode(part) for part in record["runs"]),
            str(record["queue"]),
            str(record["horizon"]),
            int(record["seen"]),
            tuple((str(path), int(since)) for path, since in record["retired"]),
            tuple(map(str, record["damaged"])),
            int(record["born"]),
        )


def queue_of(home: Path) -> str:
    """The queue whose table is in this folder."""
    return home.parent.name if home.name in {SILVER, GOLD} and (home.parent / NAME).exists() else home.name


def read_manifest(home: Path) -> Manifest:
    """Read the manifest of a table's folder; an empty one where nothing was written.

    Raises `CorruptRecord` for what is none, `ConfigError` for that of another version or queue.
    """
    path, queue = home / NAME, queue_of(home)
    try:
        manifest = Manifest.decode(path.read_text())
    except FileNotFoundError:
        return Manifest(queue=queue)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CorruptRecord(f"{path} is not an archive's manifest: {error}") from error
    if manifest.queue != queue:
        raise ConfigError(
            f"{home} is the archive of queue {manifest.queue!r}, not of {queue!r}: give another directory"
        )
    return manifest


def publish(home: Path, manifest: Manifest) -> None:
    """Replace the manifest; it survives a power cut once this returns."""
    draft = home / f"{NAME}.draft"
    with draft.open("w") as file:
        file.write(manifest.encode())
        file.flush()
        os.fsync(file.fileno())
    draft.replace(home / NAME)
    sync(home)


def sync(path: Path) -> None:
    """Bring a file or a folder's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_writable(directory: str | Path) -> None:
    """Make the archive's folder if it is not there. Raises `ConfigError` where files cannot be written to it."""
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        raise ConfigError(f"the archive's folder {directory} cannot be written to: {error}") from None


@contextlib.contextmanager
def exclusive(home: Path) -> Iterator[None]:
    """Hold the queue's folder for one step; it is free again when its process ends, however that ends.

    Raises `ConfigError` where another run holds it.
    """
    home.mkdir(parents=True, exist_ok=True)
    with (home / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{home} is in use by another archive run: wait for it to end") from None
        yield
