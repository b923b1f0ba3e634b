"""What the blocking and the asynchronous front have in common: each method is one procedure, driven."""

from __future__ import annotations

import functools
import inspect
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any, Concatenate, ParamSpec, TypeVar

from airflow_provider_zkmq.engine.config import ConnectionConfig
from airflow_provider_zkmq.engine.core.claiming.take import Wanted
from airflow_provider_zkmq.engine.core.memory.claims import Held
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.memory.runtime import Runtime
from airflow_provider_zkmq.engine.core.model.durations import optional_seconds
from airflow_provider_zkmq.engine.core.model.paths import Paths
from airflow_provider_zkmq.engine.core.model.selectors import FilterMethod, Selector, choose
from airflow_provider_zkmq.engine.core.model.states import State, derive_status
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.core.reading.claims import current_claim
from airflow_provider_zkmq.engine.core.reading.configuration import read_conf
from airflow_provider_zkmq.engine.core.reading.inspect import Task
from airflow_provider_zkmq.engine.errors import ConfigError
from airflow_provider_zkmq.engine.fronts.background import pay
from airflow_provider_zkmq.engine.zk.drivers import arun, run
from airflow_provider_zkmq.engine.zk.session import Session, log
from airflow_provider_zkmq.engine.zk.signals import ThreadSignal

Method = FilterMethod | Mapping[str, FilterMethod]
P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Front:
    """A queue seen through one session; `used` is told of it when it is claimed from or enqueued to."""

    def __init__(self, session: Session, context: Context, used: Callable[[Context], None]) -> None:
        self._session = session
        self._context = context
        self._used = used

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._context.queue

    @property
    def root(self) -> str:
        """The znode under which the queue lives."""
        return self._context.root

    @property
    def closed(self) -> bool:
        """Whether its connection has been closed: nothing can be done with it any more."""
        return self._session.closed

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._context.paths.base} at {self._session.config.hosts}>"


def new_context(session: Session, queue: str, consumer_name: str | None = None) -> Context:
    """A client's empty memory of one queue. Raises `ConfigError` for a bad name."""
    config: ConnectionConfig = session.config
    name = consumer_name or f"{socket.gethostname().split('.')[0][:40]}-{os.getpid()}"
    context = Context(
        queue=queue,
        root=config.root,
        paths=Paths.of(config.root, queue),
        run=Runtime(
            monotonic=time.monotonic,
            wall_ms=lambda: time.time_ns() // 1_000_000,
            random=random.random,
            new_signal=ThreadSignal,
            session=lambda: session.id,
            report=lambda path, why: log.warning("%s: %s", path, why),
            zxid=lambda: int(session.client.last_zxid),
            unwatch=session.unwatch,
            pay=lambda: pay(session, context),
        ),
        signal=ThreadSignal(),
    )
    context.describe = {"name": name, "host": socket.gethostname(), "pid": os.getpid()}
    return context


def blocking(
    procedure: Callable[Concatenate[Context, P], Procedure[T]],
) -> Callable[Concatenate[Any, P], T]:
    """A procedure as a method that blocks until it is carried out."""

    @functools.wraps(procedure)
    def method(self: Front, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(self._session, procedure(self._context, *args, **kwargs))

    return _signed(method, procedure, 1, "self")


def awaitable(
    procedure: Callable[Concatenate[Context, P], Procedure[T]],
) -> Callable[Concatenate[Any, P], Awaitable[T]]:
    """A procedure as a coroutine method."""

    @functools.wraps(procedure)
    async def method(self: Front, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await arun(self._session, procedure(self._context, *args, **kwargs))

    return _signed(method, procedure, 1, "self")


class InHand:
    """A task in hand: what claims of both fronts are."""

    def __init__(self, session: Session, context: Context, held: Held) -> None:
        self._session = session
        self._context = context
        self._held = held

    @cached_property
    def task(self) -> Task:
        """The task as it was handed out."""
        return held_task(self._held)

    @property
    def token(self) -> int:
        """The fencing token: the number of the claim's transaction, unique and rising."""
        return self._held.token

    @property
    def settled(self) -> bool:
        """Whether this object knows that the claim is over: settled here, or lost."""
        return self._held.lost

    @property
    def cancelled(self) -> bool:
        """Whether the task was cancelled while it was in hand; learnt by a watch, while its process claims or works."""
        return self._held.cancelled

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._held.token} of task {self._held.task_id!r}>"


def settling(
    procedure: Callable[Concatenate[Context, Held, P], Procedure[T]],
) -> Callable[Concatenate[Any, P], T]:
    """A procedure on a claim as a claim's method, blocking."""

    @functools.wraps(procedure)
    def method(self: InHand, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(self._session, procedure(self._context, self._held, *args, **kwargs))

    return _signed(method, procedure, 2, "self")


def settling_async(
    procedure: Callable[Concatenate[Context, Held, P], Procedure[T]],
) -> Callable[Concatenate[Any, P], Awaitable[T]]:
    """A procedure on a claim as a claim's coroutine method."""

    @functools.wraps(procedure)
    async def method(self: InHand, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await arun(self._session, procedure(self._context, self._held, *args, **kwargs))

    return _signed(method, procedure, 2, "self")


def by_token(
    procedure: Callable[Concatenate[Context, Held, P], Procedure[T]],
) -> Callable[Concatenate[Context, str, int, P], Procedure[T]]:
    """A procedure on a claim, for whoever knows the task's id and the claim's token: another process, say.

    What ended in `OutcomeUnknown` is remembered, so that asking again tells what happened.
    """

    @functools.wraps(procedure)
    def handed_over(context: Context, task_id: str, token: int, *args: P.args, **kwargs: P.kwargs) -> Procedure[T]:
        unsure = context.claims.unsure.pop((task_id, token), None)
        held: Held = unsure if unsure is not None else (yield from current_claim(context, task_id, token))
        try:
            return (yield from procedure(context, held, *args, **kwargs))
        finally:
            if held.unsure:
                context.claims.remember_unsure(held)

    # Callers may name the first two as well, which the type of a ParamSpec cannot say.
    return _signed(handed_over, procedure, 2, "context", "task_id", "token")  # type: ignore[return-value]


def _signed(method: F, procedure: Callable[..., Any], taken: int, *lead: str) -> F:
    """A wrapper that shows the procedure's parameters, those that it provides itself replaced by `lead`."""
    signature = inspect.signature(procedure)
    own = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in lead]
    rest = list(signature.parameters.values())[taken:]
    method.__signature__ = signature.replace(parameters=[*own, *rest])  # type: ignore[attr-defined]
    return method


def held_task(held: Held) -> Task:
    """The task of a claim, as it was handed out."""
    state = held.state
    return Task(
        id=held.task_id,
        state=State.CLAIMED,
        status=derive_status(State.CLAIMED, scheduled=False),
        attempt=state.attempt,
        priority=state.priority,
        filters=dict(state.filters),
        metadata=held.metadata or {},
        data=held.data,
        result=None,
        error=state.error,
        consumer=state.consumer,
        enqueued_ms=held.created,
        claimed_ms=state.claimed,
        ended_ms=None,
        due_ms=None,
        history=state.history,
        version=held.token,
        batch=state.batch,
    )


def wanted(
    context: Context,
    node: Mapping[str, object] | None,
    filter_method: Method,
    selector: Selector | str | None,
    lease: object,
) -> Procedure[Wanted]:
    """What a consumer asks for, checked against the queue's declarations. Raises `ConfigError`."""
    conf = yield from read_conf(context, create=True)
    span = optional_seconds("lease", lease)
    if span == 0:
        msg = "a lease of 0 seconds would end at once"
        raise ConfigError(msg)
    return Wanted(choose(conf.types, node=node, filter_method=filter_method, selector=selector), span)
