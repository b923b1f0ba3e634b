"""ZooKeeper's four-letter words ``srvr`` and ``mntr``, asked over a plain socket.

``ruok`` is left out on purpose: a server whose main thread is dead still answers it with ``imok``.
"""

from __future__ import annotations

import socket
import time

from airflow_provider_zkmq.embedded.errors import ServerError

_LONGEST_ANSWER = 1 << 20


def srvr(host: str, port: int, timeout: float = 2.0) -> dict[str, str]:
    """Return the server's own description, such as ``{"Mode": "leader", "Zxid": "0x2a", …}``.

    A server that has ``Mode`` serves requests. ``timeout`` (seconds) bounds the whole exchange.

    Raises:
        ServerError: it cannot be reached in time, is not serving yet, or does not allow the word.
    """
    answer = _ask(host, port, "srvr", timeout)
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
    answer = _ask(host, port, "mntr", timeout)
    pairs = dict(_pair(line, "\t") for line in answer.splitlines() if "\t" in line)
    if not pairs:
        raise _refused(host, port, "mntr", answer)
    return pairs


def ask_metrics(host: str, port: int) -> dict[str, str]:
    """Return what `mntr` says, and the ``Zxid`` of `srvr`. Raises `ServerError` as these do."""
    return mntr(host, port) | {"Zxid": srvr(host, port)["Zxid"]}


def _pair(line: str, separator: str) -> tuple[str, str]:
    name, _, value = line.partition(separator)
    return name.strip(), value.strip()


def _ask(host: str, port: int, word: str, timeout: float) -> str:
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
