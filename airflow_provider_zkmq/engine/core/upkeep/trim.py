"""Trimming the log of ended runs: who follows a queue is told of what goes, before it goes; letters nobody wants go."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.conf import Conf
from airflow_provider_zkmq.engine.core.model.stored import dump
from airflow_provider_zkmq.engine.core.protocol.ops import Get, Node, Pipeline, Procedure
from airflow_provider_zkmq.engine.core.protocol.transact import never, refused, transact
from airflow_provider_zkmq.engine.core.protocol.writes import Delete, Failure, Multi, SetData
from airflow_provider_zkmq.engine.core.reading.letters import list_letters, versions_of
from airflow_provider_zkmq.engine.core.reading.nodes import chunked
from airflow_provider_zkmq.engine.core.reading.trimmed import trimmed_upto


def publish_trimmed(context: Context, versions: Iterable[int]) -> Procedure[None]:
    """Say that runs which ended in these transactions may be gone; to be called before they are deleted."""
    path, highest = context.paths.at("followed"), max(versions, default=0)
    while highest:
        node: Node | None = yield Get(path)
        if node is None or trimmed_upto(context, path, node) >= highest:
            return
        multi = Multi((SetData(path, dump({"trimmed": highest}), node.stat.version),))
        outcome = yield from transact(multi, never)
        if outcome.committed:
            return
        if outcome.failure not in {Failure.BAD_VERSION, Failure.NO_NODE}:
            raise refused("saying what clean-up deletes", outcome, multi)


def collect_letters(context: Context, conf: Conf, cutoff: int) -> Procedure[None]:
    """Delete the runs that have left and are in the queue's archive by now, or are too old for those who follow it.

    All of them where the queue is neither archived nor followed.
    """
    letters = yield from list_letters(context)
    if conf.follow:
        letters = [each for each in letters if each.name.when <= cutoff]
    if conf.archive is not None:
        archived = {each.place for each in (yield from versions_of(context, letters)) if each.version <= conf.archive}
        letters = [each for each in letters if each.place in archived]
    if conf.follow:
        yield from publish_trimmed(context, [each.version for each in (yield from versions_of(context, letters))])
    paths = [context.paths.at("unarchived", each.place) for each in letters]
    for chunk in chunked([*paths, *{path.rpartition("/")[0] for path in paths}]):
        yield Pipeline(tuple(Multi((Delete(path),)) for path in chunk))  # that of a bucket is refused while it is used
