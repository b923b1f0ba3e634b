"""What a change costs: the working tree and a revision side by side, on one ZooKeeper, taking turns.

``python -m tests.benchmarks.throughput [--against HEAD~1] [--tasks 300] [--rounds 11] [--only ROW …] [--hosts …]``

Each tree has processes of its own that stay for the whole benchmark. Each round measures each row once for both trees,
one right after the other, and every other round in the opposite order: so what else the machine does hits both. A
row's ratio is the median of its rounds' ratios, and its range tells how far it can be trusted: 1.00 with a range of
0.90 to 1.10 is no difference. Everything counts upwards, so below 1 the working tree is slower; rows of *CPU* are tasks
per second of the client's processor time. The rows of *encoding* count instead of measuring, and count downwards.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

from airflow_provider_zkmq.embedded import EmbeddedServer
from tests.benchmarks.trees import TOP, Agent, BenchmarkError, describe, tree_of
from tests.support import fresh_root

CONSUMERS: Final = 4
Crew = Sequence[Agent]
Answer = dict[str, Any]
_numbers = count()


def _alone(row: str) -> Callable[[Crew, int], Answer]:
    """Measured by the first agent of a crew."""

    def measure(crew: Crew, tasks: int) -> Answer:
        crew[0].ask(row, f"q{next(_numbers)}", tasks)
        return crew[0].answer()

    return measure


def together(fill: str) -> Callable[[Crew, int], Answer]:
    """All agents of a crew drain a queue that the first of them has filled."""

    def measure(crew: Crew, tasks: int) -> Answer:
        queue = f"q{next(_numbers)}"
        crew[0].ask(fill, queue, tasks)
        crew[0].answer()
        for agent in crew:
            agent.ask("consume", queue, tasks)
        answers = [agent.answer() for agent in crew]
        claimed = sum(answer["tasks"] for answer in answers)
        if claimed != tasks:
            raise BenchmarkError(f"{claimed} of {tasks} tasks were claimed")
        begun, ended = min(answer["begun"] for answer in answers), max(answer["ended"] for answer in answers)
        return {"tasks": tasks, "seconds": ended - begun, "cpu": sum(answer["cpu"] for answer in answers)}

    return measure


def rate(answer: Answer) -> float:
    return float(answer["tasks"] / answer["seconds"])


def _cpu_rate(answer: Answer) -> float:
    return float(answer["tasks"] / answer["cpu"])


def _number(name: str) -> Callable[[Answer], float]:
    return lambda answer: float(answer[name])


@dataclass(frozen=True)
class Measurement:
    """Something that is carried out, and the rows that are read off its answer."""

    measure: Callable[[Crew, int], Answer]
    rows: dict[str, Callable[[Answer], float]]


MEASUREMENTS: Final = (
    Measurement(_alone("enqueue"), {"enqueue, one by one": rate}),
    Measurement(_alone("enqueue_many"), {"enqueue_many, 100 each": rate, "enqueue_many, CPU": _cpu_rate}),
    Measurement(_alone("claim"), {"claim + complete, one caller": rate, "claim + complete, CPU": _cpu_rate}),
    Measurement(_alone("worker 1"), {"worker, 1 thread": rate}),
    Measurement(_alone("worker 8"), {"worker, 8 threads": rate}),
    Measurement(_alone("asyncio enqueue"), {"asyncio enqueue, 64 at once": rate}),
    Measurement(_alone("asyncio claim"), {"asyncio claim + complete, 64 at once": rate}),
    Measurement(together("fill"), {"4 consumer processes": rate}),
    Measurement(together("fill strict"), {"4 consumer processes, strict order": rate}),
    Measurement(
        _alone("encoding"),
        {"encoding: records for each task": _number("records"), "encoding: creates for each task": _number("creates")},
    ),
)
ROWS: Final = tuple(row for measurement in MEASUREMENTS for row in measurement.rows)


@dataclass
class Figures:
    """One row's figures, a pair for each round."""

    old: list[float] = field(default_factory=list)
    new: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """New by old, round for round."""
        return [new / old for old, new in zip(self.old, self.new, strict=True)]


def measure(old: Crew, new: Crew, wanted: Sequence[Measurement], tasks: int, rounds: int) -> dict[str, Figures]:
    """Measure both trees in turns."""
    figures = {row: Figures() for measurement in wanted for row in measurement.rows}
    for at in range(rounds):
        for measurement in wanted:
            answers = {}
            for name, crew in (("old", old), ("new", new))[:: 1 if at % 2 else -1]:
                answers[name] = measurement.measure(crew, tasks)
            for row, read in measurement.rows.items():
                figures[row].old.append(read(answers["old"]))
                figures[row].new.append(read(answers["new"]))
        say(f"round {at + 1} of {rounds}", sys.stderr)
    return figures


def table(figures: dict[str, Figures]) -> str:
    """The medians of each row, its ratio, and the range of its rounds' ratios."""
    width = max(map(len, figures))
    lines = [f"{'row':{width}}  {'old':>9}  {'new':>9}  new/old  range"]
    for row, pair in figures.items():
        ratios = pair.ratios
        old, new = statistics.median(pair.old), statistics.median(pair.new)
        lines.append(
            f"{row:{width}}  {old:9.1f}  {new:9.1f}  {statistics.median(ratios):7.2f}"
            f"  {min(ratios):.2f} to {max(ratios):.2f}"
        )
    return "\n".join(lines)


def say(text: str, stream: Any = None) -> None:
    stream = stream or sys.stdout
    stream.write(text + "\n")
    stream.flush()


@contextmanager
def some_server(hosts: str | None) -> Iterator[str]:
    """The hosts that were asked for, else those of a server of our own."""
    if hosts is not None:
        yield hosts
        return
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer(folder, force_sync=False) as server:
        yield server.hosts


def compare(revision: str, hosts: str | None, wanted: Sequence[Measurement], tasks: int, rounds: int) -> None:
    """Measure and print."""
    say(f"old: {describe(revision)}\nnew: the working tree, at {describe('HEAD')}")
    say(f"{tasks} tasks a round, medians of {rounds} round(s), tasks per second")
    with ExitStack() as stack:
        tree = stack.enter_context(tree_of(revision))
        at = stack.enter_context(some_server(hosts))
        old, new = (crew_of(stack, folder, at) for folder in (tree, TOP))
        say(table(measure(old, new, wanted, tasks, rounds)))


def crew_of(stack: ExitStack, tree: Path, hosts: str) -> list[Agent]:
    """The agents of one tree, under a root of their own, so that no tree reads what the other has written."""
    root = fresh_root()
    crew = [stack.enter_context(Agent(tree, hosts, root)) for _ in range(CONSUMERS)]
    for agent in crew:
        agent.check()
    return crew


def _interrupt(_number: int, _frame: object) -> None:
    """End the benchmark, once: a second signal would cut the cleaning up short."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    """Read the command line and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", default="HEAD~1", metavar="REVISION")
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--only", nargs="+", metavar="ROW", default=[""], help="rows whose name contains one of these")
    parser.add_argument("--hosts")
    requested = parser.parse_args()
    wanted = [one for one in MEASUREMENTS if any(part in row for part in requested.only for row in one.rows)]
    if not wanted or requested.tasks < 2 or requested.rounds < 1:
        parser.error(f"two tasks, one round and one row are the least; the rows are: {'; '.join(ROWS)}")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        compare(requested.against, requested.hosts, wanted, requested.tasks, requested.rounds)
    except BenchmarkError as error:
        say(f"benchmark: {error}", sys.stderr)
        return 1
    except KeyboardInterrupt:
        say("benchmark: interrupted", sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
