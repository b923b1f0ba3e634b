"""The blocking front: `Queue` and `Claim`."""

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
from airflow_provider_zkmq.engine.fronts.handover import handed_over
from airflow_provider_zkmq.engine.fronts.methods import Front, InHand, Method, blocking, by_token, settling, wanted
from airflow_provider_zkmq.engine.zk.drivers import run
from airflow_provider_zkmq.engine.zk.session import Session

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine.fronts.transaction import UnitOfWork
    from airflow_provider_zkmq.engine.working.worker import Worker


class Claim(InHand):
    """A task in hand. Settle it with exactly one of `complete`, `fail`, `release` and `snooze`.

    A session-bound claim ends with its ZooKeeper session, or with its lock; a leased one at its deadline.
    """

    complete = settling(settle.complete)
    fail = settling(settle.fail)
    release = settling(settle.release)
    snooze = settling(settle.snooze)
    extend = settling(holding.extend)
    progress = settling(holding.progress)


class Queue(Front):
    """A queue, each call blocking until ZooKeeper has answered. Usable from several threads.

    The settling methods take a task's id and its claim's token, from whichever process; see `Claim`.
    """

    def __init__(
        self,
        session: Session,
        context: Context,
        used: Callable[[Context], None],
        begin: Callable[[], UnitOfWork],
    ) -> None:
        super().__init__(session, context, used)
        self._begin = begin

    publish_archive = blocking(configure.publish_archive)
    pause = blocking(configure.pause)
    resume = blocking(configure.resume)
    configure = blocking(configure.configure)
    task = blocking(inspect.read_task)
    tasks = blocking(inspect.list_tasks)
    ids = blocking(ids.ids)
    read_many = blocking(many.read_many)
    counts = blocking(counts.counts)
    conf = blocking(settings.conf)
    consumers = blocking(register.consumers)
    follow = blocking(following.follow)
    tree = blocking(trees.read_tree)
    explain = blocking(explain.explain)
    wait = blocking(wait_for)
    find = blocking(find_matching)
    wait_batch = blocking(batches.wait_batch)
    batch = blocking(batches.read_batch)
    zxid = blocking(archiving.zxid)
    ended_between = blocking(archiving.ended_between)
    archive = blocking(archiving.archive)
    collect_garbage = blocking(collect.collect_garbage)
    redrive = blocking(operate.redrive)
    cancel = blocking(operate.cancel)
    clear = blocking(operate.clear)
    replace = blocking(operate.replace_data)
    drop = blocking(operate.drop)
    complete = blocking(by_token(settle.complete))
    fail = blocking(by_token(settle.fail))
    release = blocking(by_token(settle.release))
    snooze = blocking(by_token(settle.snooze))
    extend = blocking(by_token(holding.extend))
    progress = blocking(by_token(holding.progress))

    def enqueue(
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
        """Write one task, all or nothing; returns its id when it is durable. The arguments are `Message`'s.

        Raises `ConfigError`, `TaskTooLarge`, `DuplicateTask`; then nothing was written.
        """
        message = Message(data, filters, priority, delay, task_id, metadata, policy, lock, update, requeue)
        self._used(self._context)
        return run(self._session, enqueue.enqueue(self._context, message))

    def enqueue_many(
        self, messages: Sequence[Message], *, batch: str | None = None, then: Message | None = None
    ) -> list[str]:
        """Write many tasks, each all or nothing; returns their ids in order. See `enqueue.enqueue_many`.

        `batch`: a name by which they can be waited for together (`wait_batch`); `then`: a task to enqueue at the
        moment when the last of the batch has ended. See `enqueue.enqueue_batch`.
        """
        self._used(self._context)
        return run(self._session, enqueue.enqueue_all(self._context, messages, batch, then))

    def claim(
        self,
        node: Mapping[str, object] | None = None,
        filter_method: Method = "absolute",
        *,
        selector: Selector | str | None = None,
        timeout: object = 0,
        lease: object = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> Claim | None:
        """Take the first task that fits, waiting at most `timeout` seconds; None when there was none.

        `node` with `filter_method`, or `selector`, say what fits; neither: everything. `lease`: seconds for which
        the claim outlives this process; without it the claim ends with the ZooKeeper session.
        """
        span = seconds("timeout", timeout)
        asked = run(self._session, wanted(self._context, node, filter_method, selector, lease))
        self._used(self._context)
        return handed_over(
            self._session,
            self._context,
            lambda caller: claim(self._context, asked, span, stopping, caller),
            lambda held: Claim(self._session, self._context, held),
        )

    def worker(self, handler: Callable[..., Any], **options: Any) -> Worker:
        """A worker that claims, runs `handler` and settles; the options are `Worker`'s."""
        from airflow_provider_zkmq.engine.working.worker import Worker

        return Worker(self, handler, **options)
