"""`zkmq worker` against a real ZooKeeper: what it hands out, and how it ends."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_zkmq.engine import Message, Queue, State
from tests.integration.command import LIMIT_S, Cli, cli, queue

__all__ = ["cli", "queue"]


@contextlib.contextmanager
def a_worker(cli: Cli, *argv: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker in a process of its own. Unless it was killed, SIGTERM ends it with 0."""
    with cli.background("worker", *argv) as process:
        yield process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 0, errors.decode()


def a_pipe(tmp_path: Path, name: str) -> tuple[Path, str]:
    """A named pipe, and its name for a shell."""
    path = tmp_path / name
    os.mkfifo(path)
    return path, shlex.quote(str(path))


def test_a_worker_runs_a_command_on_what_its_node_may_take(cli: Cli, queue: Queue) -> None:
    """Each task is the command's input, its output the result; a non-zero exit fails it with the last words.

    What is too much for the node is left. --until-empty ends with 0, and the counts.
    """
    cli.ask("configure q --attempts 1 --filter class=enum:low,standard,high")
    words = {queue.enqueue(word, {"class": "low"}): word.upper().encode() for word in ("one", "two", "three")}
    bad, high = queue.enqueue("bad", {"class": "standard"}), queue.enqueue("high", {"class": "high"})
    command = "data=$(cat); test $data != bad || { echo no water >&2; exit 7; }; printf $data | tr a-z A-Z"
    options = f"--exec {shlex.quote(command)} --until-empty --threads 2"
    cli.ask(f"worker q --node class=standard --filter-method at_least {options}", finished=3, failed=1)
    assert {task.id: task.result for task in queue.wait(list(words), timeout=10)} == words
    assert (queue.task(bad).state, queue.task(high).state) == (State.DEAD, State.INSERTED)
    assert "exit code 7: no water" in (queue.task(bad).error or "")


def test_a_worker_calls_a_handler_of_the_current_folder(
    cli: Cli, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--handler module:function finds it.

    With --transactional it gets a transaction: what it puts stands with the completed task; a failure writes nothing.
    """
    code = (
        "def turn(task):\n"
        "    return task.data[::-1]\n"
        "def move(task, tx):\n"
        "    tx.put('out', b'of ' + task.data)\n"
        "    if task.data == b'bad': raise ValueError('no')\n"
    )
    (tmp_path / "my_handlers.py").write_text(code)
    cli.env["PYTHONPATH"] = str(Path(__file__).parents[2])
    monkeypatch.chdir(tmp_path)
    cli.ask("configure q --final ValueError")

    def work(*argv: str) -> None:
        with cli.background("worker", "q", *argv, "--until-empty", "--no-gc") as process:
            _, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, errors.decode()

    task_id = queue.enqueue("abc")
    work("--handler", "my_handlers:turn")
    assert queue.task(task_id).result == b"cba"
    good, bad = queue.enqueue("good"), queue.enqueue("bad")
    work("--handler", "my_handlers:move", "--transactional")
    assert (queue.task(good).state, queue.task(bad).state) == (State.FINISHED, State.DEAD)
    assert [task["data"] for task in cli.ask("list out")["tasks"]] == ["of good"]


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_worker_finishes_what_is_in_hand(
    cli: Cli, queue: Queue, tmp_path: Path, number: signal.Signals
) -> None:
    """After the signal the running command may finish within the grace: its task is finished, the next untouched, 0."""
    gate, name = a_pipe(tmp_path, "gate")
    first, second = queue.enqueue("first"), queue.enqueue("second")
    with cli.background("worker", "q", "--exec", f"cat {name}; cat", "--grace", "30") as process:
        queue.wait([first], "claim", timeout=30)
        opened = os.open(gate, os.O_WRONLY)  # returns when the command has opened the other end
        process.send_signal(number)
        os.write(opened, b"through ")
        os.close(opened)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors.decode()
    done = queue.task(first)
    assert (done.state, done.result) == (State.FINISHED, b"through first")
    assert queue.task(second).state is State.INSERTED


@pytest.mark.full
@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
def test_a_stopped_worker_gives_back_what_outlasts_the_grace(cli: Cli, queue: Queue, tmp_path: Path, trap: str) -> None:
    """A command that outlasts the grace is ended with all its children, even if it ignores SIGTERM.

    Its task is to be tried again, the delivery counted as it has begun, and the worker ends with 0.
    """
    (_, gate), (alive, held) = (a_pipe(tmp_path, name) for name in ("gate", "alive"))
    task_id = queue.enqueue("x")
    # The loop and its children hold the pipe `alive` open: its end of file says that all of them are gone.
    command = f"{trap}exec 9>{held}; while :; do cat {gate}; done"
    with a_worker(cli, "q", "--exec", command, "--grace", "0.2") as process:
        queue.wait([task_id], "claim", timeout=30)
        with alive.open("rb") as pipe:  # opened when the command has opened the other end
            process.send_signal(signal.SIGTERM)
            assert pipe.read() == b""
    task = queue.task(task_id)
    assert (task.state, task.attempt, [one.outcome for one in task.history]) == (State.INSERTED, 1, ["failed"])
    assert "stopped" in (task.error or "")


def test_a_task_that_is_taken_away_ends_its_command(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    """A cancel, or a release by force, ends the command with all its children, and the worker goes on."""
    ways = (("cancel", State.CANCELLED, None), ("release --force", State.FINISHED, None))
    for verb, state, error in (*ways, ("fail --force --no-retry --error hung", State.DEAD, "hung")):
        (tmp_path / verb).mkdir()
        (_, gate), (alive, held) = (a_pipe(tmp_path / verb, name) for name in ("gate", "alive"))
        task_id, first = queue.enqueue("stuck"), shlex.quote(str(tmp_path / verb / "first"))
        stuck = f"exec 9>{held}; while :; do cat {gate}; done"
        with a_worker(cli, "q", "--exec", f"data=$(cat); test $data = stuck && mkdir {first} || exit 0; {stuck}"):
            queue.wait([task_id], "claim", timeout=30)
            with alive.open("rb") as pipe:
                assert cli.run(*verb.split(), "q", task_id).returncode == 0
                assert pipe.read() == b""
            assert queue.wait([queue.enqueue("next")], timeout=30)[0].state is State.FINISHED
            assert queue.wait([task_id], timeout=30)[0].state is state
        task = queue.task(task_id)
        assert (task.attempt, task.error) == (1, error)


@pytest.mark.full
def test_a_killed_worker_s_command_ends_with_it(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    """After `kill -9` neither the command nor a child or grandchild of it goes on; another worker handles its task."""
    alive, held = a_pipe(tmp_path, "alive")
    task_id = queue.enqueue("x")
    stuck = f"exec 9>{held}; sh -c 'sleep 600; :' & setsid sleep 600 & sleep 600; :"
    command = f"test $ZKMQ_ATTEMPT = 1 || exec cat; {stuck}"
    with cli.background("worker", "q", "--exec", command, "--session-timeout", "2") as process:
        with alive.open("rb") as pipe:
            process.kill()
            assert pipe.read() == b""  # nobody holds it open any more
    with a_worker(cli, "q", "--exec", command):
        done = queue.wait([task_id], timeout=LIMIT_S)[0]
    assert (done.state, done.attempt, done.result) == (State.FINISHED, 2, b"x")
    assert queue.counts()["finished"] == sum(queue.counts().values()) == 1


def test_a_command_has_no_credentials_unless_told(cli: Cli) -> None:
    """What opens the queue is the worker's; with --pass-credentials the command may use the queue itself."""
    cli.env["ZKMQ_AUTH"] = "ann:secret"
    for options, seen in (("", "none"), ("--pass-credentials", "ann:secret")):
        task_id = cli.ask("enqueue q x --create")["id"]
        cli.ask(f"worker q --exec 'printf %s ${{ZKMQ_AUTH-none}}' --until-empty {options}")
        cli.ask(f"show q {task_id}", result=seen)


def test_a_worker_without_threads_only_warns(cli: Cli, queue: Queue) -> None:
    """`--threads 0 --warn-size`: a warning once more tasks are pending, none is handled, and SIGTERM ends it."""
    ids = [queue.enqueue("x") for _ in range(3)]
    with a_worker(cli, "q", "--threads", "0", "--warn-size", "2") as process:
        assert process.stderr is not None
        assert "on queue 'q'; all tasks; threads 0, session-bound" in process.stderr.readline().decode()
        assert "queue 'q' has 3 pending tasks, more than 2" in process.stderr.readline().decode()
    assert {queue.task(one).state for one in ids} == {State.INSERTED}


def test_a_worker_may_be_started_before_its_queue_is_there(cli: Cli) -> None:
    """It says so in its log, once, and handles what comes."""
    cli.ask("configure orders")
    with cli.background("worker", "ordres", "--exec", "cat", "--threads", "3") as process:
        assert process.stderr is not None
        warning = process.stderr.readline().decode()
        for words in ("WARNING", "queue 'ordres' does not exist", "did you mean 'orders'?"):
            assert words in warning
        task_id = cli.ask("enqueue ordres x --create")["id"]
        assert cli.ask(f"wait ordres {task_id} --timeout 30")["tasks"][0]["result"] == "x"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert b"WARNING" not in process.stderr.read()


def test_ctrl_c_finishes_what_is_in_hand_and_a_second_one_stops_now(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    """The first says so, and is ready no more; the second leaves the task to others, whose attempt it was."""
    begun, name = a_pipe(tmp_path, "begun")
    task = queue.enqueue("x")
    with cli.background("worker", "q", "--listen", "127.0.0.1:0", "--exec", f"echo > {name}; sleep 600") as process:
        begun.read_bytes()
        process.send_signal(signal.SIGINT)
        assert process.stderr
        lines = [process.stderr.readline().decode() for _ in range(3)]
        assert "metrics and health are served at 127.0.0.1:" in lines[0]
        assert "finishing 1 task, at most 30 s; Ctrl-C again to stop now" in lines[2]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT_S)
        assert process.returncode == 130
    claim = queue.claim(timeout=LIMIT_S)
    assert claim is not None
    assert (claim.task.id, claim.task.attempt) == (task, 2)
    claim.complete()


def test_a_worker_ends_after_so_many_tasks(cli: Cli, queue: Queue) -> None:
    """By --max-tasks; --concurrency is another word for --threads."""
    queue.enqueue_many([Message(b"")] * 3)
    cli.ask("worker q --exec true --max-tasks 2 --concurrency 2", finished=2, failed=0)
    assert queue.counts()["inserted"] == 1
