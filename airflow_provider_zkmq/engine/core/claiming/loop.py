"""A loop over claims: what its body did not settle is completed when it comes back, with the claim of the next one.

Both are one transaction, and the candidates are read ahead, several at once. Where nothing is to be claimed, the
settlement is sent by itself before anything is waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from airflow_provider_zkmq.engine.core.claiming.claim import claim_many
from airflow_provider_zkmq.engine.core.claiming.take import Series, Wanted
from airflow_provider_zkmq.engine.core.memory.claims import Caller, Claimed, Owed
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.core.reading.existence import unless_missing
from airflow_provider_zkmq.engine.core.tasks.beginning import begin
from airflow_provider_zkmq.engine.core.tasks.settle import complete, fail, release
from airflow_provider_zkmq.engine.core.writing.chaining import Chain
from airflow_provider_zkmq.engine.errors import ClaimLost

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
    back: bool = False
    """The body has come back with what is in hand: that has been handled, and is completed also if the loop is left."""
    ready: list[Claimed] = field(default_factory=list)
    series: Series = field(default_factory=Series)

    def leave(self) -> None:
        """Nobody comes back: the client settles what is left, before its next claim or in the background."""
        hand, ready, owed = self.hand, self.ready, self.context.claims.owed
        self.hand, self.ready = None, []
        if hand is not None and not hand.lost:
            owed[hand.task_id, hand.token] = Owed(hand, self._completed if self.back else _failed)
        for claimed in ready:
            if not claimed.lost:
                owed[claimed.task_id, claimed.token] = Owed(claimed, _released)
        if owed:
            self.context.run.pay()

    def _completed(self, context: Context, claimed: Claimed) -> Procedure[None]:
        return complete(context, claimed, self.result)


def _failed(context: Context, claimed: Claimed) -> Procedure[None]:
    yield from fail(context, claimed, LEFT)


def _released(context: Context, claimed: Claimed) -> Procedure[None]:
    return release(context, claimed)


def go_on(loop: Loop, caller: Caller) -> Procedure[bool]:
    """Settle what is in hand, and have the next one ready; False: none came in time.

    Raises what either of the two does; called again, it goes on from there. Where `caller` has left, nothing is
    claimed any more.
    """
    yield from _settle(loop, caller)
    while not (yield from _begin(loop)):
        if not (yield from _claim(loop, caller)):
            return False
    return True


def _settle(loop: Loop, caller: Caller) -> Procedure[None]:
    """Complete what the body left unsettled, with the next claim unless that is there already."""
    hand = loop.hand
    if hand is None or hand.told:
        loop.hand = None
        return
    loop.back = True
    try:
        settlement = complete(loop.context, hand, loop.result)
        if loop.ready or hand.lost:
            yield from settlement
        else:
            yield from _chained(loop, caller, Chain(settlement, loop.context.paths.task(hand.task_id, "state")), hand)
    finally:
        if hand.lost:
            loop.hand = None


def _chained(loop: Loop, caller: Caller, chain: Chain, hand: Claimed) -> Procedure[None]:
    """Settle and claim in one transaction; what cannot be claimed keeps nothing from being settled."""
    failure: Exception | None = None
    hand.chained, loop.series.chain = True, chain
    try:
        try:
            yield from _claim(loop, caller)
        except Exception as error:  # noqa: BLE001  raised below, unless the settlement failed as well
            failure = error
        yield from chain.finish()
    finally:
        chain.settlement.close()
        hand.chained, loop.series.chain = False, None
    if chain.error is not None:
        raise chain.error from failure
    if failure is not None:
        raise failure


def _claim(loop: Loop, caller: Caller) -> Procedure[bool]:
    """Wait for the next ones; whether there are any. They are the loop's from then on."""
    context = loop.context

    def stops() -> bool:
        return caller.left or loop.stopping()

    if loop.wanted is None:
        loop.wanted = yield from loop.wanting()
    while True:
        span = LONG if loop.timeout is None else loop.timeout
        asking = claim_many(context, loop.wanted, loop.most, span, stops, caller, loop.series)
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
        first = loop.ready[0]
        try:
            yield from begin(loop.context, first)
        except ClaimLost:
            loop.ready = loop.ready[1:]
            for claimed in loop.ready:
                claimed.sent = None  # whatever took the one may have taken these: each of them is to ask, and wait
            continue
        if len(loop.ready) > 1:
            first.following = loop.ready[1]
        return True
    return False
