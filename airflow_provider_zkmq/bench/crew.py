"""The processes that measure: agents in Python, and Curator's in Java, started when the first row needs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

import airflow_provider_zkmq
from airflow_provider_zkmq.bench.jobs import BenchError, SkippedError

_PATIENCE_S = 20.0
_HOME: Final = str(Path(airflow_provider_zkmq.__file__).parents[1])
Answer = dict[str, Any]
Command = Callable[[str, str], list[str]]


def python_agent(hosts: str, root: str) -> list[str]:
    """The command line of an agent of ours."""
    return [sys.executable, "-m", "airflow_provider_zkmq.bench.agent", hosts, root]


def profiled_agent(hosts: str, root: str) -> list[str]:
    """That of one that says where its processor time goes, and is slower for it."""
    return [*python_agent(hosts, root), "profile"]


class Agent:
    """A process that answers each line with one; in a session of its own, so that an interrupt reaches us only."""

    def __init__(self, command: Sequence[str], folder: str) -> None:
        path = os.pathsep.join(filter(None, [_HOME, os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(  # noqa: S603  the interpreter that runs this, or the user's own Java
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path, "TMPDIR": folder},
        )

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def ask(self, *words: object) -> None:
        """Have it begin."""
        pipe = _pipe(self._process.stdin)
        try:
            pipe.write(" ".join(map(str, words)) + "\n")
            pipe.flush()
        except BrokenPipeError as error:
            raise BenchError(f"an agent has ended with exit code {self._process.wait()}") from error

    def answer(self) -> Answer:
        """What it says. Raises `BenchError` where it failed or has ended, `SkippedError` where it cannot do it."""
        line = _pipe(self._process.stdout).readline()
        if not line:
            raise BenchError(f"an agent has ended with exit code {self._process.wait()}")
        answer: Answer = json.loads(line)
        if "skipped" in answer:
            raise SkippedError(answer["skipped"])
        if "error" in answer:
            raise BenchError(answer["error"])
        return answer

    def close(self, *, at_once: bool) -> None:
        """End it by the end of its input, and otherwise by force."""
        with suppress(BrokenPipeError):  # it has ended, and what it was asked for last was not read
            _pipe(self._process.stdin).close()
        try:
            self._process.wait(0 if at_once else _PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _pipe(self._process.stdout).close()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    if pipe is None:
        raise BenchError("an agent was started without pipes")
    return pipe


class Crews:
    """All agents, by the command that starts them; they end with the block. `folder`: for what they leave behind."""

    def __init__(self, hosts: str, root: str, folder: str) -> None:
        self._place = hosts, root
        self._folder = folder
        self._agents: dict[Command, list[Agent]] = {}

    def of(self, command: Command, size: int) -> list[Agent]:
        """The first agents of a kind, as many as are asked for. Raises `SkippedError` where one cannot be had."""
        agents = self._agents.setdefault(command, [])
        while len(agents) < size:
            agents.append(Agent(command(*self._place), self._folder))
        return agents[:size]

    def __enter__(self) -> Self:
        """Start nothing yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all."""
        for agents in self._agents.values():
            for agent in agents:
                agent.close(at_once=kind is not None)
