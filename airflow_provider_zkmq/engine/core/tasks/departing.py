"""What has been handled is settled together: with the next claim of its client, in one transaction, or soon by itself.

A handler that is done fast does not wait for its completion: that is put down (`settle_later`), and whoever claims next
takes along all that was put down by then. Where nobody claims within `TOGETHER_SECONDS`, it is sent in the background.
Until it is carried out the task is claimed, and in this client's hands; the death of its process has it handled again,
as it would a moment earlier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from airflow_provider_zkmq.engine.core.memory.claims import Claimed, Leaving
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.core.protocol.writes import Multi, Outcome
from airflow_provider_zkmq.engine.core.writing.chaining import Chain, Settling
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
    """Put a settlement down; `told` hears how it ended. Until then it is tried again while no server answers."""
    leaving = Leaving(claimed, settle, told, context.run.monotonic() + TOGETHER_SECONDS)
    context.claims.leaving.append(leaving)
    context.run.pay()
    return leaving


def _settled(leaving: Leaving) -> Procedure[Any]:
    """Its settlement; whatever that raises, it raises when it is carried out."""
    return (yield from leaving.settle())


def leaves_late(context: Context) -> bool:
    """Whether anything that was put down is to wait no longer."""
    now = context.run.monotonic()
    return any(leaving.due <= now for leaving in context.claims.leaving)


def settle_leaving(context: Context) -> Procedure[None]:
    """Settle what was put down. What could not be settled, since no server answered, stays."""
    departure = Departure(context)
    try:
        yield from departure.finish()
    finally:
        departure.close()


@dataclass(slots=True, eq=False)
class Departure:
    """One call's way of taking along what was put down: whoever makes one closes it."""

    context: Context
    chain: Chain = field(default_factory=lambda: Chain([]))
    aboard: list[tuple[Leaving, Settling]] = field(default_factory=list)

    def send(self, context: Context, make: Callable[[], Multi]) -> Procedure[tuple[Multi, Outcome]]:
        """Send a transaction with what was put down; how it ended, as if it had been sent alone."""
        self._board()
        try:
            return (yield from self.chain.send(context, make))
        finally:
            self._tell()

    def finish(self) -> Procedure[None]:
        """Settle by itself what nothing went with. Raises nothing: who put it down is told."""
        self._board()
        try:
            yield from self.chain.finish(self.context)
        finally:
            self._tell()

    def close(self) -> None:
        """Whatever becomes of the call: what it has not settled is put down again."""
        back = [leaving for leaving, _ in self.aboard]
        self.chain.close()
        self._leave(self.aboard)
        if back:
            self.context.claims.leaving[:0] = back
            self.context.run.pay()

    def _board(self) -> None:
        """Take along what has been put down."""
        leaving = self.context.claims.leaving
        if not leaving:
            return
        self.context.claims.leaving = []
        for each in leaving:
            each.claimed.chained = True
            settling = Settling(_settled(each), self.context.paths.task(each.claimed.task_id, "state"))
            self.aboard.append((each, settling))
        self.chain.settlings = [settling for _, settling in self.aboard]

    def _tell(self) -> None:
        """Tell those whose settlements are over; what no server answered is put down again."""
        over = [pair for pair in self.aboard if pair[1].over]
        self._leave(over)
        for leaving, settling in over:
            leaving.error = settling.error
            if isinstance(settling.error, TransportError) and not isinstance(settling.error, SessionLost):
                leaving.due = self.context.run.monotonic() + RETRY_SECONDS
                self.context.claims.leaving.append(leaving)
                self.context.run.pay()
            else:
                leaving.told(settling.value, settling.error)

    def _leave(self, pairs: list[tuple[Leaving, Settling]]) -> None:
        for leaving, _ in pairs:
            leaving.claimed.chained = False
        self.aboard = [pair for pair in self.aboard if pair not in pairs]
        self.chain.settlings = [settling for _, settling in self.aboard]
