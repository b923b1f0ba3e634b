from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zkmq.engine import OrderedEnum, Zkmq
from airflow_provider_zkmq.filequeue import FileClient, FileQueue

CLASSES = OrderedEnum("low", "standard", "performance", "high_performance")


def taken(q: Any, **asked: Any) -> Any:
    """The claim that is there."""
    claim = q.claim(**asked)
    assert claim is not None
    return claim


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "queues"


@pytest.fixture
def files(folder: Path) -> Iterator[FileClient]:
    with Zkmq.connect(f"textqueue://{folder}") as client:
        assert isinstance(client, FileClient)
        yield client


@pytest.fixture
def q(files: FileClient) -> FileQueue:
    queue = files.queue("census")
    queue.configure(filters={"performance_class": CLASSES})
    return queue
