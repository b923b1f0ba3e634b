from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_zkmq.engine import Zkmq
from airflow_provider_zkmq.filequeue import FileClient, FileQueue
from tests.integration.conftest import CLASSES, taken

__all__ = ["CLASSES", "taken"]  # for the tests of this folder


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
