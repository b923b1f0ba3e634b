"""The archive's manifest: the pointer by which readers find complete runs, replaced at one stroke."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from airflow_provider_zkmq.engine import ConfigError, CorruptRecord

NAME: Final = "MANIFEST.json"
RUNS: Final = "runs"
STAGING: Final = ".staging"


@dataclass(frozen=True, slots=True)
class Run:
    """One archive run: its folder relative to the queue's, its rows, and the zxids it covers (`first`, `last`]."""

    path: str
    rows: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The runs that readers may read, and the zxid up to which every ended task is in one of them."""

    watermark: int = 0
    runs: tuple[Run, ...] = ()

    @property
    def rows(self) -> int:
        """How many rows the archive of this queue holds."""
        return sum(run.rows for run in self.runs)

    def encode(self) -> str:
        """Return the JSON text of the file."""
        runs = [_spell(run) for run in self.runs]
        return json.dumps({"watermark": self.watermark, "runs": runs}, indent=1)


def _spell(run: Run) -> dict[str, object]:
    values = asdict(run)
    return {"path": values["path"], "rows": values["rows"], "from": values["first"], "to": values["last"]}


def read_manifest(home: Path) -> Manifest:
    """Read the manifest of a queue's folder; an empty one where nothing was archived. Raises `CorruptRecord`."""
    path = home / NAME
    try:
        text = path.read_text()
    except FileNotFoundError:
        return Manifest()
    try:
        record = json.loads(text)
        runs = tuple(
            Run(str(run["path"]), int(run["rows"]), int(run["from"]), int(run["to"])) for run in record["runs"]
        )
        return Manifest(int(record["watermark"]), runs)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptRecord(f"{path} is not an archive's manifest: {error}") from error


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


def sync_tree(path: Path) -> None:
    """Bring a folder with all it holds to the disk."""
    for item in path.rglob("*"):
        sync(item)
    sync(path)


def remove_orphans(home: Path, manifest: Manifest) -> list[str]:
    """Delete the folders of runs that were never published; returns their names."""
    known = {run.path for run in manifest.runs}
    orphans = [path for path in (home / RUNS).glob("*") if f"{RUNS}/{path.name}" not in known]
    for path in orphans:
        shutil.rmtree(path)
    return sorted(path.name for path in orphans)


@contextlib.contextmanager
def exclusive(home: Path) -> Iterator[None]:
    """Hold the queue's folder for one run; it is free again when its process ends, however that ends.

    Raises `ConfigError` where another run holds it.
    """
    (home / RUNS).mkdir(parents=True, exist_ok=True)
    with (home / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{home} is in use by another archive run: wait for it to end") from None
        yield
