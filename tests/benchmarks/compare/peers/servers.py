"""Servers of other kinds, which the benchmark starts for itself, and which end with it, however it ends."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.compare.jobs import Asked, BenchError, Verb, simple

_START_S: Final = 30.0
# The shell becomes the server; the guard that it leaves behind reads the end of our pipe, and ends the server at once,
# with all that it has started and that has not left its process group.
_GUARDED: Final = """\
exec 3<&0 </dev/null
{ read -r line <&3; kill -"$0" 0; } &
exec 3<&-
exec "$@"
"""
Connect = Callable[[], AbstractContextManager[Any]]


def start(
    command: Sequence[str | Path], folder: Path, signal: str, as_user: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """A server in its folder, where its ``log`` is. It gets the signal when its input, a pipe of ours, is closed."""
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [*as_user, "/bin/sh", "-c", _GUARDED, signal, *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )


def expect(server: subprocess.Popen[bytes], folder: Path, name: str, serves: Callable[[], bool]) -> None:
    """Wait until it serves. Raises `BenchError` with its last words where it does not."""
    deadline = time.monotonic() + _START_S
    while not serves():
        if server.poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"{name} does not start: {(folder / 'log').read_text(errors='replace')[-300:]}")
        time.sleep(0.05)


def threaded(running: Callable[[], AbstractContextManager[Connect]]) -> Callable[[str], Verb]:
    """Verbs of a server that `number` threads drive, each with a connection of its own.

    The verb is a method of the connection; it takes how many tasks there are, and returns how many it did.
    """

    def connections(requested: Asked) -> list[Any]:
        connect = requested.clients.once(running, running)
        return [requested.clients.once((running, each), connect) for each in range(requested.number or 1)]

    def verb(name: str) -> Verb:
        def fill(requested: Asked) -> None:
            first = connections(requested)[0]
            first.clear()
            if name == "consume":
                first.put_many(requested.tasks)

        def run(requested: Asked) -> int:
            clients = connections(requested)
            each = requested.tasks if name == "consume" else max(1, requested.tasks // len(clients))
            with ThreadPoolExecutor(len(clients)) as threads:
                return sum(threads.map(lambda client: getattr(client, name)(each), clients))

        return simple(run, fill)

    return verb
