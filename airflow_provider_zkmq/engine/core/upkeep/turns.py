"""Whose turn it is to clean up, and when: one run an interval, whoever makes it, and one as soon as less is to be kept.

When clean-up ran last, and for which lifetime, stands in ZooKeeper: a change of the interval or of the lifetime is held
against that by whoever looks next, also by a client that has just come.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.conf import Conf
from airflow_provider_zkmq.engine.core.protocol.ops import Get, Node, Procedure
from airflow_provider_zkmq.engine.core.reading.clock import server_time
from airflow_provider_zkmq.engine.core.reading.configuration import read_conf
from airflow_provider_zkmq.engine.core.upkeep.collect import Collected, collect_locked

#: How soon to look again at a clean-up that is due, and which somebody else has under way.
BUSY_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Turn:
    """A look at whether clean-up is due: what it did, and in how many seconds the next run is due."""

    report: Collected
    due_in: float


def collect_if_due(context: Context) -> Procedure[Turn]:
    """Clean up if ``task_gc_interval`` has passed since anybody last did, or less is to be kept than it kept.

    Both are judged by the server's clock and by what the last run left; a look that finds nothing due is one read.
    """
    conf = yield from read_conf(context)
    last: Node | None = yield Get(context.paths.at("gc"))
    wait = 0.0 if last is None or _keeps_less(conf, last) else (yield from _left_of_interval(context, conf, last))
    if wait > 0:
        return Turn(Collected(ran=False), wait)
    report = yield from collect_locked(context, conf.gc_lifetime, None if last is None else last.stat)
    return Turn(report, conf.gc_interval if report.ran else min(conf.gc_interval, BUSY_SECONDS))


def _keeps_less(conf: Conf, last: Node) -> bool:
    """Whether clean-up has never run, or for a longer lifetime than there is now."""
    if last.stat.version == 0:
        return True
    try:
        lifetime = json.loads(last.data).get("lifetime")
    except (ValueError, AttributeError, RecursionError):
        return False  # it is no record of ours; the interval decides
    return isinstance(lifetime, int | float) and conf.gc_lifetime < lifetime


def _left_of_interval(context: Context, conf: Conf, last: Node) -> Procedure[float]:
    now = context.clock.certainly_past((yield from server_time(context)))
    return (last.stat.mtime - now) / 1000 + conf.gc_interval
