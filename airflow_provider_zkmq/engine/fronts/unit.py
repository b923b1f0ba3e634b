"""One unit of work of either front: what it has taken and put, and the session that it is bound to."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from airflow_provider_zkmq.engine.core.claiming.ask import Method, wanted
from airflow_provider_zkmq.engine.core.claiming.claim import claim
from airflow_provider_zkmq.engine.core.memory.claims import Caller, Claimed
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.durations import Duration, seconds
from airflow_provider_zkmq.engine.core.model.selectors import Selector
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure, Wait, Within
from airflow_provider_zkmq.engine.core.reading.existence import unless_missing
from airflow_provider_zkmq.engine.core.reading.inspect import Task
from airflow_provider_zkmq.engine.core.tasks import transaction
from airflow_provider_zkmq.engine.core.tasks.giveback import give_back
from airflow_provider_zkmq.engine.errors import SessionLost, ZkmqError
from airflow_provider_zkmq.engine.fronts.hand import UNKNOWN_SESSION, Hand, task_of
from airflow_provider_zkmq.engine.zk.limits import left
from airflow_provider_zkmq.engine.zk.session import Session


class Transaction:
    """One unit of work of either front, and the session that it is bound to."""

    def __init__(self, session: Session, context_of: Callable[[str], Context], used: Callable[[Context], None]) -> None:
        self.transaction = transaction.Transaction()
        self.open = True
        self.adopted: Hand | None = None
        """The claim that a worker's handler was called for."""
        self.context_of = context_of
        self._used = used
        """Is told of each queue that is claimed from or put into."""
        self._session = session
        self._session_id = session.id
        self._contexts: set[Context] = set()
        """Where it may be waiting for a task."""

    def check(self, *, ending: bool = False) -> None:
        """Raise unless it can still be added to; `ending`: unless it can still be committed."""
        if not self.open:
            msg = "this transaction has ended; begin another with transaction()"
            raise ZkmqError(msg)
        self._session_id = self._session_id or self._session.id  # begun while the connection was lost
        asking = ending and self.transaction.sent is not None  # what became of a commit is told, whatever session asks
        if not asking and self._session.id not in {self._session_id, UNKNOWN_SESSION}:
            msg = "the session of this transaction has ended; what it had taken is given back"
            raise SessionLost(msg)
        if not ending and (self.transaction.sent is not None or self.transaction.ended):
            msg = "the outcome of this transaction's commit is not known: commit again, which tells it, or roll back"
            raise ZkmqError(msg)

    def take(
        self, context: Context, node: Mapping[str, object] | None, filter_method: Method,
        selector: Selector | str | None, timeout: Duration, caller: Caller,
    ) -> Procedure[list[Claimed]]:  # fmt: skip
        """Claim a task for it, unless it is closed meanwhile: then what was claimed is given back."""
        span = seconds("timeout", timeout)
        if span > 0:
            yield Within(span)
        asked = yield from wanted(context, node, filter_method, selector, None)
        self._used(context)
        self._contexts.add(context)
        taking = claim(context, asked, span, lambda: not self.open or caller.left, caller)
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
        patience = self._session.patience()
        deadline = patience.deadline()
        while True:
            seen, wait = self._session.changed.count, self._left()
            if wait is None or self.is_over():
                return
            if not left(deadline):
                raise self._session.unavailable(patience.limit)
            yield Wait(self._session.changed, seen, min(wait, left(deadline)))

    def held(self) -> dict[Context, Claimed]:
        """The queues that it has taken from, each with one of its claims; none once it has ended."""
        return {} if self.transaction.ended else dict(self.transaction.taken)

    def mark_used(self) -> None:
        """What was put is enqueued: its client takes part in the clean-up of those queues from now on."""
        for put in self.transaction.put:
            self._used(put.context)

    def add(self, context: Context, claimed: Claimed) -> Task:
        """Make a claim part of it; returns the task."""
        self._session_id = self._session_id or claimed.session
        self.transaction.taken.append((context, claimed))
        return task_of(context, claimed)

    def adopt(self, hand: Hand) -> None:
        """Make the claim part of it that its handler was called for."""
        self._session_id = hand.claimed.session
        self.adopted = hand
        self.add(hand.context, hand.claimed)

    def close(self) -> None:
        """Let nobody take or put any more; a `try_take` that waits is woken and takes nothing."""
        self.open = False
        for context in tuple(self._contexts):
            context.signal.fire()
