"""The tables of a history, asked in SQL: by DataFusion, which comes with `deltalake` and needs no Java."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Final, TypeAlias

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from ...delta_tables import open_for_reading
from ...engine import ZkmqError
from ...location import Location
from .rendering import Row

#: What stands for all that is too small for a row of its own. No name of a queue, a class or a consumer has blanks.
OTHERS: Final = "all others"
#: The tables of one queue by their names.
QueueTables: TypeAlias = Mapping[str, DeltaTable]
#: The columns of each table that reports are made of, times and spans apart.
_COLUMNS: Final = {
    "runs": ("queue", "class", "state", "attempt"),
    "deliveries": ("queue", "class", "task_id", "consumer", "outcome", "error"),
    "hourly": ("queue", "class", "arrivals", "ended", "retries", "dead", "depth_mean", "depth_max", "depth_end"),
    "consumers": ("queue", "consumer", "utilisation"),
}
#: Times become seconds since 1970, which have no zone that anybody could mistake.
_TIMES: Final = {
    "runs": ("enqueued_at", "ended_at"),
    "deliveries": ("claimed_at", "started_at", "ended_at"),
    "hourly": ("hour",),
    "consumers": ("hour",),
}
#: Clocks of servers may disagree: no time that a task waited or ran is less than none.
_SPANS: Final = {"runs": ("wait_ms", "run_ms"), "deliveries": ("run_ms",), "hourly": (), "consumers": ()}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def quoted(text: str) -> str:
    """A text as SQL spells it."""
    return "'" + text.replace("'", "''") + "'"


def or_others(known: Iterable[Sequence[str]], keys: Sequence[str]) -> list[str]:
    """The keys as columns, with `OTHERS` in all of them where their values are not among these."""
    pairs = (zip(keys, values, strict=True) for values in known)
    each = (" and ".join(f"{key} = {quoted(value)}" for key, value in one) for one in pairs)
    among = " or ".join(f"({one})" for one in each) or "false"
    # DataFusion loses track of whether a column may be null where the case ends with "else".
    return [f"case when {among} then {key} when not ({among}) then {quoted(OTHERS)} end as {key}" for key in keys]


class ReportFailed(ZkmqError):
    """The history could not be read; the cause says where."""


@dataclass(frozen=True)
class Tables:
    """Silver's ``runs`` and ``deliveries``, gold's ``hourly`` and ``consumers``, of some queues and of some time.

    `classes`: pairs of queue and class; every other class is called `OTHERS`. None: each has its own name.
    """

    directory: Location
    queues: Mapping[str, QueueTables]
    since: datetime | None = None
    until: datetime | None = None
    classes: Sequence[Sequence[str]] | None = None

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str] | Location,
        queues: Iterable[str],
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Tables:
        """What ended, or happened in an hour that began, from `since` and before `until`. Raises as `Table.open`."""
        root, found = Location.of(directory), dict[str, QueueTables]()
        for queue in queues:
            opened = {kind: open_for_reading(root / queue, kind).delta for kind in _COLUMNS}
            there = {kind: delta for kind, delta in opened.items() if delta is not None}
            if there.keys() == _COLUMNS.keys():  # else nothing of it has ended yet
                found[queue] = there
        return cls(root, found, since, until)

    def rows(self, query: str) -> list[Row]:
        """What a query answers, which says what it groups by; nothing where no queue has any rows."""
        if not self.queues:
            return []
        try:
            answer: list[Row] = pa.table(self._context.execute(query).read_all()).to_pylist()
        except Exception as error:  # what DataFusion says comes as a plain one
            line = (str(error).splitlines() or [""])[0]
            raise ReportFailed(f"the history in {self.directory} cannot be read: {line}") from error
        return answer

    @cached_property
    def _context(self) -> QueryBuilder:
        context = QueryBuilder()
        for at, own in enumerate(self.queues.values()):
            for kind, delta in own.items():
                context.register(f"{kind}_{at}", delta)
        for kind in _COLUMNS:
            each = (self._select(kind, queue, f"{kind}_{at}") for at, queue in enumerate(self.queues))
            context.execute(f"create view {kind} as {' union all '.join(each)}").read_all()
        return context

    def _select(self, kind: str, queue: str, name: str) -> str:
        columns, moment = list(_COLUMNS[kind]), "hour" if "hour" in _TIMES[kind] else "ended_at"
        if self.classes is not None and "class" in columns:
            own = [[each] for of_queue, each in self.classes if of_queue == queue]
            columns[columns.index("class")] = or_others(own, ["class"])[0]
        columns += [f"cast({time} as bigint) / 1e6 as {time}" for time in _TIMES[kind]]
        columns += [f"case when {span} < 0 then 0 else {span} end as {span}" for span in _SPANS[kind]]
        wanted = ["true"]
        for sign, when in ((">=", self.since), ("<", self.until)):
            if when is not None:  # the day says which files need not be read
                wanted.append(f"day {sign[0]}= date '{when.astimezone(UTC).date()}'")
                wanted.append(f"cast({moment} as bigint) {sign} {(when - _EPOCH) // timedelta(microseconds=1)}")
        return f"select {', '.join(columns)} from {name} where {' and '.join(wanted)}"
