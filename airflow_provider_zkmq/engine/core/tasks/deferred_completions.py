"""Completions that are sent with the client's next claim, or soon by themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from airflow_provider_zkmq.engine.core.client.claims import Claimed, DeferredCompletion, Sender
from airflow_provider_zkmq.engine.core.client.context import Context
from airflow_provider_zkmq.engine.core.protocol.ops import Multi, Outcome, Procedure, Signal, Wait
from airflow_provider_zkmq.engine.core.write.group_commit import Chain, Settling
from airflow_provider_zkmq.engine.errors import SessionLost, TransportError

#: What is handled waits for so long for what it may go with.
TOGETHER_SECONDS: Final = 0.05
#: The pause before what could not be settled, since no server answered, is tried again.
RETRY_SECONDS: Final = 0.5


def settle_later(
    context: Context,
    claimed: Claimed,
    settle: Callable[[], Procedure[Any]],
    on_settled: Callable[[Any, Exception | None], None],
) -> DeferredCompletion:
    """Put a settlement down; `on_settled` hears how it ended. Until then it is tried again while no server answers.

    What is put down once more stays as it is: whoever does so was interrupted before it knew.
    """
    completion = DeferredCompletion(claimed, settle, on_settled, context.run.monotonic() + TOGETHER_SECONDS)
    completion = context.claims.deferred.setdefault((claimed.task_id, claimed.token), completion)
    context.run.finish_later()
    return completion


def _settled(completion: DeferredCompletion) -> Procedure[Any]:
    """Its settlement; whatever that raises, it raises when it is carried out."""
    return (yield from completion.settle())


def has_overdue(context: Context) -> bool:
    """Whether anything that was put down is to wait no longer."""
    now = context.run.monotonic()
    return any(completion.waits and completion.due <= now for completion in context.claims.deferred.values())


def seconds_until_deferred(context: Context, most: float) -> float:
    """Seconds until what was put down is to be looked at; what another call has is looked at soon, should it fail."""
    now = context.run.monotonic()
    spans = (max(0.0, each.due - now) if each.waits else TOGETHER_SECONDS for each in context.claims.deferred.values())
    return min(spans, default=most)


def settle_deferred(context: Context) -> Procedure[None]:
    """Settle what was put down. What could not be settled, since no server answered, stays."""
    deferred = DeferredCompletions(context)
    try:
        yield from deferred.finish()
    finally:
        deferred.sender.over = True
        deferred.close()


def settle_last(context: Context) -> Procedure[None]:
    """Settle what was put down before the client is closed, also what another call has. Raises `TransportError`."""
    yield from settle_deferred(context)
    while (settling := _under_way(context)) is not None:
        yield Wait(settling, 0, turn=True)
    yield from settle_deferred(context)


def _under_way(context: Context) -> Signal | None:
    found = (each.claimed.settling for each in context.claims.deferred.values() if not each.waits)
    return next((settling for settling in found if settling is not None), None)


@dataclass(slots=True, eq=False)
class DeferredCompletions:
    """One call's way of taking along what was put down.

    It stays put down until it has been told. Whoever makes a departure ends its journey, by a statement: whatever
    becomes of the call then, others take along what it has not settled. Then it is closed.
    """

    context: Context
    sender: Sender = field(default_factory=Sender)
    chain: Chain = field(default_factory=lambda: Chain([]))
    taken: list[DeferredCompletion] = field(default_factory=list)

    def send(self, context: Context, make: Callable[[], Multi]) -> Procedure[tuple[Multi, Outcome]]:
        """Send a transaction with what was put down; how it ended, as if it had been sent alone."""
        self._take_deferred()
        try:
            return (yield from self.chain.send(context, make))
        finally:
            self._notify()

    def finish(self) -> Procedure[bool]:
        """Settle by itself what nothing went with; whether anything is. Raises nothing: who put it down is told."""
        self._take_deferred()
        try:
            yield from self.chain.finish(self.context)
        finally:
            on_settled = self._notify()
        return on_settled

    def close(self) -> None:
        """Nobody goes on with what it has not settled."""
        self.chain.close()
        for completion in self.taken:
            completion.claimed.chained = False
        if self.taken:
            self.context.run.finish_later()

    def _take_deferred(self) -> None:
        """Take along what has been put down; what is over already, but was not told by an interrupted call, is told."""
        for completion in [each for each in self.context.claims.deferred.values() if each.waits]:
            completion.sender = self.sender
            completion.claimed.chained = True
            if completion.settling is None or not completion.settling.over:
                record = self.context.paths.task(completion.claimed.task_id, "state")
                completion.settling = Settling(_settled(completion), record)
            self.taken.append(completion)
        self.chain.settlings = [completion.settling for completion in self.taken]

    def _notify(self) -> bool:
        """Tell those whose settlements are over; what no server answered is put down again. Whether any is over."""
        over = [completion for completion in self.taken if completion.settling.over]
        for completion in over:
            self._end(completion, completion.settling)
        self.taken = [completion for completion in self.taken if completion.settling is not None]
        self.chain.settlings = [completion.settling for completion in self.taken]
        return any((each.claimed.task_id, each.claimed.token) not in self.context.claims.deferred for each in over)

    def _end(self, completion: DeferredCompletion, settling: Settling) -> None:
        """One is over. It is put down until it was told, whatever meets that."""
        completion.error = settling.error
        completion.claimed.chained = False
        if isinstance(settling.error, TransportError) and not isinstance(settling.error, SessionLost):
            completion.due = self.context.run.monotonic() + RETRY_SECONDS
            completion.settling = completion.sender = None
            self.context.run.finish_later()
            return
        try:
            completion.on_settled(settling.value, settling.error)
        except Exception as error:  # noqa: BLE001  it must not keep others from being told
            path = self.context.paths.task(completion.claimed.task_id)
            self.context.run.report(path, f"it is settled, and whoever had it cannot be told: {error!r}")
        self.context.claims.deferred.pop((completion.claimed.task_id, completion.claimed.token), None)
        completion.settling = None
