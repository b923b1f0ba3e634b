"""Group commit: several transactions of one client, sent as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from airflow_provider_zkmq.engine.core.client.context import Context, GroupMember, GroupQueue
from airflow_provider_zkmq.engine.core.protocol.ops import (
    Check,
    Multi,
    Op,
    Outcome,
    Pipeline,
    Procedure,
    Reconnect,
    Wait,
    request_size,
)
from airflow_provider_zkmq.engine.errors import TransportError, Unavailable, ZkmqError

# --- Which transactions can be sent as one: no two may change what another one touches, or one would refuse the other.

#: What is worth putting together, in bytes: a larger request keeps everybody's from being carried out meanwhile.
MOST_BYTES: Final = 256_000


class Group:
    """Transactions that go together, as they are added; the first ones are in it whatever they are."""

    def __init__(self, first: Sequence[Multi]) -> None:
        self._changed: set[str] = set()
        self._checked: set[str] = set()
        self._room = MOST_BYTES
        self._empty = True
        for multi in first:
            self._add(multi, request_size(multi.ops), *_paths(multi))

    @property
    def full(self) -> bool:
        """Whether there is room for nothing more."""
        return self._room <= 0

    def takes(self, multi: Multi) -> bool:
        """Whether it can go with the others: then it does. The first one can, however large it is."""
        size, (changed, checked) = request_size(multi.ops), _paths(multi)
        if not self._empty and size > self._room:
            return False
        if changed & (self._changed | self._checked) or checked & self._changed:
            return False
        self._add(multi, size, changed, checked)
        return True

    def _add(self, multi: Multi, size: int, changed: set[str], checked: set[str]) -> None:
        self._empty = self._empty and not multi.ops
        self._room -= size
        self._changed |= changed
        self._checked |= checked


def joined(multis: Sequence[Multi]) -> Multi:
    """Several transactions as one."""
    return multis[0] if len(multis) == 1 else Multi(tuple(op for multi in multis for op in multi.ops))


def _paths(multi: Multi) -> tuple[set[str], set[str]]:
    """What a transaction changes, and what it only checks."""
    changed = {op.path for op in multi.ops if not isinstance(op, Check)}
    return changed, {op.path for op in multi.ops if isinstance(op, Check)}


# --- Transactions of several calls of one client, sent as one: those that come while another is on its way go together.
#
# A lone call sends its own at once. Others stand in line meanwhile; the first of them then sends what has gathered,
# as one transaction of the server, and tells each what became of its part. One that is refused falls back to its
# parts, each a transaction of its own. Who is told nothing, since the call that sent its part was cut off, has a
# write of unknown outcome, like one whose reply was lost: its own transaction, sent once more, tells what happened,
# as the two exclude each other.

#: So many transactions go together at the most.
MOST: Final = 32
#: So many requests are on their way together before others stand in line.
ON_THEIR_WAY: Final = 1


def send(context: Context, make: Callable[[], Multi]) -> Procedure[tuple[Multi, Outcome]]:
    """Send a transaction, alone or together with those of other calls; how it ended, as if it had been sent alone.

    `make` is called when it is sent. Raises `Unavailable` where it was not sent.
    """
    line = context.group
    while True:
        member = GroupMember(make, context.run.new_signal())
        try:
            outcome = yield from _sent(context, line, member)
        finally:
            if member.is_leader:  # given up by statements: an interrupt that met a call would leave all others in line
                member.is_leader = False
                line.on_their_way -= 1
                _call_next(line)
        if outcome is not None:
            return member.multi, outcome


def _call_next(line: GroupQueue) -> None:
    """A request is not on its way any more: the first in line sends the next one."""
    if line.waiting and line.on_their_way < ON_THEIR_WAY:
        first = line.waiting.popleft()
        line.on_their_way += 1
        first.is_leader = True
        first.signal.fire()


def _sent(context: Context, line: GroupQueue, member: GroupMember) -> Procedure[Outcome | None]:
    """Send it, or wait until another call has; None: another call was to send it, and could not.

    Who waits although nobody is on the way was forgotten by a call that was interrupted: the next call takes it along.
    """
    if line.on_their_way < ON_THEIR_WAY:
        line.on_their_way += 1
        member.is_leader = True
        return (yield from _lead(context, line, member))
    line.waiting.append(member)
    try:
        while not (member.is_leader or member.over):
            yield Wait(member.signal, member.signal.count, turn=True)
    except BaseException as error:
        if member in line.waiting:
            line.waiting.remove(member)
        if isinstance(error, Unavailable) and member.sent is not None:
            return member.outcome or _unknown(member)
        raise
    return (yield from _lead(context, line, member)) if member.is_leader else member.outcome


def _unknown(member: GroupMember) -> Outcome:
    return Outcome(committed=False, unknown=True, sent=member.sent)


def _lead(context: Context, line: GroupQueue, mine: GroupMember) -> Procedure[Outcome]:
    """Send what stands in line together with `mine`. Nothing is taken out of the line before it can be sent."""
    parts = [mine]
    try:
        if line.waiting:
            yield Reconnect()  # who waits for a connection is told that nothing was sent
        mine.multi = mine.make()
        _join(line, parts)
        for member in parts:
            member.sent = context.run.monotonic()
        outcomes = yield from _carried_out(parts)
        for member, each in zip(parts, outcomes, strict=True):
            member.outcome = each
        return outcomes[0]
    except Unavailable:
        for member in parts:
            member.sent = None
        raise
    finally:
        line.carried -= len(parts) - 1
        for member in parts[1:]:
            _notify(member)


def _carried_out(parts: Sequence[GroupMember]) -> Procedure[list[Outcome]]:
    """How each ended. An error that is told of all, access denied say, is of one: each finds out by its own."""
    try:
        outcome: Outcome = yield _together(parts)
        if len(parts) > 1 and outcome.failed is not None:
            outcomes: list[Outcome] = yield Pipeline(tuple(member.multi for member in parts))
            return outcomes
    except TransportError:
        raise
    except ZkmqError:
        if len(parts) == 1:
            raise
        return [_unknown(member) for member in parts]
    return [outcome] * len(parts)


def _notify(member: GroupMember) -> None:
    """Let the call go on whose part it was; cut off, what was sent is of unknown outcome."""
    if member.outcome is None and member.sent is not None:
        member.outcome = _unknown(member)
    member.over = True
    member.signal.fire()


def _together(parts: Sequence[GroupMember]) -> Multi:
    return joined([member.multi for member in parts])


def _join(line: GroupQueue, parts: list[GroupMember]) -> None:
    """Add what goes with the first; what does not waits for a later one."""
    if not line.waiting:
        return
    together = Group([parts[0].multi])
    for member in list(line.waiting):
        if len(parts) >= MOST or together.full:
            break
        member.multi = member.make()
        if together.takes(member.multi):
            line.waiting.remove(member)
            parts.append(member)
            line.carried += 1


# --- Settlements that go together, and with the claim that follows them, in one transaction.
#
# Several procedures are carried out side by side, each as if it was alone: each has its own transaction, resolves
# its own lost reply and explains its own refusal. Only what is sent first is one request for all of them. A refusal
# is that of one part, at which the server stopped: that part hears of it, nothing else was carried out, and what is
# left is sent again together. Where the reply is lost, the transaction of a part, sent once more, tells what
# happened to it, as the merged one and its parts exclude each other. So does it where an error is told of all,
# access denied say, and is of one.

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
        together = Group([] if mine is None else [mine])
        return [each for each in self.settlings if each.held is not None and together.takes(each.held)]

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
