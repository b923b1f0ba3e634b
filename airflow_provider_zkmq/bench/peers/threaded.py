"""An agent for a server of another kind, which threads drive, each with a connection of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from typing import Final, Protocol

from airflow_provider_zkmq.bench.jobs import Done
from airflow_provider_zkmq.bench.lines import Answer
from airflow_provider_zkmq.bench.timing import measured


class Client(Protocol):
    """One connection, and what is measured of it; each call returns how many tasks it did."""

    def clear(self) -> None:
        """Nothing is there."""

    def put(self, tasks: int) -> int:
        """One after the other, each acknowledged."""

    def put_many(self, tasks: int) -> int:
        """Many together."""

    def consume(self, tasks: int) -> int:
        """Take what is there, and be done with it, one after the other, at most so many."""


Connect = Callable[[], AbstractContextManager[Client]]
_VERBS: Final[dict[str, Callable[[Client, int], int]]] = {
    "put": lambda client, tasks: client.put(tasks),
    "put-many": lambda client, tasks: client.put_many(tasks),
    "consume": lambda client, tasks: client.consume(tasks),
}


class Agent:
    """`running`: a server, which is started with the first line, and how to connect to it."""

    def __init__(self, stack: ExitStack, running: Callable[[], AbstractContextManager[Connect]]) -> None:
        self._stack = stack
        self._running = running
        self._connect: Connect | None = None
        self._clients: list[Client] = []
        self._asked = "put", 0, 1

    def answer(self, word: str, *words: str) -> Answer:
        """Do what a line asks for."""
        if word == "fill":
            self._fill(words[0], int(words[2]), max(1, int(words[3])))
        return measured(self._run) if word == "run" else {}

    def _of(self, clients: int) -> list[Client]:
        if self._connect is None:
            self._connect = self._stack.enter_context(self._running())
        while len(self._clients) < clients:
            self._clients.append(self._stack.enter_context(self._connect()))
        return self._clients[:clients]

    def _fill(self, verb: str, tasks: int, clients: int) -> None:
        first = self._of(clients)[0]
        first.clear()
        if verb == "consume":
            first.put_many(tasks)
        self._asked = verb, tasks, clients

    def _run(self) -> Done:
        """All clients at once; of what is put, each one puts its share."""
        verb, tasks, clients = self._asked
        most = tasks if verb == "consume" else max(1, tasks // clients)
        with ThreadPoolExecutor(clients) as threads:
            return Done(sum(threads.map(lambda client: _VERBS[verb](client, most), self._of(clients))))
