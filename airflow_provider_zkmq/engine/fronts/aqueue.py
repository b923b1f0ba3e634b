"""The asynchronous front: `AsyncQueue` and `AsyncClaim`, the same names, awaitable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_zkmq.engine.core.claiming.claim import claim
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.durations import seconds
from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.model.selectors import Selector
from airflow_provider_zkmq.engine.core.reading import (
    archiving,
    counts,
    explain,
    following,
    ids,
    inspect,
    many,
    register,
    settings,
    trees,
)
from airflow_provider_zkmq.engine.core.reading.wait import find_matching
from airflow_provider_zkmq.engine.core.reading.wait import wait as wait_for
from airflow_provider_zkmq.engine.core.tasks import batches, configure, enqueue, holding, operate, settle
from airflow_provider_zkmq.engine.core.upkeep import collect
from airflow_provider_zkmq.engine.fronts.handover import handed_over_async
from airflow_provider_zkmq.engine.fronts.methods import (
    Front,
    InHand,
    Method,
    awaitable,
    by_token,
    settling_async,
    wanted,
)
from airflow_provider_zkmq.engine.zk.drivers import arun
from airflow_provider_zkmq.engine.zk.session import Session

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine.fronts.transaction import AsyncUnitOfWork
    from airflow_provider_zkmq.engine.working.aworker import AsyncWorker


class AsyncClaim(InHand):
    """A task in hand; see `Claim`."""

    complete = settling_async(settle.complete)
    fail = settling_async(settle.fail)
    release = settling_async(settle.release)
    snooze = settling_async(settle.snooze)
    extend = settling_async(holding.extend)
    progress = settling_async(holding.progress)


class AsyncQueue(Front):
    """A queue on an event loop; its methods are `Queue`'s."""

    def __init__(
        self,
        session: Session,
        context: Context,
        used: Callable[[Context], None],
        begin: Callable[[], AsyncUnitOfWork],
    ) -> None:
        super().__init__(session, context, used)
        self._begin = begin

    def worker(self, handler: Callable[..., Any], **options: Any) -> AsyncWorker:
        """A worker that claims, awaits `handler` and settles; the options are `AsyncWorker`'s."""
        from airflow_provider_zkmq.engine.working.aworker import AsyncWorker

        return AsyncWorker(self, handler, **options)

    publish_archive = awaitable(configure.publish_archive)
    pause = awaitable(configure.pause)
    resume = awaitable(configure.resume)
    configure = awaitable(configure.configure)
    task = awaitable(inspect.read_task)
    tasks = awaitable(inspect.list_tasks)
    ids = awaitable(ids.ids)
    read_many = awaitable(many.read_many)
    counts = awaitable(counts.counts)
    conf = awaitable(settings.conf)
    consumers = awaitable(register.consumers)
    follow = awaitable(following.follow)
    tree = awaitable(trees.read_tree)
    explain = awaitable(explain.explain)
    wait = awaitable(wait_for)
    find = awaitable(find_matching)
    wait_batch = awaitable(batches.wait_batch)
    batch = awaitable(batches.read_batch)
    zxid = awaitable(archiving.zxid)
    ended_between = awaitable(archiving.ended_between)
    archive = awaitable(archiving.archive)
    collect_garbage = awaitable(collect.collect_garbage)
    redrive = awaitable(operate.redrive)
    cancel = awaitable(operate.cancel)
    clear = awaitable(operate.clear)
    replace = awaitable(operate.replace_data)
    drop = awaitable(operate.drop)
    complete = awaitable(by_token(settle.complete))
    fail = awaitable(by_token(settle.fail))
    release = awaitable(by_token(settle.release))
    snooze = awaitable(by_token(settle.snooze))
    extend = awaitable(by_token(holding.extend))
    progress = awaitable(by_token(holding.progress))

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
        lock: object = None,
        update: bool = False,
        requeue: bool = False,
    ) -> str:
        """Write one task; see `Queue.enqueue`."""
        message = Message(data, filters, priority, delay, task_id, metadata, policy, lock, update, requeue)
        self._used(self._context)
        return await arun(self._session, enqueue.enqueue(self._context, message))

    async def enqueue_many(
        self, messages: Sequence[Message], *, batch: str | None = None, then: Message | None = None
    ) -> list[str]:
        """Write many tasks; see `Queue.enqueue_many`."""
        self._used(self._context)
        return await arun(self._session, enqueue.enqueue_all(self._context, messages, batch, then))

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
        self._used(self._context)
        return await handed_over_async(
            self._session,
            self._context,
            lambda caller: claim(self._context, asked, span, lambda: caller.left, caller),
            lambda held: AsyncClaim(self._session, self._context, held),
        )
