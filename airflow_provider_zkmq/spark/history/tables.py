"""A table: its manifest, its Parquet parts, and for how long they are kept."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from ...engine import ConfigError, CorruptRecord

# --- A table's manifest: the pointer by which readers find complete parts, replaced at one stroke.
#
# Bronze, silver and gold have one each, in their folder. What it does not name is not read: a part that was staged
# and never published, or one that another has replaced.

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
    temporary = home / f"{NAME}.draft"
    with temporary.open("w") as file:
        file.write(manifest.encode())
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(home / NAME)
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


# --- Times in tables are whole milliseconds since 1970, so that neither time zones nor rounding come in.

DAY_MS: Final = 86_400_000


def milliseconds(name: str) -> Column:
    """A column's moment as milliseconds since 1970, whatever the session's time zone."""
    return f.unix_millis(f.col(name))


def day_of(name: str) -> Column:
    """The day of a moment in UTC, whatever the session's time zone."""
    return f.date_from_unix_date(f.floor(milliseconds(name) / DAY_MS).cast("int"))


def names(schema: str) -> list[str]:
    """The names of the columns that a schema's text declares."""
    return [column.strip().split(" ")[0] for column in schema.replace("map<string,string>", "map").split(",")]


# --- The parts of tables: Parquet that is staged, counted, renamed, and only then named by a manifest; how it is read.

STAGING: Final = ".staging"
_DAY: Final = "day="
_PATTERN: Final = re.compile(r"[][{}*?\\]")
#: So long a folder that was replaced is left to those who read it, in seconds.
GRACE: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class Staged:
    """A part that is whole and not read by anybody yet: where it will stand, and its rows."""

    home: Path
    part: Part

    @property
    def path(self) -> Path:
        """Where it is until then."""
        path = self.home / self.part.path
        return path.with_name(path.name + STAGING)

    def folders(self) -> list[str]:
        """Its folders of days, where they are until then."""
        return [str(self.path / f"{_DAY}{day}") for day in self.part.days]

    def adopt(self) -> Part:
        """Give it its name. What is not published next is removed by the next run."""
        self.path.rename(self.home / self.part.path)
        sync(self.path.parent)
        return self.part


def adopt(staged: Iterable[Staged]) -> list[Part]:
    """Give these their names; what has no rows is not to be read."""
    return [part for part in [each.adopt() for each in staged] if part.rows]


def stage(home: Path, kind: str, frame: DataFrame, first: int, last: int, *, per_file: int = 0) -> Staged:
    """Write a frame, which has a column ``day``, as a part, and count what was written.

    Its name is no other run's: of a run that was killed Spark's Java may write on for a moment.
    """
    name = f"{kind}/{first}-{last}-{os.urandom(4).hex()}"
    staging = home / f"{name}{STAGING}"
    writer = frame.write.partitionBy("day").option("compression", "zstd").option("maxRecordsPerFile", per_file)
    writer.parquet(str(staging))
    for path in (*staging.rglob("*"), staging):
        sync(path)
    days = tuple(sorted(path.name.removeprefix(_DAY) for path in staging.glob(f"{_DAY}*")))
    return Staged(home, Part(name, sum(rows_in(staging / f"{_DAY}{day}") for day in days), first, last, days))


def rows_in(folder: Path) -> int:
    """How many rows the files of a folder have, as their footers say."""
    return sum(pq.read_metadata(path).num_rows for path in folder.glob("*.parquet"))


def folder_of(part: Part, day: str) -> str:
    """Where a part's rows of a day are, below the table's folder."""
    return f"{part.path}/{_DAY}{day}"


def folders(home: Path, parts: Iterable[Part], since: str = "", until: str = "9999") -> list[str]:
    """The folders with what these parts hold of the days from `since` to `until`, both included."""
    days = ((part, day) for part in parts for day in part.days if since <= day <= until)
    return [str(home / folder_of(part, day)) for part, day in days]


def load(spark: SparkSession, schema: str, paths: list[str], moment: str) -> DataFrame:
    """These folders' rows with the columns of `schema`, and their ``day``.

    The day is that of the column `moment`, in UTC.
    """
    columns = spark.createDataFrame([], schema).schema
    stored = StructType([column for column in columns if column.name != "day"])
    if not paths:
        nothing = spark.createDataFrame([], stored).where(
            f.lit(False)
        )  # Spark sees that it is empty, and leaves it out
        return nothing.withColumn("day", day_of(moment))
    literal = [_PATTERN.sub(r"\\\g<0>", path) for path in paths]  # what Spark would take for a pattern is escaped
    frame = spark.read.schema(stored).option("recursiveFileLookup", "true").parquet(*literal)
    return frame.withColumn("day", day_of(moment))


def retire(manifest: Manifest, paths: Iterable[str]) -> Manifest:
    """The manifest, which notes that these folders are read no more from now on."""
    now = int(time.time())
    return replace(manifest, retired=(*manifest.retired, *((path, now) for path in paths)))


def without(home: Path, manifest: Manifest, gone: Callable[[str], bool]) -> Manifest:
    """The manifest, which names no days of which `gone` holds; their folders are retired."""
    kept, left = [], []
    for part in manifest.runs:
        leave = [folder_of(part, day) for day in part.days if gone(day)]
        rows = part.rows - sum(rows_in(home / folder) for folder in leave)
        stay = tuple(day for day in part.days if not gone(day))
        kept += [replace(part, days=stay, rows=rows)] if stay else []
        left += leave
    return retire(replace(manifest, runs=tuple(kept)), left)


def sweep(home: Path, manifest: Manifest, grace: float = GRACE) -> tuple[list[str], Manifest]:
    """Delete what was never published, and what was replaced longer ago than `grace`.

    Returns the names of the former, and the manifest without what is gone, for whoever publishes next.
    """
    overdue = time.time() - grace
    for path, since in manifest.retired:
        if since <= overdue:
            shutil.rmtree(home / path, ignore_errors=True)
    left = tuple(each for each in manifest.retired if (home / each[0]).exists())
    known = {"/".join(path.split("/")[:2]) for path in (*(part.path for part in manifest.runs), *(r[0] for r in left))}
    stored = [path for kind in ("runs", "deliveries", "hourly", "consumers") for path in (home / kind).glob("*")]
    unpublished = [path for path in stored if f"{path.parent.name}/{path.name}" not in known]
    for orphan in unpublished:
        shutil.rmtree(orphan, ignore_errors=True)  # what a killed run's Java still writes goes the next time
    return sorted(orphan.name for orphan in unpublished), replace(manifest, retired=left)


# --- Retention: days that are older than was asked for leave a table, never before the next table has them.


@dataclass(frozen=True, slots=True)
class Retention:
    """For how many days each table keeps what ended, today included; None: for ever."""

    bronze: int | None = None
    silver: int | None = None
    gold: int | None = None

    def __post_init__(self) -> None:
        for name in ("bronze", "silver", "gold"):
            days = getattr(self, name)
            if days is not None and (not isinstance(days, int) or days < 1):
                raise ConfigError(f"retention of {name}: {days!r} is no number of days, 1 or more")


def retain(home: Path, keep: Retention, *, today: date | None = None, grace: float = GRACE) -> int:
    """Have the tables in the queue's folder `home`, which the caller holds, forget the days before.

    Returns how many rows left bronze. Nothing leaves a table that the next one has not seen as a whole; hours of gold
    that silver has forgotten stay as they are.
    """
    now = today or datetime.now(UTC).date()
    before = read_manifest(home).rows
    for table, following, days in (("", SILVER, keep.bronze), (SILVER, GOLD, keep.silver), (GOLD, None, keep.gold)):
        if days is not None and _seen(home, table, following):
            _forget(home / table, (now - timedelta(days=days - 1)).isoformat(), grace)
    return before - read_manifest(home).rows


def _seen(home: Path, table: str, following: str | None) -> bool:
    here = read_manifest(home / table).watermark
    return following is None or read_manifest(home / following).watermark >= here


def _forget(home: Path, cut: str, grace: float) -> None:
    _, manifest = sweep(home, read_manifest(home), grace)
    kept = without(home, manifest, lambda day: day < cut)
    if kept.runs != manifest.runs or kept.horizon < cut:
        home.mkdir(exist_ok=True)
        publish(home, replace(kept, horizon=max(kept.horizon, cut)))
