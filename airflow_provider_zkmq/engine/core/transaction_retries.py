"""Transactions tried again: after a lost reply, until the outcome is known; after a refusal, while that gets on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from ..errors import CorruptRecord, OutcomeUnknown, SessionLost, Unavailable, ZkmqError
from . import zk_operations as zk
from .model.records import TaskState
from .zk_operations import Procedure

# --- Writes whose outcome is never guessed.
#
# A transaction whose reply was lost may have been carried out, may be on its way, or may be lost. Reading alone
# cannot tell, since a delayed request can commit after the read. So the same conditional transaction is issued
# again: whichever of the two commits first makes the other one fail, and the nonce in what was written tells
# whose it was.


@dataclass(frozen=True, slots=True)
class Holds:
    """A znode that the transaction writes holds its mark. Of several, one tells of all.

    The outcome's time and number are those of the transaction that created the znode.
    """

    marks: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Gone:
    """A znode that the transaction deletes is not there."""

    path: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """A task's record, or the name of its entry, has the mark. ``settled``: the marks that the record had before."""

    path: str
    task_id: str
    mark: str
    settled: tuple[str, ...] | None = None


#: What shows that a transaction was carried out.
Proof: TypeAlias = Holds | Gone | Recorded


def proven(proof: Proof | None) -> Procedure[zk.Outcome | None]:
    """The outcome of a transaction that was carried out, or None where nothing shows that it was.

    Raises `OutcomeUnknown` for a collected task, and where its record has had so many marks since then that it may have
    dropped this one.
    """
    match proof:
        case Holds(marks):
            nodes: list[zk.Node | None] = yield zk.GetMany(tuple(path for path, _ in marks))
            for (_, mark), node in zip(marks, nodes, strict=True):
                if node is not None and mark in node.data:
                    return zk.Outcome(committed=True, time=node.stat.ctime, zxid=node.stat.czxid)
        case Gone(path):
            if (yield zk.Exists(path)) is None:
                return zk.Outcome(committed=True)
        case Recorded(path, task_id, mark, settled):
            record: zk.Node | None = yield zk.Get(path)
            if record is None:
                msg = f"task {task_id!r} was changed or not, and has been collected meanwhile"
                raise OutcomeUnknown(msg, final=True)
            state = TaskState.decode(path, record.data)
            if mark in state.settled or state.entry.startswith(mark):
                return zk.Outcome(committed=True)
            if settled is not None and state.may_have_dropped(settled[-1:]):
                msg = f"whether task {task_id!r} was changed cannot be told any more: others have changed it since"
                raise OutcomeUnknown(msg, final=True)
    return None


#: How often a write of unknown outcome is issued again before the caller is told that it is not known.
TRIES: Final = 10


def transact(multi: zk.Multi | zk.CreateContainer, proof: Proof | None = None) -> Procedure[zk.Outcome]:
    """Carry out `multi` and know its outcome.

    `proof` is looked for when a re-issued transaction was refused: the first try was carried out, or the refusal is
    another's doing. None: a refusal is taken as it is. Raises `Unavailable` where nothing was sent, and
    `OutcomeUnknown` when the connection does not come back in time, or is lost again and again: once something was
    sent, nothing else tells that it may have been written.
    """
    outcome: zk.Outcome = yield multi
    return (yield from resolved(multi, outcome, proof))


def resolved(multi: zk.Multi | zk.CreateContainer, outcome: zk.Outcome, proof: Proof | None) -> Procedure[zk.Outcome]:
    """What became of a transaction that was sent: its outcome; an unknown one is found out as by `transact`."""
    if not outcome.unknown:
        return outcome
    unknown, sent = "a write was sent and its outcome is not known", outcome.sent
    try:
        for _ in range(TRIES):
            yield zk.Reconnect(sent)  # its caller waits no longer for it than for any other operation
            outcome = yield multi
            if outcome.committed:
                return outcome
            if not outcome.unknown:
                mine = yield from proven(proof)
                return mine or outcome
    except (Unavailable, SessionLost) as error:
        raise OutcomeUnknown(f"{unknown}: {error}") from error
    raise OutcomeUnknown(f"{unknown}: the connection was lost each time that its outcome was asked for")


def refused(what: str, outcome: zk.Outcome, multi: zk.Multi) -> ZkmqError:
    """The error for a refusal that no procedure expects."""
    where = "" if outcome.failed is None else f" at {failed_at(outcome, multi)}"
    reason = outcome.failure.value if outcome.failure else "refused"
    return ZkmqError(f"{what} was refused{where}: {outcome.detail or reason}")


def failed_at(outcome: zk.Outcome, multi: zk.Multi) -> str:
    """The path at which a transaction was refused."""
    return "" if outcome.failed is None else multi.ops[outcome.failed].path


def ensure_bucket(path: str) -> Procedure[None]:
    """Create a bucket of an index unless it exists; the server clears it away once it has been emptied."""
    outcome = yield from transact(zk.CreateContainer(path))
    if not outcome.committed and outcome.failure is not zk.Failure.NODE_EXISTS:
        yield from ensure_node(path)  # a server older than 3.5.3 knows no containers: clean-up deletes it there


def ensure_node(path: str, data: bytes = b"") -> Procedure[None]:
    """Create one persistent znode unless it exists; its parent must exist."""
    multi = zk.Multi((zk.Create(path, data),))
    outcome = yield from transact(multi)
    if not outcome.committed and outcome.failure is not zk.Failure.NODE_EXISTS:
        raise refused("creating a znode", outcome, multi)


# --- Bounding what is tried again: a refusal makes sense of another try only where something has changed.

_WHY: Final = {
    zk.Failure.NO_NODE: "is missing",
    zk.Failure.NODE_EXISTS: "stands where nothing should",
    zk.Failure.NOT_EMPTY: "holds znodes that are not ours",
    zk.Failure.BAD_VERSION: "does not have the version that is read of it",
}


class Tries:
    """The tries of one call at one thing: what was refused is tried again while that gets on, three times where not."""

    def __init__(self, what: object) -> None:
        self._what, self._equal = what, 0
        self._last: object = None

    def refused(self, outcome: zk.Outcome, multi: zk.Multi, sign: object) -> Procedure[None]:
        """Go on to another try. `sign` tells what was read before this one: a record's transaction, say; None: nothing.

        The same refusal for the same sign may come from a server that lags behind, so it is asked to catch up; once
        more, and it is no race: `CorruptRecord` names the path. Raises `ZkmqError` for a refusal nobody expects.
        """
        if outcome.failure not in _WHY:
            raise refused(str(self._what), outcome, multi)
        op = None if outcome.failed is None else multi.ops[outcome.failed]
        # What was refused: its kind, its path and the version that it asked for, which changes where others get on.
        now = (sign, type(op), failed_at(outcome, multi), getattr(op, "version", None), outcome.failure)
        self._equal = self._equal + 1 if now == self._last else 0
        self._last = now
        if self._equal == 1:
            yield zk.Sync(failed_at(outcome, multi))
        elif self._equal > 1:
            raise damaged(str(self._what), outcome, multi)


def damaged(what: str, outcome: zk.Outcome, multi: zk.Multi) -> CorruptRecord:
    """The error for a task whose tree is not as its record says."""
    return CorruptRecord(f"{what} was refused, nothing was changed: {described(outcome, multi)}")


def described(outcome: zk.Outcome, multi: zk.Multi) -> str:
    """Where a refusal happened, and what is the matter there."""
    why = None if outcome.failure is None else _WHY.get(outcome.failure)
    return f"{failed_at(outcome, multi)} {why or outcome.detail or 'is not as its record says'}"
