"""A loop over claims: what its body did not settle is completed when it comes back, with the claim of the next ones.

Both are one transaction, and the candidates are read ahead, several at once. Where several are claimed together, they
are completed together, too (`core.tasks.departing`). Where nothing is to be claimed, what was handled is settled before
anything is waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from airflow_provider_zkmq.engine.core.claiming.claim import claim_many
from airflow_provider_zkmq.engine.core.claiming.take import Wanted
from airflow_provider_zkmq.engine.core.memory.claims import Caller, Claimed, Leaving, Owed
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.memory.readahead import ReadAhead
from airflow_provider_zkmq.engine.core.model.outcomes import Success
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure, Signal, Wait
from airflow_provider_zkmq.engine.core.reading.existence import unless_missing
from airflow_provider_zkmq.engine.core.tasks.beginning import begin
from airflow_provider_zkmq.engine.core.tasks.departing import settle_later, settle_leaving
from airflow_provider_zkmq.engine.core.tasks.giveback import give_back
from airflow_provider_zkmq.engine.core.tasks.outcome import Settlement, settle_by_outcome
from airflow_provider_zkmq.engine.core.tasks.settle import checked_result, fail, release
from airflow_provider_zkmq.engine.errors import ClaimLost, Unavailable, ZkmqError

#: Who waits without a bound looks again after so many seconds, whether anything was heard of or not.
LONG: Final = 600.0
LEFT: Final = "its loop was left before it was settled"


@dataclass(slots=True, eq=False)
class Loop:
    """What one loop asks for, what its body has in hand, and what was claimed and not handed out yet.

    ``hand`` is set by the front, by a statement, together with taking it off ``ready``.
    """

    context: Context
    wanting: Callable[[], Procedure[Wanted]]
    most: int
    timeout: float | None
    stopping: Callable[[], bool]
    wanted: Wanted | None = None
    hand: Claimed | None = None
    result: bytes | str | None = None
    """What the body has left as the result of what it has in hand."""
    ready: list[Claimed] = field(default_factory=list)
    handled: dict[tuple[str, int], Leaving] = field(default_factory=dict)
    """What the body came back with, and whose completion is not known to have been carried out, by task and token."""
    errors: list[Exception] = field(default_factory=list)
    """What became of other completions; each is raised by a step."""
    read_ahead: ReadAhead = field(default_factory=ReadAhead)
    left: bool = False
    """Nobody comes back: what is not completed is reported."""
    news: Signal = field(init=False)
    """Fired when one of the completions has been carried out."""

    def __post_init__(self) -> None:
        self.news = self.context.run.new_signal()

    def leave(self) -> None:
        """Nobody comes back: what is in hand fails, what is ready is given back, before the next claim or soon."""
        self.left = True
        hand, ready, owed = self.hand, self.ready, self.context.claims.owed
        self.hand, self.ready = None, []
        if hand is not None and not hand.lost and (hand.task_id, hand.token) not in self.context.claims.leaving:
            owed[hand.task_id, hand.token] = Owed(hand, _failed)
        for claimed in ready:
            if not claimed.lost:
                owed[claimed.task_id, claimed.token] = Owed(claimed, _released)
        if owed or self.context.claims.leaving:
            self.context.run.pay()


def wind_up(loop: Loop) -> Procedure[None]:
    """Settle what a loop that was left has left behind. After a `TransportError` that is done in the background."""
    yield from settle_leaving(loop.context)
    yield from give_back(loop.context)


def _failed(context: Context, claimed: Claimed) -> Procedure[None]:
    yield from fail(context, claimed, LEFT)


def _released(context: Context, claimed: Claimed) -> Procedure[None]:
    return release(context, claimed)


def go_on(loop: Loop, caller: Caller) -> Procedure[bool]:
    """Settle what is in hand, and have the next one ready; False: none came in time.

    Raises what either of the two does; called again, it goes on from there. Where `caller` has left, nothing is
    claimed any more.
    """
    _come_back(loop)
    while True:
        _raise_errors(loop)
        if (yield from _begin(loop)):
            return True
        more = yield from _claim(loop, caller)
        if not more and not loop.errors:
            yield from _see_off(loop)
            _raise_errors(loop)
            return False


def _come_back(loop: Loop) -> None:
    """What the body left unsettled is put down, to go with the next claim. Raises what refuses its result."""
    hand = loop.hand
    if hand is not None and not hand.told:
        hand.handled = hand.handled or loop.context.run.monotonic()
        outcome, progress = Success(checked_result(hand, loop.result)), Settlement()
        settle = partial(settle_by_outcome, loop.context, hand, outcome, progress)
        leaving = settle_later(loop.context, hand, settle, partial(_told, loop, hand, progress))
        loop.handled[hand.task_id, hand.token] = leaving
    loop.hand = None


def _told(loop: Loop, claimed: Claimed, progress: Settlement, success: object, error: Exception | None) -> None:
    """What was handled is settled. What could not be completed has failed instead, for a reason that is told."""
    instead = None if success else getattr(progress.outcome, "error", None)
    if error is None and instead is not None:
        error = instead if isinstance(instead, Exception) else ZkmqError(str(instead))
    if error is not None and loop.left:
        path = loop.context.paths.task(claimed.task_id)
        loop.context.run.report(path, f"its loop was left, and it could not be completed: {error}")
    elif error is not None:
        loop.errors.append(error)
    loop.handled.pop((claimed.task_id, claimed.token), None)
    loop.news.fire()


def _raise_errors(loop: Loop) -> None:
    if loop.errors:
        raise loop.errors.pop(0)


def _claim(loop: Loop, caller: Caller) -> Procedure[bool]:
    """Wait for the next ones; whether there are any. They are the loop's from then on."""
    context = loop.context

    def stops() -> bool:
        return caller.left or loop.stopping()

    if loop.wanted is None:
        loop.wanted = yield from loop.wanting()
    while True:
        span = LONG if loop.timeout is None else loop.timeout
        asking = claim_many(context, loop.wanted, loop.most, span, stops, caller, loop.read_ahead)
        claims = yield from unless_missing(context, asking)
        if caller.left and claims:
            context.run.pay()
            return False
        if claims:
            loop.ready = [*loop.ready, *claims]
            context.claims.deliver(claims[0])
        if claims or loop.timeout is not None or stops():
            return bool(claims)


def _begin(loop: Loop) -> Procedure[bool]:
    """Have the first of what was taken ahead begin; what was taken away meanwhile is passed over."""
    while loop.ready:
        try:
            yield from begin(loop.context, loop.ready[0])
        except ClaimLost:
            loop.ready = loop.ready[1:]
            for claimed in loop.ready:
                claimed.sent = None  # whatever took the one may have taken these: each of them is to ask, and wait
        else:
            return True
    return False


def _see_off(loop: Loop) -> Procedure[None]:
    """Nothing more comes: the loop ends when all that it handled is settled. Raises `TransportError`."""
    context = loop.context
    while loop.handled:
        seen = loop.news.count
        yield from settle_leaving(context)
        left = next((each for each in loop.handled.values() if each.waits), None)
        if left is not None:
            raise left.error or Unavailable("what was handled is not settled yet")
        if loop.handled:  # another call of this client has it
            yield Wait(loop.news, seen, turn=True)
