"""A loop over claims: what its body did not settle is completed with the claim of the next ones, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from ...errors import ClaimLost, Unavailable, ZkmqError
from .. import client_state
from ..client_state import Claimed, Context
from ..maintenance.due_work import give_back
from ..model.filters import FilterMethods, Selector
from ..model.handler_outcomes import Success
from ..model.values import MOST_AT_ONCE, Duration, optional_seconds, whole_number
from ..read.queue_existence import unless_missing
from ..tasks import settle
from ..tasks.settle_by_outcome import Settlement, settle_by_outcome
from ..zk_operations import Procedure, Wait
from . import claim, take

# Both are one transaction, and the candidates are read ahead, several at once. Where several are claimed together,
# they are completed together, too (`core.tasks.settle`). Where nothing is to be claimed, what was
# handled is settled before anything is waited for.

#: Who waits without a bound looks again after so many seconds, whether anything was heard of or not.
LONG: Final = 600.0
LEFT: Final = "its loop was left before it was settled"


@dataclass(slots=True, eq=False)
class Loop:
    """What one loop asks for, what its body has in hand, and what was claimed and not handed out yet."""

    context: Context
    wanting: Callable[[], Procedure[take.Wanted]]
    most: int
    timeout: float | None
    stopping: Callable[[], bool]
    wanted: take.Wanted | None = None
    current: Claimed | None = None
    """Set by the API, by a statement, together with taking it off ``ready``."""
    result: bytes | str | None = None
    """What the body has left as the result of what it has in hand."""
    ready: list[Claimed] = field(default_factory=list)
    handled: dict[tuple[str, int], client_state.DeferredCompletion] = field(default_factory=dict)
    """What the body came back with, and whose completion is not known to have been carried out, by task and token."""
    errors: list[Exception] = field(default_factory=list)
    """What became of other completions; each is raised by a step."""
    read_ahead: client_state.ReadAhead = field(default_factory=client_state.ReadAhead)
    left: bool = False
    """Nobody comes back: what is not completed is reported."""

    def leave(self) -> None:
        """Nobody comes back: what is in hand fails, what is ready is given back, before the next claim or soon."""
        self.left = True
        current, ready, unsettled = self.current, self.ready, self.context.claims.unsettled
        self.current, self.ready = None, []
        key = ("", 0) if current is None else (current.task_id, current.token)
        if current is not None and not current.lost and key not in self.context.claims.deferred:
            unsettled[key] = client_state.UnsettledClaim(current, partial(settle.fail, error=LEFT))
        for claimed in ready:
            if not claimed.lost:
                unsettled[claimed.task_id, claimed.token] = client_state.UnsettledClaim(claimed, settle.release)
        if unsettled or self.context.claims.deferred:
            self.context.run.finish_later()


def wind_up(loop: Loop) -> Procedure[None]:
    """Settle what a loop that was left has left behind. After a `TransportError` that is done in the background."""
    yield from settle.settle_deferred(loop.context)
    yield from give_back(loop.context)


def go_on(loop: Loop, caller: client_state.Caller) -> Procedure[bool]:
    """Settle what is in hand, and have the next one ready; False: none came in time.

    Raises what either of the two does; called again, it goes on from there. Where `caller` has left, nothing is
    claimed any more.
    """
    context, current = loop.context, loop.current
    if current is not None and not current.reported:  # the completion of what the body left unsettled is deferred
        current.handled = current.handled or context.run.monotonic()
        outcome, progress = Success(settle.checked_result(current, loop.result)), Settlement()
        settling = partial(settle_by_outcome, context, current, outcome, progress)
        completion = settle.settle_later(context, current, settling, partial(_completed, loop, current, progress))
        loop.handled[current.task_id, current.token] = completion
    loop.current = None
    while True:
        if loop.errors:
            raise loop.errors.pop(0)
        if (yield from _begin(loop)):
            return True
        if (yield from _claim_for_loop(loop, caller)) or loop.errors:
            continue
        while loop.handled:  # nothing more comes: the loop ends when all that it handled is settled
            yield from settle.settle_deferred(context)
            seen = context.settled.count  # after its own signal: else a loop whose time is over would not sleep
            left = next((each for each in loop.handled.values() if each.waits), None)
            if left is not None:
                raise left.error or Unavailable("what was handled is not settled yet")
            if loop.handled:  # another call of this client has it
                yield Wait(context.settled, seen, turn=True)
        if not loop.errors:
            return False


def _completed(loop: Loop, claimed: Claimed, progress: Settlement, success: object, error: Exception | None) -> None:
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


def _begin(loop: Loop) -> Procedure[bool]:
    """Have the first of what was prefetched begin; what was taken away meanwhile is passed over."""
    while loop.ready:
        try:
            yield from settle.begin(loop.context, loop.ready[0])
        except ClaimLost:
            loop.ready = loop.ready[1:]
            for claimed in loop.ready:
                claimed.sent = None  # whatever took the one may have taken these: each of them is to ask, and wait
        else:
            return True
    return False


def _claim_for_loop(loop: Loop, caller: client_state.Caller) -> Procedure[bool]:
    """Wait for the next ones; whether there are any. They are the loop's from then on."""
    context = loop.context

    def stops() -> bool:
        return caller.left or loop.stopping()

    if loop.wanted is None:
        loop.wanted = yield from loop.wanting()
    while True:
        span = LONG if loop.timeout is None else loop.timeout
        claiming = claim.claim_many(
            context, loop.wanted, loop.most, span, caller, stopping=stops, read_ahead=loop.read_ahead
        )
        claims = yield from unless_missing(context, claiming)
        if caller.left and claims:
            context.run.finish_later()
            return False
        if claims:
            loop.ready = [*loop.ready, *claims]
            context.claims.deliver(claims[0])
        if claims or loop.timeout is not None or stops():
            return bool(claims)


def request_loop(
    context: Context,
    node: Mapping[str, object] | None = None,
    filter_method: FilterMethods = "absolute",
    *,
    selector: Selector | str | None = None,
    timeout: Duration | None = None,
    lease: Duration | None = None,
    prefetch: int = 1,
    stopping: Callable[[], bool] = client_state.never_stopping,
) -> Loop:
    """Loop over the tasks that fit, one after the other: ``for claim in q.claims():``.

    What the body has not settled when the loop comes back is completed, with ``claim.result``, which the body may set;
    the next one is claimed in the same transaction. The loop ends when nothing came for `timeout` seconds (None: it
    waits for ever; 0: it ends when the queue is empty), or when `stopping` says so. `prefetch`: so many are claimed
    together (1 to 64), which costs less; all but the first are prefetched, and count no attempt before they begin.
    What is handled then is completed with the claim of the next ones, or after 50 ms. For bodies that are done fast:
    nobody extends what waits.

    A loop that is left early, or closed, fails what its body has in hand, gives back uncounted what it has prefetched,
    and completes what was handled. A completion that is refused is raised by the step that finds out (`ClaimLost`,
    say); a loop that is still referred to goes on after that. Of a loop that was left it is logged. One loop is for one
    thread. The other arguments are `claim`'s. Raises `ConfigError`; each step raises what `claim` and `Claim.complete`
    do.
    """
    most, span = whole_number("prefetch", prefetch, 1, MOST_AT_ONCE), optional_seconds("timeout", timeout)

    def wanting() -> Procedure[take.Wanted]:
        request = yield from unless_missing(context, claim.wanted(context, node, filter_method, selector, lease))
        return replace(request, prefetch=most > 1)

    return Loop(context, wanting, most, span, stopping)
