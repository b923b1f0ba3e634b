"""A transaction of either API: what it has taken and put, and the procedures on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..core.claim.claim import ClaimRequest, claim, wanted
from ..core.client_state import Caller, Claimed, Context
from ..core.maintenance.due_work import give_back
from ..core.model.filters import FilterMethods, Selector
from ..core.model.handler_outcomes import Handled
from ..core.model.new_message import Message
from ..core.model.values import Duration, seconds
from ..core.read.inspect import Task, task_of_claim
from ..core.read.queue_existence import unless_missing
from ..core.tasks import transaction
from ..core.tasks.settle_by_outcome import Settlement, settle_outcome
from ..core.tasks.transaction import Holder
from ..core.zk_operations import Procedure, SetTimeout, Wait
from ..errors import SessionLost, ZkmqError
from ..zk.connection import left
from ..zk.session import Session

#: What a session's id is while it is not known, which is no news of its end.
UNKNOWN_SESSION: Final = 0


class Transaction:
    """One unit of work of either API, and the session that it is bound to."""

    def __init__(self, session: Session, context_of: Callable[[str], Context], used: Callable[[Context], None]) -> None:
        self.transaction = transaction.TransactionState()
        self.open = True
        self.rolled_back = False
        """Somebody asked for that; it may not have come to its end."""
        self.adopted: tuple[Context, Claimed] | None = None
        """The claim that a worker's handler was called for."""
        self.context_of = context_of
        self.used = used
        """Called with each queue that is claimed from or put into."""
        self._session = session
        self._session_id = session.id
        self._contexts: set[Context] = set()
        """Where it may be waiting for a task."""

    def check(self, *, ending: bool = False) -> None:
        """Raise unless it can still be added to; `ending`: unless it can still be committed."""
        unknown = self.rolled_back and self.transaction.sent is not None and not self.transaction.rolling_back
        if not self.open and not (ending and unknown):  # what a rollback could not tell, a commit does
            msg = "this transaction has ended; begin another with transaction()"
            raise ZkmqError(msg)
        self._session_id = self._session_id or self._session.id  # begun while the connection was lost
        sent = ending and self.transaction.sent is not None  # its outcome is told, whatever session asks
        if not sent and self._session.id not in {self._session_id, UNKNOWN_SESSION}:
            msg = "the session of this transaction has ended; what it had taken is given back"
            raise SessionLost(msg)
        if not ending and (self.transaction.sent is not None or self.transaction.ended):
            msg = "the outcome of this transaction's commit is not known: commit again, which tells it, or roll back"
            raise ZkmqError(msg)

    def take(
        self, context: Context, node: Mapping[str, object] | None, filter_method: FilterMethods,
        selector: Selector | str | None, timeout: Duration, caller: Caller,
    ) -> Procedure[list[Claimed]]:  # fmt: skip
        """Claim a task for it, unless it is closed meanwhile: then what was claimed is given back."""
        span = seconds("timeout", timeout)
        if span > 0:
            yield SetTimeout(span)
        request = yield from wanted(context, node, filter_method, selector, None)
        self.used(context)
        self._contexts.add(context)
        taking = claim(context, request, span, caller, stopping=lambda: not self.open or caller.left)
        claimed = yield from unless_missing(context, taking)
        if claimed is None or self.open:
            return [] if claimed is None else [claimed]
        caller.left = True  # closed while this waited: what it got is nobody's
        yield from give_back(context)
        return []

    def is_over(self) -> bool:
        """Whether the session has ended, or has been out of reach for as long as it lives without its client."""
        session = self._session
        ended = self._session_id not in {session.id, UNKNOWN_SESSION}
        return session.closed or ended or self._left() == 0.0

    def _left(self) -> float | None:
        """For how many seconds the session is sure to live without its client; None: the connection is there."""
        since = self._session.away_since
        return None if since is None else left(since + self._session.config.session_timeout)

    def reach(self) -> Procedure[None]:
        """Wait until the server can be asked, or the session is over. Raises `Unavailable`."""
        call_deadline = self._session.call_deadline()
        deadline = call_deadline.deadline()
        while True:
            seen, wait = self._session.changed.count, self._left()
            if wait is None or self.is_over():
                return
            if not left(deadline):
                raise self._session.unavailable(call_deadline.limit)
            yield Wait(self._session.changed, seen, min(wait, left(deadline)))

    def add(self, context: Context, claimed: Claimed) -> Task:
        """Make a claim part of it; returns the task."""
        self._session_id = self._session_id or claimed.session
        self.transaction.taken.append((context, claimed))
        return task_of_claim(context, claimed)

    def adopt(self, context: Context, claimed: Claimed) -> None:
        """Make the claim part of it that its handler was called for."""
        self._session_id = claimed.session
        self.adopted = context, claimed
        self.add(context, claimed)

    def close(self) -> None:
        """Let nobody take or put any more; a `try_take` that waits is woken and takes nothing."""
        self.open = False
        for context in tuple(self._contexts):
            context.signal.fire()


def try_take(
    tx: Transaction,
    queue: str,
    node: Mapping[str, object] | None = None,
    filter_method: FilterMethods = "absolute",
    *,
    selector: Selector | str | None = None,
    timeout: Duration = 0,
) -> Procedure[ClaimRequest]:
    """Lock the first task that fits, without removing it; None when there is none within `timeout` seconds.

    The other arguments are those of `Queue.claim`. Raises `ConfigError` for what the queue's declarations refuse,
    `QueueNotFound`, and `SessionLost` once the session has ended that the transaction began in.
    """
    tx.check()
    context = tx.context_of(queue)
    yield from ()
    return ClaimRequest(context, lambda caller: tx.take(context, node, filter_method, selector, timeout, caller))


def put(
    tx: Transaction, queue: str, data: bytes | str, filters: Mapping[str, object] | None = None, **options: Any
) -> Procedure[str]:
    """Remember a task to write on commit; returns its id. Nothing is sent: it is in memory only, until then.

    What is wrong is refused now; filters are checked by the commit where this client does not know the queue yet. A
    queue that does not exist is created by the commit. The arguments are `Message`'s. Raises `ConfigError`,
    `TaskTooLarge`.
    """
    tx.check()
    context = tx.context_of(queue)
    yield from ()  # nothing is asked of the server
    return transaction.put(tx.transaction.put, context, Message(data, filters, **options))


def commit(tx: Transaction, result: bytes | str | None = None) -> Procedure[list[str]]:
    """Finish what was taken and write what was put, at once; returns the ids put.

    `result` is kept with the task that was taken first. Raises `TaskTooLarge`, `ClaimLost`, `DuplicateTask` or
    `SessionLost`; then nothing happened, but that queues which were put into may have been created. After
    `OutcomeUnknown` call it again: it tells what became of the first call, and goes on if that did not happen.
    """
    tx.check(ending=True)
    ids = yield from transaction.commit(tx.transaction, result)
    tx.open = False
    for each in tx.transaction.put:
        tx.used(each.context)
    return ids


def rollback(tx: Transaction) -> Procedure[None]:
    """Cancel every put and give back everything taken; afterwards no lock of this transaction is left.

    Locks end with the session that holds them: once that has ended, or has been out of reach for its time-out, nothing
    is left to be asked. Where the connection is lost for less, call it again, or the client does it before it claims
    again. Raises `Unavailable`, `OutcomeUnknown` where the connection was lost meanwhile or a commit may have happened,
    which `commit` tells, and `IllegalTransition` where a commit of unknown outcome turns out to have happened.
    """
    tx.open, tx.rolled_back = False, True
    yield from transaction.rollback(tx.transaction, Holder(tx.is_over, tx.reach))


def settle(tx: Transaction, outcome: Handled, progress: Settlement) -> Procedure[bool]:
    """End it, and the claim that it adopted, by what a handler has done; after `close`. See `settle_outcome`."""
    if tx.adopted is None:
        msg = "this transaction adopted no claim that could be settled: commit it, or roll it back"
        raise ZkmqError(msg)
    return (yield from settle_outcome(*tx.adopted, outcome, tx.transaction, progress))
