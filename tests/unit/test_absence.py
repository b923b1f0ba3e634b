"""A worker whose queue is not there says so once for each time that it is not."""

from __future__ import annotations

import pytest

from airflow_provider_zkmq.engine.errors import QueueNotFound
from airflow_provider_zkmq.engine.working.absence import Absence


def test_it_is_told_once_until_the_queue_comes(caplog: pytest.LogCaptureFixture) -> None:
    """For all threads, but for one whose answer is older than the queue; and once more where it has gone again."""
    absence, counts = Absence("later"), []
    before = absence.ended
    for asked in (before, before, None, before, absence.ended + 1):
        if asked is None:
            absence.end()
        else:
            absence.tell(QueueNotFound("not there"), asked)
        counts.append((sum(record.levelname == "WARNING" for record in caplog.records), absence.told))
    assert counts == [(1, True), (1, True), (1, False), (1, False), (2, True)]
