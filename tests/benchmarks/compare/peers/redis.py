"""Redis as a reliable queue: a task is moved to a list of what is being handled, and removed from it when it is done.

Each write is on the disk before it is acknowledged (``appendfsync always``), as in a ZooKeeper. A consumer that dies
leaves its task in the second list, where somebody must look for it.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, Self
from uuid import uuid4

from tests.benchmarks.compare.jobs import PAYLOAD, BenchError, SkippedError, Verb, groups, times
from tests.benchmarks.compare.peers.servers import Connect, expect, start, threaded

Reply = bytes | int | None
_TASKS, _HANDLED = b"tasks", b"handled"
_SETTINGS: Final = {"port": "0", "unixsocket": "socket", "appendonly": "yes", "appendfsync": "always", "save": ""}
_PATIENCE_S: Final = 60.0


class Connection:
    """One connection to a server, on which one command follows the other."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_PATIENCE_S)
        self._socket.connect(str(path))
        self._replies = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        """It is open already."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close it."""
        self._replies.close()
        self._socket.close()

    def call(self, *words: bytes) -> Reply:
        """A command's reply. Raises `BenchError` for an error."""
        parts = [b"*%d\r\n" % len(words), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)]
        self._socket.sendall(b"".join(parts))
        line = self._replies.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return self._bulk(int(rest), words[0])
        if kind not in {b"+", b":"}:
            raise BenchError(f"Redis answers {words[0].decode()} with {line.decode(errors='replace').strip()!r}")
        return int(rest) if kind == b":" else rest

    def _bulk(self, size: int, command: bytes) -> bytes | None:
        if size < 0:
            return None
        data = self._replies.read(size + 2)
        if len(data) < size + 2:
            raise BenchError(f"Redis has ended amid its answer to {command.decode()}")
        return data[:-2]


class Tasks(Connection):
    """What is measured."""

    def clear(self) -> None:
        """Both lists are gone."""
        self.call(b"DEL", _TASKS, _HANDLED)

    def put(self, tasks: int) -> int:
        """One after the other."""
        return times(tasks, lambda: self.call(b"LPUSH", _TASKS, _new(PAYLOAD)))

    def put_many(self, tasks: int) -> int:
        """A hundred in each command."""
        for payloads in groups(tasks):
            self.call(b"LPUSH", _TASKS, *map(_new, payloads))
        return tasks

    def consume(self, tasks: int) -> int:
        """Move one to the second list, remove it from there."""
        return sum(1 for _ in islice(iter(self._step, None), tasks))

    def _step(self) -> bool | None:
        task = self.call(b"LMOVE", _TASKS, _HANDLED, b"RIGHT", b"LEFT")
        if not isinstance(task, bytes):
            return None
        self.call(b"LREM", _HANDLED, b"1", task)
        return True


def _new(payload: bytes) -> bytes:
    """A task like no other: it is removed by what it is."""
    return uuid4().bytes + payload


@contextmanager
def running() -> Iterator[Connect]:
    """A server of the benchmark's own. Raises `SkippedError` where none is installed."""
    program = shutil.which("redis-server")
    if program is None:
        raise SkippedError("redis-server is not installed: Redis is measured where it is (apt install redis-server)")
    with tempfile.TemporaryDirectory(prefix="zkmq-redis-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        options = [word for name, value in _SETTINGS.items() for word in (f"--{name}", value)]
        server = start([program, *options], folder, "TERM")
        try:
            expect(server, folder, "Redis", lambda: _serves(folder / "socket"))
            yield partial(Tasks, folder / "socket")
        finally:
            server.communicate()  # closes its guard's input, and waits for its end


def _serves(path: Path) -> bool:
    try:
        with Connection(path) as connection:
            return connection.call(b"PING") == b"PONG"
    except OSError:
        return False


_verb = threaded(running)
VERBS: Final[dict[str, Verb]] = {
    "redis-put": _verb("put"),
    "redis-put-many": _verb("put_many"),
    "redis-consume": _verb("consume"),
}
