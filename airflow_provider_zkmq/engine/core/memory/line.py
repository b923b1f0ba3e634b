"""Transactions of this client that are to go together: those that came while others were on their way.

Owner: `core.writing.combining`; bounded by the calls that are under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_provider_zkmq.engine.core.protocol.ops import Signal
from airflow_provider_zkmq.engine.core.protocol.writes import Multi, Outcome


@dataclass(slots=True, eq=False)
class Part:
    """A transaction that stands in line; ``signal`` is fired when its call is to go on."""

    make: Callable[[], Multi]
    """Makes the transaction when it is sent: what was sent before may have changed what it has to do."""
    signal: Signal
    multi: Multi = field(default_factory=lambda: Multi(()))
    leads: bool = False
    """Its call is to send it, together with others; it has a place among those that are on their way."""
    sent: float | None = None
    """When it was sent, by our monotonic clock."""
    over: bool = False
    """Another call has had it: ``outcome`` says what became of it; None: it was not sent."""
    outcome: Outcome | None = None


@dataclass(slots=True, eq=False)
class Line:
    """How many transactions are on their way, and what waits."""

    on_their_way: int = 0
    carried: int = 0
    """How many transactions are sent by another call at this moment."""
    waiting: deque[Part] = field(default_factory=deque)
