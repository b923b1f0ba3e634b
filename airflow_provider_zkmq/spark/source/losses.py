"""What a stream has lost, or seems to have: an error, unless ``failOnDataLoss`` is false."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from airflow_provider_zkmq.engine import Trimmed
from airflow_provider_zkmq.spark.source.errors import SourceError
from airflow_provider_zkmq.spark.source.offsets import Position

log = logging.getLogger("airflow_provider_zkmq.spark")
_ANYWAY = "set failOnDataLoss=false to go on with what is there"


@dataclass(frozen=True, slots=True)
class Losses:
    """Whether losses end the stream (`strict`), or are logged as warnings."""

    strict: bool = True

    def check(self, queue: str, after: int, position: Position, now: Trimmed | None) -> None:
        """Tell of runs that ended after `after` and may have been deleted before they were read.

        `position`: what the stream knows of the queue's mark; `now`: the mark as it is.
        """
        if now is None or now.since != position.mark:
            self._lost(
                f"queue {queue!r} was deleted and made again, or was not followed for a while "
                f"(configure(follow=False)): runs that ended after {after} may be gone"
            )
        elif now.upto > max(after, position.trimmed):
            self._lost(
                f"runs of queue {queue!r} that ended after {after}, where the stream has come, are gone: clean-up has "
                f"deleted what ended up to {now.upto}. Streams must be no further behind than task_gc_lifetime"
            )

    def gone(self, queue: str) -> None:
        """Tell of a queue that the stream has read from and that is not there any more."""
        self._lost(f"queue {queue!r} was deleted: what ended there and had not been read is gone")

    def refuse_foreign(self, queue: str, position: Position, newest: int) -> None:
        """Raise `SourceError` for a position that ZooKeeper has not come to: nothing would be read, for long."""
        if position.zxid > newest:
            raise SourceError(
                f"the stream has read queue {queue!r} up to {position.zxid}, but in ZooKeeper nothing has ended after "
                f"{newest}: its checkpoint (or startingOffsets) is of another ensemble, or of one that was restored; "
                "give the query the right hosts, or another checkpoint"
            )

    def _lost(self, what: str) -> None:
        if self.strict:
            raise SourceError(f"{what}; {_ANYWAY}")
        log.warning("%s", what)
