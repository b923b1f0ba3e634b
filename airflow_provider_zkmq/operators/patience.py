"""What an Airflow task does on its worker goes on when ZooKeeper was away."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from airflow_provider_zkmq.engine import SessionLost, TlsRefused, TransportError
from airflow_provider_zkmq.triggers.backoff import LONGEST_OF_A_WAIT, Backoff

#: So many seconds of an outage, at most, what changes a queue is tried again.
PATIENCE: Final = 540.0
T = TypeVar("T")


def outlast(log: Any, what: str, seconds: float, work: Callable[[Callable[[], None]], T]) -> T:
    """Return what `work` does, tried again while ZooKeeper is away, for so many seconds of an outage.

    `work` is given a function to call whenever a server has answered it: what fails after that is another outage. It
    uses one client throughout, which knows what a try of unknown outcome has sent; and what it has done it does not do
    again. `what` goes on is said in the log. Raises what `work` does, and a `TransportError` only after that time;
    certificates that are refused, and the end of the client, are no outage.
    """
    backoff, until, answered = Backoff(log, what=what, longest=LONGEST_OF_A_WAIT), None, False

    def reached() -> None:
        nonlocal answered
        answered = True

    while True:
        try:
            return work(reached)
        except (TlsRefused, SessionLost):
            raise
        except TransportError as error:
            now = time.monotonic()
            if until is None or answered:
                until, answered = now + seconds, False
            if now >= until:
                raise
            backoff.block_after(error, until - now)
