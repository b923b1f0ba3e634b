"""`Queue` and `AsyncQueue`, and their loops over claims."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeAlias, TypeVar

from ..core.claim.claim import (
    ClaimRequest,
    Loop,
    go_on,
    ready,
    request_by_id,
    request_claim,
    request_claims,
    request_handle,
    request_loop,
    wind_up,
)
from ..core.context import Caller, Claimed, Context
from ..core.maintenance import collect
from ..core.maintenance.fsck import fsck
from ..core.protocol import Procedure
from ..core.read import configuration, inspect, nodes
from ..core.read.inspect import Task, counts
from ..core.read.leases import lost_with_queue
from ..core.read.wait import follow
from ..core.read.wait import wait as wait_for
from ..core.tasks import admin, batches, settle
from ..core.tasks.enqueue import enqueue_each, enqueue_one, open_shared, seal
from ..core.tasks.outcome import Handled, Settlement, settle_by_outcome
from ..core.tasks.settle import settle_later
from ..errors import TransportError, ZkmqError
from ..log import log
from ..working.async_worker import OF_CALLS, AsyncWorker
from ..working.worker import Worker
from ..zk.drivers import arun, run
from ..zk.session import Session
from .claim_handles import DELIVERY_SECONDS, ClaimHandle, task_of
from .methods import Api, AsyncApi, AsyncClaiming, SyncAndAsync, SyncApi, SyncClaiming, claiming, settling, shown, verb
from .queue_internals import AsyncQueueInternals, OfQueue, QueueInternals
from .unit_of_work import AsyncUnitOfWork, TransactionMethods, UnitOfWork

# --- Loops over claims: `q.claims`, blocking and on an event loop.

P = ParamSpec("P")
C = TypeVar("C", bound="ClaimMethods[Any]")


class LoopOf(Generic[C]):
    """What loops of both APIs are. Each is one thread's, or one coroutine's.

    What its body does not settle is completed with ``claim.result`` when the loop comes back. An error of that is
    raised by the step, after which the loop can go on: what is over is not met again, anything else is settled once
    more. A loop that is left, or closed, fails what is unsettled, and gives back what it has prefetched.
    """

    def __init__(self, session: Session, loop: Loop, receive: Callable[[Context, Claimed], C]) -> None:
        self._session = session
        self._loop = loop
        self._receive = receive
        self._claim: C | None = None
        self._ended = False

    def _next_claim(self) -> C:
        """The next one, for the body.

        There are only statements at the end: an interrupt comes with a call, and would leave in between a claim that
        is taken for handled, or is nobody's.
        """
        loop = self._loop
        claim = self._receive(loop.context, loop.ready[0])
        self._claim = claim
        loop.current, loop.ready = loop.ready[0], loop.ready[1:]
        return claim

    def _leave(self) -> None:
        self._ended, self._claim = True, None
        with self._session.memory:
            self._loop.leave()

    def __del__(self) -> None:
        if not self._ended and not self._session.closed and self._session.pid == os.getpid():
            self._leave()


class Claims(LoopOf[C]):
    """A loop whose steps block."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> C:
        """Settle what the body has left, and claim the next one."""
        if self._ended:
            raise StopIteration
        if self._claim is not None:
            self._loop.result = self._claim.result
        if run(self._session, go_on(self._loop, Caller())):
            return self._next_claim()
        self._ended, self._claim = True, None
        raise StopIteration

    def close(self) -> None:
        """Leave the loop: what is unsettled fails, what was prefetched is given back. Idempotent.

        What cannot be settled now, since no server answers, is settled in the background.
        """
        self._leave()
        if not self._session.closed:
            try:
                run(self._session, wind_up(self._loop))
            except TransportError as error:
                log.info("leaving a loop of queue %r: %s; the rest is done later", self._loop.context.queue, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClaims(LoopOf[C]):
    """A loop whose steps are awaited."""

    _step: asyncio.Task[bool] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> C:
        """Settle what the body has left, and claim the next one. Cancelled, it claims nothing more."""
        await self._still()
        if self._ended:
            raise StopAsyncIteration
        if self._claim is not None:
            self._loop.result = self._claim.result
        caller = Caller()
        self._step = OF_CALLS.do(arun(self._session, go_on(self._loop, caller)))
        try:
            more = await asyncio.shield(self._step)
        except asyncio.CancelledError:
            caller.left = True  # a claim that waits is told by the signal
            self._loop.context.signal.fire()
            self._step.add_done_callback(_log)
            await asyncio.wait({self._step}, timeout=DELIVERY_SECONDS)
            raise
        finally:
            if self._step.done():
                self._step = None
        if more:
            return self._next_claim()
        self._ended, self._claim = True, None
        raise StopAsyncIteration

    async def _still(self) -> None:
        """Wait for a step that was cancelled, and goes on behind."""
        if self._step is not None:
            await asyncio.wait({self._step})
            self._step = None

    async def aclose(self) -> None:
        """Leave the loop, see `Claims.close`."""
        await self._still()
        self._leave()
        if not self._session.closed:
            try:
                await arun(self._session, wind_up(self._loop))
            except TransportError as error:
                log.info("leaving a loop of queue %r: %s; the rest is done later", self._loop.context.queue, error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _log(step: asyncio.Task[bool]) -> None:
    if not step.cancelled() and (error := step.exception()) is not None:
        log.info("a cancelled step of a loop ended with: %s", error)


A = TypeVar("A")
B = TypeVar("B")
Handing: TypeAlias = SyncAndAsync[Context, P, A, Coroutine[Any, Any, B]]
Requested: TypeAlias = Callable[Concatenate[Context, P], Procedure[ClaimRequest]]


def claim_or_none(request: Requested[P]) -> Handing[P, Claim | None, AsyncClaim | None]:
    """The caller gets the one claim, if there is one."""
    return claiming(request, "Claim | None")


def claim_several(request: Requested[P]) -> Handing[P, list[Claim], list[AsyncClaim]]:
    """The caller gets a list."""
    return claiming(request, "list[Claim]", list)


def claim_one(request: Requested[P]) -> Handing[P, Claim, AsyncClaim]:
    """The caller gets the one claim; the procedure raises where there is none."""
    return claiming(request, "Claim", itemgetter(0))


def claim_loop(
    request: Callable[Concatenate[Context, P], Loop],
) -> SyncAndAsync[Context, P, Claims[Claim], AsyncClaims[AsyncClaim]]:
    """What asks for claims one after the other: the caller gets a loop."""

    def sync(self: SyncClaiming[Context, C], /, *args: P.args, **kwargs: P.kwargs) -> Claims[C]:
        self._mark_used()
        return Claims(self._session, request(self._subject, *args, **kwargs), self._receive)

    def awaited(self: AsyncClaiming[Context, C], /, *args: P.args, **kwargs: P.kwargs) -> AsyncClaims[C]:
        self._mark_used()
        return AsyncClaims(self._session, request(self._subject, *args, **kwargs), self._receive)

    shown(awaited, request, returns="AsyncClaims[AsyncClaim]")
    return SyncAndAsync(shown(sync, request, returns="Claims[Claim]"), awaited)


T = TypeVar("T")
U = TypeVar("U", bound=TransactionMethods)


class ClaimMethods(Api[ClaimHandle], Generic[U]):
    """What claims of both APIs are. `begin` begins a transaction over the same connection.

    ``result``: with what `q.claims` completes it, unless the body of the loop settles it.
    """

    def __init__(self, session: Session, handle: ClaimHandle, begin: Callable[[], U]) -> None:
        super().__init__(session, handle)
        self._context, self._claimed = handle.context, handle.claimed
        self._begin = begin
        self.result: bytes | str | None = None

    complete = settling(settle.complete)
    fail = settling(settle.fail)
    release = settling(settle.release)
    snooze = settling(settle.snooze)
    extend = settling(settle.extend)
    progress = settling(settle.progress)
    begin = settling(settle.begin)
    settle = settling(settle_by_outcome)

    def _explain(self, error: ZkmqError) -> Procedure[ZkmqError | None]:
        """Where there is no queue any more, there is no claim either."""
        return lost_with_queue(self._context, self._claimed, error)

    @cached_property
    def task(self) -> Task:
        """The task as it was handed out."""
        return task_of(self._context, self._claimed)

    @property
    def queue(self) -> str:
        """The name of the queue that it was taken from."""
        return self._context.queue

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
        clock = self._context.clock
        self._claimed.began = clock.monotonic()
        return clock.at(self._claimed.began)

    def mark_ended(self) -> None:
        """Its handler has ended now: kept with what settles the claim, which may take a while."""
        self._claimed.handled = self._context.clock.monotonic()

    def settle_later(
        self, outcome: Handled, progress: Settlement, on_settled: Callable[[bool, Exception | None], None]
    ) -> None:
        """End the delivery by what its handler has done, soon: together with others, and with the client's next claim.

        `on_settled` is called with whether it was a success, or what kept it from being ended: in any thread. It must
        not wait.
        """
        context, claimed = self._context, self._claimed
        with self._session.memory:
            settle_later(context, claimed, partial(settle_by_outcome, context, claimed, outcome, progress), on_settled)

    def transaction(self) -> U:
        """A transaction with this claim in it, which ends the claim by what it does itself."""
        transaction = self._begin()
        transaction.adopt(self._subject)
        return transaction

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.token} of task {self._claimed.task_id!r}>"


class QueueMethods(OfQueue, Generic[U]):
    """What queues of both APIs are: a new verb is one line here. `begin` begins a transaction on the connection."""

    def __init__(
        self, session: Session, context: Context, used: Callable[[Context], None], begin: Callable[[], U]
    ) -> None:
        super().__init__(session, context, used)
        self._begin = begin

    pause = verb(admin.pause)
    resume = verb(admin.resume)
    configure = verb(admin.configure)
    task = verb(inspect.read_task)
    tasks = verb(inspect.list_tasks)
    counts = verb(counts)
    conf = verb(configuration.conf)
    exists = verb(nodes.exists)
    delete = verb(collect.delete)
    consumers = verb(configuration.consumers)
    follow = verb(follow)
    explain = verb(inspect.explain)
    wait = verb(wait_for)
    wait_batch = verb(batches.wait_batch)
    batch = verb(batches.read_batch)
    collect_garbage = verb(collect.collect_garbage)
    fsck = verb(fsck)
    redrive = verb(admin.redrive)
    redrive_many = verb(admin.redrive_many)
    cancel = verb(admin.cancel)
    revoke = verb(admin.revoke)
    clear = verb(admin.clear)
    drop = verb(admin.drop)
    enqueue_many = verb(enqueue_each, marks_used=True)
    open_batch = verb(open_shared, marks_used=True)
    seal_batch = verb(seal)
    enqueue = verb(enqueue_one, marks_used=True)
    claim = claim_or_none(request_claim)
    claim_many = claim_several(request_claims)
    claims = claim_loop(request_loop)
    claim_task = claim_or_none(request_by_id)
    claim_handle = claim_one(request_handle)
    ready = verb(ready)

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

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._context.paths.base} at {self._session.config.hosts}>"


class Claim(ClaimMethods[UnitOfWork], SyncApi[ClaimHandle]):
    """A task in hand. Settle it with exactly one of `complete`, `fail`, `release` and `snooze`.

    A session-bound claim ends with its ZooKeeper session, or with its lock; a leased one at its deadline.
    """


class Queue(QueueMethods[UnitOfWork], SyncClaiming[Context, Claim]):
    """A queue, each call blocking until ZooKeeper has answered. Usable from several threads.

    The settling methods take a task's id and its claim's token, from whichever process; see `Claim`.
    """

    def _receive(self, context: Context, claimed: Claimed) -> Claim:
        """The claim that a caller gets."""
        return Claim(self._session, ClaimHandle(context, claimed), self._begin)

    def __internals__(self) -> QueueInternals:
        return QueueInternals(self._session, self._context, self._used)

    def worker(self, handler: Callable[..., Any], **options: Any) -> Worker:
        """A worker that claims, runs `handler` and settles; the options are `Worker`'s."""
        return Worker(self, handler, **options)


class AsyncClaim(ClaimMethods[AsyncUnitOfWork], AsyncApi[ClaimHandle]):
    """A task in hand; see `Claim`."""


class AsyncQueue(QueueMethods[AsyncUnitOfWork], AsyncClaiming[Context, AsyncClaim]):
    """A queue on an event loop; its methods are `Queue`'s."""

    def _receive(self, context: Context, claimed: Claimed) -> AsyncClaim:
        """The claim that a caller gets."""
        return AsyncClaim(self._session, ClaimHandle(context, claimed), self._begin)

    def __internals__(self) -> AsyncQueueInternals:
        return AsyncQueueInternals(self._session, self._context, self._used)

    def worker(self, handler: Callable[..., Any], **options: Any) -> AsyncWorker:
        """A worker that claims, awaits `handler` and settles; the options are `AsyncWorker`'s."""
        return AsyncWorker(self, handler, **options)
