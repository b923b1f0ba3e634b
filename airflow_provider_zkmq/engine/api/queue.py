"""The blocking API: `Queue` and `Claim`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, Generic, TypeVar

from airflow_provider_zkmq.engine.api.claim_handles import Adopting, ClaimHandle, task_of
from airflow_provider_zkmq.engine.api.loops import claim_loop
from airflow_provider_zkmq.engine.api.methods import (
    Api,
    SyncApi,
    SyncClaiming,
    by_token,
    claiming,
    claiming_many,
    settling,
    verb,
)
from airflow_provider_zkmq.engine.api.unit_of_work import UnitOfWork
from airflow_provider_zkmq.engine.core.claim import by_id, ready
from airflow_provider_zkmq.engine.core.claim.claim import request_claim, request_claims, request_loop, wanted
from airflow_provider_zkmq.engine.core.client.claims import Claimed
from airflow_provider_zkmq.engine.core.client.context import Context
from airflow_provider_zkmq.engine.core.maintenance import collect, deletion, rescue
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.core.read import (
    completion_log,
    configuration,
    explain,
    inspect,
    nodes,
    server_clock,
)
from airflow_provider_zkmq.engine.core.read.counts import counts, pending
from airflow_provider_zkmq.engine.core.read.inspect import Task
from airflow_provider_zkmq.engine.core.read.leases import unless_queue_gone
from airflow_provider_zkmq.engine.core.read.nodes import unless_missing
from airflow_provider_zkmq.engine.core.read.scan import scan
from airflow_provider_zkmq.engine.core.read.wait import find_matching, follow
from airflow_provider_zkmq.engine.core.read.wait import wait as wait_for
from airflow_provider_zkmq.engine.core.tasks import admin, batches, configure, holding, settle
from airflow_provider_zkmq.engine.core.tasks.deferred_completions import settle_later
from airflow_provider_zkmq.engine.core.tasks.enqueue import (
    enqueue_each,
    enqueue_new,
    enqueue_one,
    open_shared,
    seal,
)
from airflow_provider_zkmq.engine.core.tasks.outcome import Handled, Settlement, settle_by_outcome
from airflow_provider_zkmq.engine.working.worker import Worker
from airflow_provider_zkmq.engine.zk.session import Session

# --- What can be asked of claims and of queues: each verb once for both APIs, see `methods`.

T = TypeVar("T")
U = TypeVar("U", bound=Adopting)


class ClaimMethods(Api[ClaimHandle], Generic[U]):
    """What claims of both APIs are. `begin` begins a transaction over the same connection.

    ``result``: with what `q.claims` completes it, unless the body of the loop settles it.
    """

    def __init__(self, session: Session, handle: ClaimHandle, begin: Callable[[], U]) -> None:
        super().__init__(session, handle)
        self._begin = begin
        self.result: bytes | str | None = None

    complete = settling(settle.complete)
    fail = settling(settle.fail)
    release = settling(settle.release)
    snooze = settling(settle.snooze)
    extend = settling(holding.extend)
    progress = settling(holding.progress)
    begin = settling(holding.begin)
    settle = settling(settle_by_outcome)

    def _explained(self, procedure: Procedure[T]) -> Procedure[T]:
        """Where there is no queue any more, there is no claim either."""
        return unless_queue_gone(self._subject.context, self._claimed, procedure)

    @property
    def _claimed(self) -> Claimed:
        return self._subject.claimed

    @cached_property
    def task(self) -> Task:
        """The task as it was handed out."""
        return task_of(self._subject.context, self._claimed)

    @property
    def queue(self) -> str:
        """The name of the queue that it was taken from."""
        return self._subject.context.queue

    @property
    def token(self) -> int:
        """The fencing token: the number of the claim's transaction; rising, unique for its task, shared by a group."""
        return self._claimed.token

    @property
    def settled(self) -> bool:
        """Whether this object knows that the claim is over: settled here, or lost."""
        return self._claimed.lost

    @property
    def cancelled(self) -> bool:
        """Whether the task was cancelled while it was in hand; learnt by a watch, while its process claims or works."""
        return self._claimed.cancelled

    @property
    def span(self) -> float | None:
        """For how many seconds the claim holds unless it is extended; None: to the end of its session."""
        return self._subject.span

    @property
    def over(self) -> bool:
        """Whether what the claim is bound to has ended, its session: one that is merely cut off still holds it."""
        return self._subject.is_over(self._session)

    @property
    def prefetched(self) -> bool:
        """Whether it was prefetched, and nobody has said yet that its handling begins: see `begin`."""
        return self._claimed.prefetched

    def mark_begun(self) -> int | None:
        """Its handler begins now: kept with what settles the claim. The server's time, as far as it is known."""
        clock = self._subject.context.clock
        self._claimed.began = clock.monotonic()
        return clock.at(self._claimed.began)

    def mark_ended(self) -> None:
        """Its handler has ended now: kept with what settles the claim, which may take a while."""
        self._claimed.handled = self._subject.context.clock.monotonic()

    def settle_later(
        self, outcome: Handled, progress: Settlement, on_settled: Callable[[bool, Exception | None], None]
    ) -> None:
        """End the delivery by what its handler has done, soon: together with others, and with the client's next claim.

        `on_settled` is called with whether it was a success, or what kept it from being ended: in any thread. It must
        not wait.
        """
        context, claimed = self._subject.context, self._claimed
        with self._session.memory:
            settle_later(context, claimed, partial(settle_by_outcome, context, claimed, outcome, progress), on_settled)

    def transaction(self) -> U:
        """A transaction with this claim in it, which ends the claim by what it does itself."""
        transaction = self._begin()
        transaction.adopt(self._subject)
        return transaction

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.token} of task {self._claimed.task_id!r}>"


class QueueMethods(Api[Context]):
    """What queues of both APIs are: a new verb is one line here.

    The settling verbs take a task's id and its claim's token; see `Claim`. `used` is told of claims and enqueues.
    """

    def __init__(self, session: Session, context: Context, used: Callable[[Context], None]) -> None:
        super().__init__(session, context)
        self._used = used

    publish_archive = verb(configure.publish_archive)
    pause = verb(configure.pause)
    resume = verb(configure.resume)
    configure = verb(configure.configure)
    task = verb(inspect.read_task)
    tasks = verb(inspect.list_tasks)
    ids = verb(inspect.ids)
    read_many = verb(inspect.read_many)
    scan = verb(scan)
    counts = verb(counts)
    pending = verb(pending)
    conf = verb(configuration.conf)
    exists = verb(nodes.exists)
    delete = verb(deletion.delete)
    consumers = verb(configuration.consumers)
    follow = verb(follow)
    tree = verb(nodes.read_tree)
    explain = verb(explain.explain)
    wait = verb(wait_for)
    find = verb(find_matching)
    wait_batch = verb(batches.wait_batch)
    batch = verb(batches.read_batch)
    zxid = verb(server_clock.zxid)
    now = verb(server_clock.now)
    ended_between = verb(completion_log.ended_between)
    read_ended = verb(completion_log.read_ended)
    latest_end = verb(completion_log.latest_end)
    truncated_at = verb(configuration.truncated_at)
    archive = verb(server_clock.archive)
    collect_garbage = verb(collect.collect_garbage)
    redrive = verb(admin.redrive)
    redrive_many = verb(admin.redrive_many)
    cancel = verb(admin.cancel)
    revoke = verb(admin.revoke)
    clear = verb(admin.clear)
    replace = verb(admin.replace_data)
    drop = verb(admin.drop)
    complete = by_token(settle.complete)
    fail = by_token(settle.fail)
    release = by_token(settle.release)
    snooze = by_token(settle.snooze)
    begin = by_token(holding.begin_for)
    extend = by_token(holding.extend)
    progress = by_token(holding.progress)
    enqueue_many = verb(enqueue_each, marks_used=True)
    enqueue_new = verb(enqueue_new, marks_used=True)
    open_batch = verb(open_shared, marks_used=True)
    seal_batch = verb(seal)
    enqueue = verb(enqueue_one, marks_used=True)
    claim = claiming(request_claim, "Claim | None", "AsyncClaim | None")
    claim_many = claiming_many(request_claims, "list[Claim]", "list[AsyncClaim]")
    claims = claim_loop(request_loop, "Claims[Claim]", "AsyncClaims[AsyncClaim]")
    claim_task = claiming(by_id.request_by_id, "Claim | None", "AsyncClaim | None")
    take_over = claiming(by_id.request_adoption, "Claim | None", "AsyncClaim | None")
    ready = verb(ready.ready)
    check_wanted = verb(wanted)
    run_maintenance = verb(rescue.run_maintenance)
    wait_for_change = verb(rescue.wait_for_change)

    @property
    def _context(self) -> Context:
        return self._subject

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._context.queue

    @property
    def root(self) -> str:
        """The znode under which the queue lives."""
        return self._context.root

    @property
    def consumer(self) -> str:
        """This client's id among the queue's consumers; before its first claim, how that will begin."""
        known = self._context.registration.consumer
        return str(self._context.describe["name"]) if known is None else known.id

    @property
    def changes(self) -> int:
        """How often the queue has changed, as far as this client was told: the `seen` of `wait_for_change`."""
        return self._context.signal.count

    def wake(self) -> None:
        """Wake every call of this client that waits for the queue to change; they look again."""
        self._context.signal.fire()

    def _explained(self, procedure: Procedure[T]) -> Procedure[T]:
        """What fails where there is no such queue fails for that, whatever else it would say."""
        return unless_missing(self._context, procedure)

    def _mark_used(self) -> None:
        """The queue is claimed from or enqueued to: its client takes part in clean-up from now on."""
        self._used(self._context)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._context.paths.base} at {self._session.config.hosts}>"


# --- The blocking API: `Queue` and `Claim`.


class Claim(ClaimMethods[UnitOfWork], SyncApi[ClaimHandle]):
    """A task in hand. Settle it with exactly one of `complete`, `fail`, `release` and `snooze`.

    A session-bound claim ends with its ZooKeeper session, or with its lock; a leased one at its deadline.
    """


class Queue(QueueMethods, SyncClaiming[Context, Claim]):
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

    def _receive(self, context: Context, claimed: Claimed) -> Claim:
        """The claim that a caller gets."""
        return Claim(self._session, ClaimHandle(context, claimed), self._begin)

    def worker(self, handler: Callable[..., Any], **options: Any) -> Worker:
        """A worker that claims, runs `handler` and settles; the options are `Worker`'s."""
        return Worker(self, handler, **options)
