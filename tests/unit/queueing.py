"""A queue with several classes and several kinds of consumers, simulated event by event: what the formulas must meet.

First come, first served: a consumer that becomes free takes the oldest task of a class that it accepts; a task that
finds several free ones goes to any of them.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Draw = Callable[[random.Random, float], float]


class Staff(NamedTuple):
    """So many consumers that accept these classes and need so long on the average."""

    classes: str
    servers: int
    service: float


class Served(NamedTuple):
    """One task: its class, when it came, was taken and was done, and by whom."""

    name: str
    enqueued: float
    claimed: float
    ended: float
    consumer: str


def exponential(chance: random.Random, mean: float) -> float:
    return chance.expovariate(1 / mean)


def constant(chance: random.Random, mean: float) -> float:
    return mean


def two_sided(chance: random.Random, mean: float) -> float:
    """Many short ones, few long ones: C² = 4."""
    share = 0.5 * (1 + 0.6**0.5)
    part = share if chance.random() < share else 1 - share
    return chance.expovariate(2 * part / mean)


@dataclass
class Simulation:
    """`rates`: arrivals a second of each class, named by one letter; `slow`: classes that run so many times as long."""

    rates: Mapping[str, float]
    staff: Sequence[Staff]
    draw: Draw = exponential
    seed: int = 1
    slow: Mapping[str, float] = field(default_factory=dict)
    served: list[Served] = field(default_factory=list)

    def run(self, arrivals: int) -> Simulation:
        self._chance = random.Random(self.seed)
        self._workers = [(member, f"{member.classes}-{n}") for member in self.staff for n in range(member.servers)]
        self._idle = list(range(len(self._workers)))
        self._waiting: dict[str, deque[float]] = {name: deque() for name in self.rates}
        self._ends: list[tuple[float, int]] = []
        now, total = 0.0, sum(self.rates.values())
        names = self._chance.choices(list(self.rates), list(self.rates.values()), k=arrivals)
        for name in names:
            now += self._chance.expovariate(total)
            self._finish_until(now)
            self._arrive(name, now)
        return self

    def _finish_until(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            moment, worker = heapq.heappop(self._ends)
            waiting = [name for name in self._workers[worker][0].classes if self._waiting.get(name)]
            if waiting:
                oldest = min(waiting, key=lambda name: self._waiting[name][0])
                self._start(worker, oldest, self._waiting[oldest].popleft(), moment)
            else:
                self._idle.append(worker)

    def _arrive(self, name: str, now: float) -> None:
        free = [place for place, worker in enumerate(self._idle) if name in self._workers[worker][0].classes]
        if not free:
            self._waiting[name].append(now)
            return
        place = self._chance.choice(free)
        worker, self._idle[place] = self._idle[place], self._idle[-1]
        self._idle.pop()
        self._start(worker, name, now, now)

    def _start(self, worker: int, name: str, came: float, now: float) -> None:
        member, consumer = self._workers[worker]
        ended = now + self.draw(self._chance, member.service * self.slow.get(name, 1.0))
        heapq.heappush(self._ends, (ended, worker))
        self.served.append(Served(name, came, now, ended, consumer))

    def waits(self, name: str) -> list[float]:
        """The waits of a class, in order of length, those of the first tenth of all tasks left out."""
        warm = self.served[len(self.served) // 10 :]
        return sorted(task.claimed - task.enqueued for task in warm if task.name == name)

    def mean(self, name: str) -> float:
        waits = self.waits(name)
        return sum(waits) / len(waits)

    def quantile(self, name: str, point: float) -> float:
        waits = self.waits(name)
        return waits[int(point * len(waits))]
