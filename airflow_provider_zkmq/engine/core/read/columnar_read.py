"""Many tasks by their ids, as columns: for those who read a hundred thousand and need little of each.

Whole tasks are made of objects, and making these costs more than reading their bytes. A scan reads the znodes, and
decodes the fields, of which its columns are made, with several requests on their way together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from ..client_state import Context
from ..model.filters import Selector, as_selector
from ..model.records import TaskState
from ..model.states import State
from ..model.values import Moment, load, optional_milliseconds, whole_number
from ..zk_operations import Node, Procedure, Sync
from .bulk_read import SLIM_AT_ONCE, WHOLE_AT_ONCE, read_nodes, read_stats, unless_corrupt
from .claim_status import Lapsed, lapsed_tasks, status_at
from .configuration import read_conf
from .inspect import COLUMNS, PART_OF, Row, as_state, checked_columns, checked_ids
from .server_clock import certainly_past

#: So many znodes without payloads are asked for in one request.
_ZNODES_AT_ONCE: Final = 256
#: So many bytes are asked for together, as far as can be told by the tasks before: servers hold all of it in memory.
_BYTES_IN_FLIGHT: Final = 16 << 20
_GROWTH: Final = 4
#: No driver has more requests in flight together.
MAX_IN_FLIGHT: Final = 64


@dataclass(frozen=True, slots=True)
class Scanned:
    """What a scan read.

    ``columns``: by name, in the order in which they were asked for, lists with a value for each task, in the order of
    the ids. ``vanished``: the ids of tasks that are not there (any more). ``corrupt``: of those whose records cannot be
    read, which was reported in the log.
    """

    columns: dict[str, list[Any]]
    vanished: tuple[str, ...]
    corrupt: tuple[str, ...]


def scan(
    context: Context,
    task_ids: Sequence[str],
    columns: Sequence[str],
    *,
    states: Sequence[State | str] | None = None,
    selector: Selector | str | None = None,
    since: Moment | None = None,
    in_flight: int = 8,
) -> Procedure[Scanned]:
    """Columns of the tasks among `task_ids` that are there, each task once. Not a snapshot of one moment.

    `columns`: names of fields of `Task`, but for ``progress`` and ``note``. Only what they are made of is read.
    `states`, `selector` and `since` (when their present run was enqueued) leave tasks out, by what is read now.
    `in_flight`: so many requests are on their way together, 64 at the most, and fewer where payloads are large. All
    that is read is in memory together: read many large payloads in several calls. Raises `ConfigError` for what is not
    understood, and `QueueNotFound`.
    """
    ids, names = checked_ids(task_ids), checked_columns(columns)
    window = min(whole_number("in_flight", in_flight, 1), MAX_IN_FLIGHT)
    chosen = None if states is None else frozenset(filter(None, map(as_state, states)))
    begin = optional_milliseconds("since", since)
    conf = yield from read_conf(context)
    bound = None if selector is None else as_selector(selector).bind(conf.types)

    def accepts(row: Row) -> bool:
        return (
            (chosen is None or row.record.state in chosen)
            and (begin is None or row.enqueued >= begin)
            and (bound is None or bound.matches(row.record.filters, conf.types))
        )

    wanted = set(names if begin is None else (*names, "enqueued_ms"))
    scanning = _Scan(context, frozenset(PART_OF[name] for name in wanted.intersection(PART_OF)), window)
    yield from scanning.read(ids)
    if missing := scanning.missing(ids):
        yield Sync(context.paths.at("tasks"))  # the server that we read from may lag behind
        yield from scanning.read(missing)
    rows = [row for each in ids if (row := scanning.rows.get(each)) is not None and accepts(row)]
    values = {name: list(map(COLUMNS[name], rows)) for name in names}
    return Scanned(values, tuple(scanning.missing(missing)), tuple(scanning.corrupt))


@dataclass(slots=True)
class _Scan:
    """What was read so far: rows by their ids."""

    context: Context
    parts: frozenset[str]
    """What of the tasks' trees is read besides their records."""
    in_flight: int
    rows: dict[str, Row] = field(default_factory=dict)
    corrupt: dict[str, None] = field(default_factory=dict)
    lapsed: dict[str, Lapsed] | None = None
    """The tasks whose claims have ended by their deadline, once one of those that are claimed has a deadline."""

    def missing(self, ids: Sequence[str]) -> list[str]:
        """Those of which nothing is there."""
        return [each for each in ids if each not in self.rows and each not in self.corrupt]

    def read(self, ids: Sequence[str]) -> Procedure[None]:
        """Read tasks, so many at a time as may be in flight together; of payloads no more than is bearable."""
        wanted = set(self.parts)
        if "enqueued" in wanted and "data" not in wanted:
            wanted.add("metadata")  # seldom large, it tells when a task was enqueued
        znodes = ("state", *(name for name in ("data", "metadata", "result") if name in wanted))
        payloads = not wanted.isdisjoint(("data", "result"))
        at_once = SLIM_AT_ONCE if payloads else _ZNODES_AT_ONCE // len(znodes)
        most, at = at_once * self.in_flight, 0
        size = min(most, WHOLE_AT_ONCE) if payloads else most
        while at < len(ids):
            group = ids[at : at + size]
            paths = [self.context.paths.task(each, znode) for each in group for znode in znodes]
            nodes = yield from read_nodes(paths, at_once * len(znodes), self.in_flight)
            there: list[tuple[Row, dict[str, Node | None]]] = []
            for number, task_id in enumerate(group):
                start = number * len(znodes)
                found = dict(zip(znodes, nodes[start : start + len(znodes)], strict=True))
                node, path = found["state"], paths[start]
                if node is None:
                    continue
                record = unless_corrupt(self.context, path, partial(TaskState.decode, path, node.data))
                if record is None:
                    self.corrupt[task_id] = None
                    continue
                row = self.rows[task_id] = Row(task_id, record, node.stat)
                there.append((row, found))
            yield from self._complete(there)
            at += len(group)
            if payloads:  # a few times more, if they stay as small
                total = sum(len(node.data) for node in nodes if node is not None)
                size = max(1, min(most, size * _GROWTH, size * _BYTES_IN_FLIGHT // max(1, total)))

    def _complete(self, there: Sequence[tuple[Row, Mapping[str, Node | None]]]) -> Procedure[None]:
        """Add what else was read, and what has to be asked for besides."""
        for row, found in there:
            data, result, metadata = found.get("data"), found.get("result"), found.get("metadata")
            if data is not None:
                row.data = data.data
            if result is not None:
                row.result = result.data
            if metadata is not None and "metadata" in self.parts:
                path = self.context.paths.task(row.id, "metadata")
                row.metadata = unless_corrupt(self.context, path, partial(load, path, metadata.data)) or {}
        if "enqueued" in self.parts:
            yield from self._enqueued(there)
        rows = [row for row, _ in there]
        if "clock" in self.parts:
            timed = any(row.record.due is not None or row.record.dedupe is not None for row in rows)
            past = (yield from certainly_past(self.context)) if timed else 0
            for row in rows:
                row.status = status_at(past, row.record)
        claimed = [row for row in rows if row.record.state is State.CLAIMED]
        if any(row.record.lease is not None for row in claimed):
            if self.lapsed is None:
                self.lapsed = yield from lapsed_tasks(self.context)
            for row in claimed:
                if row.id in self.lapsed:
                    row.lapse(self.lapsed[row.id])

    def _enqueued(self, there: Sequence[tuple[Row, Mapping[str, Node | None]]]) -> Procedure[None]:
        """When the present run of each was enqueued: the data's znode is made anew for each run of an id.

        The metadata's is not: as long as it was never written again, it came with the data, and nobody need ask for
        these. Where there is none, the data came with the record (`core.write.next_run`). Of others the data are asked
        for, but for their bytes.
        """
        unknown: list[Row] = []
        whole = "data" in self.parts
        for row, found in there:
            node = found["data" if whole else "metadata"]
            known = node is not None if whole else node is None or node.stat.version == 0
            if known:
                row.enqueued = (row.stat if node is None else node.stat).ctime
            else:
                unknown.append(row)
        stats = (yield from read_stats([self.context.paths.task(row.id, "data") for row in unknown])) if unknown else []
        for row, stat in zip(unknown, stats, strict=True):
            row.enqueued = (stat or row.stat).ctime
