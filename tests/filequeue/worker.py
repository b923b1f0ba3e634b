"""A process of `test_chaos`: ``KIND claim FOLDER LOG`` handles for ever, ``KIND append FOLDER NAME`` adds.

Of the kind ``queue`` these are the tasks of a queue, of the kind ``file`` the messages of its file.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from airflow_provider_zkmq.engine import Message, Running, Zkmq
from airflow_provider_zkmq.textqueue import StaleMessage, Status, TextQueue
from airflow_provider_zkmq.textqueue.mutex import new_owner

QUEUE = "chaos"
HANG = "hang"
EACH = 100
LOCK = 2.0


class Log:
    """Each begin and end of a message: its id, attempt, process and time; the first of `HANG` ends with the process."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def say(self, what: str, name: str, attempt: int) -> None:
        os.write(self.out, f"{what} {name} {attempt} {os.getpid()} {time.time():.3f}\n".encode())

    def begin(self, name: str, attempt: int = 0) -> None:
        hangs = name == HANG and f"begin {HANG} " not in self.path.read_text()
        self.say("begin", name, attempt)
        if hangs:
            threading.Event().wait()


def text_of(name: str, number: int) -> str:
    """What an appender writes: some of several lines."""
    return f"{name}-{number}\n{'x' * (number % 50)}" if number % 3 else f"{name}-{number}"


def claim_tasks(folder: str, path: str) -> None:
    log = Log(path)

    def handler(task: Running) -> str:
        log.begin(task.id, task.attempt)
        log.say("end", task.id, task.attempt)
        return str(os.getpid())

    with Zkmq.connect(f"textqueue://{folder}") as zk:
        zk.queue(QUEUE).worker(handler).run()


def claim_messages(folder: str, path: str) -> None:
    log, owner = Log(path), new_owner()
    with TextQueue.open(f"{folder}/{QUEUE}.tq") as queue:
        while True:
            message = queue.claim(owner, LOCK)
            if message is None:
                continue
            name = message.variables[0].removeprefix("id=")
            log.begin(name)
            try:
                message.settle(owner, Status.PROCESSED)
            except StaleMessage:
                log.say("late", name, 0)
            else:
                log.say("end", name, 0)


def append_tasks(folder: str, name: str) -> None:
    """Singly and in pairs, with ids of its own."""
    with Zkmq.connect(f"textqueue://{folder}") as zk:
        q = zk.queue(QUEUE)
        for number in range(0, EACH, 2):
            pair = [Message(text_of(name, at), task_id=f"{name}-{at}") for at in (number, number + 1)]
            if number % 4:
                q.enqueue_many(pair)
            else:
                for message in pair:
                    q.enqueue(message.data, task_id=message.task_id)


def append_messages(folder: str, name: str) -> None:
    with TextQueue.open(f"{folder}/{QUEUE}.tq") as queue:
        for number in range(EACH):
            queue.append(text_of(name, number), [f"id={name}-{number}", "v" * (number % 7)], mutex=True)


if __name__ == "__main__":
    {
        "queue claim": claim_tasks,
        "file claim": claim_messages,
        "queue append": append_tasks,
        "file append": append_messages,
    }[" ".join(sys.argv[1:3])](*sys.argv[3:])
