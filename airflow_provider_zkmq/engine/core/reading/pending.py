"""How many tasks are pending, for who asks again and again: under watches, so that it costs by what has changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.buckets import bucket_start
from airflow_provider_zkmq.engine.core.model.lanes import is_lane, segments_of
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Pipeline, Procedure, Watch
from airflow_provider_zkmq.engine.core.reading.configuration import read_conf
from airflow_provider_zkmq.engine.core.reading.lapsed import DEADLINES, lapsed_of

T = TypeVar("T")


def pending(context: Context) -> Procedure[int]:
    """How many tasks are pending, as `counts` tells it; nothing is asked of the server while nothing has changed.

    Of what lists tasks only the number of names is remembered, as a queue may be deep. Raises `QueueNotFound`.
    """
    yield from read_conf(context)
    at, seen = context.paths.at, set[str]()
    tops = [at(name) for name in ("queue", "scheduled", *DEADLINES)]
    names, scheduled, *deadlines = yield from _below(context, tops, sorted, seen)
    lanes = [at("queue", lane) for lane in filter(is_lane, names)]
    segments = yield from _below(context, lanes, segments_of, seen)
    lists = [f"{lane}/{name}" for lane, found in zip(lanes, segments, strict=True) for name in found]
    lists += [at("scheduled", name) for name in scheduled if bucket_start(name) is not None]
    listed = yield from _below(context, lists, len, seen)
    for path in context.sizes.readings.keys() - seen:
        context.sizes.readings.pop(path, None)
    held = [f"{top}/{name}" for top, found in zip(tops[2:], deadlines, strict=True) for name in found]
    lapsed = yield from lapsed_of(context, held)
    return sum(listed) + sum(now.state is State.INSERTED for now in lapsed.values())


def _below(
    context: Context, paths: Sequence[str], made: Callable[[list[str]], T], seen: set[str]
) -> Procedure[list[T]]:
    """What is made of the names below each path; those that have changed are listed anew, in flight together."""
    seen.update(paths)
    known: dict[str, T] = {path: entry.value for path in paths if (entry := context.sizes.at(path)).fresh}
    stale = [path for path in paths if path not in known]
    watches = [Watch(context.sizes.at(path).signal) for path in stale]
    if stale:
        listings = yield Pipeline(tuple(Children(path, watch) for path, watch in zip(stale, watches, strict=True)))
        for path, watch, names in zip(stale, watches, listings, strict=True):
            entry, known[path] = context.sizes.at(path), made(names or [])
            entry.value, entry.watch = known[path], None if names is None else watch
    return [known[path] for path in paths]
