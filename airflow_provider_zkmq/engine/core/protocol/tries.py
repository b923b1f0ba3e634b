"""Bounding what is tried again: a refusal makes sense of another try only where something has changed."""

from __future__ import annotations

from typing import Final

from airflow_provider_zkmq.engine.core.protocol.ops import Procedure, Sync
from airflow_provider_zkmq.engine.core.protocol.transact import failed_at, refused
from airflow_provider_zkmq.engine.core.protocol.writes import Failure, Multi, Outcome
from airflow_provider_zkmq.engine.errors import CorruptRecord

_WHY: Final = {
    Failure.NO_NODE: "is missing",
    Failure.NODE_EXISTS: "stands where nothing should",
    Failure.NOT_EMPTY: "holds znodes that are not ours",
    Failure.BAD_VERSION: "does not have the version that is read of it",
}


class Tries:
    """The tries of one call at one thing: what was refused is tried again while that gets on, three times where not."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._last: object = None
        self._equal = 0

    def refused(self, outcome: Outcome, multi: Multi, sign: object) -> Procedure[None]:
        """Go on to another try. `sign` tells what was read before this one: a record's transaction, say; None: nothing.

        The same refusal for the same sign may come from a server that lags behind, so it is asked to catch up; once
        more, and it is no race: `CorruptRecord` names the path. Raises `ZkmqError` for a refusal nobody expects.
        """
        if outcome.failure not in _WHY:
            raise refused(self._what, outcome, multi)
        now = (sign, _refused_op(outcome, multi), outcome.failure)
        self._equal = self._equal + 1 if now == self._last else 0
        self._last = now
        if self._equal == 1:
            yield Sync(failed_at(outcome, multi))
        elif self._equal > 1:
            raise damaged(self._what, outcome, multi)


def _refused_op(outcome: Outcome, multi: Multi) -> object:
    """What was refused: its kind, its path and the version that it asked for, which changes where others get on."""
    if outcome.failed is None:
        return None
    op = multi.ops[outcome.failed]
    return type(op), op.path, getattr(op, "version", None)


def damaged(what: str, outcome: Outcome, multi: Multi) -> CorruptRecord:
    """The error for a task whose tree is not as its record says."""
    return CorruptRecord(f"{what} was refused, nothing was changed: {described(outcome, multi)}")


def described(outcome: Outcome, multi: Multi) -> str:
    """Where a refusal happened, and what is the matter there."""
    why = None if outcome.failure is None else _WHY.get(outcome.failure)
    return f"{failed_at(outcome, multi)} {why or outcome.detail or 'is not as its record says'}"
