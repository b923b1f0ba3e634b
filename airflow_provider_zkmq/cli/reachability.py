"""Whether anybody listens where ZooKeeper should be."""

from __future__ import annotations

import socket
import threading
import time
from queue import Empty, SimpleQueue


def anybody_listens(hosts: str, seconds: float) -> bool:
    """Whether one of ``host:port,host:port`` takes connections, as far as that is known within so many seconds."""
    answers, deadline = SimpleQueue[bool](), time.monotonic() + seconds
    servers = hosts.split(",")

    def look(server: str) -> None:
        host, _, port = server.strip().rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), seconds).close()
        except (OSError, ValueError):
            answers.put(False)
        else:
            answers.put(True)

    for server in servers:  # each in a thread: nothing bounds how long the system looks a name up
        threading.Thread(target=look, args=(server,), daemon=True).start()
    try:
        return any(answers.get(timeout=max(0.0, deadline - time.monotonic())) for _ in servers)
    except Empty:
        return False
