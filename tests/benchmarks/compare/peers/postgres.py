"""PostgreSQL as a queue, the textbook's way with ``FOR UPDATE SKIP LOCKED``, driven by its own pgbench.

A commit is on the disk before it is acknowledged, as in a ZooKeeper. A claim and its completion are two transactions,
so that a consumer that dies is found; in one it would hold its row's lock for as long as its handler takes. The server
is the benchmark's own, in a temporary folder, on a socket.
"""

from __future__ import annotations

import os
import pwd
import re
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.benchmarks.compare.jobs import GROUP, Asked, BenchError, Done, SkippedError, Verb, simple
from tests.benchmarks.compare.peers.servers import expect, start

_PROGRAMS: Final = ("initdb", "postgres", "pg_isready", "pgbench", "psql")
#: Where Debian has them, one folder for each version.
_DEBIAN: Final = Path("/usr/lib/postgresql")
_USER: Final = "postgres"
_TABLE: Final = """
DROP TABLE IF EXISTS tasks;
CREATE TABLE tasks (id bigserial PRIMARY KEY, state text NOT NULL DEFAULT 'inserted', claimed timestamptz, data bytea);
CREATE INDEX ON tasks (id) WHERE state = 'inserted';
"""
_ROW: Final = "SELECT decode(repeat('78', 100), 'hex')"
_SCRIPTS: Final = {
    "insert": f"INSERT INTO tasks (data) {_ROW};",
    "insert-many": f"INSERT INTO tasks (data) {_ROW} FROM generate_series(1, {GROUP});",
    "consume": """
UPDATE tasks SET state = 'claimed', claimed = now() WHERE id = (
  SELECT id FROM tasks WHERE state = 'inserted' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
) RETURNING id, data \\gset
UPDATE tasks SET state = 'finished' WHERE id = :id;
""",
}


def _program(name: str) -> str:
    """The path of one of PostgreSQL's programs. Raises `SkippedError` where it is not installed."""
    newest = sorted(_DEBIAN.glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    there = shutil.which(name) or (str(newest[-1]) if newest else None)
    if there is None:
        raise SkippedError(f"{name} is not installed: PostgreSQL is measured where its server and pgbench are")
    return there


def _as_user() -> Sequence[str]:
    """The server refuses to run as root: then Debian's user for it is taken, if there is one."""
    if os.geteuid():
        return ()
    setpriv = shutil.which("setpriv")
    if setpriv is None or all(entry.pw_name != _USER for entry in pwd.getpwall()):
        raise SkippedError(f"PostgreSQL does not run as root, and there is no user {_USER!r} to run it as")
    return (setpriv, f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups")


def _call(folder: Path, *command: str, text: str = "") -> str:
    """Run a program of PostgreSQL's as a user that it accepts, and return what it prints."""
    words = [*_as_user(), _program(command[0]), *command[1:]]
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        raise BenchError(f"{command[0]}: {' '.join(done.stderr.split())[-300:]}")
    return done.stdout


@contextmanager
def running() -> Iterator[Path]:
    """The folder of a server that syncs each commit, as it does unless told otherwise; its socket is there."""
    for name in _PROGRAMS:
        _program(name)
    with tempfile.TemporaryDirectory(prefix="zkmq-pg-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        if user := _as_user():
            shutil.chown(folder, _USER, _USER)
            if subprocess.run([*user, "test", "-w", folder], check=False).returncode:
                raise SkippedError(f"the user {_USER!r} may not pass through the folders to {folder}: set TMPDIR")
        _call(folder, "initdb", "-D", str(folder / "data"), "-A", "trust", "-U", _USER)
        settings = {"listen_addresses": "", "unix_socket_directories": made, "max_connections": "200"}
        options = [f"--{name}={value}" for name, value in settings.items()]
        server = start([_program("postgres"), "-D", folder / "data", *options], folder, "QUIT", user)
        ready = [_program("pg_isready"), "-q", "-h", made]
        try:
            expect(server, folder, "PostgreSQL", lambda: not subprocess.run(ready, check=False).returncode)
            yield folder
        finally:
            server.communicate()  # closes its guard's input, and waits for its end


def _verb(name: str) -> Verb:
    def fill(requested: Asked) -> None:
        folder, clients = requested.clients.once(running, running), requested.number or 1
        # One for each client more than are taken: what others hold just then is skipped, and never all of it.
        rows = max(requested.tasks, clients) + clients if name == "consume" else 0
        filling = f"INSERT INTO tasks (data) {_ROW} FROM generate_series(1, {rows}); ANALYZE tasks;"
        where = ("-h", str(folder), "-U", _USER, "postgres")
        _call(folder, "psql", "-qAt", "-v", "ON_ERROR_STOP=1", *where, text=_TABLE + filling)
        script = folder / "script"
        script.write_text(_SCRIPTS[name], encoding="utf-8")
        script.chmod(0o644)

    def run(requested: Asked) -> Done:
        """As pgbench says how many transactions it had in a second, without the time that connecting took."""
        folder, clients = requested.clients.once(running, running), requested.number or 1
        each = GROUP if name == "insert-many" else 1
        calls = max(1, requested.tasks // each // clients)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = calls * clients / _rate(folder, calls, clients)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Done(calls * clients * each, seconds, cpu)

    return simple(run, fill)


def _rate(folder: Path, calls: int, clients: int) -> float:
    threads = ("-c", str(clients), "-j", str(min(clients, 2)), "-t", str(calls), "-M", "prepared")
    where = ("-h", str(folder), "-U", _USER, "postgres")
    said = _call(folder, "pgbench", "-n", *threads, "-f", str(folder / "script"), *where)
    rate = re.search(r"^tps = ([\d.]+)", said, re.MULTILINE)
    if rate is None:
        raise BenchError(f"pgbench said no rate: {said}")
    return float(rate[1])


VERBS: Final[dict[str, Verb]] = {f"postgres-{name}": _verb(name) for name in _SCRIPTS}
