"""A PostgreSQL server of the benchmark's own, where its programs are installed: in a temporary folder, on a socket."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from airflow_provider_zkmq.bench.jobs import BenchError, SkippedError

PROGRAMS: Final = ("initdb", "postgres", "pg_isready", "pgbench", "psql")
#: Where Debian has them, one folder for each version.
_DEBIAN: Final = Path("/usr/lib/postgresql")
_USER: Final = "postgres"
_START_S: Final = 30.0
# The shell becomes the server; the guard that it leaves behind reads the end of our pipe, and ends the server at once.
_GUARDED: Final = """\
exec 3<&0 </dev/null
{ read -r line <&3; kill -QUIT $$; } &
exec 3<&-
exec "$@"
"""


def program(name: str) -> str:
    """The path of one of PostgreSQL's programs. Raises `SkippedError` where it is not installed."""
    newest = sorted(_DEBIAN.glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    there = shutil.which(name) or (str(newest[-1]) if newest else None)
    if there is None:
        raise SkippedError(f"{name} is not installed: PostgreSQL is measured where its server and pgbench are")
    return there


def call(*command: str, folder: Path, text: str = "") -> str:
    """Run a program of PostgreSQL's as a user that it accepts, and return what it prints."""
    done = subprocess.run(  # noqa: S603  programs of the system, no shell
        [*_as_user(), program(command[0]), *command[1:]],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    if done.returncode:
        raise BenchError(f"{command[0]}: {' '.join(done.stderr.split())[-300:]}")
    return done.stdout


def _as_user() -> Sequence[str]:
    """The server refuses to run as root: then Debian's user for it is taken, if there is one."""
    if os.geteuid():
        return ()
    setpriv = shutil.which("setpriv")
    if setpriv is None or not _known(_USER):
        raise SkippedError(f"PostgreSQL does not run as root, and there is no user {_USER!r} to run it as")
    return (setpriv, f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups")


def _known(user: str) -> bool:
    import pwd

    return any(entry.pw_name == user for entry in pwd.getpwall())


@contextmanager
def running() -> Iterator[Path]:
    """The folder of a server that syncs each commit, as it does unless told otherwise; its socket is there."""
    for name in PROGRAMS:
        program(name)
    with tempfile.TemporaryDirectory(prefix="zkmq-pg-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        _hand_over(folder)
        call("initdb", "-D", str(folder / "data"), "-A", "trust", "-U", _USER, folder=folder)
        server = _start(folder)
        try:
            _expect(server, folder)
            yield folder
        finally:
            server.communicate()  # closes its guard's input, and waits for its end


def _hand_over(folder: Path) -> None:
    """The server's folder is its user's. Raises `SkippedError` where that user may not pass through those above."""
    if not (user := _as_user()):
        return
    shutil.chown(folder, _USER, _USER)
    if subprocess.run([*user, "test", "-w", folder], check=False).returncode:  # noqa: S603  a fixed command
        raise SkippedError(f"the user {_USER!r} may not pass through the folders to {folder}: set TMPDIR")


def _start(folder: Path) -> subprocess.Popen[bytes]:
    settings = {"listen_addresses": "", "unix_socket_directories": str(folder), "max_connections": "200"}
    options = [f"--{name}={value}" for name, value in settings.items()]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(  # noqa: S603  a fixed script, the command is in its arguments
            [*_as_user(), "/bin/sh", "-c", _GUARDED, "postgres", program("postgres"), "-D", folder / "data", *options],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )


def _expect(server: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait until it serves. Raises `BenchError` with its last words where it does not."""
    deadline = time.monotonic() + _START_S
    command = [program("pg_isready"), "-q", "-h", str(folder)]
    while subprocess.run(command, check=False).returncode:  # noqa: S603  a program of the system
        if server.poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"PostgreSQL does not start: {(folder / 'log').read_text(errors='replace')[-300:]}")
        time.sleep(0.05)
