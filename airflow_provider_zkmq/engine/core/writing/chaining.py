"""Settlements that go together, and with the claim that follows them, in one transaction.

Several procedures are carried out side by side, each as if it was alone: each has its own transaction, resolves its own
lost reply and explains its own refusal. Only what is sent first is one request for all of them. A refusal is that of
one part, at which the server stopped: that part hears of it, nothing else was carried out, and what is left is sent
again together. Where the reply is lost, the transaction of a part, sent once more, tells what happened to it, as the
merged one and its parts exclude each other. So does it where an error is told of all, access denied say, and is of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.protocol.ops import Op, Procedure
from airflow_provider_zkmq.engine.core.protocol.writes import Multi, Outcome
from airflow_provider_zkmq.engine.core.writing.combining import send
from airflow_provider_zkmq.engine.core.writing.fitting import Fitting, joined
from airflow_provider_zkmq.engine.errors import TransportError, ZkmqError

UNKNOWN: Final = Outcome(committed=False, unknown=True)


@dataclass(slots=True, eq=False)
class Settling:
    """A settlement that is due: it goes with the first transaction that is sent for it, or with those beside it.

    ``record``: the znode that tells its transaction from what else it may have to write before.
    """

    procedure: Procedure[Any]
    record: str
    held: Multi | None = None
    """Its transaction, which is to be sent next."""
    over: bool = False
    value: Any = None
    """What it returned."""
    error: Exception | None = None
    """Why it was not carried out, or that it is not known."""

    def hold(self) -> Procedure[None]:
        """Carry it on to where its transaction is to be sent."""
        if not (self.over or self.held):
            yield from self._go_on(lambda: next(self.procedure), hold=True)

    def answered(self, outcome: Outcome) -> Procedure[None]:
        """Its transaction was sent. One that was refused may have another one to be sent, again beside the others'."""
        refused = not (outcome.committed or outcome.unknown)
        self.held = None
        yield from self._go_on(partial(self.procedure.send, outcome), hold=refused)

    def failed(self, error: Exception) -> Procedure[None]:
        """Its transaction could not be sent, or what became of it cannot be told."""
        self.held = None
        yield from self._go_on(partial(self.procedure.throw, error))

    def _go_on(self, advance: Callable[[], Op], *, hold: bool = False) -> Procedure[None]:
        """Carry it on, to its end, or `hold` its transaction back."""
        try:
            while True:
                op = advance()
                if hold and isinstance(op, Multi) and any(each.path == self.record for each in op.ops):
                    self.held = op
                    return
                advance = yield from self._result_of(op)
        except StopIteration as stop:
            self.over, self.value = True, stop.value
        except Exception as error:  # noqa: BLE001  whose settlement it is hears of it, once all of them are over
            self.over, self.error = True, error

    def _result_of(self, op: Op) -> Procedure[Callable[[], Op]]:
        try:
            return partial(self.procedure.send, (yield op))
        except Exception as error:  # noqa: BLE001  every failure belongs to the procedure that asked
            return partial(self.procedure.throw, error)


@dataclass(slots=True, eq=False)
class Chain:
    """Settlements that are due; a claim may go with them (`send`), or they go by themselves (`finish`)."""

    settlings: Sequence[Settling]

    def finish(self, context: Context) -> Procedure[None]:
        """Carry out by themselves what has not been carried out yet. Raises nothing: see ``Settling.error``."""
        while not all(each.over for each in self.settlings):
            parts = yield from self._next(None)
            if parts:
                try:
                    yield from self._exchange(context, parts, None)
                except Exception:  # noqa: BLE001, S112  each of them has heard of it
                    continue

    def send(self, context: Context, make: Callable[[], Multi]) -> Procedure[tuple[Multi, Outcome]]:
        """Send a transaction, with what is due still; how it ended, as if it had been sent alone."""
        while True:
            mine = make()
            parts = yield from self._next(mine)
            if not parts:
                return (yield from send(context, make))
            outcome = yield from self._exchange(context, parts, mine)
            if outcome is not None:
                return mine, outcome

    def close(self) -> None:
        """Nobody goes on with them."""
        for each in self.settlings:
            each.procedure.close()

    def _next(self, mine: Multi | None) -> Procedure[list[Settling]]:
        """What is sent next, with `mine` if that is given: as much of it as goes together."""
        for each in self.settlings:
            yield from each.hold()
        fitting = Fitting([] if mine is None else [mine])
        return [each for each in self.settlings if each.held is not None and fitting.takes(each.held)]

    def _exchange(self, context: Context, parts: Sequence[Settling], mine: Multi | None) -> Procedure[Outcome | None]:
        """Send them in one transaction; what became of `mine`. None: it was not carried out, because of another one."""
        multis = [each.held for each in parts if each.held is not None]
        together = joined([*multis, *([] if mine is None else [mine])])
        try:
            _, outcome = yield from send(context, lambda: together)
        except Exception as error:
            alone = mine is None and len(parts) == 1
            if alone or isinstance(error, TransportError) or not isinstance(error, ZkmqError):
                for each in parts:
                    yield from each.failed(error)
                raise
            outcome = UNKNOWN
        at = 0
        for each, multi in zip(parts, multis, strict=True):
            share = _share(outcome, at, len(multi.ops))
            at += len(multi.ops)
            if share is not None:
                yield from each.answered(share)
        return None if mine is None else _share(outcome, at, len(mine.ops))


def _share(outcome: Outcome, first: int, count: int) -> Outcome | None:
    """What a transaction's outcome is for some of its operations; None: others were refused, and it with them."""
    if outcome.failed is None:
        return outcome
    if first <= outcome.failed < first + count:
        return replace(outcome, failed=outcome.failed - first)
    return None
