"""What every test has."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

pytest_plugins = ["tests.zookeeper"]


@pytest.fixture(autouse=True)
def _kazoo_s_log() -> Iterator[None]:
    """Airflow's classes thin out what kazoo logs in their process, in which other tests follow."""
    logger = logging.getLogger("airflow_provider_zkmq.kazoo")
    before = list(logger.filters)
    yield
    logger.filters[:] = before
