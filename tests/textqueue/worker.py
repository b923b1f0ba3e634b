"""A process of `test_sharing`: ``claim FILE LOG`` handles messages for ever, ``append FILE NAME COUNT`` writes them."""

from __future__ import annotations

import os
import sys

from airflow_provider_zkmq.textqueue import StaleMessage, Status, TextQueue
from airflow_provider_zkmq.textqueue.mutex import new_owner

SECONDS = 1.0


def claim(path: str, log: str) -> None:
    """Log each message's begin and end; what is in hand when the process is killed has no end."""
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    owner = new_owner()
    with TextQueue.open(path) as queue:
        while True:
            message = queue.claim(owner, SECONDS)
            if message is None:
                continue
            os.write(out, f"begin {message.text} {os.getpid()}\n".encode())
            try:
                message.settle(owner, Status.PROCESSED)
            except StaleMessage:
                os.write(out, f"late {message.text} {os.getpid()}\n".encode())
            else:
                os.write(out, f"end {message.text} {os.getpid()}\n".encode())


def append(path: str, name: str, count: str) -> None:
    """Append messages of several lines, each with a mutex."""
    with TextQueue.open(path) as queue:
        for number in range(int(count)):
            queue.append(f"{name}-{number}\n{'x' * (number % 50)}", ["v" * (number % 7)], mutex=True)


if __name__ == "__main__":
    {"claim": claim, "append": append}[sys.argv[1]](*sys.argv[2:])
