"""Bounding what is tried again: a refusal makes sense of another try only where something has changed."""

from __future__ import annotations

from typing import Final

from airflow_provider_zkmq.engine.core.protocol.ops import Procedure, Sync
from airflow_provider_zkmq.engine.core.protocol.transact import failed_at, refused
from airflow_provider_zkmq.engine.core.protocol.writes import Failure, Multi, Outcome
from airflow_provider_zkmq.engine.errors import CorruptRecord

#: Refusals of one transaction in the same way, one after the other, that may still be races with other clients.
MAX_EQUAL: Final = 20
_WHY: Final = {
    Failure.NO_NODE: "is missing",
    Failure.NODE_EXISTS: "stands where nothing should",
    Failure.NOT_EMPTY: "holds znodes that are not ours",
    Failure.BAD_VERSION: "does not have the version that is read of it",
}


class Tries:
    """The tries of one call at one task. What was refused is tried again while its record changes."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._last: object = None
        self._equal = 0

    def refused(self, outcome: Outcome, multi: Multi, sign: object) -> Procedure[None]:
        """Go on to another try. `sign` tells what was read before this one: a record's transaction, say.

        The same refusal for the same sign may come from a server that lags behind, so it is asked to catch up; once
        more, and it is no race: `CorruptRecord` names the path. Raises `ZkmqError` for a refusal nobody expects.
        """
        if outcome.failure not in _WHY:
            raise refused(self._what, outcome, multi)
        path = failed_at(outcome, multi)
        now = (sign, path, outcome.failure)
        self._equal = self._equal + 1 if now == self._last else 0
        self._last = now
        if self._equal == 1:
            yield Sync(path)
        elif self._equal > 1:
            raise damaged(self._what, outcome, multi)


def damaged(what: str, outcome: Outcome, multi: Multi) -> CorruptRecord:
    """The error for a task whose tree is not as its record says."""
    why = _WHY.get(outcome.failure, "is not as its record says") if outcome.failure else "is not as its record says"
    return CorruptRecord(f"{what} was refused, nothing was changed: {failed_at(outcome, multi)} {why}")


class Races:
    """Counts refusals in a row that look the same; `lost` once they are too many for chance."""

    def __init__(self) -> None:
        self._last: object = None
        self._equal = 0

    def lost(self, outcome: Outcome, multi: Multi) -> bool:
        """Note a refusal; True if the same one has come again and again."""
        now = (failed_at(outcome, multi), outcome.failure)
        self._equal = self._equal + 1 if now == self._last else 0
        self._last = now
        return self._equal >= MAX_EQUAL
