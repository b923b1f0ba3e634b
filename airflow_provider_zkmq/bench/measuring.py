"""The benchmark itself: ways of a row take turns, round after round, and what they did is kept sample by sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from airflow_provider_zkmq.bench.crew import Agent, Answer, Crews, profiled_agent
from airflow_provider_zkmq.bench.gauge import Gauge
from airflow_provider_zkmq.bench.jobs import BenchError, SkippedError
from airflow_provider_zkmq.bench.rows import Row, Way
from airflow_provider_zkmq.bench.tracing import counting

Sample = dict[str, float]
Say = Callable[[str], object]
_names = count()
#: What a process's answer has of itself, and a sample has of all that took part.
_SUMMED: Final = ("tasks", "cpu", "waits")


@dataclass
class Figures:
    """The samples of each way of a row, one for each round; of those that were skipped, why."""

    row: Row
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    traced: dict[str, Sample] = field(default_factory=dict)
    """A sample more of each way, slower by far, in which system calls were counted."""
    shares: dict[str, dict[str, float]] = field(default_factory=dict)
    """Where the processor time of ways of ours went, as parts of one."""


def measure(rows: Sequence[Row], crews: Crews, gauge: Gauge, tasks: int, rounds: int, say: Say) -> list[Figures]:
    """Measure row after row; every other round goes through a row's ways in the opposite order."""
    everything = []
    for row in rows:
        figures = Figures(row)
        for at in range(rounds):
            say(f"{row.key}: round {at + 1} of {rounds}")
            for way in row.ways[:: -1 if at % 2 else 1]:
                _take_turn(figures, way, crews, gauge, tasks)
        everything.append(figures)
    return everything


def trace(measured: Sequence[Figures], crews: Crews, tasks: int, say: Say) -> None:
    """Count the system calls of each way, once, on agents that are warm."""
    for figures in measured:
        say(f"{figures.row.key}: system calls")
        for way in figures.row.ways:
            if way.name in figures.samples and not way.elsewhere:
                figures.traced[way.name] = _traced(way, crews, max(2, round(tasks * way.share)))


def profile(measured: Sequence[Figures], crews: Crews, tasks: int, say: Say) -> None:
    """Find out where the processor time of each way of ours goes, once, on an agent of its own."""
    for figures in measured:
        say(f"{figures.row.key}: profile")
        for way in figures.row.ways:
            if way.name in figures.samples and way.ours and way.processes == 1:
                figures.shares[way.name] = _profiled(way, crews, max(2, round(tasks * way.share)))


def _profiled(way: Way, crews: Crews, tasks: int) -> dict[str, float]:
    crew = crews.of(profiled_agent, 1)
    with _opened(way, crew, tasks):
        shares: dict[str, float] = _all(crew, "run")[0]["shares"]
    return shares


def _traced(way: Way, crews: Crews, tasks: int) -> Sample:
    crew = crews.of(way.agent, way.processes)
    with _opened(way, crew, tasks), counting([agent.pid for agent in crew]) as count:
        answers = _all(crew, "run")
    return _together(answers) | {"syscalls": float(count.calls)}


def _take_turn(figures: Figures, way: Way, crews: Crews, gauge: Gauge, tasks: int) -> None:
    """A sample more, unless the way cannot be measured here."""
    if way.name in figures.skipped:
        return
    try:
        sample = _sample(way, crews, gauge, max(2, round(tasks * way.share)))
    except SkippedError as reason:
        figures.skipped[way.name] = str(reason)
    except BenchError as error:
        raise BenchError(f"{figures.row.key}, {way.name}: {error}") from error
    else:
        figures.samples.setdefault(way.name, []).append(sample)


def _sample(way: Way, crews: Crews, gauge: Gauge, tasks: int) -> Sample:
    crew = crews.of(way.agent, way.processes)
    with _opened(way, crew, tasks):
        before = gauge.read()
        answers = _all(crew, "run")
        return _together(answers) | ({} if way.elsewhere else gauge.read().since(before))


@contextmanager
def _opened(way: Way, crew: Sequence[Agent], tasks: int) -> Iterator[None]:
    """Something to do is there, and all are ready to begin."""
    words = (way.verb, f"n{next(_names)}", tasks, way.number)
    try:
        _all(crew[:1], "fill", *words)
        _all(crew, "open", *words)
        yield
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
    sample = {name: float(sum(answer[name] for answer in answers)) for name in _SUMMED}
    if not sample["tasks"]:
        raise BenchError("nothing was done")
    if len(answers) == 1:
        return sample | {name: float(answers[0][name]) for name in ("seconds", "memory") if name in answers[0]}
    busy = [answer for answer in answers if answer["tasks"]]
    begun, ended = min(answer["begun"] for answer in answers), max(answer["ended"] for answer in busy)
    return sample | {"seconds": float(ended - begun)}
