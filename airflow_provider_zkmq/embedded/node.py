"""One ZooKeeper node: a Java process that cannot outlive this one, and its four-letter words."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING

from .configuration import JAVA_LOG, SERVER_LOG, ServerError

if TYPE_CHECKING:
    from pathlib import Path

# --- ZooKeeper's four-letter words ``srvr`` and ``mntr``, asked over a plain socket.
#
# ``ruok`` is left out on purpose: a server whose main thread is dead still answers it with ``imok``.

_LONGEST_ANSWER = 1 << 20


def srvr(host: str, port: int, timeout: float = 2.0) -> dict[str, str]:
    """Return the server's own description, such as ``{"Mode": "leader", "Zxid": "0x2a", …}``.

    A server that has ``Mode`` serves requests. ``timeout`` (seconds) bounds the whole exchange.

    Raises:
        ServerError: it cannot be reached in time, is not serving yet, or does not allow the word.
    """
    answer = _send_command(host, port, "srvr", timeout)
    pairs = dict(_pair(line, ":") for line in answer.splitlines() if ":" in line)
    if "Mode" not in pairs:
        raise _refused(host, port, "srvr", answer)
    return pairs


def mntr(host: str, port: int, timeout: float = 2.0) -> dict[str, str]:
    """Return the server's metrics by name, such as ``{"zk_znode_count": "5", …}``, as text.

    ``timeout`` (seconds) bounds the whole exchange.

    Raises:
        ServerError: it cannot be reached in time, is not serving yet, or does not allow the word.
    """
    answer = _send_command(host, port, "mntr", timeout)
    pairs = dict(_pair(line, "\t") for line in answer.splitlines() if "\t" in line)
    if not pairs:
        raise _refused(host, port, "mntr", answer)
    return pairs


def read_metrics(host: str, port: int) -> dict[str, str]:
    """Return what `mntr` says, and the ``Zxid`` of `srvr`. Raises `ServerError` as these do."""
    return mntr(host, port) | {"Zxid": srvr(host, port)["Zxid"]}


def _pair(line: str, separator: str) -> tuple[str, str]:
    name, _, value = line.partition(separator)
    return name.strip(), value.strip()


def _send_command(host: str, port: int, word: str, timeout: float) -> str:
    deadline = time.monotonic() + timeout
    try:
        with socket.create_connection((host, port), timeout) as connection:
            connection.sendall(word.encode())
            return _read_all(connection, deadline).decode(errors="replace")
    except OSError as error:
        message = f"no answer to `{word}` from ZooKeeper on {host}:{port}: {error}"
        raise ServerError(message) from error


def _read_all(connection: socket.socket, deadline: float) -> bytes:
    """Read until the server closes; the deadline holds for all of it, not for each piece."""
    answer = bytearray()
    while len(answer) < _LONGEST_ANSWER:
        left = deadline - time.monotonic()
        if left <= 0:
            message = "timed out"
            raise TimeoutError(message)
        connection.settimeout(left)
        piece = connection.recv(65536)
        if not piece:
            break
        answer += piece
    return bytes(answer)


def _refused(host: str, port: int, word: str, answer: str) -> ServerError:
    said = answer.strip().splitlines()[0] if answer.strip() else "nothing"
    return ServerError(f"ZooKeeper on {host}:{port} did not serve `{word}`, it said: {said}")


# --- One ZooKeeper node: a Java process that cannot outlive this one.

_LOG_LINES = 15
_PROBE_TIMEOUT_S = 1.0
_KILL_TIMEOUT_S = 10.0

# The shell becomes Java, so the process started is the one to signal. What it leaves behind is a guard that
# holds the other end of our pipe: when we go, however we go, the guard reads the end of file and kills
# Java. A line through the pipe sends the guard away. (Linux's "signal on the parent's death" does not do:
# it fires when the *thread* that started Java ends.) Killing is safe, ZooKeeper recovers from its log.
_GUARDED = """\
exec 3<&0 </dev/null
{ read -r line <&3 || kill -KILL $$; } &
exec 3<&-
exec "$@"
"""


class ServerNode:
    """A node in ``folder``, which holds its files, serving clients on ``port``."""

    def __init__(self, folder: Path, command: list[str], host: str, port: int) -> None:
        """Describe the node; :meth:`start` runs ``command`` in ``folder``."""
        self.folder = folder
        self.command = command
        self.host = host
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int:
        """The process id of the node's Java, also after its death; 0 if it was never started."""
        return self._process.pid if self._process else 0

    def start(self, lock: int) -> None:
        """Start Java in a session of its own, out of reach of the terminal's Ctrl-C.

        Java inherits the descriptor ``lock`` (10 or more: the shell script uses 3). The node is up when
        :meth:`mode` says so.
        """
        log = self.folder / SERVER_LOG
        self._log_start = log.stat().st_size if log.exists() else 0
        with (self.folder / JAVA_LOG).open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - a fixed script, the command is in its arguments
                ["/bin/sh", "-c", _GUARDED, "zookeeper", *self.command],
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(lock,),
            )

    def is_alive(self) -> bool:
        """Say whether Java runs, be it paused or not ready."""
        return not self.wait(0)

    def mode(self) -> str | None:
        """Return ``standalone``, ``leader`` or ``follower``; None while it serves no requests."""
        try:
            return srvr(self.host, self.port, _PROBE_TIMEOUT_S)["Mode"]
        except ServerError:
            return None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to Java; a dead one does not mind."""
        if self._process is not None:
            self._process.send_signal(number)

    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for Java's end; say whether it came."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        self._dismiss_guard()
        return True

    def kill(self) -> None:
        """End Java at once and wait until it is gone."""
        self.send(signal.SIGKILL)
        if not self.wait(_KILL_TIMEOUT_S):
            message = f"the ZooKeeper process {self.pid} does not die: look at its state with `ps`"
            raise ServerError(message)

    def log_tail(self) -> str:
        """Return the last lines that this run of the node has logged, without Java's stack frames."""
        own = _text(self.folder / JAVA_LOG, 0) + _text(self.folder / SERVER_LOG, self._log_start)
        lines = [line for line in own.splitlines() if not line.startswith("\tat ")]
        return "\n".join(lines[-_LOG_LINES:])

    def _dismiss_guard(self) -> None:
        if self._process is None or self._process.stdin is None or self._process.stdin.closed:
            return
        # A guard that is gone already cannot read the line.
        with contextlib.suppress(BrokenPipeError), self._process.stdin as guard:
            guard.write(b"\n")


def _text(path: Path, start: int) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as log:
        # A log that was rolled over is shorter than where this run began: then all of it is ours.
        log.seek(start if start <= path.stat().st_size else 0)
        return log.read().decode(errors="replace")


class PortLostError(ServerError):
    """Another process took a port between our look at it and Java's use of it."""


def check_alive(nodes: list[ServerNode]) -> None:
    """Raise `ServerError`, with its last log lines, where the Java process of a node has ended."""
    for node in nodes:
        if not node.is_alive():
            raise _death(node)


def _death(node: ServerNode) -> ServerError:
    tail = last_words(node)
    kind = PortLostError if "Address already in use" in tail else ServerError
    return kind(f"the ZooKeeper process {node.pid} on port {node.port} ended by itself{tail}")


def last_words(node: ServerNode) -> str:
    """What a node has logged last, as the end of an error's message."""
    tail = node.log_tail()
    return f"; its last log lines:\n{tail}" if tail else "; it logged nothing"
