"""PostgreSQL as a queue, the textbook's way with ``FOR UPDATE SKIP LOCKED``, driven by its own pgbench.

``python -m airflow_provider_zkmq.bench.peers.postgres`` is an agent, which reads the lines that those of ours read.
A commit is on the disk before it is acknowledged, as in a ZooKeeper. A claim and its completion are two transactions,
so that a consumer that dies is found; in one it would hold its row's lock for as long as its handler takes.
"""

from __future__ import annotations

import re
import resource
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from airflow_provider_zkmq.bench.jobs import GROUP, BenchError
from airflow_provider_zkmq.bench.lines import Answer, serve
from airflow_provider_zkmq.bench.peers.pgserver import call, running

_TABLE: Final = """
DROP TABLE IF EXISTS tasks;
CREATE TABLE tasks (id bigserial PRIMARY KEY, state text NOT NULL DEFAULT 'inserted', claimed timestamptz, data bytea);
CREATE INDEX ON tasks (id) WHERE state = 'inserted';
"""
_ROW: Final = "SELECT decode(repeat('78', 100), 'hex')"
_SCRIPTS: Final = {
    "insert": f"INSERT INTO tasks (data) {_ROW};",
    "insert-many": f"INSERT INTO tasks (data) {_ROW} FROM generate_series(1, {GROUP});",
    "consume": """
UPDATE tasks SET state = 'claimed', claimed = now() WHERE id = (
  SELECT id FROM tasks WHERE state = 'inserted' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
) RETURNING id, data \\gset
UPDATE tasks SET state = 'finished' WHERE id = :id;
""",
}


def postgres_agent(_hosts: str, _root: str) -> list[str]:
    """The command line of an agent."""
    return [sys.executable, "-m", "airflow_provider_zkmq.bench.peers.postgres"]


class Agent:
    """A server, which is started with the first line, and a table, which each measurement makes anew."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._folder: Path | None = None
        self._asked = ("insert", 0, 0)

    def answer(self, word: str, *words: str) -> Answer:
        """Do what a line asks for."""
        if word == "fill":
            self._fill(words[0], int(words[2]), int(words[3]))
        return self._run() if word == "run" else {}

    def _at(self) -> Path:
        if self._folder is None:
            self._folder = self._stack.enter_context(running())
        return self._folder

    def _fill(self, verb: str, tasks: int, clients: int) -> None:
        clients = clients or 1
        self._asked = verb, tasks, clients
        # One for each client more than are taken: what others hold just then is skipped, and never all of it.
        rows = max(tasks, clients) + clients if verb == "consume" else 0
        filling = f"INSERT INTO tasks (data) {_ROW} FROM generate_series(1, {rows});"
        self._psql(_TABLE + filling + "ANALYZE tasks;")
        script = self._at() / "script"
        script.write_text(_SCRIPTS[verb], encoding="utf-8")
        script.chmod(0o644)

    def _psql(self, text: str) -> str:
        where = ("-h", str(self._at()), "-U", "postgres", "postgres")
        return call("psql", "-qAt", "-v", "ON_ERROR_STOP=1", *where, folder=self._at(), text=text)

    def _run(self) -> Answer:
        """pgbench says how many transactions it had in a second, without the time that connecting took."""
        verb, tasks, clients = self._asked
        each = GROUP if verb == "insert-many" else 1
        calls = max(1, tasks // each // clients)
        used, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
        seconds = calls * clients / self._rate(calls, clients)
        after, done = resource.getrusage(resource.RUSAGE_CHILDREN), calls * clients * each
        cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
        waits = after.ru_nvcsw - used.ru_nvcsw
        timed = {"seconds": seconds, "begun": begun, "ended": begun + seconds}
        return timed | {"tasks": done, "cpu": cpu, "waits": waits}

    def _rate(self, calls: int, clients: int) -> float:
        threads = ("-c", str(clients), "-j", str(min(clients, 2)), "-t", str(calls), "-M", "prepared")
        where = ("-h", str(self._at()), "-U", "postgres", "postgres")
        said = call("pgbench", "-n", *threads, "-f", str(self._at() / "script"), *where, folder=self._at())
        rate = re.search(r"^tps = ([\d.]+)", said, re.MULTILINE)
        if rate is None:
            raise BenchError(f"pgbench said no rate: {said}")
        return float(rate[1])


def main() -> None:
    """Answer until the input ends."""
    with ExitStack() as stack:
        serve(Agent(stack).answer)


if __name__ == "__main__":
    main()
