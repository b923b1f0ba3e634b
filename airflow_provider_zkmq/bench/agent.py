"""A process that measures what it is asked for: ``python -m airflow_provider_zkmq.bench.agent HOSTS ROOT``.

It reads lines of words, ``fill VERB NAME TASKS NUMBER``, ``open VERB NAME TASKS NUMBER``, ``run`` and ``close``,
answers each with a line of JSON, and ends with its input. Time and processor time it measures of itself; with a third
word, ``profile``, it also says where its processor time went.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Final

from airflow_provider_zkmq.bench import crowding, ours, ours_awaited, ours_deep, waking
from airflow_provider_zkmq.bench.clients import Clients
from airflow_provider_zkmq.bench.jobs import Asked, BenchError, Run, Verb
from airflow_provider_zkmq.bench.lines import Answer, serve
from airflow_provider_zkmq.bench.peers import bare, flat, recipes
from airflow_provider_zkmq.bench.profiling import Profile, shares
from airflow_provider_zkmq.bench.timing import measured

VERBS: Final[dict[str, Verb]] = {
    name: verb
    for module in (ours, ours_awaited, ours_deep, waking, crowding, bare, flat, recipes)
    for name, verb in module.VERBS.items()
}


class Agent:
    """What is open between two lines."""

    def __init__(self, clients: Clients, profile: Profile | None = None) -> None:
        self._clients = clients
        self._profile = profile
        self._open = ExitStack()
        self._run: Run | None = None

    def answer(self, word: str, *words: str) -> Answer:
        """Do what a line asks for."""
        if word == "run":
            return self._measure(self._runnable())
        if word == "close":
            self._open.close()
            return {}
        return self._begin(word, *words)

    def _measure(self, run: Run) -> Answer:
        if self._profile is None:
            return measured(run)
        before = self._profile.entries()
        answer = measured(run)
        return answer | {"shares": shares(before, self._profile.entries())}

    def _runnable(self) -> Run:
        if self._run is None:
            raise BenchError("nothing is open")
        return self._run

    def _begin(self, word: str, verb: str, name: str, tasks: str, number: str) -> Answer:
        asked = Asked(self._clients, name, int(tasks), int(number))
        if word == "fill":
            VERBS[verb].fill(asked)
        else:
            self._run = self._open.enter_context(VERBS[verb].open(asked))
        return {}


def main() -> None:
    """Answer until the input ends."""
    profile = Profile() if "profile" in sys.argv[3:] else None
    with Clients(*sys.argv[1:3]) as clients:
        serve(Agent(clients, profile).answer)


if __name__ == "__main__":
    main()
