"""A worker's process as an operator has it: its log, its time-outs, its reload, the end of it."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
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
        assert log.lines("ending: nothing is in hand")


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
    assert all(entry.keys() >= {"time", "level", "message"} and entry["queue"] == "q" for entry in entries)
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
    assert [entry["queue"] for entry in log.entries()] == ["q"] * 4


NOISY = """
import logging, os, sys, threading, warnings

def fail():
    raise ValueError("in a thread")

class Untold:
    def __repr__(self):
        raise ValueError("no words")

def handle(task):
    warnings.warn("mind the gap")
    thread = threading.Thread(target=fail, name="mine")
    thread.start()
    thread.join()
    logging.getLogger("mine").warning("%d tasks", "no")
    logging.getLogger("mine").warning(Untold())
    logging.getLogger("theirs").addHandler(logging.StreamHandler())
    logging.getLogger("theirs").warning("twice")
    print("a word", "and another", file=sys.stderr)
    raise RuntimeError("x" * 100_000)
"""


def test_all_of_standard_error_is_json(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    """Warnings, errors of threads, log calls that cannot be shown, what is printed; no error makes a line huge."""
    queue.configure(policy=RetryPolicy(attempts=1))
    (tmp_path / "handlers.py").write_text(NOISY)
    task = queue.enqueue("x")
    with logging_worker(cli, tmp_path, "--handler", "handlers:handle", "--log-json", "-v") as log:
        queue.wait([task], timeout=LIMIT_S)
        log.await_lines("dead: ")
    entries = log.entries()
    assert {entry["queue"] for entry in entries} == {"q"}

    def one(words: str) -> dict[str, Any]:
        (entry,) = [entry for entry in entries if words in entry["message"]]
        return entry

    assert (one("UserWarning: mind the gap")["logger"], one("mind the gap")["task"]) == ("py.warnings", task)
    assert one("thread 'mine' ended with an error")["traceback"].endswith("ValueError: in a thread")
    failed = one("failed: '%d tasks'")
    assert (failed["logger"], failed["traceback"].splitlines()[-1][:10]) == ("mine", "TypeError:")
    assert f"the log call at {tmp_path}/handlers.py:" in failed["message"]
    assert one("failed: Untold")["traceback"].endswith("ValueError: no words")
    printed = {entry["message"] for entry in entries if entry.get("logger") == "stderr"}
    assert printed == {"a word and another", "twice"}
    assert len(log.lines("twice")) == 2
    assert (len(one("dead: ")["message"]) < 5_000, len(one("dead: ")["traceback"])) == (True, 20_000)


def test_an_error_that_ends_a_worker_is_json_too(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    """Such as a handler that cannot be loaded, or an address that is none."""
    for options in (("--handler", "no.such:handler"), ("--exec", "cat", "--listen", "nowhere:")):
        with logging_worker(cli, tmp_path, *options, "--log-json", code=2) as log:
            log.process.wait(LIMIT_S)
        last = log.entries()[-1]
        assert (last["queue"], last["message"][:6]) == ("q", "zkmq: ")


FORKING = """
import asyncio, os, sys
from airflow_provider_zkmq.engine import AsyncZkmq

def handle(task):
    child = os.fork()
    if child == 0:
        if task.data == b"bad":
            raise ValueError("in the child")
        if task.data == b"left":
            sys.exit(3)
        return b"of the child"
    return str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

async def awaited(task):
    return handle(task)

async def main():
    async with await AsyncZkmq.connect(os.environ["ZKMQ_HOSTS"], root=os.environ["ZKMQ_ROOT"]) as client:
        await client.queue("q").worker(awaited).run(until_empty=True)

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_a_process_that_a_handler_forks_is_no_second_worker(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    """It ends where it returns from the handler, with 0, with what it exits with, or with 1; the worker goes on."""
    code = tmp_path / "handlers.py"
    code.write_text(FORKING)
    tasks = [queue.enqueue(data) for data in ("good", "bad", "left")]
    with logging_worker(cli, tmp_path, "--handler", "handlers:handle") as log:
        assert [task.result for task in queue.wait(tasks, timeout=LIMIT_S)] == [b"0", b"1", b"3"]
    assert len(log.lines("which a handler has forked, has returned from it: it ends here, with exit code ")) == 3
    assert not log.lines("opened in another process")
    tasks = [queue.enqueue(data) for data in ("good", "bad")]
    subprocess.run([sys.executable, code], env=cli.env, check=True, timeout=LIMIT_S)
    assert [task.result for task in queue.wait(tasks, timeout=LIMIT_S)] == [b"0", b"1"]


@pytest.mark.parametrize(
    ("number", "count", "says"),
    [
        (signal.SIGINT, 2, "finishing 2 tasks, at most 30 s; Ctrl-C again to stop now"),
        (signal.SIGTERM, 1, "finishing 1 task, at most 30 s"),
        (signal.SIGINT, 0, "ending: nothing is in hand"),
    ],
)
def test_the_first_signal_says_what_is_in_hand(
    cli: Cli, queue: Queue, tmp_path: Path, number: signal.Signals, count: int, says: str
) -> None:
    """And that a second Ctrl-C stops at once, where the first was one."""
    names = [f"gate-{n}" for n in range(count)]
    for name in names:
        os.mkfifo(tmp_path / name)
        queue.enqueue(name)
    command = f"cat {shlex.quote(str(tmp_path))}/$(cat)"
    with logging_worker(cli, tmp_path, "--exec", command, "--threads", "2", "--log-json") as log:
        with contextlib.ExitStack() as stack:
            log.await_lines("worker started")
            for name in names:
                stack.enter_context((tmp_path / name).open("wb"))  # opened when the command has opened the other end
            log.process.send_signal(number)
            log.await_lines(says)
        assert log.process.wait(LIMIT_S) == 0
    last = log.entries()[-1]
    assert (last["message"], last["queue"]) == (says, "q")


TAKEN = """
import os

def handle(task):
    if not os.path.exists({gate!r}):
        os.mkfifo({gate!r})
        open({gate!r}, "rb").read()
"""


def test_a_worker_says_at_once_that_a_task_was_taken_from_it(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    """While its handler is at work still, in words, and once."""
    taken = "it was taken from this worker (cancelled, released by force, deleted, or its lease ended)"
    ways: tuple[tuple[tuple[str, ...], str, str], ...] = (
        ((), "release --force", taken),
        (("--lease", "1h"), "release --force", taken),
        ((), "cancel", "it was cancelled while in hand"),
    )
    for number, (options, verb, words) in enumerate(ways):
        gate = tmp_path / f"gate-{number}"
        # A module of its own: Python takes one that is as long and as old, to the second, for the one it has compiled.
        (tmp_path / f"handlers_{number}.py").write_text(TAKEN.format(gate=str(gate)))
        task = queue.enqueue("x")
        with logging_worker(cli, tmp_path, "--handler", f"handlers_{number}:handle", *options) as log:
            eventually(gate.exists)
            with gate.open("wb"):
                assert cli.run(*verb.split(), "q", task).returncode == 0
                log.await_lines(f"queue 'q', task '{task}': {words}")
            queue.wait([task, queue.enqueue("next")], timeout=LIMIT_S)
        assert len(log.lines("claim ")) == 0, log.lines("claim ")
        assert len(log.lines(words)) == 1


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
            log.await_lines("finishing 1 task, at most 30 s; then this process begins anew")
            log.process.send_signal(signal.SIGHUP)
            second = queue.enqueue("y")
        done = queue.wait([first, second], timeout=LIMIT_S)
        pid = log.process.pid
        assert {task.id: task.result for task in done} == {first: f"1 {pid}".encode(), second: f"2 {pid}".encode()}
        for count in (3, 4):
            log.process.send_signal(signal.SIGHUP)
            log.await_lines("worker started", count=count)
        assert queue.wait([queue.enqueue("z")], timeout=LIMIT_S)[0].result == f"2 {pid}".encode()


def test_code_that_cannot_be_loaded_ends_no_worker(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    """A SIGHUP then says why in one line, and the worker goes on; the next one finds the code mended."""
    code = tmp_path / "handlers.py"
    code.write_text(version(1))
    cli.env["PYTHONDONTWRITEBYTECODE"] = "1"
    with logging_worker(cli, tmp_path, "--handler", "handlers:handle", stdin=subprocess.DEVNULL) as log:
        log.await_lines("worker started")
        for count, broken in enumerate(("def handle(task)", "", "raise SystemExit(3)"), 1):
            code.write_text(broken)
            log.process.send_signal(signal.SIGHUP)
            log.await_lines("ERROR the worker goes on as it is, as it cannot begin anew: ", count=count)
            done = queue.wait([queue.enqueue("x")], timeout=LIMIT_S)[0]
            assert done.result == f"1 {log.process.pid}".encode()
        code.write_text(version(22))
        log.process.send_signal(signal.SIGHUP)
        log.await_lines("beginning anew: nothing is in hand")
        done = queue.wait([queue.enqueue("x")], timeout=LIMIT_S)[0]
        assert done.result == f"22 {log.process.pid}".encode()
    told = [line.partition("begin anew: ")[2] for line in log.lines("ERROR")]
    assert told[0].startswith("--handler 'handlers:handle' cannot be loaded: SyntaxError: ")
    assert told[1].startswith("--handler 'handlers:handle' cannot be loaded: AttributeError: ")
    assert told[2:] == ["exit code 3"]


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
            log.await_lines("finishing 1 task, at most 30 s")
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
    assert log.lines("ending: nothing is in hand")


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
