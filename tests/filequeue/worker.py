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
from airflow_provider_zkmq.textqueue import Message as TextMessage
from airflow_provider_zkmq.textqueue import StaleMessage, Status, TextQueue
from airflow_provider_zkmq.textqueue.message_mutex import new_owner

QUEUE = "chaos"
HANG = "hang"
EACH = 100
LOCK = 2.0


class Log:
    """Each begin and end of a message: its id, attempt, process and time, and until when it is locked at the least.

    The first begin of `HANG` ends with the process.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.until: dict[str, float] = {}
        try_lock = TextMessage.try_lock

        def noted(message: TextMessage, owner: str, seconds: float) -> bool:
            until = time.time() + seconds
            got = try_lock(message, owner, seconds)
            if got:
                self.until[name_of(message)] = until
            return got

        TextMessage.try_lock = noted  # type: ignore[method-assign]

    def say(self, what: str, name: str, attempt: int) -> None:
        os.write(self.out, f"{what} {name} {attempt} {os.getpid()} {time.time()} {self.until[name]}\n".encode())

    def begin(self, name: str, attempt: int = 0) -> None:
        hangs = name == HANG and f"begin {HANG} " not in self.path.read_text()
        self.say("begin", name, attempt)
        if hangs:
            threading.Event().wait()


def name_of(message: TextMessage) -> str:
    return message.variables[0].removeprefix("id=")


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
                time.sleep(0.005)  # leaves the file to the others, and looks again
                continue
            name = name_of(message)
            log.begin(name)
            try:
                message.settle(owner, Status.PROCESSED)
            except StaleMessage:
                log.say("late", name, 0)
            else:
                log.say("end", name, 0)


def append(kind: str, folder: str, name: str) -> None:
    """Tasks singly and in pairs, with ids of their own; messages with an id and another variable."""
    texts = [(f"{name}-{number}", text_of(name, number)) for number in range(EACH)]
    if kind == "file":
        with TextQueue.open(f"{folder}/{QUEUE}.tq") as queue:
            for number, (said, text) in enumerate(texts):
                queue.append(text, [f"id={said}", "v" * (number % 7)], mutex=True)
        return
    with Zkmq.connect(f"textqueue://{folder}") as zk:
        q = zk.queue(QUEUE)
        for at in range(0, EACH, 4):
            q.enqueue(texts[at][1], task_id=texts[at][0])
            q.enqueue_many([Message(text, task_id=said) for said, text in texts[at + 1 : at + 3]])
            q.enqueue(texts[at + 3][1], task_id=texts[at + 3][0])


if __name__ == "__main__":
    kind, what, *where = sys.argv[1:]
    if what == "append":
        append(kind, *where)
    else:
        {"queue": claim_tasks, "file": claim_messages}[kind](*where)
