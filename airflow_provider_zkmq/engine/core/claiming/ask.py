"""Asking for a task: what a consumer wants is checked first; a claim that is not refused can then be carried out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from airflow_provider_zkmq.engine.core.claiming.claim import claim
from airflow_provider_zkmq.engine.core.claiming.take import Wanted
from airflow_provider_zkmq.engine.core.memory.claims import Caller, Claimed
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.durations import Duration, optional_seconds, seconds
from airflow_provider_zkmq.engine.core.model.selectors import FilterMethod, Selector, choose
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure, Within
from airflow_provider_zkmq.engine.core.reading.configuration import read_conf
from airflow_provider_zkmq.engine.core.reading.existence import never_stopping, unless_missing
from airflow_provider_zkmq.engine.errors import ConfigError

Method = FilterMethod | Mapping[str, FilterMethod]


@dataclass(frozen=True, slots=True)
class Asked:
    """A claim that was asked for and not refused: on which queue, and how a caller comes by it."""

    context: Context
    claiming: Callable[[Caller], Procedure[Claimed | None]]


def wanted(
    context: Context,
    node: Mapping[str, object] | None = None,
    filter_method: Method = "absolute",
    selector: Selector | str | None = None,
    lease: Duration | None = None,
) -> Procedure[Wanted]:
    """What a consumer asks for, checked against the queue's declarations. Raises `ConfigError`, `QueueNotFound`."""
    conf = yield from read_conf(context)
    span = optional_seconds("lease", lease)
    if span == 0:
        msg = "a lease of 0 seconds would end at once"
        raise ConfigError(msg)
    return Wanted(choose(conf.types, node=node, filter_method=filter_method, selector=selector), span)


def ask(
    context: Context,
    node: Mapping[str, object] | None = None,
    filter_method: Method = "absolute",
    *,
    selector: Selector | str | None = None,
    timeout: Duration = 0,
    lease: Duration | None = None,
    stopping: Callable[[], bool] = never_stopping,
) -> Procedure[Asked]:
    """Take the first task that fits, waiting at most `timeout` seconds; None when there was none.

    `node` with `filter_method`, or `selector`, say what fits; neither: everything. `lease`: seconds for which
    the claim outlives this process; without it the claim ends with the ZooKeeper session. `stopping` ends the wait
    early; it is asked whenever the queue changes. A call that is cancelled or interrupted gives back what it took.
    Raises `ConfigError` for what the queue's declarations refuse, and `QueueNotFound`, also while it waits.
    """
    span = seconds("timeout", timeout)
    if span > 0:
        yield Within(span)
    asked = yield from wanted(context, node, filter_method, selector, lease)

    def claiming(caller: Caller) -> Procedure[Claimed | None]:
        return unless_missing(context, claim(context, asked, span, lambda: caller.left or stopping(), caller))

    return Asked(context, claiming)
