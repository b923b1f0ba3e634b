"""`FileClaims`: the loop of `FileQueue.claims`, which settles one task and claims the next, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from airflow_provider_zkmq.engine.errors import ClaimLost
from airflow_provider_zkmq.filequeue.claims import FileClaim

LEFT: Final = "its loop was left before it was settled"


class FileClaims:
    """A loop over claims: what its body does not settle is completed with ``claim.result`` when it comes back.

    One that is left, or closed, fails what is unsettled. `take` claims the next one.
    """

    def __init__(self, take: Callable[[], FileClaim | None]) -> None:
        self._take = take
        self._claim: FileClaim | None = None
        self._ended = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> FileClaim:
        """Settle what the body has left, and claim the next one. Raises `ClaimLost`, and can be continued."""
        if self._ended:
            raise StopIteration
        if self._claim is not None and not self._claim.settled:
            self._claim.complete(self._claim.result)
        self._claim = None
        claim = self._take()
        if claim is None:
            self._ended = True
            raise StopIteration
        self._claim = claim
        return claim

    def close(self) -> None:
        """Leave the loop. Idempotent."""
        claim, self._claim, self._ended = self._claim, None, True
        if claim is None or claim.settled or claim.closed:
            return
        try:
            claim.fail(LEFT)
        except ClaimLost:  # it is another's by now
            return

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
