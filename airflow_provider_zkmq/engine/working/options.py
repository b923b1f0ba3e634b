"""What both workers are told: checked once, when a worker is made."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict

from airflow_provider_zkmq.engine.core.model.codec import optional_whole_number, whole_number
from airflow_provider_zkmq.engine.core.model.selectors import FilterMethod, Selector
from airflow_provider_zkmq.engine.core.model.time import Duration, optional_seconds, seconds
from airflow_provider_zkmq.engine.core.read.inspect import Task
from airflow_provider_zkmq.engine.core.tasks.outcome import Handled
from airflow_provider_zkmq.engine.errors import ConfigError

Handler: TypeAlias = Callable[..., Any]
Method: TypeAlias = FilterMethod | Mapping[str, FilterMethod]
Settled: TypeAlias = Callable[[Task, Handled | None], object]


class Choice(TypedDict):
    """Which tasks fit, in the terms of a queue's `claim`."""

    node: Mapping[str, object] | None
    filter_method: Method
    selector: Selector | str | None


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker works; see `Worker`. `of` checks what a caller gives."""

    threads: int
    choice: Choice
    grace: float
    transactional: bool
    lease: float | None
    heartbeat: bool
    throttle: float
    prefetch: int
    limit: int | None
    on_settled: Settled | None

    @classmethod
    def of(
        cls,
        *,
        threads: object,
        node: Mapping[str, object] | None,
        filter_method: Method,
        selector: Selector | str | None,
        grace: Duration,
        transactional: bool,
        lease: Duration | None,
        heartbeat: bool,
        throttle: Duration,
        prefetch: object,
        limit: object = None,
        on_settled: Settled | None = None,
    ) -> WorkerOptions:
        """Check what both workers check. Raises `ConfigError`."""
        count = whole_number("threads", threads, 0)
        if transactional and lease is not None:
            msg = "a transaction is bound to its session: give either transactional=True or lease=, not both"
            raise ConfigError(msg)
        choice = Choice(node=node, filter_method=filter_method, selector=selector)
        span, pause, timeout = optional_seconds("lease", lease), seconds("throttle", throttle), seconds("grace", grace)
        prefetch = whole_number("prefetch", prefetch, 0)
        most = optional_whole_number("limit", limit, 1)
        return cls(count, choice, timeout, transactional, span, heartbeat, pause, prefetch, most, on_settled)


def check_handler(handler: object, *, awaited: bool) -> None:
    """Raise `ConfigError` for a handler of the other kind, or of none."""
    coroutine = inspect.iscoroutinefunction(handler)
    if not callable(handler) or coroutine is not awaited:
        kind = "coroutine function" if awaited else "plain function"
        msg = f"handler {handler!r} is no {kind}: give one that takes a task and returns its result"
        raise ConfigError(msg)
