"""The log of ended runs: which ended after one transaction and up to another, and each as it was when it ended.

It is no znode of its own, so that an end costs nothing: it is what lists the tasks that have ended, together with the
letters of the runs that have left (`core.writing.letters`). A run's place in the log is the transaction in which it
ended. What lists it was written in that transaction or later, and never before: a bucket in which nothing has come or
gone after some transaction holds no run that ended after it, and is not read.

What stands is read before what has left, so that a run which leaves meanwhile is met once at least. A run whose task
comes back to ``finished`` from ``requeued``, or goes there, is met in one of three looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.buckets import entry_time
from airflow_provider_zkmq.engine.core.model.letters import Ended, Unreadable
from airflow_provider_zkmq.engine.core.model.paths import entry_task, is_name
from airflow_provider_zkmq.engine.core.model.states import ENDED
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Exists, Node, Procedure, Stat, Sync
from airflow_provider_zkmq.engine.core.reading.configuration import read_conf
from airflow_provider_zkmq.engine.core.reading.letters import BARE_AT_ONCE, changed_buckets, list_letters, versions_of
from airflow_provider_zkmq.engine.core.reading.nodes import Record, chunked, list_children, read_nodes, record_of

#: The order in which they are read: a run in escrow that cannot be read takes its task from ``requeued`` back.
_BUCKETED: Final = ("requeued", "finished", "cancelled", "requeued")
#: What an end makes something come or go in.
_PARENTS: Final = ("requeued", "finished", "cancelled", "unarchived")


def ended_between(context: Context, after: int, until: int | None = None) -> Procedure[list[Ended]]:
    """The runs that ended after zxid `after`, up to and with `until` (default: any), in the order in which they ended.

    Finished, cancelled and dead ones, each once, whether the task stands as it ended or has left: the runs that leave
    are kept in an archived or followed queue. Complete where `until` came from `zxid` or `latest_end`, of whichever
    client, as far as clean-up has not trimmed it (`trimmed`). One whose record is corrupt is reported, and told as
    `Unreadable`. Costs by what has come or gone since. Raises `ConfigError` where the queue does not exist.
    """
    yield from read_conf(context)
    yield Sync(context.paths.base)  # whoever told `until` may have asked a server that is ahead of ours
    ended: dict[tuple[str, int], Ended] = {}
    met = [*(yield from _standing(context, after)), *(yield from _departed(context, after))]
    for each in (_within(one, until) for one in met):
        if after < each.version and (until is None or each.version <= until):
            ended.setdefault((each.id, each.version), each)
    return sorted(ended.values(), key=lambda each: (each.version, each.id))


def _within(each: Ended, until: int | None) -> Ended:
    """A run; a damaged one that was written once more since is told all the same: nobody knows when it ended."""
    if until is None or not isinstance(each, Unreadable):
        return each
    return each._replace(version=min(each.version, until))


def _standing(context: Context, after: int) -> Procedure[list[Ended]]:
    listed: dict[str, None] = {}
    for index in _BUCKETED:
        listed |= dict.fromkeys((yield from _new_entries(context, index, after)))
    listed |= dict.fromkeys((yield from _new_dead(context, after)))
    ended: list[Ended] = []
    for chunk in chunked(list(listed)):
        nodes = yield from read_nodes([context.paths.task(each, "state") for each in chunk])
        for task_id, node in zip(chunk, nodes, strict=True):
            ended += [] if node is None else _ended_in(context, task_id, node)
    return ended


def _new_entries(context: Context, index: str, after: int) -> Procedure[list[str]]:
    """The tasks that came into an index after a transaction."""
    parent = context.paths.at(index)
    buckets = yield from changed_buckets(parent, after)
    listings = yield from list_children([f"{parent}/{name}" for name in buckets])
    new: list[str] = []
    mixed: list[str] = []
    for (bucket, is_new), names in zip(buckets.items(), listings, strict=True):
        (new if is_new else mixed).extend(f"{parent}/{bucket}/{name}" for name in names if entry_time(name) is not None)
    new += yield from _created(mixed, after)
    return [task for entry in new if (task := entry_task(entry.rpartition("/")[2]))]


def _new_dead(context: Context, after: int) -> Procedure[list[str]]:
    parent = context.paths.at("dlq")
    stat: Stat | None = yield Exists(parent)
    if stat is None or stat.pzxid <= after:
        return []
    entries = [f"{parent}/{name}" for name in sorted((yield Children(parent)) or ()) if is_name(name)]
    return [entry.rpartition("/")[2] for entry in (yield from _created(entries, after))]


def _created(entries: Sequence[str], after: int) -> Procedure[list[str]]:
    """Those entries that were made after a transaction."""
    if not after:
        return list(entries)
    nodes = yield from read_nodes(entries, BARE_AT_ONCE)
    return [entry for entry, node in zip(entries, nodes, strict=True) if node is not None and node.stat.czxid > after]


def _ended_in(context: Context, task_id: str, node: Node) -> list[Ended]:
    """The run, if it has ended; one whose record was written once more ended when it was written first."""
    record = record_of(context, task_id, node, "it cannot be archived")
    if not isinstance(record, Record):
        return [Unreadable(task_id, node.stat.mzxid)]
    return [Ended(task_id, version_of(record))] if record.state.state in ENDED else []


def version_of(record: Record) -> int:
    """The transaction in which a run that stands has ended."""
    return record.state.ended_zxid or record.stat.mzxid


def _departed(context: Context, after: int) -> Procedure[list[Ended]]:
    letters = yield from list_letters(context, after)
    wanted = [each for each in letters if not each.name.version or each.name.version > after]
    return (yield from versions_of(context, wanted))


def latest_end(context: Context) -> Procedure[int]:
    """The zxid up to which `ended_between` is complete now, read without a write; it never goes back.

    It is the last transaction in which anything came or went where ended runs are listed or kept: no run that this
    client's server knows of ended later, and the server has applied every transaction before it. It also rises where
    clean-up deletes something: then nothing ended up to there. Raises `ConfigError` where the queue does not exist.
    """
    yield from read_conf(context)
    yield Sync(context.paths.base)
    listings = yield from list_children([context.paths.at(name) for name in _PARENTS])
    paths = [context.paths.at(name, bucket) for name, names in zip(_PARENTS, listings, strict=True) for bucket in names]
    # Parents come last: of a bucket that went meanwhile, its parent tells more than it did.
    paths += [context.paths.at(name) for name in (*_PARENTS, "dlq")]
    nodes = yield from read_nodes(paths, BARE_AT_ONCE)
    return max((node.stat.pzxid for node in nodes if node is not None), default=0)
