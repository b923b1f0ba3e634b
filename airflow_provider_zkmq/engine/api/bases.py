"""What claims, queues and transactions of both APIs have in common: whatever sends no request."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Generic, TypeVar

from ..core.client_state import Claimed, Context
from ..core.model.handler_outcomes import Handled
from ..core.read.claim_status import lost_with_queue
from ..core.read.inspect import Task, task_of_claim
from ..core.read.queue_existence import missing_queue
from ..core.tasks.settle import settle_later
from ..core.tasks.settle_by_outcome import Settlement, settle_by_outcome
from ..core.zk_operations import Procedure
from ..errors import ZkmqError
from ..zk.session import Session
from .calls import Api
from .transaction_procedures import UNKNOWN_SESSION, Transaction


class TransactionBase(Api):
    """What units of work of both APIs are."""

    def __init__(self, session: Session, transaction: Transaction) -> None:
        super().__init__(session)
        self._transaction = transaction

    def _explain(self, error: ZkmqError) -> Procedure[ZkmqError | None]:
        """Where a queue that it has taken from is not there any more, what it took is lost: `ClaimLost`."""
        tx = self._transaction
        held = {} if tx.transaction.ended else dict(tx.transaction.taken)
        if tx.adopted is not None:  # a settlement may have withdrawn it
            context, claimed = tx.adopted
            held[context] = claimed
        for context, claimed in held.items():
            lost = yield from lost_with_queue(context, claimed, error)
            if lost is not None:
                return lost
        return None

    @property
    def open(self) -> bool:
        """False once it was committed, rolled back or closed."""
        return self._transaction.open

    def adopt(self, context: Context, claimed: Claimed) -> None:
        """Make a claim of the same session part of this transaction; a transactional worker does."""
        self._transaction.adopt(context, claimed)

    def close(self) -> None:
        """Let its handler take and put no more; a `try_take` that waits is woken and takes nothing."""
        self._transaction.close()

    def _receive(self, context: Context, claimed: Claimed) -> Task:
        """The task that was taken, which is part of this transaction from now on."""
        return self._transaction.add(context, claimed)


U = TypeVar("U", bound=TransactionBase)


class ClaimBase(Api, Generic[U]):
    """What claims of both APIs are. `begin` begins a transaction over the same connection.

    ``result``: with what `q.claims` completes it, unless the body of the loop settles it.
    """

    def __init__(self, session: Session, context: Context, claimed: Claimed, begin: Callable[[], U]) -> None:
        super().__init__(session)
        self._context, self._claimed = context, claimed
        self._begin = begin
        self.result: bytes | str | None = None

    def _explain(self, error: ZkmqError) -> Procedure[ZkmqError | None]:
        """Where there is no queue any more, there is no claim either."""
        return lost_with_queue(self._context, self._claimed, error)

    @cached_property
    def task(self) -> Task:
        """The task as it was handed out."""
        return task_of_claim(self._context, self._claimed)

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
        return self._claimed.span

    @property
    def over(self) -> bool:
        """Whether what the claim is bound to has ended, its session: one that is merely cut off still holds it."""
        session, claimed = self._session, self._claimed
        leased = claimed.span is not None and not claimed.state.bound
        return session.closed or not (leased or session.id in {claimed.session, UNKNOWN_SESSION})

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
        transaction.adopt(self._context, self._claimed)
        return transaction

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.token} of task {self._claimed.task_id!r}>"


class OfQueue(Api):
    """What calls on queues have in common. `used`: called with each claim and enqueue."""

    def __init__(self, session: Session, context: Context, used: Callable[[Context], None]) -> None:
        super().__init__(session)
        self._context = context
        self._used = used

    def _mark_used(self) -> None:
        """The queue is claimed from: its client takes part in clean-up from now on."""
        self._used(self._context)

    def _explain(self, error: ZkmqError) -> Procedure[ZkmqError | None]:
        """What fails where there is no such queue fails for that, whatever else it would say."""
        return missing_queue(self._context, error)


class QueueBase(OfQueue, Generic[U]):
    """What queues of both APIs are. `begin` begins a transaction on the connection."""

    def __init__(
        self, session: Session, context: Context, used: Callable[[Context], None], begin: Callable[[], U]
    ) -> None:
        super().__init__(session, context, used)
        self._begin = begin

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


class QueueInternalsBase(OfQueue):
    """What the internals of queues of both APIs are."""

    @property
    def closed(self) -> bool:
        """Whether the queue's connection has been closed: nothing can be done with it any more."""
        return self._session.closed

    @property
    def changes(self) -> int:
        """How often the queue has changed, as far as this client was told: the `seen` of `wait_for_change`."""
        return self._context.signal.count

    def wake(self) -> None:
        """Wake every call of this client that waits for the queue to change; they look again."""
        self._context.signal.fire()
