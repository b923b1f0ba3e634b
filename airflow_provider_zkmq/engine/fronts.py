"""What the blocking and the asynchronous front have in common: each method is one procedure, driven."""

from __future__ import annotations

import functools
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from airflow_provider_zkmq.engine.config import ConnectionConfig
from airflow_provider_zkmq.engine.core.context import Context, Runtime
from airflow_provider_zkmq.engine.core.ops import Procedure
from airflow_provider_zkmq.engine.core.paths import Paths
from airflow_provider_zkmq.engine.zk.drivers import arun, run
from airflow_provider_zkmq.engine.zk.session import Session, log
from airflow_provider_zkmq.engine.zk.signals import ThreadSignal

P = ParamSpec("P")
T = TypeVar("T")


class Front:
    """A queue seen through one session."""

    def __init__(self, session: Session, context: Context) -> None:
        self._session = session
        self._context = context

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._context.queue

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

    return method


def awaitable(
    procedure: Callable[Concatenate[Context, P], Procedure[T]],
) -> Callable[Concatenate[Any, P], Awaitable[T]]:
    """A procedure as a coroutine method."""

    @functools.wraps(procedure)
    async def method(self: Front, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await arun(self._session, procedure(self._context, *args, **kwargs))

    return method
