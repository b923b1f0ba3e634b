"""A PostgreSQL server of the benchmark's own, where its programs are installed: in a temporary folder, on a socket."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from airflow_provider_zkmq.bench.jobs import BenchError, SkippedError
from airflow_provider_zkmq.bench.peers.guarded import expect, start

PROGRAMS: Final = ("initdb", "postgres", "pg_isready", "pgbench", "psql")
#: Where Debian has them, one folder for each version.
_DEBIAN: Final = Path("/usr/lib/postgresql")
_USER: Final = "postgres"


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
            expect(server, folder, "PostgreSQL", lambda: _serves(folder))
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
    return start([program("postgres"), "-D", folder / "data", *options], folder, "QUIT", _as_user())


def _serves(folder: Path) -> bool:
    command = [program("pg_isready"), "-q", "-h", str(folder)]
    return not subprocess.run(command, check=False).returncode  # noqa: S603  a program of the system
