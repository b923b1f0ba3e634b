"""A worker whose queue is not there says so once for each time that it is not."""

from __future__ import annotations

import pytest

from airflow_provider_zkmq.engine.errors import QueueNotFound
from airflow_provider_zkmq.engine.working.absence import Absence


def _told(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.levelname == "WARNING" for record in caplog.records)


def test_it_is_told_once_until_the_queue_comes(caplog: pytest.LogCaptureFixture) -> None:
    """Once for all threads; and once more where the queue has gone again."""
    absence = Absence("later")
    for _ in range(2):
        absence.tell(QueueNotFound("not there"), absence.ended)
    assert _told(caplog) == 1
    absence.end()
    absence.tell(QueueNotFound("not there"), absence.ended)
    assert _told(caplog) == 2


def test_a_thread_that_asked_before_the_queue_came_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Its answer is older than what another thread has told."""
    absence = Absence("later")
    asked = absence.ended
    absence.tell(QueueNotFound("not there"), asked)
    absence.end()
    absence.tell(QueueNotFound("not there"), asked)
    assert _told(caplog) == 1
    assert not absence.told
