"""The commands of ``zkmq worker --exec``: how they are run, and ended with their tasks and with the worker."""

from __future__ import annotations

import logging
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final, NoReturn

from .. import traces
from . import command_reaper
from .command_reaper import TERMINATE_SECONDS, end_commands

if TYPE_CHECKING:
    from ..engine import Running

# --- A worker's end of the pipe to its `guard`.

#: A service that is shut down sends these to all its processes: the guard stays as long as the worker.
_STAYS: Final = 'trap "" TERM INT HUP; exec "$@"'
#: Its own name does not stand on its command line: whoever kills all that has ours on theirs shall not kill it.
_RUN: Final = "import os, runpy; runpy.run_path(os.environ['GUARD'], run_name='__main__')  # ends what is left behind"
_LOG: Final = logging.getLogger("airflow_provider_zkmq")


class Guard:
    """Ends the commands whose leaders it knows when this process ends. Whoever uses it holds a lock.

    It is started with the first command, and again if somebody killed it. Where it cannot be, the log says so once, and
    the commands are run all the same.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {**environment, "GUARD": command_reaper.__file__}
        self.leaders: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._missing = False

    def add(self, leader: int) -> None:
        """A command was started; once this returns it is ended with this process."""
        self._send_line(b"+%d\n" % leader)
        self.leaders.add(leader)

    def discard(self, leader: int) -> None:
        """A command has ended."""
        if leader in self.leaders:
            self.leaders.remove(leader)
            self._send_line(b"-%d\n" % leader)

    def close(self) -> None:
        """Let it go. Idempotent."""
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _send_line(self, line: bytes) -> None:
        try:
            self._write(line)
        except BrokenPipeError:
            self._process = None
            for leader in self.leaders:
                self._write(b"+%d\n" % leader)
            self._write(line)

    def _write(self, line: bytes) -> None:
        if self._process is None and not self._missing:
            self._start()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(line)

    def _start(self) -> None:
        """In a session of its own and with no other file of ours, so that it outlives us and keeps nobody waiting."""
        process = subprocess.Popen(  # noqa: S603  the interpreter that runs us
            ["/bin/sh", "-c", _STAYS, "guard", sys.executable, "-I", "-S", "-c", _RUN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd=os.sep,
            env=self._environment,
            start_new_session=True,
        )
        if process.stdout is not None and process.stdout.readline().strip() == command_reaper.READY.encode():
            self._process = process
            return
        self._missing = True
        process.communicate()
        _LOG.warning("no guard could be started (%s): if this worker is killed, its commands go on", sys.executable)


# --- ``zkmq worker --exec``: each task is a shell command's standard input, its output the result.
#
# A command never outlives its task: it is ended when the task is cancelled or its claim is lost in another way,
# when the worker's grace is over, and, by the worker's `guard`, when the worker was killed.

_LOOK_SECONDS = 0.2
_LAST_LINES = 5
_LAST_CHARACTERS = 1_000
#: The command begins when it reads a first line, which is written once the guard knows of it: a worker that is killed
#: before that closes the pipe, and the command never begins. `read` takes no byte more of a pipe than that line.
_GATE: Final = 'read -r ZKMQ_BEGIN || exit; exec /bin/sh -c "$0"'
_BEGIN: Final = b"\n"
#: Variables that let whoever has them use the queues: no business of the commands.
_SECRET: Final = re.compile(r"ZKMQ_.*(AUTH|PASS|SECRET)")


class CommandFailed(Exception):
    """The command's exit code was not 0, or its task was cancelled or taken away."""


class Commands:
    """A handler that runs a command in a session of its own for each task, and can end them all.

    `credentials`: the commands inherit ours, which stand in variables such as ``ZKMQ_AUTH``, and in those of `secret`.
    `timeout`: a command that takes more seconds is ended, and has failed.
    """

    def __init__(
        self,
        command: str,
        queue: str,
        *,
        credentials: bool = False,
        secret: Collection[str] = frozenset(),
        timeout: float | None = None,
    ) -> None:
        self._command, self._timeout = command, timeout
        inherited = os.environ if credentials else environment(os.environ, secret)
        self._environment = {**inherited, "ZKMQ_QUEUE": queue}
        self._guard = Guard(environment(os.environ, secret))
        self._ended = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, task: Running) -> bytes:
        """Run the command on a task. Raises `CommandFailed` with its exit code and last words.

        Where the claim is lost meanwhile, by a cancellation say, or it takes longer than the time-out, the command is
        ended first, and `CommandFailed` says so.
        """
        with self._lock:
            child = None if self._ended.is_set() else self._spawn(task)
        if child is None:
            _leave_it_to_the_worker()
        done, timed_out = threading.Event(), threading.Event()
        deadline = math.inf if self._timeout is None else time.monotonic() + self._timeout

        def look() -> None:  # now and then, at no request; in Python 3.11 `communicate` with time-outs loses input
            while not done.wait(max(0.0, min(_LOOK_SECONDS, deadline - time.monotonic()))):
                late = time.monotonic() >= deadline
                if task.lost or late:
                    if late:
                        timed_out.set()
                    end_commands([child.pid], TERMINATE_SECONDS)
                    return

        watcher = threading.Thread(target=look, name="zkmq-exec", daemon=True)
        try:
            watcher.start()
            try:
                output, errors = child.communicate(_BEGIN + task.data)
            finally:
                done.set()
                watcher.join()
        finally:
            with self._lock:
                self._guard.discard(child.pid)
        if task.lost:
            raise CommandFailed(f"ended, as {'the task was cancelled' if task.cancelled else 'its claim was lost'}")
        if child.returncode == 0 and not timed_out.is_set():
            return output
        if self._ended.is_set():
            _leave_it_to_the_worker()
        if timed_out.is_set():
            raise CommandFailed(f"ended, as it took longer than {self._timeout:g} s{_last_words(errors)}")
        how = f"exit code {child.returncode}" if child.returncode > 0 else f"ended by signal {-child.returncode}"
        raise CommandFailed(f"{how}{_last_words(errors)}")

    def _spawn(self, task: Running) -> subprocess.Popen[bytes]:
        names = {"ZKMQ_TASK_ID": task.id, "ZKMQ_ATTEMPT": str(task.attempt)}
        child = subprocess.Popen(  # noqa: S603  the command is what the operator asked for
            ["/bin/sh", "-c", _GATE, self._command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**self._environment, **names, **traces.environment(task.metadata)},
            start_new_session=True,
        )
        self._guard.add(child.pid)  # the leader of a session leads the group of the same number
        return child

    def end(self) -> None:
        """End every command: SIGTERM to all it has started, and SIGKILL where that is not enough. None begins anew."""
        with self._lock:
            self._ended.set()
            running = list(self._guard.leaders)
        if running:
            end_commands(running, TERMINATE_SECONDS)
        with self._lock:
            for leader in running:
                self._guard.discard(leader)
            self._guard.close()


def _last_words(errors: bytes) -> str:
    """The end of what a command wrote on standard error, after a colon; nothing of nothing."""
    lines = errors.decode(errors="replace").strip().splitlines()[-_LAST_LINES:]
    words = "\n".join(lines)[-_LAST_CHARACTERS:]
    return f": {words}" if words else ""


def environment(variables: Mapping[str, str], secret: Collection[str]) -> dict[str, str]:
    """What of an environment goes to others: not our credentials, nor what is `secret` besides."""
    return {name: value for name, value in variables.items() if not (_SECRET.match(name) or name in secret)}


def _leave_it_to_the_worker() -> NoReturn:
    """Settle nothing: a command that we ended did not fail by itself; the worker settles it when the grace is over."""
    while True:
        threading.Event().wait()
