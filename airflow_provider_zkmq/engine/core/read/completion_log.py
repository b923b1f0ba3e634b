"""The log of runs that ended, with those that have left the queue since."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, TypeAlias, TypedDict

from ...errors import CorruptRecord
from ..client_state import Context
from ..model.records import Ended, HistoryEntry, HistoryName, TaskState, Unreadable, clip, parse_history_name
from ..model.states import ENDED, State
from ..model.values import Zxid, load
from ..model.znode_names import bucket_start, entry_task, entry_time, is_name
from ..zk_operations import Children, Exists, Get, Node, Procedure, Stat, Sync
from . import bulk_read
from .configuration import read_conf
from .inspect import Task, assemble, task_of_history_entry
from .queue_existence import refuse_missing

# --- Runs that have left what lists them and are kept for who reads what ended (`core.write.transitions`).

#: So many znodes without much in them are read in one request: buckets, entries.
BARE_AT_ONCE: Final = 8 * bulk_read.AT_ONCE


def list_history(context: Context, after: int = 0) -> Procedure[list[HistoryName]]:
    """The history entries that are kept, of buckets in which something came or went after that transaction."""
    parent = context.paths.at("unarchived")
    buckets = yield from changed_buckets(parent, after)
    listings = yield from bulk_read.list_children([f"{parent}/{name}" for name in buckets])
    places = [f"{bucket}/{entry}" for bucket, names in zip(buckets, listings, strict=True) for entry in names]
    return list(filter(None, map(parse_history_name, places)))


def changed_buckets(parent: str, after: int) -> Procedure[dict[str, bool]]:
    """The buckets of an index in which something has come or gone after that transaction; whether each is new since."""
    names = sorted(name for name in (yield Children(parent)) or () if bucket_start(name) is not None)
    nodes = yield from bulk_read.read_nodes([f"{parent}/{name}" for name in names], BARE_AT_ONCE)
    return {
        name: node.stat.czxid > after
        for name, node in zip(names, nodes, strict=True)
        if node is not None and node.stat.pzxid > after
    }


def versions_of(context: Context, history_entries: Sequence[HistoryName]) -> Procedure[list[Ended]]:
    """The runs that history entries hold: by their names, or by the Stat of an entry written as its run ended."""
    versions = {each.place: each.version for each in history_entries}
    own = [place for place, version in versions.items() if version == 0]
    stats = yield from bulk_read.read_stats([context.paths.at("unarchived", place) for place in own])
    for place, stat in zip(own, stats, strict=True):
        versions[place] = 0 if stat is None else stat.czxid
    ended = [Ended(each.task_id, versions[each.place], each.place) for each in history_entries]
    return [each for each in ended if each.version]


# --- The log of ended runs: which ended after one transaction and up to another, and each as it was when it ended.
#
# It is no znode of its own, so that an end costs nothing: it is what lists the tasks that have ended, together with
# the history entries of the runs that have left (`core.write.transitions`). A run's place in the log is the
# transaction in which it ended. What lists it was written in that transaction or later, and never before: a bucket in
# which nothing has come or gone after some transaction holds no run that ended after it, and is not read.
#
# What stands is read before what has left, so that a run which leaves meanwhile is met once at least. A run whose
# task comes back to ``finished`` from ``requeued``, or goes there, is met in one of three looks.

#: The order in which they are read: a run in escrow that cannot be read takes its task from ``requeued`` back.
_BUCKETED: Final = ("requeued", "finished", "cancelled", "requeued")
#: What an end makes something come or go in.
_PARENTS: Final = ("requeued", "finished", "cancelled", "unarchived")


def ended_between(context: Context, after: int, until: int | None = None) -> Procedure[list[Ended]]:
    """The runs that ended after zxid `after`, up to and with `until` (default: any), in the order of their ends.

    Finished, cancelled and dead ones, each once, whether the task stands as it ended or has left: the runs that leave
    are kept in an archived or followed queue. Complete where `until` came from `zxid` or `latest_end`, of whichever
    client, as far as clean-up has not trimmed it (`truncated_at`). One whose record is corrupt is reported, and told as
    `Unreadable`. Costs by what has come or gone since. Raises `ConfigError` where the queue does not exist.
    """
    yield from read_conf(context)
    yield Sync(context.paths.base)  # whoever told `until` may have asked a server that is ahead of ours
    found = yield from _standing(context, after)
    left = yield from list_history(context, after)
    found += yield from versions_of(context, [each for each in left if not 0 < each.version <= after])
    ended: dict[tuple[str, int], Ended] = {}
    for run in found:
        each = run
        if until is not None and isinstance(run, Unreadable):  # written once more since: nobody knows when it ended
            each = run._replace(version=min(run.version, until))
        if after < each.version and (until is None or each.version <= until):
            ended.setdefault((each.id, each.version), each)
    return sorted(ended.values(), key=lambda each: (each.version, each.id))


def _standing(context: Context, after: int) -> Procedure[list[Ended]]:
    """Those whose tasks stand. One whose record was written once more ended when it was written first."""
    listed: dict[str, None] = {}
    for index in _BUCKETED:
        parent = context.paths.at(index)
        buckets = yield from changed_buckets(parent, after)
        listings = yield from bulk_read.list_children([f"{parent}/{name}" for name in buckets])
        new: list[str] = []
        mixed: list[str] = []
        for (bucket, is_new), names in zip(buckets.items(), listings, strict=True):
            entries = [f"{parent}/{bucket}/{name}" for name in names if entry_time(name) is not None]
            (new if is_new else mixed).extend(entries)
        new += yield from _created(mixed, after)
        tasks = [entry_task(entry.rpartition("/")[2]) for entry in new]
        listed |= dict.fromkeys(filter(None, tasks))
    dlq = context.paths.at("dlq")
    stat: Stat | None = yield Exists(dlq)
    if stat is not None and stat.pzxid > after:
        entries = [f"{dlq}/{name}" for name in sorted((yield Children(dlq)) or ()) if is_name(name)]
        dead = yield from _created(entries, after)
        listed |= dict.fromkeys(entry.rpartition("/")[2] for entry in dead)
    ended: list[Ended] = []
    for chunk in bulk_read.chunked(list(listed)):
        nodes = yield from bulk_read.read_nodes([context.paths.task(each, "state") for each in chunk])
        for task_id, node in zip(chunk, nodes, strict=True):
            record = bulk_read.record_of(context, task_id, node, "it cannot be archived")
            if isinstance(record, bulk_read.Record) and record.state.state in ENDED:
                ended.append(Ended(task_id, version_of(record)))
            elif node is not None and record is bulk_read.Unread.CORRUPT:
                ended.append(Unreadable(task_id, node.stat.mzxid))
    return ended


def _created(entries: Sequence[str], after: int) -> Procedure[list[str]]:
    """Those entries that were made after a transaction."""
    if not after:
        return list(entries)
    nodes = yield from bulk_read.read_nodes(entries, BARE_AT_ONCE)
    return [entry for entry, node in zip(entries, nodes, strict=True) if node is not None and node.stat.czxid > after]


def version_of(record: bulk_read.Record) -> int:
    """The transaction in which a run that stands has ended."""
    return record.state.ended_zxid or record.stat.mzxid


def latest_end(context: Context) -> Procedure[int]:
    """The zxid up to which `ended_between` is complete now, read without a write; it never goes back.

    It is the last transaction in which anything came or went where ended runs are listed or kept: no run that this
    client's server knows of ended later, and the server has applied every transaction before it. It also rises where
    clean-up deletes something: then nothing ended up to there. Raises `ConfigError` where the queue does not exist.
    """
    yield from read_conf(context)
    yield Sync(context.paths.base)
    listings = yield from bulk_read.list_children([context.paths.at(name) for name in _PARENTS])
    paths = [context.paths.at(name, bucket) for name, names in zip(_PARENTS, listings, strict=True) for bucket in names]
    # Parents come last: of a bucket that went meanwhile, its parent tells more than it did.
    paths += [context.paths.at(name) for name in (*_PARENTS, "dlq")]
    nodes = yield from bulk_read.read_nodes(paths, BARE_AT_ONCE)
    return max((node.stat.pzxid for node in nodes if node is not None), default=0)


# --- Runs of the log (`core.read.completion_log`) as they were when they ended, also those that have left since.

#: By their ids and versions.
_Runs: TypeAlias = dict[tuple[str, int], Task]


def read_ended(
    context: Context, ended: Sequence[Ended], *, parts: Collection[bulk_read.Part] = bulk_read.PARTS
) -> Procedure[list[Task]]:
    """Runs that have ended, each as it was then, in the order asked for: what `ended_between` told.

    `Task.version` is the transaction in which the run ended. One that has left since is read from where it is kept.
    What is gone, dropped from a queue that nobody follows or trimmed, is left out; so is what is damaged, which is
    reported. `parts` as in `tasks`; a run that has left is read whole. All of them are in memory together.
    Raises `ConfigError` for an unknown part, and `QueueNotFound`.
    """
    yield from read_conf(context)
    chosen = bulk_read.checked_parts(parts)
    runs: _Runs = {}
    yield from _add_history(context, [each for each in ended if each.place is not None], runs)
    standing = [each for each in ended if each.place is None]
    yield from _add_standing(context, standing, chosen, runs, torn=False)
    missing = [each for each in standing if each[:2] not in runs]
    if missing:
        yield Sync(context.paths.base)  # the server that we read from may lag behind
        wanted = {each[:2] for each in missing}
        ids = {each.id for each in missing}
        # Those that have left since left after they had ended.
        left = yield from list_history(context, min(each.version for each in missing) - 1)
        kept = yield from versions_of(context, [each for each in left if each.task_id in ids])
        yield from _add_history(context, [each for each in kept if each[:2] in wanted], runs)
        yield from _add_standing(context, [each for each in missing if each[:2] not in runs], chosen, runs, torn=True)
    return [runs[key] for key in dict.fromkeys(each[:2] for each in ended) if key in runs]


def _add_standing(
    context: Context, ended: Sequence[Ended], parts: Collection[str], runs: _Runs, *, torn: bool
) -> Procedure[None]:
    """Add the runs whose tasks stand as they ended. `torn`: also one that lacks a part, and will go on to."""
    versions = {each.id: each.version for each in ended}
    for chunk in bulk_read.chunked(list(versions), bulk_read.at_once(parts)):
        for task_id, nodes in (yield from bulk_read.read_trees(context, chunk, parts)):
            record, data, *_ = nodes
            if record is None:
                continue
            version: int | None = record.stat.mzxid
            if b'"ended_zxid"' in record.data:
                read = bulk_read.record_of(context, task_id, record)
                version = version_of(read) if isinstance(read, bulk_read.Record) else None
            # Reads are no snapshot, and the next run may have come between them.
            last = record.stat.mzxid
            whole = data is not None and all(node is None or node.stat.mzxid <= last for node in nodes)
            if version == versions[task_id] and (torn or whole):
                row = yield from assemble(context, task_id, nodes, strict=False)
                # The transaction that ends a run may insert the one that was in escrow: that is not the run that ended.
                if row is not None and row.record.state in ENDED:
                    runs[task_id, versions[task_id]] = replace(row.task(), version=versions[task_id])


def _add_history(context: Context, ended: Sequence[Ended], runs: _Runs) -> Procedure[None]:
    """Add runs that have left. What stands at a place may be damaged, and would not tell which run it is.

    What is corrupt is reported, and told with its bytes as data and the reason as error: there is no other place from
    which it could be mended.
    """
    paths = [context.paths.at("unarchived", each.place or "") for each in ended]
    nodes = yield from bulk_read.read_nodes(paths, bulk_read.WHOLE_AT_ONCE)
    for each, path, node in zip(ended, paths, nodes, strict=True):
        if node is None:
            continue
        try:
            task = task_of_history_entry(path, HistoryEntry.decode(path, node.data))
        except CorruptRecord as error:
            context.report(path, str(error))
            state, came = TaskState(State.DEAD, "", "", error=clip(str(error))), node.stat.ctime
            damaged = HistoryEntry(each.id, each.version, came, came, state, "{}", node.data)
            task = task_of_history_entry(path, damaged)
        runs[each[:2]] = replace(task, id=each.id, version=each.version)


# --- Up to where clean-up may have deleted ended runs of a queue that streams follow, taken or not.


class Truncation(NamedTuple):
    """What clean-up has deleted of the log of a followed queue.

    ``last_zxid``: no run that ended after this zxid was deleted; 0 where nothing was. ``since``: the transaction that
    made the queue a followed one: what was deleted before that, nobody has noted, and of a queue that was deleted, or
    not followed for a while, it is another one afterwards.
    """

    last_zxid: int
    since: int


def truncated_at(context: Context) -> Procedure[Truncation | None]:
    """Up to where clean-up may have deleted runs of the log; None where the queue is not followed.

    Whoever began when `Truncation.since` was the same, and has taken everything up to `Truncation.last_zxid`, has lost
    nothing. Read anew each time. Raises `QueueNotFound`.
    """
    path = context.paths.at("followed")
    yield Sync(path)  # the server that we read from may lag behind
    node: Node | None = yield Get(path)
    if node is None:
        yield from refuse_missing(context)
    return None if node is None else Truncation(read_truncated_at(context, path, node), node.stat.czxid)


def read_truncated_at(context: Context, path: str, node: Node) -> int:
    """What the mark says; of one that cannot be read it is known only that nothing was deleted since it was written."""
    read = partial(load, path, node.data, _Mark, "a mark of a queue that is followed")
    mark = bulk_read.unless_corrupt(context, path, read, "its last write counts")
    return node.stat.mzxid if mark is None else mark.get("truncated_at", 0)


class _Mark(TypedDict, total=False):
    truncated_at: Zxid
