"""What tests of the Airflow classes have in common: a home for Airflow, and a connection to a root of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

# Before anything imports Airflow: it reads these then, and makes its folder.
os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="zkmq-airflow-"))
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__CORE__UNIT_TEST_MODE"] = "False"

from airflow.sdk.execution_time.xcom import XCom

from airflow_provider_zkmq.engine import Integer, Zkmq
from airflow_provider_zkmq.engine.fronts.queue import Queue
from airflow_provider_zkmq.hooks import deferring


class Pushed:
    """Takes the place of Airflow's XComs in the triggerer."""

    def __init__(self) -> None:
        self.values: list[dict[str, Any]] = []

    async def aset(self, **pushed: Any) -> None:
        """Keep it."""
        self.values.append(pushed)


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The XComs that triggers push."""
    kept = Pushed()
    monkeypatch.setattr(XCom, "aset", kept.aset)
    return kept.values


def define(monkeypatch: pytest.MonkeyPatch, conn_id: str = "zkmq_default", **fields: Any) -> None:
    """Define an Airflow connection; `extra` is a mapping."""
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps({"conn_type": "zkmq", **fields}))


@pytest.fixture(autouse=True)
def nothing_is_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """No scheduler is there that could take an event amiss that follows its deferral at once."""
    monkeypatch.setattr(deferring, "HELD_BACK", 0.0)


@pytest.fixture(autouse=True)
def nobody_else_hears_sigterm() -> Iterator[None]:
    """``dag.test()`` runs Airflow's task runner in this process, whose handler of SIGTERM would outlive the test."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def root() -> str:
    """A root that no other test uses."""
    return f"/airflow-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def queue(zookeeper: str, root: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    """The queue that the connection ``zkmq_default`` names, through a session of the test's own."""
    define(monkeypatch, host=zookeeper, extra={"root": root, "queue": "jobs", "connect_timeout": 20})
    with Zkmq.connect(zookeeper, root, gc=False, connect_timeout=20) as zk:
        made = zk.queue("jobs")
        made.configure(filters={"size": Integer()})
        yield made


@pytest.fixture
def context() -> dict[str, Any]:
    """The least of a context that the operators need."""
    return instance()


def instance(**fields: Any) -> dict[str, Any]:
    """The least of a context for a task instance that differs from the others in these fields."""
    origin = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": 3, "try_number": 2}
    ti = SimpleNamespace(**origin | fields)
    return {"ti": ti, "task_instance": ti}


def finish(queue: Queue, result: bytes | str | None = None) -> str:
    """Claim the next task and complete it; return its id."""
    claim = queue.claim(timeout=20)
    assert claim is not None
    claim.complete(result)
    return claim.task.id


class Heard:
    """Takes the place of a log, and keeps what it was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, text: str, *values: object) -> None:
        self.lines.append(text % values)

    def warning(self, text: str, *values: object) -> None:
        """Keep nothing: Airflow warns of each `execute` outside of its task runner."""

    def error(self, text: str, *values: object) -> None:
        """Keep it, marked as an error."""
        self.lines.append("ERROR " + text % values)


def kill(queue: Queue, error: str) -> str:
    """Claim the next task and send it to the dead letters; return its id."""
    claim = queue.claim(timeout=20)
    assert claim is not None
    claim.fail(error, retry=False)
    return claim.task.id


@pytest.fixture(scope="module")
def database():
    """Airflow's own."""
    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], check=True, capture_output=True)
