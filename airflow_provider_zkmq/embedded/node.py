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

    A server that has ``Mode`` serves requests. ``timeout`` (seconds) bounds the whole exchange. Raises `ServerError`:
    it cannot be reached in time, is not serving yet, or does not allow the word.
    """
    return _request(host, port, "srvr", ":", timeout)


def mntr(host: str, port: int, timeout: float = 2.0) -> dict[str, str]:
    """Return the server's metrics by name, such as ``{"zk_znode_count": "5", …}``, as text; the rest as with `srvr`."""
    return _request(host, port, "mntr", "\t", timeout)


def read_metrics(host: str, port: int) -> dict[str, str]:
    """Return what `mntr` says, and the ``Zxid`` of `srvr`. Raises `ServerError` as these do."""
    return mntr(host, port) | {"Zxid": srvr(host, port)["Zxid"]}


def _request(host: str, port: int, word: str, separator: str, timeout: float) -> dict[str, str]:
    """What the server says to a word, until it closes; the deadline holds for all of it, not for each piece."""
    deadline, answer = time.monotonic() + timeout, bytearray()
    try:
        with socket.create_connection((host, port), timeout) as connection:
            connection.sendall(word.encode())
            while len(answer) < _LONGEST_ANSWER:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError("timed out")
                connection.settimeout(left)
                piece = connection.recv(65536)
                if not piece:
                    break
                answer += piece
    except OSError as error:
        raise ServerError(f"no answer to `{word}` from ZooKeeper on {host}:{port}: {error}") from error
    lines = answer.decode(errors="replace").splitlines()
    parted = [line.partition(separator) for line in lines if separator in line]
    pairs = {name.strip(): value.strip() for name, _, value in parted}
    if not pairs or (word == "srvr" and "Mode" not in pairs):
        said = next((line.strip() for line in lines if line.strip()), "nothing")
        raise ServerError(f"ZooKeeper on {host}:{port} did not serve `{word}`, it said: {said}")
    return pairs


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
    """A node in ``folder``, where ``command`` is run, serving clients on ``port``."""

    def __init__(self, folder: Path, command: list[str], host: str, port: int) -> None:
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
        if self._process.stdin is not None and not self._process.stdin.closed:
            # A guard that is gone already cannot read the line.
            with contextlib.suppress(BrokenPipeError), self._process.stdin as guard:
                guard.write(b"\n")
        return True

    def kill(self) -> None:
        """End Java at once and wait until it is gone."""
        self.send(signal.SIGKILL)
        if not self.wait(_KILL_TIMEOUT_S):
            raise ServerError(f"the ZooKeeper process {self.pid} does not die: look at its state with `ps`")

    def last_words(self) -> str:
        """What this run has logged last, without Java's stack frames, as the end of an error's message."""
        lines: list[str] = []
        for path, start in ((self.folder / JAVA_LOG, 0), (self.folder / SERVER_LOG, self._log_start)):
            logged = path.read_bytes() if path.exists() else b""
            # A log that was rolled over is shorter than where this run began: then all of it is ours.
            own = logged[start if start <= len(logged) else 0 :].decode(errors="replace")
            lines += [line for line in own.splitlines() if not line.startswith("\tat ")]
        return "; its last log lines:\n" + "\n".join(lines[-_LOG_LINES:]) if lines else "; it logged nothing"


class PortLostError(ServerError):
    """Another process took a port between our look at it and Java's use of it."""


def check_alive(nodes: list[ServerNode]) -> None:
    """Raise `ServerError`, with its last log lines, where the Java process of a node has ended."""
    for node in nodes:
        if not node.is_alive():
            said = node.last_words()
            kind = PortLostError if "Address already in use" in said else ServerError
            raise kind(f"the ZooKeeper process {node.pid} on port {node.port} ended by itself{said}")
