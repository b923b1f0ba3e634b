"""A process of `test_chaos`: ``claim URL LOG`` handles tasks for ever, ``append URL NAME COUNT`` enqueues them."""

from __future__ import annotations

import os
import sys
import threading
import time

from airflow_provider_zkmq.engine import Message, Running, Zkmq

QUEUE = "chaos"
HANG = "hang"


def claim(url: str, log: str) -> None:
    """Log each begin and end of a handler; the first of the task `HANG` ends with the process."""
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def handler(task: Running) -> str:
        os.write(out, f"begin {task.id} {task.attempt} {os.getpid()} {time.time():.3f}\n".encode())
        if task.id == HANG and task.attempt == 1:
            threading.Event().wait()
        os.write(out, f"end {task.id} {task.attempt} {os.getpid()} {time.time():.3f}\n".encode())
        return str(os.getpid())

    with Zkmq.connect(url) as zk:
        zk.queue(QUEUE).worker(handler).run()


def text_of(name: str, number: int) -> str:
    """What an appender writes: some of several lines."""
    return f"{name}-{number}\n{'x' * (number % 50)}" if number % 3 else f"{name}-{number}"


def append(url: str, name: str, count: str) -> None:
    """Enqueue singly and in pairs, with ids of its own."""
    with Zkmq.connect(url) as zk:
        q = zk.queue(QUEUE)
        for number in range(0, int(count), 2):
            pair = [Message(text_of(name, at), task_id=f"{name}-{at}") for at in (number, number + 1)]
            if number % 4:
                q.enqueue_many(pair)
            else:
                for message in pair:
                    q.enqueue(message.data, task_id=message.task_id)


if __name__ == "__main__":
    {"claim": claim, "append": append}[sys.argv[1]](*sys.argv[2:])
