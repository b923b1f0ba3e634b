from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider_zkmq.engine import OrderedEnum, Queue, Zkmq
from tests.support import fresh_root

CLASSES = OrderedEnum("low", "standard", "performance", "high_performance")


@pytest.fixture
def root() -> str:
    return fresh_root()


@pytest.fixture
def zk(zookeeper: str, root: str) -> Iterator[Zkmq]:
    with Zkmq.connect(zookeeper, root=root, session_timeout=4, gc=False) as client:
        yield client


@pytest.fixture
def q(zk: Zkmq) -> Queue:
    queue = zk.queue("census")
    queue.configure(filters={"performance_class": CLASSES})
    return queue
