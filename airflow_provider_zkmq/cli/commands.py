"""``zkmq worker --exec``: each task is a shell command's standard input, its output the result."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine.core.inspect import Task

TERMINATE_SECONDS = 2.0
_LAST_LINES = 5
_LAST_CHARACTERS = 1_000


class CommandFailed(Exception):
    """The command's exit code was not 0."""


class Commands:
    """A handler that runs a command in a session of its own for each task, and can end them all."""

    def __init__(self, command: str, queue: str) -> None:
        self._command = command
        self._queue = queue
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, task: Task) -> bytes:
        """Run the command on a task. Raises `CommandFailed` with its exit code and last words."""
        child = self._start(task)
        try:
            output, errors = child.communicate(task.data)
        finally:
            with self._lock:
                self._running.discard(child)
        if child.returncode == 0:
            return output
        if self._ended.is_set():
            _leave_it_to_the_worker()
        raise CommandFailed(_failure(child.returncode, errors))

    def _start(self, task: Task) -> subprocess.Popen[bytes]:
        names = {"ZKMQ_TASK_ID": task.id, "ZKMQ_ATTEMPT": str(task.attempt), "ZKMQ_QUEUE": self._queue}
        with self._lock:
            if self._ended.is_set():
                _leave_it_to_the_worker()
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
        for child in running:
            _signal(child, signal.SIGTERM)
        deadline = time.monotonic() + TERMINATE_SECONDS
        for child in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
            _signal(child, signal.SIGKILL)  # also what the shell has left behind


def _leave_it_to_the_worker() -> None:
    """Settle nothing: a command that we ended did not fail; the worker gives its task back when the grace is over."""
    threading.Event().wait()


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)  # the leader of a session leads the group of the same number


def _failure(code: int, errors: bytes) -> str:
    how = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
    lines = errors.decode(errors="replace").strip().splitlines()[-_LAST_LINES:]
    words = "\n".join(lines)[-_LAST_CHARACTERS:]
    return f"{how}: {words}" if words else how
