"""Transactions of several calls of one client, sent as one: those that come while another is on its way go together.

A lone call sends its own at once. Others stand in line meanwhile; the first of them then sends what has gathered, as
one transaction of the server, and tells each what became of its part. One that is refused falls back to its parts, each
a transaction of its own. Who is told nothing, since the call that sent its part was cut off, has a write of unknown
outcome, like one whose reply was lost: its own transaction, sent once more, tells what happened, as the two exclude
each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.memory.line import Line, Part
from airflow_provider_zkmq.engine.core.protocol.ops import Pipeline, Procedure, Reconnect, Wait
from airflow_provider_zkmq.engine.core.protocol.writes import Multi, Outcome
from airflow_provider_zkmq.engine.core.writing.fitting import Fitting, joined
from airflow_provider_zkmq.engine.errors import TransportError, Unavailable, ZkmqError

#: So many transactions go together at the most.
MOST: Final = 32
#: So many requests are on their way together before others stand in line.
ON_THEIR_WAY: Final = 1


def send(context: Context, make: Callable[[], Multi]) -> Procedure[tuple[Multi, Outcome]]:
    """Send a transaction, alone or together with those of other calls; how it ended, as if it had been sent alone.

    `make` is called when it is sent. Raises `Unavailable` where it was not sent.
    """
    line = context.line
    while True:
        part = Part(make, context.run.new_signal())
        try:
            outcome = yield from _sent(context, line, part)
        finally:
            if part.leads:  # given up by statements: an interrupt that met a call would leave all others in line
                part.leads = False
                line.on_their_way -= 1
                _call_next(line)
        if outcome is not None:
            return part.multi, outcome


def _call_next(line: Line) -> None:
    """A request is not on its way any more: the first in line sends the next one."""
    if line.waiting and line.on_their_way < ON_THEIR_WAY:
        first = line.waiting.popleft()
        line.on_their_way += 1
        first.leads = True
        first.signal.fire()


def _sent(context: Context, line: Line, part: Part) -> Procedure[Outcome | None]:
    """Send it, or wait until another call has; None: another call was to send it, and could not.

    Who waits although nobody is on the way was forgotten by a call that was interrupted: the next call takes it along.
    """
    if line.on_their_way < ON_THEIR_WAY:
        line.on_their_way += 1
        part.leads = True
        return (yield from _lead(context, line, part))
    line.waiting.append(part)
    try:
        while not (part.leads or part.over):
            yield Wait(part.signal, part.signal.count, turn=True)
    except BaseException as error:
        if part in line.waiting:
            line.waiting.remove(part)
        if isinstance(error, Unavailable) and part.sent is not None:
            return part.outcome or _unknown(part)
        raise
    return (yield from _lead(context, line, part)) if part.leads else part.outcome


def _unknown(part: Part) -> Outcome:
    return Outcome(committed=False, unknown=True, sent=part.sent)


def _lead(context: Context, line: Line, mine: Part) -> Procedure[Outcome]:
    """Send what stands in line together with `mine`. Nothing is taken out of the line before it can be sent."""
    parts = [mine]
    try:
        if line.waiting:
            yield Reconnect()  # who waits for a connection is told that nothing was sent
        mine.multi = mine.make()
        _join(line, parts)
        for part in parts:
            part.sent = context.run.monotonic()
        outcomes = yield from _carried_out(parts)
        for part, each in zip(parts, outcomes, strict=True):
            part.outcome = each
        return outcomes[0]
    except Unavailable:
        for part in parts:
            part.sent = None
        raise
    finally:
        line.carried -= len(parts) - 1
        for part in parts[1:]:
            _tell(part)


def _carried_out(parts: Sequence[Part]) -> Procedure[list[Outcome]]:
    """How each ended. An error that is told of all, access denied say, is of one: each finds out by its own."""
    try:
        outcome: Outcome = yield _together(parts)
        if len(parts) > 1 and outcome.failed is not None:
            outcomes: list[Outcome] = yield Pipeline(tuple(part.multi for part in parts))
            return outcomes
    except TransportError:
        raise
    except ZkmqError:
        if len(parts) == 1:
            raise
        return [_unknown(part) for part in parts]
    return [outcome] * len(parts)


def _tell(part: Part) -> None:
    """Let the call go on whose part it was; cut off, what was sent is of unknown outcome."""
    if part.outcome is None and part.sent is not None:
        part.outcome = _unknown(part)
    part.over = True
    part.signal.fire()


def _together(parts: Sequence[Part]) -> Multi:
    return joined([part.multi for part in parts])


def _join(line: Line, parts: list[Part]) -> None:
    """Add what goes with the first; what does not waits for a later one."""
    if not line.waiting:
        return
    fitting = Fitting([parts[0].multi])
    for part in list(line.waiting):
        if len(parts) >= MOST or fitting.full:
            break
        part.multi = part.make()
        if fitting.takes(part.multi):
            line.waiting.remove(part)
            parts.append(part)
            line.carried += 1
