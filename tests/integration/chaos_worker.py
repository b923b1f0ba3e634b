"""What is killed in tests: ``python -m tests.integration.chaos_worker produce|consume|ahead <json>``."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from airflow_provider_zkmq.engine import Message, Running, Task, UnitOfWork, Zkmq
from airflow_provider_zkmq.engine.working import held_deliveries

POISON = "poison"
SIZES = (1, 1, 1, 5, 40)
KINDS = (None, "a", "b")
WORK_SECONDS = 0.01
#: What a task holds whose handler never returns.
STUCK = b"stuck"


@dataclass(frozen=True)
class Told:
    """What a process is told: where, which number it has, and what it does there."""

    hosts: str
    root: str
    number: int
    log: str
    tasks: int = 0
    session_timeout: float = 10.0
    failing: float = 0.0
    threads: int = 1
    lease: float | None = None

    def argument(self) -> str:
        """As the command line holds it."""
        return json.dumps(asdict(self))


def names_of(number: int, tasks: int) -> list[str]:
    """What producer `number` enqueues, by data: a few are poison, which no handler can do."""
    return [f"{number}.{at}{'.' + POISON if at % 97 == 50 else ''}" for at in range(tasks)]


def append(log: int, *words: object) -> None:
    """One line, in one write: a process that is killed leaves whole lines."""
    os.write(log, (" ".join(map(str, words)) + "\n").encode())


def produce(told: Told, log: int) -> None:
    """Enqueue singly and many at once, with ids of its own and generated ones; each id is logged once it is durable."""
    rng = random.Random(told.number)
    left = names_of(told.number, told.tasks)
    with Zkmq.connect(told.hosts, root=told.root, session_timeout=told.session_timeout) as zk:
        q = zk.queue("in")
        while left:
            size = rng.choice(SIZES)
            chunk, left = left[:size], left[size:]
            ids = q.enqueue_many([_message(rng, name) for name in chunk])
            for task_id, name in zip(ids, chunk, strict=True):
                append(log, task_id, name)


def _message(rng: random.Random, name: str) -> Message:
    kind = rng.choice(KINDS)
    return Message(name, filters={"kind": kind} if kind else None, task_id=rng.choice((None, f"own.{name}")))


def consume(told: Told, log: int) -> None:
    """Handle tasks in transactions until SIGTERM: one task taken from ``in``, one put to ``out``."""
    rng = random.Random(1_000 + told.number)

    def handler(task: Task, tx: UnitOfWork) -> str:
        append(log, task.id, task.attempt, task.token)
        time.sleep(rng.random() * WORK_SECONDS)  # the work
        tx.put("out", f"{task.id} {task.attempt}")
        if task.data.decode().endswith(POISON) or rng.random() < told.failing:
            msg = "broken"
            raise RuntimeError(msg)
        return str(task.attempt)

    with Zkmq.connect(told.hosts, root=told.root, session_timeout=told.session_timeout) as zk:
        worker = zk.queue("in").worker(handler, threads=2, transactional=True)
        signal.signal(signal.SIGTERM, lambda *_: worker.stop())
        worker.run()


def ahead(told: Told, log: int) -> None:
    """Handle tasks of ``in`` for ever, many prefetched; what is begun is logged."""
    held_deliveries.HELD_SECONDS = 3600.0  # type: ignore[misc]  what waits behind a stuck handler is to be there at the end

    def handler(task: Running) -> str:
        append(log, task.id, task.data == STUCK)
        if task.data == STUCK:
            threading.Event().wait()
        return "done"

    with Zkmq.connect(told.hosts, root=told.root, session_timeout=told.session_timeout) as zk:
        zk.queue("in").worker(handler, threads=told.threads, lease=told.lease, prefetch=32).run()


def main() -> None:
    """Do what the command line says."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(threadName)s %(message)s")
    role, told = sys.argv[1], Told(**json.loads(sys.argv[2]))
    log = os.open(Path(told.log), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    {"produce": produce, "consume": consume, "ahead": ahead}[role](told, log)


if __name__ == "__main__":
    main()
