"""Completions that are sent with the client's next claim, or soon by themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from airflow_provider_zkmq.engine.core.client.claims import Claimed, Journey, Leaving
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
    told: Callable[[Any, Exception | None], None],
) -> Leaving:
    """Put a settlement down; `told` hears how it ended. Until then it is tried again while no server answers.

    What is put down once more stays as it is: whoever does so was interrupted before it knew.
    """
    leaving = Leaving(claimed, settle, told, context.run.monotonic() + TOGETHER_SECONDS)
    leaving = context.claims.leaving.setdefault((claimed.task_id, claimed.token), leaving)
    context.run.pay()
    return leaving


def _settled(leaving: Leaving) -> Procedure[Any]:
    """Its settlement; whatever that raises, it raises when it is carried out."""
    return (yield from leaving.settle())


def leaves_late(context: Context) -> bool:
    """Whether anything that was put down is to wait no longer."""
    now = context.run.monotonic()
    return any(leaving.waits and leaving.due <= now for leaving in context.claims.leaving.values())


def until_leaving(context: Context, most: float) -> float:
    """Seconds until what was put down is to be looked at; what another call has is looked at soon, should it fail."""
    now = context.run.monotonic()
    spans = (max(0.0, each.due - now) if each.waits else TOGETHER_SECONDS for each in context.claims.leaving.values())
    return min(spans, default=most)


def settle_leaving(context: Context) -> Procedure[None]:
    """Settle what was put down. What could not be settled, since no server answered, stays."""
    departure = Departure(context)
    try:
        yield from departure.finish()
    finally:
        departure.journey.over = True
        departure.close()


def settle_last(context: Context) -> Procedure[None]:
    """Settle what was put down before the client is closed, also what another call has. Raises `TransportError`."""
    yield from settle_leaving(context)
    while (settling := _under_way(context)) is not None:
        yield Wait(settling, 0, turn=True)
    yield from settle_leaving(context)


def _under_way(context: Context) -> Signal | None:
    found = (each.claimed.settling for each in context.claims.leaving.values() if not each.waits)
    return next((settling for settling in found if settling is not None), None)


@dataclass(slots=True, eq=False)
class Departure:
    """One call's way of taking along what was put down.

    It stays put down until it has been told. Whoever makes a departure ends its journey, by a statement: whatever
    becomes of the call then, others take along what it has not settled. Then it is closed.
    """

    context: Context
    journey: Journey = field(default_factory=Journey)
    chain: Chain = field(default_factory=lambda: Chain([]))
    aboard: list[Leaving] = field(default_factory=list)

    def send(self, context: Context, make: Callable[[], Multi]) -> Procedure[tuple[Multi, Outcome]]:
        """Send a transaction with what was put down; how it ended, as if it had been sent alone."""
        self._board()
        try:
            return (yield from self.chain.send(context, make))
        finally:
            self._tell()

    def finish(self) -> Procedure[bool]:
        """Settle by itself what nothing went with; whether anything is. Raises nothing: who put it down is told."""
        self._board()
        try:
            yield from self.chain.finish(self.context)
        finally:
            told = self._tell()
        return told

    def close(self) -> None:
        """Nobody goes on with what it has not settled."""
        self.chain.close()
        for leaving in self.aboard:
            leaving.claimed.chained = False
        if self.aboard:
            self.context.run.pay()

    def _board(self) -> None:
        """Take along what has been put down; what is over already, but was not told by an interrupted call, is told."""
        for leaving in [each for each in self.context.claims.leaving.values() if each.waits]:
            leaving.journey = self.journey
            leaving.claimed.chained = True
            if leaving.settling is None or not leaving.settling.over:
                record = self.context.paths.task(leaving.claimed.task_id, "state")
                leaving.settling = Settling(_settled(leaving), record)
            self.aboard.append(leaving)
        self.chain.settlings = [leaving.settling for leaving in self.aboard]

    def _tell(self) -> bool:
        """Tell those whose settlements are over; what no server answered is put down again. Whether any is over."""
        over = [leaving for leaving in self.aboard if leaving.settling.over]
        for leaving in over:
            self._end(leaving, leaving.settling)
        self.aboard = [leaving for leaving in self.aboard if leaving.settling is not None]
        self.chain.settlings = [leaving.settling for leaving in self.aboard]
        return any((each.claimed.task_id, each.claimed.token) not in self.context.claims.leaving for each in over)

    def _end(self, leaving: Leaving, settling: Settling) -> None:
        """One is over. It is put down until it was told, whatever meets that."""
        leaving.error = settling.error
        leaving.claimed.chained = False
        if isinstance(settling.error, TransportError) and not isinstance(settling.error, SessionLost):
            leaving.due = self.context.run.monotonic() + RETRY_SECONDS
            leaving.settling = leaving.journey = None
            self.context.run.pay()
            return
        try:
            leaving.told(settling.value, settling.error)
        except Exception as error:  # noqa: BLE001  it must not keep others from being told
            path = self.context.paths.task(leaving.claimed.task_id)
            self.context.run.report(path, f"it is settled, and whoever had it cannot be told: {error!r}")
        self.context.claims.leaving.pop((leaving.claimed.task_id, leaving.claimed.token), None)
        leaving.settling = None
