"""The benchmark itself: the ways of a row take turns, round after round; agents do the work, the servers count it."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO, Any, Final, Literal, Self

from airflow_provider_zkmq.embedded import ServerError, read_metrics
from tests.benchmarks.compare.jobs import BenchError, SkippedError

_HOME: Final = str(Path(__file__).parents[3])
_END_S: Final = 20.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_IN_AN_EPOCH: Final = (1 << 32) - 1
Answer = dict[str, Any]
Sample = dict[str, float]
Command = Callable[[str, str], list[str]]
Unit = Literal["rate", "requests", "client_us"]
_names = count()


def python_agent(hosts: str, root: str) -> list[str]:
    """The command line of an agent of ours."""
    return [sys.executable, "-m", "tests.benchmarks.compare.agent", hosts, root]


@dataclass(frozen=True)
class Way:
    """One way to do a row's work.

    `verb` is what `agent` is asked for, with `number`; `processes` do it together; `share` of the row's tasks is enough
    to measure a slow one. `ours`: it is no peer. `elsewhere`: it asks another kind of server, whose requests nobody
    counts.
    """

    name: str
    verb: str
    number: int = 0
    processes: int = 1
    share: float = 1.0
    agent: Command = python_agent
    ours: bool = False
    elsewhere: bool = False


@dataclass(frozen=True)
class Goal:
    """What a way should reach: `bound` times what another way reaches, or `bound` itself where none is named.

    A rate is a goal from below; requests and microseconds of the client's processor time, for each task, from above.
    """

    way: str
    bound: float
    against: str | None = None
    unit: Unit = "rate"


@dataclass(frozen=True)
class Row:
    """Ways that take turns, and goals for their figures. `heavy`: it is only measured where it is asked for by name."""

    key: str
    title: str
    ways: tuple[Way, ...]
    goals: tuple[Goal, ...] = ()
    heavy: bool = False


@dataclass
class Figures:
    """The samples of each way of a row, one for each round; of those that were skipped, why."""

    row: Row
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


# --- what was measured, as figures


def _per_task(name: str, factor: float = 1.0) -> Callable[[Sample], float | None]:
    return lambda sample: sample[name] * factor / sample["tasks"] if name in sample else None


FIGURES: Final[dict[str, Callable[[Sample], float | None]]] = {
    "rate": lambda sample: sample["tasks"] / sample["seconds"],
    "requests": _per_task("requests"),
    "transactions": _per_task("transactions"),
    "client_us": _per_task("cpu", 1e6),
    "server_us": _per_task("server_cpu", 1e6),
}


@dataclass(frozen=True)
class Spread:
    """A median, and between which figures the rounds were."""

    median: float
    low: float
    high: float


def _spread(values: Iterable[float | None]) -> Spread | None:
    there = [value for value in values if value is not None]
    return Spread(statistics.median(there), min(there), max(there)) if there else None


def of_way(figures: Figures, way: str, figure: str) -> Spread | None:
    """A figure of a way over all rounds."""
    return _spread(map(FIGURES[figure], figures.samples.get(way, ())))


def reached(figures: Figures, goal: Goal) -> Spread | None:
    """What a goal is about; of a ratio that of each round, since what else the machine did hit both ways."""
    if goal.against is None:
        return of_way(figures, goal.way, goal.unit)
    read = FIGURES[goal.unit]
    pairs = zip(figures.samples.get(goal.way, ()), figures.samples.get(goal.against, ()), strict=False)
    values = ((read(one), read(other)) for one, other in pairs)
    return _spread(new / old if new is not None and old else None for new, old in values)


def met(goal: Goal, spread: Spread) -> bool:
    """Whether the median meets the goal, as far as two digits tell."""
    value, bound = round(spread.median, 2), round(goal.bound, 2)
    return value >= bound if goal.unit == "rate" else value <= bound


# --- the processes that measure


class Agent:
    """A process that answers each line with one; in a session of its own, so that an interrupt reaches us only."""

    def __init__(self, command: Sequence[str], folder: str) -> None:
        path = os.pathsep.join(filter(None, [_HOME, os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path, "TMPDIR": folder},
        )

    def ask(self, *words: object) -> None:
        """Have it begin."""
        with suppress(BrokenPipeError):  # the answer is that it has ended
            pipe = _pipe(self._process.stdin)
            pipe.write(" ".join(map(str, words)) + "\n")
            pipe.flush()

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
        with suppress(BrokenPipeError):
            _pipe(self._process.stdin).close()
        try:
            self._process.wait(0 if at_once else _END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _pipe(self._process.stdout).close()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


class Agents:
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
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        for agents in self._agents.values():
            for agent in agents:
                agent.close(at_once=kind is not None)


# --- what the servers count


class Gauge:
    """Reads the servers of a connect string. `pids`: their processes, where they are on this machine."""

    def __init__(self, hosts: str, pids: Sequence[int] = ()) -> None:
        addresses = (host.rpartition(":") for host in hosts.partition("/")[0].split(","))
        self._servers = [(name.strip("[]"), int(port)) for name, _, port in addresses]
        self._pids = pids

    def read(self) -> Sample:
        """What they have counted so far; what they do not say is missing."""
        reading = {}
        if self._pids:
            reading["server_cpu"] = sum(map(_cpu, self._pids))
        with suppress(ServerError):
            metrics = [read_metrics(host, port) for host, port in self._servers]
            reading["requests"] = float(sum(int(each["zk_packets_received"]) for each in metrics))
            reading["transactions"] = float(max(int(each["Zxid"], 16) for each in metrics) & _IN_AN_EPOCH)
        return reading


def _cpu(pid: int) -> float:
    """Seconds of processor time."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / _TICKS


# --- the rounds


def measure(
    rows: Sequence[Row], agents: Agents, gauge: Gauge, tasks: int, rounds: int, say: Callable[[str], object]
) -> list[Figures]:
    """Measure row after row; every other round goes through a row's ways in the opposite order."""
    everything = []
    for row in rows:
        figures = Figures(row)
        for at in range(rounds):
            say(f"{row.key}: round {at + 1} of {rounds}")
            for way in row.ways[:: -1 if at % 2 else 1]:
                if way.name not in figures.skipped:
                    _take_turn(figures, way, agents, gauge, max(2, round(tasks * way.share)))
        everything.append(figures)
    return everything


def _take_turn(figures: Figures, way: Way, agents: Agents, gauge: Gauge, tasks: int) -> None:
    """A sample more, unless the way cannot be measured here."""
    try:
        with _opened(way, agents.of(way.agent, way.processes), tasks) as crew:
            before = gauge.read()
            sample = _together(_all(crew, "run"))
            after = {} if way.elsewhere else gauge.read()
    except SkippedError as reason:
        figures.skipped[way.name] = str(reason)
    except BenchError as error:
        raise BenchError(f"{figures.row.key}, {way.name}: {error}") from error
    else:
        counted = {name: after[name] - before[name] for name in after.keys() & before.keys()}
        figures.samples.setdefault(way.name, []).append(sample | counted)


@contextmanager
def _opened(way: Way, crew: Sequence[Agent], tasks: int) -> Iterator[Sequence[Agent]]:
    """Something to do is there, and all are ready to begin."""
    words = (way.verb, f"n{next(_names)}", tasks, way.number)
    try:
        _all(crew[:1], "fill", *words)
        _all(crew, "open", *words)
        yield crew
    finally:
        _all(crew, "close")


def _all(crew: Sequence[Agent], *words: object) -> list[Answer]:
    """Ask all at once, and wait for all, also where one of them fails."""
    for agent in crew:
        agent.ask(*words)
    answers, errors = [], []
    for agent in crew:
        try:
            answers.append(agent.answer())
        except BenchError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return answers


def _together(answers: Sequence[Answer]) -> Sample:
    """From the first one's begin to the last one's end; what each did and used is summed."""
    sample = {name: float(sum(answer[name] for answer in answers)) for name in ("tasks", "cpu")}
    if not sample["tasks"]:
        raise BenchError("nothing was done")
    if len(answers) == 1:
        return sample | {"seconds": float(answers[0]["seconds"])}
    ended = max(answer["ended"] for answer in answers if answer["tasks"])
    return sample | {"seconds": float(ended - min(answer["begun"] for answer in answers))}
