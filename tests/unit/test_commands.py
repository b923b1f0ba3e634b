"""`zkmq worker --exec`: what a command gets and gives, and that it ends with its task and with its worker."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from airflow_provider_zkmq import worker_process
from airflow_provider_zkmq.cli import main
from airflow_provider_zkmq.shell_handler import command_reaper, exec_handler
from airflow_provider_zkmq.shell_handler.command_reaper import Process, _started_by
from airflow_provider_zkmq.shell_handler.exec_handler import CommandFailed, Commands, Guard
from tests.support import eventually
from tests.unit.test_cli import InHand, a_task

TRAPS = pytest.mark.parametrize("trap", ["", "trap '' TERM; "])


def executed(command: str, task: InHand | None = None, **options: Any) -> bytes:
    """The output of a command on a task."""
    run = Commands(command, "q", **options)
    try:
        return run(task or a_task())
    finally:
        run.end()


def test_exec_passes_the_task_and_returns_the_output(subtests: pytest.Subtests) -> None:
    """The data is standard input, to the byte, the output the result, and the environment names the task."""
    much = os.urandom(300_000)
    for command, data, wanted in (
        ('tr a-z A-Z; echo " $ZKMQ_QUEUE/$ZKMQ_TASK_ID/$ZKMQ_ATTEMPT"', b"payload", b"PAYLOAD q/t-1/2\n"),
        *(("cat", each, each) for each in (b"", b"\n", b"\n\nno line end", b"\x00\xff\r\n", b"one\ntwo\n")),
        ("echo ok", much, b"ok\n"),  # nobody reads the input
        (f"sleep {2 * exec_handler._LOOK_SECONDS}; cat", much, much),  # longer than one look for a cancel
    ):
        with subtests.test(msg=command, data=data[:20]):
            assert executed(command, a_task(data)) == wanted


def test_exec_runs_in_a_session_of_its_own() -> None:
    """The command leads a process group, so that all it starts can be ended together."""
    pid, group = executed("ps -o pid= -o pgid= -p $$ 2>/dev/null || cut -d' ' -f1,5 /proc/$$/stat").split()
    assert pid == group


def test_exec_failure_tells_code_and_last_words(subtests: pytest.Subtests) -> None:
    """A command that fails raises its exit code or signal and the last lines of its standard error."""
    for command, told in (
        ("echo first >&2; echo last >&2; exit 3", "exit code 3: first\nlast"),
        ("exit 4", "exit code 4"),
        ("kill -9 $$", "ended by signal 9"),
        ("seq 1 9 >&2; exit 1", "exit code 1: 5\n6\n7\n8\n9"),
        ("printf '\\377' >&2; exit 1", "exit code 1: \ufffd"),
    ):
        with subtests.test(msg=command):
            with pytest.raises(CommandFailed) as caught:
                executed(command)
            assert str(caught.value) == told


SECRETS = {
    "ZKMQ_AUTH": "u:p",
    "ZKMQ_TLS_KEY_PASSWORD": "k",
    "ZKMQ_KEY_PASSPHRASE": "k",
    "ZKMQ_SECRET": "s",
    "MINE": "m",
}


def test_exec_does_not_pass_credentials_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command inherits the environment without what opens the queues, and all of it with --pass-credentials.

    Neither does it inherit the variable that --tls-key-password-env names.
    """
    for name, value in {**SECRETS, "ZKMQ_HOSTS": "h:1", "OTHER": "o"}.items():
        monkeypatch.setenv(name, value)
    seen_by = mock.Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr(worker_process, "Commands", seen_by)
    monkeypatch.setattr("airflow_provider_zkmq.worker_logs.set_up", lambda **_: None)
    main.main(["worker", "q", "--exec", "env", "--tls-key-password-env", "MINE"])
    named = seen_by.call_args.kwargs["secret"]
    assert named == {"MINE"}
    assert b"MINE=m" in executed("env")
    for credentials in (False, True):
        told = executed("env", credentials=credentials, secret=named).decode()
        seen = dict(line.split("=", 1) for line in told.splitlines())
        assert {name: seen.get(name) for name in SECRETS} == (SECRETS if credentials else dict.fromkeys(SECRETS))
        assert (seen["ZKMQ_HOSTS"], seen["OTHER"], seen["ZKMQ_TASK_ID"]) == ("h:1", "o", "t-1")
        assert "ZKMQ_BEGIN" not in seen


def held_open(path: Path) -> str:
    """A command that holds a pipe open, as do its child, its grandchild, and what left its session."""
    os.mkfifo(path)
    begun = f"exec 9>{shlex.quote(str(path))}"
    rest = "sh -c 'sleep 600; :' & setsid sh -c 'sleep 600; :' & sleep 600"
    return f"{begun}; {rest}; :"


@TRAPS
@pytest.mark.parametrize("proc", [True, False])
def test_exec_ends_the_command_of_a_task_that_is_lost(
    proc: bool, trap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that it started is ended, also what ignores SIGTERM or left its session, and the failure says why.

    It is lost by a cancellation, or otherwise.
    Systems without /proc tell less of who started what: the command's process group is ended there.
    """
    monkeypatch.setattr(worker_process, "TERMINATE_SECONDS", 0.3)
    alive = tmp_path / "alive"
    command = trap + held_open(alive)
    if not proc:
        monkeypatch.setattr(command_reaper, "_processes", set)
        command = command.replace("setsid ", "")
    run = Commands(command, "q")
    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(run, a_task())
        with alive.open("rb") as pipe:  # opened when the command has opened the other end
            monkeypatch.setattr(InHand, "cancelled", proc)
            monkeypatch.setattr(InHand, "lost", True)
            assert pipe.read() == b""  # neither the shell nor what it started holds it any more
        with pytest.raises(CommandFailed, match="cancelled" if proc else "claim was lost"):
            stuck.result(timeout=10)
    run.end()


_WORKER = """
import sys
from airflow_provider_zkmq.shell_handler.exec_handler import Commands
from tests.unit.test_cli import a_task
Commands(sys.argv[1], "q")(a_task())
"""


@contextlib.contextmanager
def a_worker(command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs a command, as a worker does."""
    with subprocess.Popen([sys.executable, "-c", _WORKER, command], start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


@TRAPS
def test_exec_ends_with_its_worker(trap: str, tmp_path: Path) -> None:
    """When the worker is killed, the command ends with its child, its grandchild, and what left its session."""
    alive = tmp_path / "alive"
    with a_worker(trap + held_open(alive)) as process, alive.open("rb") as pipe:
        os.killpg(process.pid, signal.SIGKILL)  # with all that is in the worker's own group
        assert pipe.read() == b""


def test_exec_ends_with_its_worker_though_its_guard_was_told_to_end(tmp_path: Path) -> None:
    """A service that is shut down sends SIGTERM to each of its processes: the guard stays as long as the worker."""
    alive = tmp_path / "alive"
    with a_worker(held_open(alive)) as process, alive.open("rb") as pipe:
        eventually(lambda: guard_of(process.pid))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(guard_of(process.pid), number)
        process.kill()
        assert pipe.read() == b""


def guard_of(pid: int) -> int:
    """The guard among the children of a process; 0 while there is none, or it is not yet what it will be."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(
        int(child) for child in children if Path(f"/proc/{child}/cmdline").read_text().startswith(sys.executable)
    )


def test_exec_never_begins_a_command_that_nobody_guards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is killed between the start of a command and telling its guard leaves one that does nothing."""
    begun = tmp_path / "begun"
    run = Commands(f"touch {shlex.quote(str(begun))}", "q")
    monkeypatch.setattr(run._guard, "add", lambda _leader: None)
    child = run._spawn(a_task())
    assert child.stdin is not None
    child.stdin.close()  # as the system closes it for whoever is killed
    assert child.wait(timeout=30) != 0
    assert not begun.exists()


def test_exec_starts_its_guard_again(tmp_path: Path) -> None:
    """If somebody killed it, the next command has another one, which also knows of the commands that run."""
    alive, gate = tmp_path / "alive", tmp_path / "gate"
    os.mkfifo(gate)
    run = Commands("eval $(cat)", "q")
    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(run, a_task(held_open(alive).encode()))
        with alive.open("rb") as pipe:
            first = run._guard._process
            assert first is not None
            first.kill()
            first.wait()
            assert run(a_task(b"echo ok")) == b"ok\n"
            second = run._guard._process
            assert second is not first
            assert second is not None
            run._guard = Guard({})
            second.communicate()  # our end of the pipe is closed, as if we had been killed
            assert pipe.read() == b""
        with pytest.raises(CommandFailed, match="signal"):
            stuck.result(timeout=10)


def test_exec_says_that_there_is_no_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where none can be started the log says so once, and the commands are run."""
    monkeypatch.setattr(command_reaper, "__file__", str(tmp_path / "nothing.py"))
    run = Commands("cat", "q")
    assert [run(a_task()), run(a_task())] == [b"payload", b"payload"]
    run.end()
    assert caplog.text.count("no guard could be started") == 1


def test_a_child_that_was_started_while_its_parent_was_ended_is_the_command_s() -> None:
    """It is seen first when it has no parent any more: its session was begun by one that was known."""
    left_its_session = Process(11, started=1, parent=10, group=11, session=11)
    orphan = Process(12, started=2, parent=1, group=11, session=11)
    other = Process(13, started=2, parent=1, group=13, session=13)
    assert _started_by({10}, {left_its_session}, {orphan, other}) == {orphan}
    assert _started_by({10}, set(), {orphan, other}) == set()
