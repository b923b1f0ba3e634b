"""A settlement and the claim that follows it, in one transaction: the settlement waits until the claim is to be sent.

Two procedures are carried out side by side, each as if it was alone: each has its own transaction, resolves its own
lost reply and explains its own refusal. Only what is sent first is one request for both. Where that is refused, both
parts are sent singly; where its reply is lost, the transaction of either part, sent once more, tells what happened to
it, as the merged one and its parts exclude each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.protocol.ops import Op, Pipeline, Procedure
from airflow_provider_zkmq.engine.core.protocol.writes import MAX_REQUEST, Multi, Outcome, request_size
from airflow_provider_zkmq.engine.core.writing.combining import send


@dataclass(slots=True, eq=False)
class Chain:
    """A settlement that is due: it goes with the first transaction that is sent for it, or by itself (`finish`).

    ``record``: the znode that tells its transaction from what else it may have to write before.
    """

    settlement: Procedure[Any]
    record: str
    over: bool = False
    error: Exception | None = None
    """Why it was not carried out, or that it is not known."""

    def finish(self) -> Procedure[None]:
        """Carry out by itself what has not been carried out yet. Raises nothing: see ``error``."""
        if not self.over:
            yield from self._go_on(lambda: next(self.settlement))

    def send(self, context: Context, make: Callable[[], Multi]) -> Procedure[tuple[Multi, Outcome]]:
        """Send a transaction, with the settlement if that is due still; how it ended, as if it had been sent alone."""
        before, mine = (yield from self._due()), make()
        if before is None:
            return (yield from send(context, make))
        if request_size((*before.ops, *mine.ops)) > MAX_REQUEST:
            yield from self._go_on((yield from self._answered(before)))
            return (yield from send(context, make))
        try:
            _, outcome = yield from send(context, lambda: Multi((*before.ops, *mine.ops)))
            outcomes = [outcome, outcome] if outcome.failed is None else (yield Pipeline((before, mine)))
        except Exception as error:
            yield from self._go_on(partial(self.settlement.throw, error))
            raise
        yield from self._go_on(partial(self.settlement.send, outcomes[0]))
        return mine, outcomes[1]

    def _due(self) -> Procedure[Multi | None]:
        """Its transaction, which is to be sent now; None: it is over already."""
        if self.over:
            return None
        return (yield from self._go_on(lambda: next(self.settlement), hold=True))

    def _go_on(self, advance: Callable[[], Op], *, hold: bool = False) -> Procedure[Multi | None]:
        """Carry the settlement on, to its end, or `hold` its transaction back."""
        try:
            while True:
                op = advance()
                if hold and isinstance(op, Multi) and any(each.path == self.record for each in op.ops):
                    return op
                advance = yield from self._answered(op)
        except StopIteration:
            self.over = True
        except Exception as error:  # noqa: BLE001  whose settlement it is hears of it, once the claim is over, too
            self.over, self.error = True, error
        return None

    def _answered(self, op: Op) -> Procedure[Callable[[], Op]]:
        try:
            return partial(self.settlement.send, (yield op))
        except Exception as error:  # noqa: BLE001  every failure belongs to the procedure that asked
            return partial(self.settlement.throw, error)
