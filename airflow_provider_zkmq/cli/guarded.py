"""A worker's end of the pipe to its `guard`."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

from airflow_provider_zkmq.cli import guard

#: A service that is shut down sends these to all its processes: the guard stays as long as the worker.
_STAYS: Final = 'trap "" TERM INT HUP; exec "$@"'
#: Its own name does not stand on its command line: whoever kills all that has ours on theirs shall not kill it.
_RUN: Final = "import os, runpy; runpy.run_path(os.environ['GUARD'], run_name='__main__')  # ends what is left behind"


_LOG: Final = logging.getLogger("airflow_provider_zkmq")


class Guard:
    """Ends the commands whose leaders it was told of when this process ends. Whoever uses it holds a lock.

    It is started with the first command, and again if somebody killed it. Where it cannot be, the log says so once, and
    the commands are run all the same.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {**environment, "GUARD": guard.__file__}
        self._leaders: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._missing = False

    def add(self, leader: int) -> None:
        """A command was started; once this returns it is ended with this process."""
        self._tell(b"+%d\n" % leader)
        self._leaders.add(leader)

    def discard(self, leader: int) -> None:
        """A command has ended."""
        if leader in self._leaders:
            self._leaders.remove(leader)
            self._tell(b"-%d\n" % leader)

    def close(self) -> None:
        """Let it go. Idempotent."""
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _tell(self, line: bytes) -> None:
        try:
            self._write(line)
        except BrokenPipeError:
            self._process = None
            for leader in self._leaders:
                self._write(b"+%d\n" % leader)
            self._write(line)

    def _write(self, line: bytes) -> None:
        if self._process is None and not self._missing:
            self._start()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(line)

    def _start(self) -> None:
        process = self._begin()
        if process.stdout is not None and process.stdout.readline().strip() == guard.READY.encode():
            self._process = process
            return
        self._missing = True
        process.communicate()
        _LOG.warning("no guard could be started (%s): if this worker is killed, its commands go on", sys.executable)

    def _begin(self) -> subprocess.Popen[bytes]:
        """In a session of its own and with no other file of ours, so that it outlives us and keeps nobody waiting."""
        return subprocess.Popen(  # noqa: S603  the interpreter that runs us
            ["/bin/sh", "-c", _STAYS, "guard", sys.executable, "-I", "-S", "-c", _RUN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd=os.sep,
            env=self._environment,
            start_new_session=True,
        )
