"""How many consumers a class needs: what arrives for those who serve it against what they can do.

The wait is that of the M/M/c queue, times (1 + C²) / 2 of Allen and Cunneen for how run times vary. Sources: A. K.
Erlang, "Solution of some problems in the theory of probabilities" (1917), by the recursion of Erlang B; A. O. Allen,
"Probability, Statistics, and Queueing Theory" (1978). It assumes that tasks arrive independently of each other at a
steady rate, that whoever becomes free takes the oldest task, and that the queue is in balance. Consumers that serve
several classes are busy with all of them: of each class they take the share that they have taken so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

#: More consumers than this are never suggested.
MOST: Final = 100_000
#: How unlikely it must be that a consumer accepts a class and has not met it by chance.
CHANCE: Final = 0.01
POINT: Final = 0.95


@dataclass(frozen=True, slots=True)
class Wait:
    """How long tasks wait in the long run: the `chance` of waiting at all, and the `mean` of all tasks, in seconds.

    Both are of a queue in balance; in one that is not, everybody waits and the mean has no end.
    """

    chance: float
    mean: float

    @property
    def endless(self) -> bool:
        """More arrives than can be served."""
        return math.isinf(self.mean)

    def quantile(self, point: float) -> float:
        """The wait in seconds that `point` of the tasks stay below: who waits at all does so exponentially."""
        if self.endless or self.chance <= 1 - point:
            return math.inf if self.endless else 0.0
        return self.mean / self.chance * math.log(self.chance / (1 - point))


ENDLESS = Wait(1.0, math.inf)
NONE = Wait(0.0, 0.0)


def erlang_c(load: float, servers: int) -> float:
    """The chance that an arriving task finds all `servers` busy; `load`: arrival rate times mean service time."""
    if load >= servers:
        return 1.0
    blocked = 1.0
    for number in range(1, servers + 1):
        blocked = load * blocked / (number + load * blocked)
    return blocked / (1 - load / servers * (1 - blocked))


def expected_wait(arrivals: float, service: float, squared: float, servers: int) -> Wait:
    """The wait at so many `arrivals` a second for so many `servers`.

    `service` is the mean of the run times in seconds, `squared` their squared coefficient of variation.
    """
    load = arrivals * service
    if load == 0:
        return NONE
    if load >= servers:
        return ENDLESS
    chance = erlang_c(load, servers)
    return Wait(chance, chance * service / (servers - load) * (1 + squared) / 2)


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be met: 95 of 100 tasks wait no longer than `wait` seconds, and no consumers are busier than that."""

    wait: float | None = 60.0
    utilisation: float | None = None

    def met(self, wait: Wait, utilisation: float) -> bool:
        """Whether a class is served well enough."""
        soon = not wait.endless if self.wait is None else wait.quantile(POINT) <= self.wait
        return soon and (self.utilisation is None or utilisation <= self.utilisation)


@dataclass(frozen=True, slots=True)
class Crew:
    """Consumers that serve the same classes, as they were seen.

    `seen`: the deliveries of each class; `consumers`: how many there were in all; `servers`: how many tasks they held
    at once lately; `service` and `squared`: the mean of the run times in seconds, and their squared coefficient of
    variation.
    """

    seen: Mapping[str, int]
    consumers: int
    servers: int
    service: float
    squared: float

    @property
    def classes(self) -> frozenset[str]:
        """The classes that they serve."""
        return frozenset(self.seen)

    @property
    def deliveries(self) -> int:
        """How many tasks they were given."""
        return sum(self.seen.values())

    def resembles(self, other: Crew) -> bool:
        """Whether these have not met what `other` serves besides by mere chance: each of them had few tasks."""
        if not self.classes < other.classes:
            return False
        share = sum(other.seen[name] for name in self.classes) / other.deliveries
        return math.pow(share, self.deliveries / self.consumers) > CHANCE

    def joined(self, other: Crew) -> Crew:
        """Both as one crew."""
        seen = {name: self.seen.get(name, 0) + other.seen.get(name, 0) for name in self.classes | other.classes}
        mine, total = self.deliveries, self.deliveries + other.deliveries
        mean = (mine * self.service + other.deliveries * other.service) / total
        moments = [(crew.deliveries, crew.service**2 * (1 + crew.squared)) for crew in (self, other)]
        squared = sum(count * moment for count, moment in moments) / total / mean**2 - 1 if mean else 0.0
        return Crew(seen, self.consumers + other.consumers, self.servers + other.servers, mean, max(0.0, squared))


def crews(seen: Iterable[Crew]) -> list[Crew]:
    """The crews, those that served too few tasks to tell counted with the one that they resemble."""
    whole = list[Crew]()
    for crew in sorted(seen, key=lambda crew: (-len(crew.classes), -crew.deliveries)):
        alike = [other for other in whole if crew.resembles(other)]
        same = [other for other in whole if other.classes == crew.classes]
        near = min(same or alike, key=lambda other: len(other.classes), default=None)
        whole = [other for other in whole if other is not near] + [crew if near is None else near.joined(crew)]
    return whole


@dataclass(frozen=True, slots=True)
class Need:
    """What the model says of a class: the `wait`, how busy who serves it is, and how many would do.

    `servers`: how many serve it; `needed`: of how many the target is met, at the least; None where no number does, or
    nobody serves it.
    """

    wait: Wait
    utilisation: float
    servers: int
    service: float
    squared: float
    needed: int | None


class Model:
    """The crews of a queue."""

    def __init__(self, seen: Sequence[Crew]) -> None:
        self._crews = [crew for crew in seen if crew.servers and crew.service > 0]

    def needs(self, rates: Mapping[str, float], target: Target) -> dict[str, Need]:
        """What is needed for each class; `rates`: its arrivals a second."""
        return {name: self._need(name, rates, target) for name in rates}

    def plan(self, rates: Mapping[str, float], target: Target) -> dict[frozenset[str], int]:
        """How many to add to each crew so that every class that somebody serves meets the target.

        The classes that the fewest crews serve come first: who is added for them helps the others. Of several crews
        that which serves the fewest classes grows.
        """
        added = {crew.classes: 0 for crew in self._crews}
        for name, need in sorted(self.needs(rates, target).items(), key=lambda item: len(self._serving(item[0]))):
            if serving := self._serving(name):
                there = need.servers + sum(added[crew.classes] for crew in serving)
                growing = min(serving, key=lambda crew: (len(crew.classes), -crew.servers))
                added[growing.classes] += max(0, (need.needed or 0) - there)
        return added

    def _serving(self, name: str) -> list[Crew]:
        return [crew for crew in self._crews if name in crew.classes]

    def _need(self, name: str, rates: Mapping[str, float], target: Target) -> Need:
        serving = self._serving(name)
        if not serving:
            none = (NONE, 0.0) if not rates[name] else (ENDLESS, math.inf)
            return Need(*none, 0, math.nan, math.nan, None)
        whole = serving[0]
        for crew in serving[1:]:
            whole = whole.joined(crew)
        arrivals = sum(rates.get(each, 0.0) * self._share(each, whole) for each in whole.classes)

        def wait(servers: int) -> Wait:
            return expected_wait(arrivals, whole.service, whole.squared, servers)

        def busy(servers: int) -> float:
            return arrivals * whole.service / servers

        there = whole.servers
        needed = _least(lambda servers: busy(servers) < 1 and target.met(wait(servers), busy(servers)), there)
        return Need(wait(there), busy(there), there, whole.service, whole.squared, needed)

    def _share(self, name: str, whole: Crew) -> float:
        """The part of a class's deliveries that these consumers had."""
        return whole.seen[name] / sum(crew.seen[name] for crew in self._serving(name))


def _least(enough: Callable[[int], bool], first: int) -> int | None:
    """The least number from 1 that is enough, tried from `first` outwards; None beyond `MOST`."""
    low, high = 0, max(1, first)
    while not enough(high):
        low, high = high, high * 2
        if low > MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
