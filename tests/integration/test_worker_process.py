"""A worker's process as an operator has it: its log, its time-outs, its reload, the end of it."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shlex
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zkmq.engine import Queue, RetryPolicy, State
from tests.faulty import Faulty
from tests.integration.command import LIMIT_S, ZKMQ, Cli, cli, queue
from tests.support import eventually

__all__ = ["cli", "queue"]


@contextlib.contextmanager
def logging_worker(cli: Cli, tmp_path: Path, *argv: str, code: int = 0, **more: Any) -> Iterator[Log]:
    """A worker of `q` whose log is read while it works; SIGTERM ends it with 0."""
    cli.env |= {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), str(tmp_path)])}
    file = tmp_path / "log"
    with file.open("wb") as errors, cli.background("worker", "q", *argv, stderr=errors, **more) as process:
        yield Log(file, process)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == code, file.read_text()


class Log:
    """The log of a worker, and its process."""

    def __init__(self, file: Path, process: subprocess.Popen[bytes]) -> None:
        self.file, self.process = file, process

    def lines(self, *words: str) -> list[str]:
        """The lines that have all of these words."""
        return [line for line in self.file.read_text().splitlines() if all(word in line for word in words)]

    def await_lines(self, *words: str, count: int = 1) -> list[str]:
        """The lines with these words, once there are so many."""
        eventually(lambda: len(self.lines(*words)) >= count, within=LIMIT_S)
        return self.lines(*words)

    def entries(self) -> list[dict[str, Any]]:
        """Of a log in JSON. Each line must be an object."""
        return [json.loads(line, parse_constant=pytest.fail) for line in self.file.read_text().splitlines()]


HANDLERS = """
import logging, sys

def handle(task):
    logging.getLogger("mine").warning("looking at %s", task.data)
    if task.data == b"bad":
        raise ValueError("line one\\nline two \\udcff\\x1b[31m")
    return b"done"
"""


def test_each_thing_is_one_line_of_the_log(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    """Start, failed attempts, death; what a handler raises has no traceback, unless -v is given."""
    queue.configure(policy=RetryPolicy(attempts=2, factor=0, min_backoff=0.3))
    (tmp_path / "handlers.py").write_text(HANDLERS)
    for option in ((), ("-v",)):
        bad = queue.enqueue("bad")
        with logging_worker(cli, tmp_path, "--handler", "handlers:handle", *option) as log:
            queue.wait([bad], timeout=LIMIT_S)
            (dead,) = log.await_lines("dead: ")
        (start,) = log.lines("worker started")
        assert " INFO worker started: consumer " in start
        assert "on queue 'q'; all tasks; threads 1, session-bound" in start
        words = r"ValueError: line one\nline two \udcff\x1b[31m"
        (failed,) = log.lines("attempt 1 of 2 failed")
        assert failed.endswith(f"WARNING queue 'q', task '{bad}': attempt 1 of 2 failed, again in 0.3 s: {words}")
        assert dead.endswith(f"ERROR queue 'q', task '{bad}': dead: attempt 2 of 2 failed: {words}")
        assert len(log.lines("Traceback")) == (2 if option else 0)
        assert log.lines("finishing what is in hand, at most 30 s; Ctrl-C again stops now")


def test_a_log_in_json_names_queue_task_and_attempt(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    """Each line is an object for any parser, whatever an error holds; the lines of a handler have the names, too."""
    queue.configure(policy=RetryPolicy(attempts=1))
    (tmp_path / "handlers.py").write_text(HANDLERS)
    began = datetime.now(UTC)
    bad = queue.enqueue("bad")
    with logging_worker(cli, tmp_path, "--handler", "handlers:handle", "--log-json", "-v") as log:
        queue.wait([bad], timeout=LIMIT_S)
        log.await_lines("dead: ")
    entries = log.entries()
    assert all(entry.keys() >= {"time", "level", "message"} for entry in entries)
    assert all(began <= datetime.fromisoformat(entry["time"]) <= datetime.now(UTC) for entry in entries)
    assert entries[0]["message"].startswith("worker started")
    assert entries[0]["queue"] == "q"
    names = {"queue": "q", "task": bad, "attempt": 1}
    own, dead = [entry for entry in entries if "task" in entry]
    assert {name: own.pop(name) for name in names} == {name: dead[name] for name in names} == names
    del own["time"]
    assert own == {"level": "WARNING", "message": "looking at b'bad'", "logger": "mine"}
    assert (dead["level"], dead["traceback"].splitlines()[0]) == ("ERROR", "Traceback (most recent call last):")
    assert dead["message"].endswith("dead: attempt 1 of 1 failed: ValueError: line one\nline two \\udcff\x1b[31m")


def test_a_lost_connection_and_its_return_are_told(cli: Cli, queue: Queue, tmp_path: Path, zookeeper: str) -> None:
    """Once each, and whether the session is still the same."""
    with Faulty(zookeeper) as door:
        cli.env["ZKMQ_HOSTS"] = door.hosts
        with logging_worker(cli, tmp_path, "--exec", "cat", "--log-json") as log:
            log.await_lines("worker started")
            door.down()
            log.await_lines("the connection to ZooKeeper is lost")
            door.up()
            (back,) = log.await_lines("connected to ZooKeeper again after")
            assert "with the same session" in back
            queue.wait([queue.enqueue("x")], timeout=LIMIT_S)


def test_a_command_that_takes_too_long_is_ended_before_its_attempt_fails(
    cli: Cli, queue: Queue, tmp_path: Path
) -> None:
    """With all its children, and by the retry policy; the worker goes on."""
    queue.configure(policy=RetryPolicy(attempts=2, factor=0))
    gate, alive = tmp_path / "gate", tmp_path / "alive"
    os.mkfifo(gate)
    os.mkfifo(alive)
    command = f"data=$(cat); test $data = stuck || exit 0; echo on it >&2; exec 9>{alive}; while :; do cat {gate}; done"
    stuck = queue.enqueue("stuck")
    with logging_worker(cli, tmp_path, "--exec", command, "--task-timeout", "1s") as log:
        for attempt in (1, 2):
            with alive.open("rb") as pipe:
                assert pipe.read() == b"", "nobody holds it open any more"
            log.await_lines(f"attempt {attempt} of 2 failed", "CommandFailed: ended, as it took longer than 1 s: on it")
        assert queue.wait([stuck], timeout=LIMIT_S)[0].state is State.DEAD
        assert queue.wait([queue.enqueue("next")], timeout=LIMIT_S)[0].state is State.FINISHED
    assert [attempt.outcome for attempt in queue.task(stuck).history] == ["failed", "failed"]


def version(number: int, gate: str = "") -> str:
    """A module whose handler tells which one it is, and which process it is in; `gate`: once that pipe is opened."""
    wait = f"    open({gate!r}, 'rb').read()\n" if gate else ""
    return f"import os\n\ndef handle(task):\n{wait}    return f'{number} {{os.getpid()}}'\n"


def test_sighup_finishes_what_is_in_hand_and_goes_on_with_the_code_as_it_is_now(
    cli: Cli, queue: Queue, tmp_path: Path
) -> None:
    """In the same process, as those see who supervise it; again and again, whenever it comes."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    code = tmp_path / "handlers.py"
    code.write_text(version(1, str(gate)))
    cli.env["PYTHONDONTWRITEBYTECODE"] = "1"
    first = queue.enqueue("x")
    argv = ("--handler", "handlers:handle", "--listen", "127.0.0.1:0")
    with logging_worker(cli, tmp_path, *argv, stdin=subprocess.DEVNULL) as log:
        with gate.open("wb"):  # opened when the handler has opened the other end
            code.write_text(version(2))
            log.process.send_signal(signal.SIGHUP)
            log.await_lines("finishing what is in hand, at most 30 s; then this process begins anew")
            log.process.send_signal(signal.SIGHUP)
            second = queue.enqueue("y")
        done = queue.wait([first, second], timeout=LIMIT_S)
        pid = log.process.pid
        assert {task.id: task.result for task in done} == {first: f"1 {pid}".encode(), second: f"2 {pid}".encode()}
        for count in (3, 4):
            log.process.send_signal(signal.SIGHUP)
            log.await_lines("worker started", count=count)
        assert queue.wait([queue.enqueue("z")], timeout=LIMIT_S)[0].result == f"2 {pid}".encode()


def test_what_outlasts_the_grace_of_a_reload_counts_no_attempt(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    """Its command is ended, and the process that has begun anew handles it."""
    gate, marked = tmp_path / "gate", tmp_path / "marked"
    os.mkfifo(gate)
    command = f"test -e {marked} && exec cat; touch {marked}; echo > {gate}; sleep 600"
    task = queue.enqueue("x")
    with logging_worker(cli, tmp_path, "--exec", command, "--grace", "0.2", stdin=subprocess.DEVNULL) as log:
        gate.read_bytes()
        log.process.send_signal(signal.SIGHUP)
        (done,) = queue.wait([task], timeout=LIMIT_S)
        assert (done.state, done.attempt, done.result) == (State.FINISHED, 1, b"x")


@pytest.mark.parametrize("order", [(signal.SIGHUP, signal.SIGTERM), (signal.SIGTERM, signal.SIGHUP)])
def test_a_stop_wins_over_a_reload(cli: Cli, queue: Queue, tmp_path: Path, order: tuple[signal.Signals, ...]) -> None:
    """Whichever comes first, the process ends with 0 when its task is done."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    task = queue.enqueue("x")
    with logging_worker(cli, tmp_path, "--exec", f"cat {gate}", stdin=subprocess.DEVNULL) as log:
        with gate.open("wb"):
            log.process.send_signal(order[0])
            log.await_lines("finishing what is in hand")
            log.process.send_signal(order[1])
        assert log.process.wait(LIMIT_S) == 0
    assert queue.task(task).state is State.FINISHED
    assert len(log.lines("worker started")) == 1


def test_a_worker_whose_terminal_goes_away_ends(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    """It is not left behind, without a terminal, by the SIGHUP that tells of that."""
    ours, its = pty.openpty()
    try:
        with logging_worker(cli, tmp_path, "--exec", "cat", stdin=its) as log:
            log.await_lines("worker started")
            log.process.send_signal(signal.SIGHUP)
            assert log.process.wait(LIMIT_S) == 0
    finally:
        os.close(ours)
        os.close(its)
    assert log.lines("Ctrl-C again stops now")


def test_nohup_stays(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    """A worker that is started with SIGHUP ignored goes on as if it had not come."""
    with (
        subprocess.Popen(
            ["/bin/sh", "-c", f"trap '' HUP; exec {shlex.join([*ZKMQ, 'worker', 'q', '--exec', 'cat'])}"],
            env=cli.env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        ) as process,
    ):  # fmt: skip
        assert process.stderr is not None
        assert "worker started" in process.stderr.readline()
        process.send_signal(signal.SIGHUP)
        assert queue.wait([queue.enqueue("x")], timeout=LIMIT_S)[0].result == b"x"
        process.terminate()
        assert process.wait(LIMIT_S) == 0
        assert "anew" not in process.stderr.read()


def test_a_handler_that_is_stuck_for_ever_shows(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    """/livez says so once no thread is free, which has a supervisor start another process; a stop waits for none."""
    from tests.integration.test_worker_metrics import fetched

    queue.configure(policy=RetryPolicy(attempts=1))
    (tmp_path / "handlers.py").write_text("import threading\ndef handle(task): threading.Event().wait()\n")
    argv = ("--handler", "handlers:handle", "--task-timeout", "300ms", "--threads", "2", "--grace", "1h")
    with logging_worker(cli, tmp_path, *argv, "--listen", "127.0.0.1:0") as log:
        address = log.await_lines("served at")[0].rpartition(" ")[2]
        queue.wait([queue.enqueue("x")], timeout=LIMIT_S)
        eventually(lambda: 'zkmq_stuck{queue="q"} 1.0' in fetched(address, "/metrics")[1])
        assert fetched(address, "/livez")[0] == 200
        queue.wait([queue.enqueue("y")], timeout=LIMIT_S)
        eventually(lambda: fetched(address, "/livez")[0] == 503)
        log.await_lines("every thread is with a handler that was timed out")


@pytest.mark.parametrize("address", ["9100", "nowhere:", "127.0.0.1:99999"])
def test_an_address_that_is_none_ends_it_at_once(cli: Cli, queue: Queue, address: str) -> None:
    """With exit code 2 and one line; the connection is closed."""
    ended = cli.run("worker", "q", "--exec", "cat", "--listen", address)
    assert (ended.returncode, "listen at" in ended.stderr) == (2, True)
