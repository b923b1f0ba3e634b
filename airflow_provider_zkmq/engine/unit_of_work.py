"""ZkQueue's `UnitOfWork`, blocking."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from airflow_provider_zkmq.engine.core import unit
from airflow_provider_zkmq.engine.core.claim import claim
from airflow_provider_zkmq.engine.core.configure import seconds
from airflow_provider_zkmq.engine.core.context import Context
from airflow_provider_zkmq.engine.core.inspect import Task
from airflow_provider_zkmq.engine.core.records import Message
from airflow_provider_zkmq.engine.core.selectors import Selector
from airflow_provider_zkmq.engine.errors import SessionLost, ZkmqError
from airflow_provider_zkmq.engine.queue import Method, held_task, wanted
from airflow_provider_zkmq.engine.zk.drivers import run
from airflow_provider_zkmq.engine.zk.session import Session


class UnitOfWork:
    """Take tasks and put tasks, in one transaction across queues; leaving its context uncommitted rolls back.

    Bound to the session it began in: once that ended, what it had taken is given back by the server and only
    `rollback` is left to do. Its methods may be called from several threads.
    """

    def __init__(self, session: Session, context_of: Callable[[str], Context]) -> None:
        self._session = session
        self._context_of = context_of
        self._unit = unit.Unit()
        self._lock = threading.RLock()
        self._session_id = session.id
        self._open = True

    def try_take(
        self,
        queue: str,
        node: Mapping[str, object] | None = None,
        filter_method: Method = "absolute",
        *,
        selector: Selector | str | None = None,
        timeout: object = 0,
    ) -> Task | None:
        """Lock the first task that fits, without removing it; None when there is none within `timeout` seconds."""
        with self._lock:
            self._check()
            context = self._context_of(queue)
            asked = run(self._session, wanted(context, node, filter_method, selector, None))
            held = run(self._session, claim(context, asked, seconds("timeout", timeout)))
            if held is None:
                return None
            self._unit.taken.append((context, held))
            return held_task(held)

    def put(self, queue: str, data: bytes | str, filters: Mapping[str, object] | None = None, **options: Any) -> str:
        """Remember a task to write on commit; returns its id. Nothing is written, but what is wrong is refused now."""
        with self._lock:
            self._check()
            context = self._context_of(queue)
            tree = run(self._session, unit.check_put(context, Message(data, filters, **options)))
            self._unit.put.append((context, tree))
            return tree.task_id

    def commit(self) -> list[str]:
        """Finish what was taken and write what was put, at once; returns the ids put.

        Raises `TaskTooLarge`, `ClaimLost`, `DuplicateTask` or `SessionLost`; then nothing happened.
        """
        with self._lock:
            self._check()
            ids = run(self._session, unit.commit(self._unit))
            self._open = False
            for context, held in self._unit.taken:
                held.lost = True
                context.held.pop(held.task_id, None)
            return ids

    def rollback(self) -> None:
        """Cancel every put and give back everything taken; afterwards no lock of this transaction is left."""
        with self._lock:
            self._open = False
            run(self._session, unit.rollback(self._unit))

    def _check(self) -> None:
        if not self._open:
            msg = "this transaction has ended; begin another with transaction()"
            raise ZkmqError(msg)
        if self._session.id != self._session_id:
            msg = "the session of this transaction has ended; what it had taken is given back"
            raise SessionLost(msg)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open:
            self.rollback()
