"""A worker of `test_prefetch` that takes tasks ahead: ``python -m tests.integration.prefetch_worker <json>``."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from airflow_provider_zkmq.engine import Running, Zkmq
from airflow_provider_zkmq.engine.working import ahead
from tests.integration.chaos_worker import append

#: What a task holds whose handler never returns.
STUCK: Final = b"stuck"


@dataclass(frozen=True)
class Told:
    """What the process is told."""

    hosts: str
    root: str
    log: str
    threads: int = 1
    lease: float | None = None

    def argument(self) -> str:
        """As the command line holds it."""
        return json.dumps(asdict(self))


def main() -> None:
    """Handle tasks for ever; what is begun is logged with its attempt, what is completed follows from the tree."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(threadName)s %(message)s")
    told = Told(**json.loads(sys.argv[1]))
    log = os.open(Path(told.log), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    ahead.HELD_SECONDS = 3600.0  # type: ignore[misc]  what waits behind a stuck handler is to be there when we die

    def handler(task: Running) -> str:
        append(log, task.id, task.attempt, task.data == STUCK)
        if task.data == STUCK:
            threading.Event().wait()
        return "done"

    with Zkmq.connect(told.hosts, root=told.root, session_timeout=3.0) as zk:
        zk.queue("in").worker(handler, threads=told.threads, lease=told.lease, prefetch=32).run()


if __name__ == "__main__":
    main()
