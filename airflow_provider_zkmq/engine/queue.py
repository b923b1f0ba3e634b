"""The blocking front: `Queue` and `Claim`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_provider_zkmq.engine.core import admin, configure, enqueue, gc, inspect, settle
from airflow_provider_zkmq.engine.core.claim import Held, Wanted, claim
from airflow_provider_zkmq.engine.core.configure import optional_seconds, read_conf, seconds
from airflow_provider_zkmq.engine.core.context import Context
from airflow_provider_zkmq.engine.core.inspect import Task
from airflow_provider_zkmq.engine.core.ops import Procedure
from airflow_provider_zkmq.engine.core.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.records import Message
from airflow_provider_zkmq.engine.core.selectors import FilterMethod, Selector, choose
from airflow_provider_zkmq.engine.core.states import State, derive_status
from airflow_provider_zkmq.engine.core.wait import find_matching
from airflow_provider_zkmq.engine.core.wait import wait as wait_for
from airflow_provider_zkmq.engine.errors import ConfigError
from airflow_provider_zkmq.engine.fronts import Front, blocking
from airflow_provider_zkmq.engine.zk.drivers import run
from airflow_provider_zkmq.engine.zk.session import Session

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine.worker import Worker

Method = FilterMethod | Mapping[str, FilterMethod]


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


def new_message(
    data: bytes | str,
    filters: Mapping[str, object] | None = None,
    priority: int = 0,
    delay: object = None,
    task_id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    policy: RetryPolicy | None = None,
) -> Message:
    """A message of an enqueue's arguments."""
    return Message(data, filters, priority, delay, task_id, metadata, policy)


def settle_by_token(
    context: Context, task_id: str, token: int, action: Callable[[Context, Held], Procedure[Any]]
) -> Procedure[Any]:
    """Settle a claim from another process."""
    held = yield from settle.current_claim(context, task_id, token)
    return (yield from action(context, held))


class Claim:
    """A task in hand. Settle it with exactly one of `complete`, `fail` and `release`.

    A session-bound claim ends with its ZooKeeper session; a leased one at its deadline.
    """

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

    def complete(self, result: bytes | str | None = None) -> None:
        """Finish the task, keeping `result`. Raises `ClaimLost`, `TaskTooLarge`."""
        run(self._session, settle.complete(self._context, self._held, result))

    def fail(self, error: str, *, retry: bool = True) -> State:
        """Report a failure; `retry=False` ends the task in the dead letters. Returns the new state; `ClaimLost`."""
        return run(self._session, settle.fail(self._context, self._held, error, retry=retry))

    def release(self) -> None:
        """Give the task back to its old place, counting no attempt. Raises `ClaimLost`."""
        run(self._session, settle.release(self._context, self._held))

    def extend(self, lease: object) -> None:
        """Hold the claim `lease` seconds from now. A session-bound claim is only checked. Raises `ClaimLost`."""
        run(self._session, settle.extend(self._context, self._held, lease))

    def __repr__(self) -> str:
        return f"<Claim {self.token} of task {self._held.task_id!r}>"


class Queue(Front):
    """A queue, each call blocking until ZooKeeper has answered. Usable from several threads."""

    def __init__(self, session: Session, context: Context, used: Callable[[Queue], None]) -> None:
        super().__init__(session, context)
        self._used = used

    configure = blocking(configure.configure)
    task = blocking(inspect.read_task)
    tasks = blocking(inspect.list_tasks)
    counts = blocking(inspect.counts)
    tree = blocking(inspect.read_tree)
    wait = blocking(wait_for)
    find = blocking(find_matching)
    collect_garbage = blocking(gc.collect_garbage)
    redrive = blocking(admin.redrive)
    cancel = blocking(admin.cancel)

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
    ) -> str:
        """Write one task, all or nothing; returns its id when it is durable. The arguments are `Message`'s.

        Raises `ConfigError`, `TaskTooLarge`, `DuplicateTask`; then nothing was written.
        """
        message = new_message(data, filters, priority, delay, task_id, metadata, policy)
        self._used(self)
        return run(self._session, enqueue.enqueue(self._context, message))

    def enqueue_many(self, messages: list[Message]) -> list[str]:
        """Write many tasks, each all or nothing; returns their ids in order. See `enqueue.enqueue_many`."""
        self._used(self)
        return run(self._session, enqueue.enqueue_many(self._context, messages))

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
        self._used(self)
        held = run(self._session, claim(self._context, asked, span, stopping))
        return None if held is None else Claim(self._session, self._context, held)

    def complete(self, task_id: str, token: int, result: bytes | str | None = None) -> None:
        """Finish a task claimed elsewhere. Raises `TaskNotFound`, `ClaimLost`, `TaskTooLarge`."""
        self._settle(task_id, token, lambda context, held: settle.complete(context, held, result))

    def fail(self, task_id: str, token: int, error: str, *, retry: bool = True) -> State:
        """Fail a task claimed elsewhere. Returns its new state. Raises `TaskNotFound`, `ClaimLost`."""
        state = self._settle(task_id, token, lambda context, held: settle.fail(context, held, error, retry=retry))
        return State(state)

    def release(self, task_id: str, token: int) -> None:
        """Give a task claimed elsewhere back. Raises `TaskNotFound`, `ClaimLost`."""
        self._settle(task_id, token, settle.release)

    def extend(self, task_id: str, token: int, lease: object) -> None:
        """Extend the lease of a task claimed elsewhere. Raises `TaskNotFound`, `ClaimLost`."""
        self._settle(task_id, token, lambda context, held: settle.extend(context, held, lease))

    def _settle(self, task_id: str, token: int, action: Callable[[Context, Held], Procedure[Any]]) -> Any:
        return run(self._session, settle_by_token(self._context, task_id, token, action))

    def pause(self) -> bool:
        """Hand out nothing until `resume`; True if it was not paused before."""
        return run(self._session, configure.set_paused(self._context, paused=True))

    def resume(self) -> bool:
        """Hand out tasks again; True if it was paused."""
        return run(self._session, configure.set_paused(self._context, paused=False))

    def worker(self, handler: Callable[[Task], Any], **options: Any) -> Worker:
        """A worker that claims, runs `handler` and settles; see `Worker`."""
        from airflow_provider_zkmq.engine.worker import Worker

        return Worker(self, handler, **options)
