"""The asynchronous front: `AsyncQueue` and `AsyncClaim`, the same names, awaitable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from airflow_provider_zkmq.engine.core import admin, configure, enqueue, gc, inspect, settle
from airflow_provider_zkmq.engine.core.claim import Held, claim
from airflow_provider_zkmq.engine.core.configure import seconds
from airflow_provider_zkmq.engine.core.context import Context
from airflow_provider_zkmq.engine.core.inspect import Task
from airflow_provider_zkmq.engine.core.ops import Procedure
from airflow_provider_zkmq.engine.core.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.records import Message
from airflow_provider_zkmq.engine.core.selectors import Selector
from airflow_provider_zkmq.engine.core.states import State
from airflow_provider_zkmq.engine.core.wait import find_matching
from airflow_provider_zkmq.engine.core.wait import wait as wait_for
from airflow_provider_zkmq.engine.fronts import Front, awaitable
from airflow_provider_zkmq.engine.queue import Method, held_task, new_message, settle_by_token, wanted
from airflow_provider_zkmq.engine.zk.drivers import arun
from airflow_provider_zkmq.engine.zk.session import Session


class AsyncClaim:
    """A task in hand; see `Claim`."""

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

    async def complete(self, result: bytes | str | None = None) -> None:
        """Finish the task, keeping `result`. Raises `ClaimLost`, `TaskTooLarge`."""
        await arun(self._session, settle.complete(self._context, self._held, result))

    async def fail(self, error: str, *, retry: bool = True) -> State:
        """Report a failure; see `Claim.fail`."""
        return await arun(self._session, settle.fail(self._context, self._held, error, retry=retry))

    async def release(self) -> None:
        """Give the task back to its old place, counting no attempt. Raises `ClaimLost`."""
        await arun(self._session, settle.release(self._context, self._held))

    async def extend(self, lease: object) -> None:
        """Hold the claim `lease` seconds from now. Raises `ClaimLost`."""
        await arun(self._session, settle.extend(self._context, self._held, lease))


class AsyncQueue(Front):
    """A queue on an event loop; its methods are `Queue`'s."""

    def __init__(self, session: Session, context: Context, used: Callable[[AsyncQueue], None]) -> None:
        super().__init__(session, context)
        self._used = used

    configure = awaitable(configure.configure)
    task = awaitable(inspect.read_task)
    tasks = awaitable(inspect.list_tasks)
    counts = awaitable(inspect.counts)
    tree = awaitable(inspect.read_tree)
    wait = awaitable(wait_for)
    find = awaitable(find_matching)
    collect_garbage = awaitable(gc.collect_garbage)
    redrive = awaitable(admin.redrive)
    cancel = awaitable(admin.cancel)

    async def enqueue(
        self,
        data: bytes | str,
        filters: Mapping[str, object] | None = None,
        *,
        priority: int = 0,
        delay: object = None,
        task_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        policy: RetryPolicy | None = None,
    ) -> str:
        """Write one task; see `Queue.enqueue`."""
        message = new_message(data, filters, priority, delay, task_id, metadata, policy)
        self._used(self)
        return await arun(self._session, enqueue.enqueue(self._context, message))

    async def enqueue_many(self, messages: list[Message]) -> list[str]:
        """Write many tasks; see `Queue.enqueue_many`."""
        self._used(self)
        return await arun(self._session, enqueue.enqueue_many(self._context, messages))

    async def claim(
        self,
        node: Mapping[str, object] | None = None,
        filter_method: Method = "absolute",
        *,
        selector: Selector | str | None = None,
        timeout: object = 0,
        lease: object = None,
    ) -> AsyncClaim | None:
        """Take the first task that fits; see `Queue.claim`. A cancelled call gives back what it may have taken."""
        span = seconds("timeout", timeout)
        asked = await arun(self._session, wanted(self._context, node, filter_method, selector, lease))
        self._used(self)
        stopping = False
        task = asyncio.ensure_future(arun(self._session, claim(self._context, asked, span, lambda: stopping)))
        try:
            held = await asyncio.shield(task)
        except asyncio.CancelledError:
            stopping = True
            self._context.signal.fire()
            if (held := await task) is not None:
                await arun(self._session, settle.release(self._context, held))
            raise
        return None if held is None else AsyncClaim(self._session, self._context, held)

    async def complete(self, task_id: str, token: int, result: bytes | str | None = None) -> None:
        """Finish a task claimed elsewhere; see `Queue.complete`."""
        await self._settle(task_id, token, lambda context, held: settle.complete(context, held, result))

    async def fail(self, task_id: str, token: int, error: str, *, retry: bool = True) -> State:
        """Fail a task claimed elsewhere; see `Queue.fail`."""
        state = await self._settle(task_id, token, lambda context, held: settle.fail(context, held, error, retry=retry))
        return State(state)

    async def release(self, task_id: str, token: int) -> None:
        """Give a task claimed elsewhere back; see `Queue.release`."""
        await self._settle(task_id, token, settle.release)

    async def extend(self, task_id: str, token: int, lease: object) -> None:
        """Extend a lease held elsewhere; see `Queue.extend`."""
        await self._settle(task_id, token, lambda context, held: settle.extend(context, held, lease))

    async def _settle(self, task_id: str, token: int, action: Callable[[Context, Held], Procedure[Any]]) -> Any:
        return await arun(self._session, settle_by_token(self._context, task_id, token, action))

    async def pause(self) -> bool:
        """Hand out nothing until `resume`; True if it was not paused before."""
        return await arun(self._session, configure.set_paused(self._context, paused=True))

    async def resume(self) -> bool:
        """Hand out tasks again; True if it was paused."""
        return await arun(self._session, configure.set_paused(self._context, paused=False))
