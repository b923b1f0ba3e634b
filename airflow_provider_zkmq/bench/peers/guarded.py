"""Servers of other kinds, which the benchmark starts for itself, and which end with it, however it ends."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from airflow_provider_zkmq.bench.jobs import BenchError

_START_S: Final = 30.0
# The shell becomes the server; the guard that it leaves behind reads the end of our pipe, and ends the server at once,
# with all that it has started and that has not left its process group.
_GUARDED: Final = """\
exec 3<&0 </dev/null
{ read -r line <&3; kill -"$0" 0; } &
exec 3<&-
exec "$@"
"""


def start(
    command: Sequence[str | Path], folder: Path, signal: str, as_user: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """A server in its folder, where its ``log`` is. It gets the signal when its input, a pipe of ours, is closed."""
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(  # noqa: S603  a fixed script, the command is in its arguments
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
