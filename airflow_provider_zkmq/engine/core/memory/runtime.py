"""What a driver lends to procedures: time, chance, the session; all of it replaced in tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_zkmq.engine.core.protocol.ops import Signal


@dataclass(slots=True, eq=False)
class Runtime:
    """Functions that a driver provides. None of them waits; none but `new_signal` remembers anything."""

    monotonic: Callable[[], float]
    wall_ms: Callable[[], int]
    random: Callable[[], float]
    new_signal: Callable[[], Signal]
    session: Callable[[], int]
    report: Callable[[str, str], None]
    zxid: Callable[[], int]
    """The latest transaction that the session has seen."""
    restored: Callable[[], int]
    """How often the servers turned out to have gone back to an older state: what was written before may be gone."""
    unwatch: Callable[[str], None]
    """Nobody waits for changes of this znode's data any more: its watch may go. Does not wait, does not raise."""
    pay: Callable[[], None]
    """Have what calls have left (`core.upkeep.debts`) put right in the background; from any thread.

    Does not wait, does not raise.
    """
