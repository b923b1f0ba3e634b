"""A process that measures what it is asked for: ``python -m tests.benchmarks.compare.agent HOSTS ROOT``.

It reads lines of words, ``fill VERB NAME TASKS NUMBER``, ``open VERB NAME TASKS NUMBER``, ``run`` and ``close``,
answers each with a line of JSON, and ends with its input. It measures its own time and processor time.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from contextlib import ExitStack
from typing import Any, Final

from tests.benchmarks.compare import ours, waking
from tests.benchmarks.compare.jobs import Asked, Clients, Run, SkippedError, Verb
from tests.benchmarks.compare.peers import postgres, recipes, redis

Answer = dict[str, Any]
VERBS: Final[dict[str, Verb]] = {
    name: verb for module in (ours, waking, recipes, postgres, redis) for name, verb in module.VERBS.items()
}


class Agent:
    """What is open between two lines."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._open = ExitStack()
        self._run: Run | None = None

    def answer(self, word: str, *words: str) -> Answer:
        """Do what a line asks for."""
        if word == "run":
            assert self._run is not None
            return measured(self._run)
        if word == "close":
            self._open.close()
            return {}
        verb, name, tasks, number = words
        requested = Asked(self._clients, name, int(tasks), int(number))
        if word == "fill":
            VERBS[verb].fill(requested)
        else:
            self._run = self._open.enter_context(VERBS[verb].open(requested))
        return {}


def measured(run: Run) -> Answer:
    """What the work took: seconds by the wall, and of this process's processor time."""
    gc.collect()
    begun, wall, cpu = time.time(), time.perf_counter(), time.process_time()
    done = run()
    spent = time.process_time() - cpu if done.cpu is None else done.cpu
    seconds = time.perf_counter() - wall if done.seconds is None else done.seconds
    return {"tasks": done.tasks, "cpu": spent, "seconds": seconds, "begun": begun, "ended": begun + seconds}


def main() -> None:
    """Answer until the input ends; what fails is an answer, too."""
    with Clients(*sys.argv[1:3]) as clients:
        agent = Agent(clients)
        for line in sys.stdin:
            try:
                answer = agent.answer(*line.split())
            except SkippedError as reason:
                answer = {"skipped": str(reason)}
            except Exception as error:  # noqa: BLE001  the benchmark says it, and ends
                answer = {"error": f"{type(error).__name__}: {error}"}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
