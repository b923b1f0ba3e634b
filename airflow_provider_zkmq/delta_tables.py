"""The tables of a queue's history as Delta tables: opened, committed to, merged and cleaned up, without Spark.

Parquet files are written below a table's folder, and nobody reads them until a commit names them. A commit is refused
where somebody else has committed since the table was opened; so of two runs one goes on, and the other changes nothing.
Each commit carries what the table says of itself (`Mark`) twice: in its own notes, which one request reads, and as
application transactions, which the log's clean-up keeps.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction
from pyarrow import fs

from .engine import ConfigError, CorruptRecord
from .location import Location, sync

#: Where each table is, below the queue's folder.
FOLDERS: Final = {
    "bronze": "bronze",
    "runs": "silver/runs",
    "deliveries": "silver/deliveries",
    "hourly": "gold/hourly",
    "consumers": "gold/consumers",
}
#: Two tables cannot be committed at one stroke: for the one that is committed first, the one that follows it.
FOLLOWED_BY: Final = {"deliveries": "runs", "consumers": "hourly"}
#: So long files that were replaced, or never committed, stand for those who read or stage them.
KEPT_HOURS: Final = 7 * 24
#: A day with so many small files has them merged; a file of so many bytes is left alone.
FEW: Final = 8
LARGE: Final = 256 << 20
_APP: Final = "airflow-provider-zkmq"
_MARK: Final = f"{_APP}/mark"
_NUMBERS: Final = ("watermark", "rows", "born", "horizon")
_CONFIGURATION: Final = {
    "delta.checkpointInterval": "10",
    "delta.logRetentionDuration": "interval 7 days",
    "delta.deletedFileRetentionDuration": "interval 7 days",
}


@dataclass(frozen=True, slots=True)
class Mark:
    """What a table says of itself, as of a commit.

    ``watermark``: the zxid up to which it has what ended. ``rows``: how many it has. ``born``: the transaction that
    made the queue, 0 where nothing is archived yet. ``horizon``: the first day that retention has left, as an ordinal,
    or 0. ``damaged``: tasks whose records could not be read so far, which are looked at again by each run.
    """

    watermark: int = 0
    rows: int = 0
    born: int = 0
    horizon: int = 0
    damaged: tuple[str, ...] = ()

    def properties(self) -> CommitProperties:
        """What a commit is to carry. It is tried once: what was staged is only right for the table that was opened."""
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        carried = {_MARK: json.dumps(numbers | {"damaged": self.damaged})}
        numbers["damaged"] = len(self.damaged)
        return CommitProperties(
            custom_metadata=carried,
            max_commit_retries=0,
            app_transactions=[Transaction(f"{_APP}/{name}", number) for name, number in numbers.items()],
        )

    @classmethod
    def of(cls, delta: _Delta) -> Mark:
        """Read what the commits of a table have carried: the last one, if it is ours, else the numbers that stay."""
        if (carried := delta.carried()) is not None:  # by one file; each number takes as many as there are commits
            return cls(**carried | {"damaged": tuple(carried["damaged"])})
        numbers = {name: delta.transaction_version(f"{_APP}/{name}") or 0 for name in _NUMBERS}
        count = delta.transaction_version(f"{_APP}/damaged")
        if not count:
            return cls(**numbers, damaged=())  # the log need not be looked through
        for commit in delta.history():
            if _MARK in commit and len(ids := json.loads(commit[_MARK])["damaged"]) == count:
                return cls(**numbers, damaged=tuple(ids))
        # Clean-up would delete what was put right and never archived.
        raise ConfigError(
            f"the log of {delta.table_uri} no longer names the {count} damaged tasks of its queue: bring it back"
        )


class Piece(NamedTuple):
    """A file of a table, and the highest watermark of its rows, where that is known."""

    day: str
    path: str
    rows: int
    size: int
    newest: int | None


class Staged(NamedTuple):
    """Files that are whole and read by nobody yet, and the JSON text of their table's schema."""

    schema: str
    files: tuple[AddAction, ...]
    rows: int


class _Delta(DeltaTable):
    """A table whose files Arrow reads itself.

    By `deltalake`'s file system, which is written in Python, a program may abort as it ends: a thread of Arrow's calls
    an interpreter that is gone (apache/arrow#34314).
    """

    location: Location

    def carried(self) -> dict[str, Any] | None:
        """What the commit of the present version carries of ours; None where that is not ours, or its file is gone."""
        path = f"{self.location.path}/_delta_log/{self.version():020d}.json"
        try:
            with self.location.files().open_input_file(path) as file:
                lines = file.read().splitlines()
        except FileNotFoundError:
            return None
        made: dict[str, Any] = next(
            (action["commitInfo"] for action in map(json.loads, lines) if "commitInfo" in action), {}
        )
        return json.loads(made[_MARK]) if _MARK in made else None

    def to_pyarrow_dataset(
        self, partitions: Any = None, filesystem: fs.FileSystem | None = None, **options: Any
    ) -> ds.Dataset:
        """As that of `DeltaTable`."""
        own = filesystem or fs.SubTreeFileSystem(self.location.path, self.location.files())
        return super().to_pyarrow_dataset(partitions, own, **options)


@dataclass(frozen=True, slots=True)
class Table:
    """A table as it was when it was opened; ``delta`` is None where nothing was committed yet."""

    location: Location
    queue: str
    delta: DeltaTable | None = None
    mark: Mark = Mark()
    pieces: tuple[Piece, ...] = ()

    @classmethod
    def open(cls, home: Location, kind: str, until: int | None = None) -> Table:
        """Open a table in the queue's folder `home`, as it was before it passed the watermark `until`.

        Raises `ConfigError` for the table of another queue, and for one that other programs have changed,
        `CorruptRecord` for one that cannot be read, and `StoreFailed`.
        """
        location = home / FOLDERS[kind]
        location.check_usable()
        try:
            with location.explained():
                delta = _Delta(str(location), storage_options=location.options())
                delta.location = location
                mark = Mark.of(delta)
                while until is not None and mark.watermark > until:
                    delta.load_as_version(delta.version() - 1)
                    mark = Mark.of(delta)
                files = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
        except TableNotFoundError:
            return cls(location, home.name)
        except DeltaError as error:
            line = (str(error).splitlines() or [""])[0]
            raise CorruptRecord(f"{location} cannot be read as a Delta table: {line}") from error
        queue, rows = delta.metadata().name, sum(file["num_records"] for file in files)
        if queue != home.name:
            raise ConfigError(
                f"{location} is the archive of queue {queue!r}, not of {home.name!r}: give another directory"
            )
        if rows != mark.rows:
            raise ConfigError(
                f"{location} has {rows} rows and should have {mark.rows}: another program has changed or "
                "restored it; restore its newest version, or remove a table of silver or gold to have it made anew"
            )
        named = ("path", "num_records", "size_bytes", "max.watermark")
        pieces = [Piece(str(file["partition.day"]), *map(file.get, named)) for file in files]
        return cls(location, home.name, delta, mark, tuple(pieces))

    def files(self, since: str = "", until: str = "9999", newer: int = 0) -> list[str]:
        """The files with rows of days from `since` to `until`, both included, and perhaps newer than a watermark.

        They are called as the location's file system calls them.
        """
        return [f"{self.location.path}/{piece.path}" for piece in self._found(since, until, newer)]

    def count(self, since: str = "", until: str = "9999", newer: int = 0) -> int:
        """How many rows those files have."""
        return sum(piece.rows for piece in self._found(since, until, newer))

    def _found(self, since: str, until: str, newer: int) -> list[Piece]:
        found = (piece for piece in self.pieces if since <= piece.day <= until)
        return [piece for piece in found if piece.newest is None or piece.newest > newer]

    def commit(self, staged: Staged, mark: Mark, replaced: tuple[str, str] | None = None) -> int:
        """Have readers see what was staged, instead of the days `replaced`, both included; returns the rows there are.

        It survives a power cut once this returns. Raises `ConfigError` where another run has committed meanwhile.
        """
        schema, kept = Schema.from_json(staged.schema), self.pieces
        where: dict[str, Any] = {"mode": "append"}
        if replaced is not None:
            first, last = replaced
            where = {"mode": "overwrite", "partition_filters": [("day", ">=", first), ("day", "<=", last)]}
            kept = tuple(piece for piece in self.pieces if not first <= piece.day <= last)
        grown = replace(mark, rows=sum(piece.rows for piece in kept) + staged.rows)
        with self._refusing():
            delta = self.delta
            if delta is None:
                if self.location.folder is not None:
                    self.location.folder.mkdir(parents=True, exist_ok=True)
                if _is_table(self.location):  # another run has made it meanwhile: it may have rows
                    raise CommitFailedError
                delta = self._create(schema)
            where |= {"partition_by": ["day"], "commit_properties": grown.properties()}
            delta.create_write_transaction(list(staged.files), schema=schema, **where)
        self._sync([f"_delta_log/{delta.version() + step:020d}.json" for step in (0, 1)])
        return grown.rows

    def _sync(self, names: Iterable[str]) -> None:
        """Bring files of the table to the disk, with the folders that they are in; a store has done so by itself."""
        if (folder := self.location.folder) is None:
            return
        files = [path for name in names if (path := folder / name).exists()]
        parents = folder.parents[:3] if self.delta is None else ()  # they may be new as well
        for path in dict.fromkeys((*files, *(file.parent for file in files), folder, *parents)):
            sync(path)

    def _create(self, schema: Schema) -> DeltaTable:
        try:
            return DeltaTable.create(
                str(self.location),
                schema,
                name=self.queue,
                partition_by=["day"],
                configuration=_CONFIGURATION,
                storage_options=self.location.options(),
            )
        except DeltaError:
            if _is_table(self.location):  # another run was faster
                raise CommitFailedError from None
            raise

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            with self.location.explained():
                yield
        except CommitFailedError:
            raise ConfigError(
                f"another run has written {self.location} meanwhile; this one changed nothing there: run it again"
            ) from None

    def forget(self, cut: date) -> int:
        """Have readers see no day before `cut`; returns how many rows went. What is late for those days goes, too."""
        before = (cut - timedelta(days=1)).isoformat()
        if self.delta is None or (self.mark.horizon >= cut.toordinal() and not self.files(until=before)):
            return 0
        mark = replace(self.mark, horizon=max(self.mark.horizon, cut.toordinal()))
        staged = Staged(self.delta.schema().to_json(), (), 0)
        return self.mark.rows - self.commit(staged, mark, ("0001-01-01", before))

    def merge(self, few: int = FEW) -> int:
        """Merge small files of the same day; returns how many. Rows stay the same."""
        if self.delta is None:
            return 0
        merged, before = 0, self.delta.version()
        for day in sorted({piece.day for piece in self.pieces}):
            if sizes := chosen([piece.size for piece in self.pieces if piece.day == day], few):
                with self._refusing():
                    self.delta.optimize.compact(
                        partition_filters=[("day", "=", day)],
                        target_size=sum(sizes) + 1,  # larger ones are left alone
                        max_concurrent_tasks=1,  # the driver holds a few batches of one file
                        commit_properties=self.mark.properties(),
                    )
                merged += len(sizes)
        if merged:
            commits = range(before + 1, self.delta.version() + 1)
            files = set(pa.table(self.delta.get_add_actions(flatten=True))["path"].to_pylist())
            new = files - {piece.path for piece in self.pieces}
            self._sync([*new, *(f"_delta_log/{version:020d}.json" for version in commits)])
        return merged

    def sweep(self, hours: int = KEPT_HOURS) -> int:
        """Delete files that readers have not seen for so many hours, or never; returns how many."""
        if self.delta is None:
            return 0
        age: dict[str, Any] = {"retention_hours": hours, "enforce_retention_duration": hours >= KEPT_HOURS}
        with self._refusing():
            if gone := self.delta.vacuum(full=True, **age):
                self.delta.vacuum(full=True, dry_run=False, commit_properties=self.mark.properties(), **age)
        before, own = time.time() - hours * 3600, self.location.folder
        for folder in sorted(own.glob("*/**/"), reverse=True) if own else ():
            with contextlib.suppress(OSError):  # one that is not empty
                if folder.stat().st_mtime <= before:  # others are being written to
                    folder.rmdir()
        return len(gone)


def chosen(sizes: Sequence[int], few: int = FEW) -> list[int]:
    """The smallest files, by their sizes, that are worth merging; none where they are few."""
    # One is no larger than twice what it is merged with: a row is written again only a few times, however many come.
    group: list[int] = []
    for size in sorted(sizes):
        if size >= LARGE or (group and size > 2 * sum(group)):
            break
        group.append(size)
    return group if len(group) >= few else []


def _is_table(location: Location) -> bool:
    return bool(DeltaTable.is_deltatable(str(location), location.options()))


def open_for_reading(home: Location, kind: str) -> Table:
    """Open a table as far as the one that is committed after it has come; where that is not there, it is empty.

    Otherwise as `Table.open`.
    """
    if kind not in FOLLOWED_BY:
        return Table.open(home, kind)
    following = Table.open(home, FOLLOWED_BY[kind])
    if following.delta is None:
        return Table(home / FOLDERS[kind], home.name)
    return Table.open(home, kind, following.mark.watermark)


def added(files: Iterable[tuple[str, str, int, str]]) -> Iterator[AddAction]:
    """Files as a commit names them: each by its path below the table's folder, its day, its bytes and its statistics.

    The statistics have each column that Delta knows an order of: `deltalake` would not find rows of files without.
    """
    now = time.time_ns() // 1_000_000
    for path, day, size, statistics in files:
        yield AddAction(path, size, {"day": day}, now, True, statistics)
