"""``zkmq worker --exec``: each task is a shell command's standard input, its output the result."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import Running

TERMINATE_SECONDS = 2.0
_LOOK_SECONDS = 0.2
_LAST_LINES = 5
_LAST_CHARACTERS = 1_000


class CommandFailed(Exception):
    """The command's exit code was not 0, or its task was cancelled."""


class Commands:
    """A handler that runs a command in a session of its own for each task, and can end them all."""

    def __init__(self, command: str, queue: str) -> None:
        self._command = command
        self._queue = queue
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, task: Running) -> bytes:
        """Run the command on a task. Raises `CommandFailed` with its exit code and last words.

        Where the task is cancelled meanwhile the command is ended, and `CommandFailed` says so.
        """
        child = self._start(task)
        output, errors = self._communicate(child, task)
        if task.cancelled:
            raise CommandFailed("ended, as the task was cancelled")
        if child.returncode == 0:
            return output
        if self._ended.is_set():
            _leave_it_to_the_worker()
        raise CommandFailed(_failure(child.returncode, errors))

    def _communicate(self, child: subprocess.Popen[bytes], task: Running) -> tuple[bytes, bytes]:
        try:
            with _ended_when_cancelled(child, task):
                return child.communicate(task.data)
        finally:
            with self._lock:
                self._running.discard(child)

    def _start(self, task: Running) -> subprocess.Popen[bytes]:
        with self._lock:
            child = None if self._ended.is_set() else self._spawn(task)
        return child or _leave_it_to_the_worker()

    def _spawn(self, task: Running) -> subprocess.Popen[bytes]:
        names = {"ZKMQ_TASK_ID": task.id, "ZKMQ_ATTEMPT": str(task.attempt), "ZKMQ_QUEUE": self._queue}
        child = subprocess.Popen(  # noqa: S603  the command is what the operator asked for
            ["/bin/sh", "-c", self._command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | names,
            start_new_session=True,
        )
        self._running.add(child)
        return child

    def end(self) -> None:
        """End every command: SIGTERM to its process group, and SIGKILL where that is not enough."""
        with self._lock:
            self._ended.set()
            running = list(self._running)
        _end(running)


@contextlib.contextmanager
def _ended_when_cancelled(child: subprocess.Popen[bytes], task: Running) -> Iterator[None]:
    """Inside the block the command is ended when its task is cancelled.

    A thread looks now and then, at no request; `communicate` with time-outs would lose input in Python 3.11.
    """
    done = threading.Event()

    def look() -> None:
        while not done.wait(_LOOK_SECONDS):
            if task.cancelled:
                _end([child])
                return

    watcher = threading.Thread(target=look, name="zkmq-exec", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    for child in children:
        _signal(child, signal.SIGTERM)
    deadline = time.monotonic() + TERMINATE_SECONDS
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, deadline - time.monotonic()))
        _signal(child, signal.SIGKILL)  # also what the shell has left behind


def _leave_it_to_the_worker() -> NoReturn:
    """Settle nothing: a command that we ended did not fail by itself; the worker settles it when the grace is over."""
    while True:
        threading.Event().wait()


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)  # the leader of a session leads the group of the same number


def _failure(code: int, errors: bytes) -> str:
    how = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
    lines = errors.decode(errors="replace").strip().splitlines()[-_LAST_LINES:]
    words = "\n".join(lines)[-_LAST_CHARACTERS:]
    return f"{how}: {words}" if words else how
