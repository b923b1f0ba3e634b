# ruff: noqa: T201  it talks to whoever runs it
"""Try it out: ZooKeeper, Airflow, two workers, and the DAG ``zkmq_census`` from start to end, on this machine.

``python example_dags/demo.py [--keep]``: everything it makes lies under ``.zkmq/demo`` of the current folder, fresh
in each run, and everything it starts is stopped at the end, however that comes. ``--keep`` leaves Airflow's web
page open until Ctrl-C. Java need not be on PATH.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import psutil

from airflow_provider_zkmq.embedded import EmbeddedServer
from airflow_provider_zkmq.embedded import node as fourletter
from airflow_provider_zkmq.embedded.server import free_ports
from airflow_provider_zkmq.engine import Queue, Zkmq
from airflow_provider_zkmq.engine.queue_internals import internals
from airflow_provider_zkmq.hooks.page_address import page_url

DAG: Final = "zkmq_census"
MAINTENANCE: Final = "zkmq_maintenance"
RUN: Final = "demo"
QUEUE: Final = "census"
ROOT: Final = "/zkmq"
HOST: Final = "127.0.0.1"
USER: Final = "admin"
DAGS: Final = Path(__file__).resolve().parent
HOME: Final = Path(".zkmq", "demo").absolute()
WORKERS: Final = ("standard", "high_performance")
READY_SECONDS: Final = 240.0
RUN_SECONDS: Final = 900.0
POLL_SECONDS: Final = 2.0
STOP_SECONDS: Final = 15.0
ANSWER_SECONDS: Final = 30.0
#: How often a request is sent that Airflow answers with an error of its own.
TRIES: Final = 3


class DemoFailed(Exception):
    """The demo cannot go on; the text says why."""


class Processes:
    """The processes this demo started, each in a group of its own with its output in a file."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        """Start one; `logs`/`name`.log gets what it says."""
        with (self.logs / f"{name}.log").open("wb") as log:
            self._started[name] = subprocess.Popen(  # noqa: S603  our own commands
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def check(self) -> None:
        """Raise `DemoFailed` if one has ended by itself."""
        for name, process in self._started.items():
            if process.poll() is not None:
                path = self.logs / f"{name}.log"
                last = "\n".join(path.read_text(errors="replace").splitlines()[-15:])
                raise DemoFailed(f"{name} ended with code {process.returncode}; the last lines of {path}:\n{last}")

    def stop(self) -> None:
        """Stop all with what they have started in turn: ask first, then kill."""
        everything = self._everything()
        for process in self._started.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGTERM)
        _, alive = psutil.wait_procs(everything, timeout=STOP_SECONDS)
        for survivor in {*alive, *self._everything()}:
            with contextlib.suppress(psutil.NoSuchProcess):
                survivor.kill()
        for process in self._started.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _everything(self) -> list[psutil.Process]:
        found = []
        for process in self._started.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                root = psutil.Process(process.pid)
                found += [*root.children(recursive=True), root]
        return found


class Airflow:
    """Airflow's REST API, as its administrator."""

    def __init__(self, port: int, password: str) -> None:
        self.url = f"http://{HOST}:{port}"
        self._password = password
        self._token = ""

    def log_in(self) -> None:
        """Get a token. Raises `OSError` while the server is not there."""
        answer = self.call("POST", "/auth/token", {"username": USER, "password": self._password})
        self._token = answer["access_token"]

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Send one request; returns the answer's JSON. Raises `OSError` (also for a refusal).

        On SQLite, Airflow's requests may wait for one another's locks until one ends with 500 and has changed nothing.
        """
        request = urllib.request.Request(  # noqa: S310  our own server
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"},
        )
        for tries_left in reversed(range(TRIES)):
            try:
                with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:  # noqa: S310
                    return json.loads(answer.read() or "null")
            except urllib.error.HTTPError as error:
                if error.code != 500 or not tries_left:
                    raise
        raise AssertionError("not reached")

    def healthy(self) -> bool:
        """Whether the database, the scheduler, the triggerer and the DAG processor are well."""
        try:
            health = self.call("GET", "/api/v2/monitor/health")
        except OSError:
            return False
        parts = ("metadatabase", "scheduler", "triggerer", "dag_processor")
        return all((health.get(part) or {}).get("status") == "healthy" for part in parts)

    def knows(self, dag: str) -> bool:
        """Whether a DAG has been parsed. Raises `DemoFailed` where the folder has import errors."""
        errors = self.call("GET", "/api/v2/importErrors")["import_errors"]
        if errors:
            raise DemoFailed("\n".join(f"{it['filename']}: {it['stack_trace']}" for it in errors))
        try:
            self.call("GET", f"/api/v2/dags/{dag}")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return False
            raise
        return True

    def run_state(self, dag: str, run: str) -> str:
        """Return the state of a DAG run."""
        return str(self.call("GET", f"/api/v2/dags/{dag}/dagRuns/{_quoted(run)}")["state"])

    def task_states(self, dag: str, run: str) -> dict[str, str]:
        """Return the state of each task instance of a DAG run."""
        found = self.call("GET", f"/api/v2/dags/{dag}/dagRuns/{_quoted(run)}/taskInstances")["task_instances"]
        return {it["task_id"]: it["state"] or "none" for it in found}

    def returned(self, dag: str, run: str, task: str) -> Any:
        """Return what a task returned."""
        where = f"/api/v2/dags/{dag}/dagRuns/{_quoted(run)}/taskInstances/{task}/xcomEntries/return_value"
        return self.call("GET", where)["value"]


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")


def airflow_environment(hosts: str, port: int, log_ports: list[int], password: str) -> dict[str, str]:
    """Return the environment of Airflow's processes; writes the password file."""
    home = HOME / "airflow"
    home.mkdir()
    passwords = home / "passwords.json"
    passwords.write_text(json.dumps({USER: password}))
    passwords.chmod(0o600)
    host, _, zookeeper_port = hosts.rpartition(":")
    connection = {
        "conn_type": "zkmq",
        "host": host,
        "port": int(zookeeper_port),
        "extra": {"root": ROOT, "queue": QUEUE},
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "_AIRFLOW"))}
    return inherited | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://{HOST}:{port}/execution/",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "AIRFLOW__API__HOST": HOST,
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://{HOST}:{port}",
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__SECRET_KEY": secrets.token_hex(32),
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(home / "logs"),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(log_ports[0]),
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(log_ports[1]),
        "AIRFLOW_CONN_ZKMQ_DEFAULT": json.dumps(connection),
        "ZKMQ_ARCHIVE_DIR": str(HOME / "archive"),
        "ZKMQ_MAINTENANCE_SCHEDULE": "",  # only what the census triggers
        "ZKMQ_HOSTS": hosts,
        "ZKMQ_ROOT": ROOT,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(DAGS), os.environ.get("PYTHONPATH")))),
        "PYTHONWARNINGS": "ignore::DeprecationWarning",
    }


def migrate(environment: dict[str, str]) -> None:
    """Make Airflow's database. Raises `DemoFailed`."""
    say("making Airflow's database")
    command = [sys.executable, "-m", "airflow", "db", "migrate"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise DemoFailed(f"airflow db migrate failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def wait_until(what: str, processes: Processes, ready: Any) -> None:
    """Poll until `ready()`. Raises `DemoFailed` after `READY_SECONDS`, or when a process ended."""
    say(f"waiting for {what}")
    deadline = time.monotonic() + READY_SECONDS
    while not ready():
        processes.check()
        if time.monotonic() > deadline:
            raise DemoFailed(f"{what}: not there after {READY_SECONDS:.0f} s; see the logs in {processes.logs}")
        time.sleep(POLL_SECONDS)


def start_workers(processes: Processes, environment: dict[str, str]) -> None:
    """Start one worker per class of machine."""
    for name in WORKERS:
        command = [
            *(sys.executable, "-m", "airflow_provider_zkmq", "worker", QUEUE),
            *("--node", f"performance_class={name}", "--filter-method", "at_least"),
            *("--handler", "zkmq_measure:measure", "--threads", "2"),
        ]
        processes.start(f"worker-{name}", command, environment)
    say(f"started two workers: {', '.join(WORKERS)}")


class Watcher:
    """Follows the DAG run and tells what changes."""

    def __init__(self, airflow: Airflow, queue: Queue, processes: Processes, environment: dict[str, str]) -> None:
        self.airflow = airflow
        self.queue = queue
        self.processes = processes
        self.environment = environment
        self.deferred = False
        self._before = server_zxid(environment["ZKMQ_HOSTS"])
        self._told: dict[str, object] = {}
        self._working = False

    def follow(self) -> str:
        """Watch until the run ends; returns its state. Raises `DemoFailed` after `RUN_SECONDS`."""
        deadline = time.monotonic() + RUN_SECONDS
        while True:
            self.processes.check()
            state = self.airflow.run_state(DAG, RUN)
            self._look()
            if state in {"success", "failed"}:
                return state
            if time.monotonic() > deadline:
                raise DemoFailed(
                    f"the DAG run did not end in {RUN_SECONDS:.0f} s; see the logs in {self.processes.logs}"
                )
            time.sleep(POLL_SECONDS)

    def _look(self) -> None:
        states = self.airflow.task_states(DAG, RUN)
        self.tell("tasks of the DAG", {name: state for name, state in states.items() if state != "none"})
        if states.get("enqueue") == "success":
            counts = {state: number for state, number in self.queue.counts().items() if number}
            self.tell("tasks of the queue", counts)
        waiting = states.get("wait", "none")
        if waiting == "deferred" and not self.deferred:
            self.deferred = True
            say("the sensor is DEFERRED: it waits in the triggerer and holds no worker slot")
        if not self._working and waiting in {"deferred", "success", "failed"}:
            self._working = True
            spent = server_zxid(self.environment["ZKMQ_HOSTS"]) - self._before
            say(f"ZooKeeper's transactions from the trigger until all is enqueued, sessions included: {spent}")
            self.show_tree()
            start_workers(self.processes, self.environment)

    def tell(self, what: str, value: dict[str, Any]) -> None:
        """Print a line where it differs from the last of its kind."""
        if self._told.get(what) != value:
            self._told[what] = value
            say(f"{what}: {', '.join(f'{name} {it}' for name, it in value.items()) or 'none'}")

    def show_tree(self) -> None:
        """Print one task's znodes and the transaction that made each: one and the same."""
        for task in self.queue.tasks(limit=1):
            tree = internals(self.queue).tree(task.id)
            say(f"the znodes of one enqueued task, {len({node.czxid for node in tree})} transaction(s) in all:")
            for node in tree:
                print(f"    czxid {node.czxid:#x}  {node.bytes:>5} bytes  {node.path}")


def server_zxid(hosts: str) -> int:
    """Return the number of the server's last transaction."""
    host, _, port = hosts.rpartition(":")
    return int(fourletter.srvr(host, int(port))["Zxid"], 16)


def show_results(airflow: Airflow, enqueued: int) -> bool:
    """Print the tables and the maintenance report; whether every task was finished, archived and collected."""
    result = json.loads(airflow.returned(DAG, RUN, "report"))
    table("The ten largest modules", result["largest"])
    table("Waiting and running times in ms", result["times"])
    numbers = airflow.returned(MAINTENANCE, f"census__{RUN}", "report")[QUEUE]
    table("Maintenance", [numbers])
    for name, rows in json.loads(airflow.returned(DAG, RUN, "history")).items():
        table(f"History: {name}", rows)
    return enqueued == result["finished"] == numbers["archive_rows"] == numbers["collected"] and not numbers["kept"]


def table(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows under their names."""
    names = list(rows[0]) if rows else []
    cells = [names, *([_cell(row[name]) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print(f"\n{title}")
    for line in cells:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _cell(value: object) -> str:
    text = str(value)
    _, marker, rest = text.partition("site-packages" + os.sep)
    return rest if marker else text


def say(text: str) -> None:
    """Print a line with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


class Running(NamedTuple):
    """ZooKeeper and Airflow, running, with an open connection to the one and a login to the other."""

    airflow: Airflow
    client: Zkmq
    processes: Processes
    environment: dict[str, str]


def start_all(stack: contextlib.ExitStack, **more: str) -> Running:
    """Start ZooKeeper and Airflow, with `more` in their environment; the stack stops them. Raises `DemoFailed`."""
    password = secrets.token_urlsafe(12)
    say("starting ZooKeeper")
    server = stack.enter_context(EmbeddedServer(HOME / "zookeeper"))
    port, *log_ports = free_ports(HOST, 3)
    environment = airflow_environment(server.hosts, port, log_ports, password) | more
    migrate(environment)
    processes = Processes(HOME / "logs")
    processes.logs.mkdir()
    stack.callback(processes.stop)
    for name in ("api-server", "scheduler", "dag-processor", "triggerer"):
        processes.start(name, [sys.executable, "-m", "airflow", name], environment)
    airflow = Airflow(port, password)
    wait_until("Airflow's four processes", processes, airflow.healthy)
    airflow.log_in()
    say(f"Airflow: {airflow.url}  login: {USER}  password: {password}")
    say(f"its page of queues: {page_url(airflow.url, 'zkmq_default')}")
    client = stack.enter_context(Zkmq.connect(server.hosts, ROOT, gc=False))
    return Running(airflow, client, processes, environment)


def demo(keep: bool) -> int:
    """Run it all; returns the exit code."""
    with contextlib.ExitStack() as stack:
        running = start_all(stack)
        code = run(running.airflow, running.client, running.processes, running.environment)
        if keep:
            say(f"{page_url(running.airflow.url, 'zkmq_default', QUEUE)} stays, with the login above, until Ctrl-C")
            while True:
                running.processes.check()
                time.sleep(POLL_SECONDS)
        return code


def run(airflow: Airflow, client: Zkmq, processes: Processes, environment: dict[str, str]) -> int:
    """Run the DAG and tell how it went; returns the exit code."""
    for dag in (MAINTENANCE, DAG):
        wait_until(f"the DAG {dag}", processes, lambda dag=dag: airflow.knows(dag))
        airflow.call("PATCH", f"/api/v2/dags/{dag}", {"is_paused": False})
    before = server_zxid(client.config.hosts)
    watcher = Watcher(airflow, client.queue(QUEUE), processes, environment)
    airflow.call("POST", f"/api/v2/dags/{DAG}/dagRuns", {"dag_run_id": RUN, "logical_date": None})
    state = watcher.follow()
    say(f"the DAG run ended: {state}")
    if state != "success":
        return 1
    enqueued = len(airflow.returned(DAG, RUN, "enqueue"))
    good = show_results(airflow, enqueued)
    after = server_zxid(client.config.hosts)
    print(f"\n{enqueued} tasks: all finished, archived and collected: {good}; sensor seen deferred: {watcher.deferred}")
    print(f"ZooKeeper's transactions in all: {after - before} (from {before:#x} to {after:#x})")
    return 0 if good else 1


@contextlib.contextmanager
def fresh_home() -> Iterator[None]:
    """Empty the demo's folder and hold it. Raises `DemoFailed` where another demo runs in it."""
    HOME.parent.mkdir(parents=True, exist_ok=True)
    with HOME.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoFailed(f"another demo runs in {HOME}") from None
        shutil.rmtree(HOME, ignore_errors=True)
        HOME.mkdir()
        yield


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """End the program by `KeyboardInterrupt`, once."""
    # What follows stops everything in a bounded time; a second signal must not cut it short.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    """Parse the arguments and run; returns the exit code."""
    parser = argparse.ArgumentParser(description="Airflow, ZooKeeper, two workers and a census of Airflow's source.")
    parser.add_argument("--keep", action="store_true", help="leave the web page open until Ctrl-C")
    keep = parser.parse_args().keep
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    try:
        with fresh_home():
            return demo(keep)
    except KeyboardInterrupt:
        return 130
    except DemoFailed as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
