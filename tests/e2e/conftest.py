"""A real Airflow: scheduler, DAG processor, API server and triggerer as processes, shared by most modules."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from airflow_provider_zkmq.embedded import EmbeddedServer
from airflow_provider_zkmq.embedded.server import free_ports
from airflow_provider_zkmq.engine import Zkmq
from tests import support

TOP = Path(__file__).parents[2]
PROCESSES = ("api-server", "scheduler", "dag-processor", "triggerer")
#: Generous: a machine may be busy with other tests.
LONG = 900.0
#: That of the shared Airflow's connection: no log and no row shows it.
PASSWORD = "marker-password"
#: Asked more often, Airflow's API server would take a core for itself.
eventually = partial(support.eventually, pause=0.5)


def started_by_demo(home: Path) -> ModuleType:
    """The demo's own way of starting Airflow, in a folder of the tests'."""
    spec = importlib.util.spec_from_file_location("zkmq_demo", TOP / "example_dags" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.HOME, module.DAGS = home, home / "dags"
    module.READY_SECONDS, module.ANSWER_SECONDS = LONG, LONG
    return module


class Airflow:
    """An Airflow that runs, its ZooKeeper, and a client of that."""

    def __init__(self, home: Path, demo: Any, server: EmbeddedServer, zk: Zkmq, environment: dict[str, str]) -> None:
        self.home, self.server, self.zk, self.environment = home, server, zk, environment
        self.processes = demo.Processes(home / "logs")
        self._demo = demo
        self.api: Any = None
        self._unpaused: set[str] = set()

    def start(self, port: int) -> None:
        """Start its processes, and log in."""
        for name in PROCESSES:
            self.launch(name)
        self.api = self._demo.Airflow(port, "secret")
        self._demo.wait_until("Airflow", self.processes, self.api.healthy)
        self.api.log_in()

    def launch(self, name: str, **more: str) -> None:
        """Start one of its processes; what follows a dash in its name tells it from an earlier one."""
        command = [sys.executable, "-m", "airflow", name if name in PROCESSES else name.rpartition("-")[0]]
        self.processes.start(name, command, self.environment | more)

    def kill(self, name: str) -> None:
        """Kill one of its processes, and all that it has started."""
        process = self.processes._started.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    @property
    def triggerer(self) -> str:
        """The name of its triggerer that runs."""
        (name,) = (name for name in self.processes._started if name.startswith("triggerer"))
        return name

    def unpause(self, dag: str, *, paused: bool = False) -> None:
        """Let a DAG run, once Airflow knows it."""
        self._demo.wait_until("the DAG", self.processes, lambda: self.api.knows(dag))
        self.api.call("PATCH", f"/api/v2/dags/{dag}", {"is_paused": paused})
        (self._unpaused.discard if paused else self._unpaused.add)(dag)

    def pause_all(self) -> None:
        """Let nothing run any more that was let run."""
        for dag in [*self._unpaused]:
            self.unpause(dag, paused=True)

    def trigger(self, dag: str, run: str = "r", **conf: object) -> None:
        """Start a run."""
        body = {"dag_run_id": run, "logical_date": None, "conf": conf}
        self.api.call("POST", f"/api/v2/dags/{dag}/dagRuns", body)

    def run(self, dag: str, run: str = "r") -> None:
        """Let a DAG run, and start a run."""
        self.unpause(dag)
        self.trigger(dag, run)

    def ended(self, dag: str, run: str = "r") -> str:
        """The state of a run, once it has ended."""
        eventually(lambda: self.api.run_state(dag, run) in {"success", "failed"}, within=4 * LONG)
        return str(self.api.run_state(dag, run))

    def instances(self, dag: str, run: str = "r") -> list[dict[str, Any]]:
        """All task instances of a run; the API tells of a hundred at a time."""
        found: list[dict[str, Any]] = []
        path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances?limit=100"
        while page := self.api.call("GET", f"{path}&offset={len(found)}")["task_instances"]:
            found += page
        return found

    def told(self, asset: str) -> list[dict[str, Any]]:
        """What the events of an asset tell, by the database: the API tells of none while a run of one is queued."""
        events = "select e.extra from asset_event e join asset a on a.id = e.asset_id where a.name = ?"
        with sqlite3.connect(self.home / "airflow" / "airflow.db") as database:
            return [json.loads(extra) for (extra,) in database.execute(events, (asset,))]

    def in_state(self, dag: str, state: str) -> int:
        """How many task instances of its run are in a state."""
        path = f"/api/v2/dags/{dag}/dagRuns/r/taskInstances?state={state}&limit=1"
        return int(self.api.call("GET", path)["total_entries"])

    def logged(self, name: str) -> str:
        """What one of its processes has logged."""
        path = self.home / "logs" / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def logs(self, pattern: str = "*.log*") -> str:
        """What all of these logs hold, those of tasks among them."""
        return "".join(log.read_text(errors="replace") for log in self.home.rglob(pattern) if log.is_file())

    @property
    def handed_back(self) -> int:
        """How many processes of task instances the schedulers know to have ended."""
        return self.logs("scheduler*.log").count("Received executor event with state")

    def said(self) -> str:
        """What its processes complained of."""
        lines = self.logs("logs/*.log").splitlines()
        return "\n".join(line[:500] for line in lines if "[error" in line or "[warning" in line)[-5000:]


@contextlib.contextmanager
def running(home: Path, *dags: str, connection: dict[str, Any] | None = None, **settings: str) -> Iterator[Airflow]:
    """An Airflow that knows these DAG files and no others, stopped at the end; ``zkmq_…`` are examples.

    `connection` goes into ``zkmq_default``; the settings are of its processes' environment.
    """
    demo, given = started_by_demo(home), connection or {}
    demo.DAGS.mkdir(parents=True)
    (home / "logs").mkdir()
    for name in dags:
        shutil.copy(TOP / ("example_dags" if name.startswith("zkmq") else "tests/e2e/dags") / f"{name}.py", demo.DAGS)
    login = {"auth": (given["login"], given["password"]), "allow_open": True} if "login" in given else {}
    with (
        EmbeddedServer(home / "zk", force_sync=False) as server,
        Zkmq.connect(server.hosts, "/zkmq", gc=False, **login) as zk,
    ):
        port, *log_ports = free_ports("127.0.0.1", 3)
        environment = demo.airflow_environment(server.hosts, port, log_ports, "secret")
        default = json.loads(environment["AIRFLOW_CONN_ZKMQ_DEFAULT"])
        default |= given | {"extra": default["extra"] | ({"allow_open": True} if login else {})}
        environment |= {
            "PYTHONUNBUFFERED": "1",  # what a process that is killed has logged is in its file
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "120",  # the files do not change
            "AIRFLOW_CONN_ZKMQ_DEFAULT": json.dumps(default),
            **settings,
        }
        demo.migrate(environment)
        started = Airflow(home, demo, server, zk, environment)
        try:
            started.start(port)
            yield started
        finally:
            started.processes.stop()


@pytest.fixture(scope="package")
def shared_airflow(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """The Airflow of the modules that say in `DAGS` which files it is to know, and in `SETTINGS` what else."""
    asking = (item.module for item in request.session.items if "shared_airflow" in getattr(item, "fixturenames", ()))
    modules = list(dict.fromkeys(asking))
    files = [name for module in modules for name in module.DAGS]
    settings = {name: value for module in modules for name, value in module.SETTINGS.items()}
    home, login = tmp_path_factory.mktemp("airflow"), {"login": "airflow", "password": PASSWORD}
    with running(home, *files, connection=login, **settings) as started:
        yield started


@pytest.fixture(scope="module")
def airflow(shared_airflow: Airflow) -> Iterator[Airflow]:
    """The shared Airflow; what a module has let run is paused when it is over."""
    yield shared_airflow
    shared_airflow.pause_all()
