"""What a client lends to the procedures on one of its queues: time, chance, its session, and a memory to begin with."""

from __future__ import annotations

import os
import random
import socket
import time

from airflow_provider_zkmq.engine.core.memory.clock import Clock
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.memory.runtime import Runtime
from airflow_provider_zkmq.engine.core.model.paths import Paths
from airflow_provider_zkmq.engine.fronts.debts import pay
from airflow_provider_zkmq.engine.log import log
from airflow_provider_zkmq.engine.zk.session import Session
from airflow_provider_zkmq.engine.zk.signals import ThreadSignal


def new_context(session: Session, queue: str, consumer_name: str | None = None, clock: Clock | None = None) -> Context:
    """A client's empty memory of one queue; `clock`: the server's, as its queues know it. Raises `ConfigError`."""
    config = session.config
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
            report=lambda path, why: log.warning("%s", why if why.startswith(path) else f"{path}: {why}"),
            zxid=lambda: int(session.client.last_zxid),
            restored=lambda: int(session.client.restored),
            unwatch=session.unwatch,
            pay=lambda: pay(session, context),
        ),
        signal=ThreadSignal(),
    )
    context.clock = clock or context.clock
    context.describe = {"name": name, "host": socket.gethostname(), "pid": os.getpid()}
    return context
