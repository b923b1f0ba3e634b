"""What workers of a limited queue do in tests: ``zkmq worker --handler tests.integration.limited_worker:handle``."""

from __future__ import annotations

import time

from airflow_provider_zkmq.engine import Task


def handle(_task: Task) -> None:
    """Work for a moment, so that workers that are killed have something in hand."""
    time.sleep(0.04)
