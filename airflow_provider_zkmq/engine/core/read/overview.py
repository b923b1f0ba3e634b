"""How a queue stands, for operators: what is in hand and since when, what nobody accepts, what waits the longest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from ...errors import ConfigError, ZkmqError
from ..client_state import Context
from ..model import znode_names
from ..model.filters import FilterTypes
from ..model.records import load_claim
from ..model.states import State
from ..zk_operations import Children, Exists, Procedure, together
from . import bulk_read, inspect
from .claim_status import end_of, lease_path
from .configuration import read_conf
from .server_clock import certainly_past


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """A task in hand. Times are the server's, in milliseconds since 1970.

    ``active_ms``: when its consumer last said something of it: that it claimed it, began it, or made progress; None in
    a file, which does not tell. ``idle``: for how many seconds it has said nothing since; heartbeats say nothing of the
    task. ``lease_ms``: when its lease or lock ends, or has ended; None: it holds as long as its consumer's session.
    ``lapsed``: its lease has ended, and nobody has given the task back yet: its consumer is gone or stands still.
    ``gone``: its consumer's session has ended, and the next consumer to claim anything gives it back.
    """

    id: str
    consumer: str
    attempt: int
    claimed_ms: int | None
    active_ms: int | None
    idle: float
    lease_ms: int | None
    lapsed: bool
    progress: float | None
    note: str | None
    gone: bool = False


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """The pending tasks of one priority that have the same filters, and the live consumers that accept them.

    ``filters``: None of a mixed lane (see `znode_names.MAX_LANES`), whose tasks count as accepted.
    """

    priority: int
    filters: Mapping[str, str] | None
    count: int
    accepted_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unaccepted:
    """So many pending tasks with these filters, which no live consumer accepts."""

    filters: Mapping[str, str]
    count: int


@dataclass(frozen=True, slots=True)
class Overview:
    """How a queue stands. Not a snapshot of one moment.

    ``counts``: as `Queue.counts`. ``consumers``: how many live; None where none are registered. ``lanes``: by falling
    priority. ``oldest_ms``: when the task was enqueued that waits the longest, among the first of each lane;
    ``next_due_ms``: when the next scheduled task may be handled. ``held``: what is in hand, idle ones first.
    ``limited``: the queue has a limit, by which tasks may wait.
    """

    counts: dict[str, int]
    paused: bool
    consumers: int | None
    lanes: tuple[LaneStatus, ...]
    oldest_ms: int | None
    next_due_ms: int | None
    held: tuple[HeldClaim, ...]
    limited: bool = False

    @property
    def unaccepted(self) -> tuple[Unaccepted, ...]:
        """What no live consumer accepts, of any priority, the most first; none without live consumers."""
        found = Counter[tuple[tuple[str, str], ...]]()
        for lane in self.lanes if self.consumers else ():
            if lane.filters is not None and not lane.accepted_by:
                found[tuple(lane.filters.items())] += lane.count
        return tuple(Unaccepted(dict(filters), count) for filters, count in found.most_common() if count)


@dataclass(frozen=True, slots=True)
class Activity:
    """What went on in a queue: how many tasks were ever written, and how many finished in each of the last minutes.

    ``finished``: by the start of the minute, in milliseconds since 1970, the earliest first; those that clean-up has
    deleted, or that were enqueued anew, count no more.
    """

    written: int
    finished: tuple[tuple[int, int], ...]


def activity(context: Context, minutes: int = 60) -> Procedure[Activity]:
    """What went on in the last `minutes` minutes, and in the one under way. Raises `QueueNotFound`."""
    yield from read_conf(context)
    (tasks,) = yield from bulk_read.read_stats([context.paths.at("tasks")])
    names = sorted((yield Children(context.paths.at("finished"))) or ())
    since = (yield from certainly_past(context)) - minutes * znode_names.BUCKET_MS
    starts = {name: start for name in names if (start := znode_names.bucket_start(name)) is not None}
    begun = {name: start for name, start in starts.items() if start > since - znode_names.BUCKET_MS}
    stats = yield from bulk_read.read_stats([context.paths.at("finished", name) for name in begun])
    written = 0 if tasks is None else (tasks.cversion + tasks.children) // 2
    counted = zip(begun.values(), stats, strict=True)
    return Activity(written, tuple((start, stat.children) for start, stat in counted if stat is not None))


def overview(context: Context) -> Procedure[Overview]:
    """How the queue stands, for operators. It costs by lanes, consumers and claims, not by what is pending.

    Tasks of mixed lanes (see `znode_names.MAX_LANES`) count as accepted. Raises `QueueNotFound`.
    """
    conf = yield from read_conf(context)
    accepts = yield from inspect.live_consumers(context)
    names = sorted(filter(znode_names.is_lane, (yield Children(context.paths.at("queue"))) or ()))
    segments = yield from _segments(context, names)
    pending = yield from _pending(segments)
    lanes = yield from _lanes(context, pending, accepts, conf.types)
    counts = yield from inspect.counts_beside(context, sum(pending.values()))
    oldest = yield from _oldest(context, segments)
    due = yield from _next_due(context)
    held = yield from held_claims(context)
    return Overview(counts, conf.paused, len(accepts), lanes, oldest, due, tuple(held), conf.limit is not None)


def overview_and_activity(context: Context) -> Procedure[tuple[Overview, Activity]]:
    """How the queue stands, and what went on in the last minute. Raises `QueueNotFound`."""
    return (yield from overview(context)), (yield from activity(context, minutes=1))


def overviews(contexts: Sequence[Context]) -> Procedure[list[tuple[Overview, Activity] | ZkmqError]]:
    """As `overview_and_activity`, of many queues of a client: all take the round trips of one. Raises `TransportError`.

    The server's clock is theirs together: the first queue that is there is asked for it, and the others know it then.
    """
    for context in contexts:
        try:
            yield from certainly_past(context)
        except ConfigError:  # it was deleted meanwhile
            continue
        break
    return (yield from together(overview_and_activity(context) for context in contexts))


def changed(root: str, latest: Callable[[], int]) -> Procedure[int]:
    """The number of the latest transaction that this client's server has applied: without another, nothing changed.

    `latest`: what the last reply told of it.
    """
    yield Exists(root)
    return latest()


def held_claims(context: Context, ids: Sequence[str] | None = None) -> Procedure[list[HeldClaim]]:
    """The tasks in hand, of these ids or all, those first whose consumer has said nothing of them the longest.

    Also claims whose lease has ended while nobody has given the task back. Raises `QueueNotFound`.
    """
    yield from read_conf(context)
    named = (yield from inspect.listed_ids(context, State.CLAIMED)) if ids is None else inspect.checked_ids(ids)
    past = (yield from certainly_past(context)) if named else 0
    held: list[HeldClaim] = []
    for chunk in bulk_read.chunked(named):
        claimed = yield from _claimed(context, chunk)
        leases = [lease_path(context, each.state) if each.state.lease else None for each in claimed]
        marks = [context.paths.task(each.task_id, "claim") for each in claimed]
        paths = [*marks, *filter(None, leases)]
        nodes = dict(zip(paths, (yield from bulk_read.read_nodes(paths)), strict=True))
        without = [each for each, mark in zip(claimed, marks, strict=True) if nodes[mark] is None]
        still = {
            (each.task_id, each.stat.mzxid) for each in (yield from _claimed(context, [a.task_id for a in without]))
        }
        for record, lease, mark in zip(claimed, leases, marks, strict=True):
            claim, deadline, state = nodes[mark], nodes[lease] if lease else None, record.state
            if claim is None and (record.task_id, record.stat.mzxid) not in still:  # it was settled meanwhile
                continue
            said = (
                None
                if claim is None
                else bulk_read.unless_corrupt(context, mark, partial(load_claim, mark, claim.data))
            )
            ends = None if deadline is None or lease is None else end_of(context, lease, deadline)
            active = max(0 if claim is None else claim.stat.mtime, state.claimed or 0)
            held.append(
                HeldClaim(
                    id=record.task_id,
                    consumer=state.consumer or "",
                    attempt=state.attempt,
                    claimed_ms=state.claimed,
                    active_ms=active,
                    idle=max(0, past - active) / 1000,
                    lease_ms=ends,
                    lapsed=ends is not None and ends <= past,
                    progress=(said or {}).get("progress"),
                    note=(said or {}).get("note") or None,
                    gone=claim is None,
                )
            )
    return sorted(held, key=lambda each: (each.active_ms or 0, each.id))


def _claimed(context: Context, ids: Sequence[str]) -> Procedure[list[bulk_read.Record]]:
    """The records of those tasks that are in hand."""
    records = (yield from bulk_read.read_records(context, ids)) if ids else []
    return [each for each in records if isinstance(each, bulk_read.Record) and each.state.consumer]


def _segments(context: Context, lanes: Sequence[str]) -> Procedure[dict[str, list[str]]]:
    """The paths of each lane's segments, in their order."""
    bases = [context.paths.at("queue", lane) for lane in lanes]
    listings = yield from bulk_read.list_children(bases)
    return {
        lane: [f"{base}/{name}" for name in znode_names.segments_of(names)]
        for lane, base, names in zip(lanes, bases, listings, strict=True)
    }


def _pending(segments: Mapping[str, Sequence[str]]) -> Procedure[dict[str, int]]:
    """How many tasks each lane has."""
    stats = iter((yield from bulk_read.read_stats([path for paths in segments.values() for path in paths])))
    return {name: sum(stat.children for stat in islice(stats, len(paths)) if stat) for name, paths in segments.items()}


def _lanes(
    context: Context, pending: Mapping[str, int], accepts: Sequence[inspect.Accepts], types: FilterTypes
) -> Procedure[tuple[LaneStatus, ...]]:
    """The lanes that have tasks, and who accepts these."""
    found = []
    for name, count in pending.items():
        lane = znode_names.parse_lane(name)
        if count and lane is None and znode_names.is_shortened(name):
            (node,) = yield from bulk_read.read_nodes([path := context.paths.at("queue", name)])
            if node is not None:
                lane = bulk_read.unless_corrupt(context, path, partial(znode_names.Lane.decode, path, node.data))
        if not count or lane is None:
            continue
        filters = lane.filters
        accepted = [each.consumer for each in accepts if filters is None or each.refusal(filters, types) is None]
        found.append(LaneStatus(lane.priority, filters, count, tuple(accepted)))
    return tuple(found)


def _oldest(context: Context, segments: Mapping[str, Sequence[str]]) -> Procedure[int | None]:
    """When the oldest among the first tasks of each lane was enqueued."""
    listings = yield from bulk_read.list_children([paths[0] for paths in segments.values() if paths])
    first = [task for names in listings if (task := next(filter(None, map(znode_names.entry_task, names)), None))]
    stats = yield from bulk_read.read_stats([context.paths.task(task, "data") for task in first])
    return min((stat.ctime for stat in stats if stat is not None), default=None)


def _next_due(context: Context) -> Procedure[int | None]:
    """When the next scheduled task is due."""
    for bucket in sorted((yield Children(context.paths.at("scheduled"))) or ()):
        names: list[str] = (yield Children(context.paths.at("scheduled", bucket))) or []
        if times := [when for name in names if (when := znode_names.entry_time(name)) is not None]:
            return min(times)
    return None
