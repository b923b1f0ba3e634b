"""What tests of the Airflow classes have in common: a home for Airflow, and a connection to a root of their own."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

# Before anything imports Airflow: it reads these then, and makes its folder.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="zkmq-airflow-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__CORE__UNIT_TEST_MODE"] = "False"

from airflow import settings
from airflow.dag_processing.dagbag import DagBag
from airflow.models import import_all_models
from airflow.models.base import Base
from airflow.sdk import DAG
from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.execution_time.xcom import XCom
from airflow.triggers.base import BaseTrigger, TriggerEvent
from airflow.utils.db import synchronize_log_template

from airflow_provider_zkmq.embedded import EmbeddedServer, ServerError, node
from airflow_provider_zkmq.engine import Integer, Message, Zkmq
from airflow_provider_zkmq.engine.api.queue import Queue
from airflow_provider_zkmq.hooks import deferring, outages
from airflow_provider_zkmq.operators.enqueuing import ZkmqEnqueueOperator
from airflow_provider_zkmq.sensors.zkmq import ZkmqTaskSensor
from airflow_provider_zkmq.triggers import asset_watcher, sessions, zkmq
from airflow_provider_zkmq.triggers.sessions import SharedSessions

EXAMPLES = Path(__file__).parents[2] / "example_dags"


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The XComs that triggers push."""
    kept: list[dict[str, Any]] = []
    monkeypatch.setattr(XCom, "aset", AsyncMock(side_effect=lambda **values: kept.append(values)))
    return kept


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


class Shared(SharedSessions):
    def users(self) -> list[int]:
        """How many users each session of the running loop has."""
        of_loop = self._loops.get(asyncio.get_running_loop())
        return [entry.users for entry in of_loop.entries.values()] if of_loop is not None else []


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Shared:
    """A registry of the test's own, and watches that look often and pause little."""
    made = Shared()
    for module in (zkmq, sessions):
        monkeypatch.setattr(module, "SESSIONS", made)
    monkeypatch.setattr(asset_watcher, "_LOOK", 0.01)
    monkeypatch.setattr(outages, "_LONGEST_PAUSE", 0.1)
    return made


@pytest.fixture(scope="session")
def another_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A second ZooKeeper, for those who kill it."""
    with EmbeddedServer(tmp_path_factory.mktemp("mortal"), force_sync=False) as server:
        yield server


@pytest.fixture
def mortal(another_server: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """A ZooKeeper that the test may kill: it is started again if the test has not done so."""
    yield another_server
    host, _, port = another_server.hosts.rpartition(":")
    try:
        node.srvr(host, int(port))
    except ServerError:
        another_server.restart(0)


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


def enqueuing(**arguments: Any) -> ZkmqEnqueueOperator:
    """An operator that enqueues, as the Airflow task ``t``."""
    return ZkmqEnqueueOperator(task_id="t", **arguments)


def sensor(**arguments: Any) -> ZkmqTaskSensor:
    """A sensor that waits on the worker for a minute, as the Airflow task ``s``."""
    return ZkmqTaskSensor(task_id="s", **{"deferrable": False, "timeout": 60, **arguments})


def batch_of(queue: Queue, name: str | None, size: int) -> list[str]:
    """Enqueue so many tasks, as a batch if it has a name; return their ids."""
    return queue.enqueue_many([Message(f"{number}") for number in range(size)], batch=name)


def deferral(call: Callable[..., Any], *arguments: Any, **more: Any) -> TaskDeferred:
    """Call it; return the deferral with which it ends."""
    with pytest.raises(TaskDeferred) as deferred:
        call(*arguments, **more)
    return deferred.value


def rebuilt(trigger: BaseTrigger) -> Any:
    """The trigger as a triggerer makes it of what Airflow has stored."""
    return type(trigger)(**json.loads(json.dumps(trigger.serialize()[1])))


async def fire(trigger: BaseTrigger) -> list[Any]:
    """What a trigger's events tell, once it has ended."""
    return [event.payload async for event in trigger.run()]


def fired(trigger: BaseTrigger) -> TriggerEvent:
    """The one event of a trigger that was stored, on a loop of its own."""

    async def run() -> list[TriggerEvent]:
        return [event async for event in rebuilt(trigger).run()]

    (event,) = asyncio.run(run())
    return event


async def until(condition: Callable[[], Any]) -> None:
    """Let the loop turn until `condition` holds."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  what is waited for has no event
            await asyncio.sleep(0.01)


class Heard:
    """Takes the place of a log, and keeps what it was told; apart what Airflow, too, warns of out of its runner."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.warnings: list[str] = []

    def info(self, text: str, *values: object) -> None:
        self.lines.append(text % values)

    def warning(self, text: str, *values: object) -> None:
        self.warnings.append(text % values)

    def error(self, text: str, *values: object) -> None:
        self.lines.append("ERROR " + text % values)


def kill(queue: Queue, error: str) -> str:
    """Claim the next task and send it to the dead letters; return its id."""
    claim = queue.claim(timeout=20)
    assert claim is not None
    claim.fail(error, retry=False)
    return claim.task.id


@pytest.fixture(scope="session")
def database() -> None:
    """Airflow's own, as its models have it: a migration would take another process, and longer."""
    import_all_models()
    Base.metadata.create_all(settings.engine)
    synchronize_log_template()


def example(name: str) -> DAG:
    """A DAG of the examples, found in Airflow's own folder as the DAG processor finds it."""
    folder = Path(os.environ["AIRFLOW_HOME"]) / "dags"
    folder.mkdir(exist_ok=True)
    found = DagBag(shutil.copy(EXAMPLES / f"{name}.py", folder))
    assert not found.import_errors
    return found.dags[name]
