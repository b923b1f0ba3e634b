"""How many consumers a queue needs: what arrives in each class against what the consumers that serve it can do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from airflow_provider_zkmq.spark.answers.erlang import MOST, NONE, Wait, variation
from airflow_provider_zkmq.spark.answers.skills import Kind, busy_kinds, circles, exact, pools, waits

#: How unlikely it must be that a consumer accepts a class and has not met it by chance.
CHANCE: Final = 0.01
POINT: Final = 0.95


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

    `servers`: how many serve it; `needed`: of how many the target is met, at the least, if consumers of one crew,
    `grow`, are added or taken away; None where no number does, or nobody serves it.
    """

    wait: Wait
    utilisation: float
    servers: int
    service: float
    squared: float
    needed: int | None
    grow: frozenset[str]
    exact: bool


class Model:
    """The crews of a queue as an M/G/c system: Erlang's formula, or its like for several kinds, then `variation`."""

    def __init__(self, seen: Sequence[Crew]) -> None:
        self._crews = [crew for crew in seen if crew.servers and crew.service > 0]
        self._kinds = [Kind(crew.classes, crew.servers, crew.service) for crew in self._crews]

    def waits(self, rates: Mapping[str, float]) -> dict[str, Wait]:
        """The wait of each class at so many arrivals a second."""
        return self._waits(rates, self._kinds)

    def needs(self, rates: Mapping[str, float], target: Target) -> dict[str, Need]:
        """What is needed for each class, the crews that do not serve it left as they are."""
        now, busy = self.waits(rates), utilisations(rates, self._kinds)
        alike = dict[tuple[int, ...], int | None]()  # classes that the same crews serve need the same
        answer = {}
        for name in rates:
            serving = tuple(index for index, kind in enumerate(self._kinds) if name in kind.classes)
            if serving and serving not in alike:
                alike[serving] = self._needed(name, rates, target, serving)
            crew = self._together(serving)
            grow = self._kinds[self._growing(serving)].classes if serving else frozenset({name})
            near = [kind for kind in self._kinds if any(kind.classes & self._kinds[index].classes for index in serving)]
            answer[name] = Need(
                now[name],
                busy.get(name, math.inf if rates[name] else 0.0),
                sum(self._kinds[index].servers for index in serving),
                crew.service if crew else math.nan,
                crew.squared if crew else math.nan,
                alike.get(serving),
                grow,
                exact(near) if near else True,
            )
        return answer

    def _together(self, serving: Sequence[int]) -> Crew | None:
        """Those crews as one."""
        whole = None
        for index in serving:
            whole = self._crews[index] if whole is None else whole.joined(self._crews[index])
        return whole

    def _growing(self, serving: Sequence[int]) -> int:
        """Which crew to add to: the one that serves the fewest other classes."""
        return min(serving, key=lambda index: (len(self._kinds[index].classes), -self._kinds[index].servers))

    def _needed(self, name: str, rates: Mapping[str, float], target: Target, serving: Sequence[int]) -> int | None:
        growing = self._growing(serving)
        least = self._least(name, rates, target, self._kinds, growing)
        others = sum(self._kinds[index].servers for index in serving if index != growing)
        return None if least is None else others + least

    def _least(
        self, name: str, rates: Mapping[str, float], target: Target, kinds: Sequence[Kind], growing: int
    ) -> int | None:
        """How many of one kind are enough for a class, at the least. Kinds that share nothing with it are left out."""
        grown, near = kinds[growing], _pool_of(kinds[growing], kinds)
        own = {each: rate for each, rate in rates.items() if any(each in kind.classes for kind in near)}

        def enough(servers: int) -> bool:
            tried = [replace(kind, servers=servers) if kind is grown else kind for kind in near]
            busy = utilisations(own, tried).get(name, 0.0)
            return busy < 1 and target.met(self._waits(own, tried).get(name, NONE), busy)

        return _least(enough, grown.servers)

    def plan(self, rates: Mapping[str, float], target: Target) -> dict[frozenset[str], int]:
        """How many to add to each crew so that every class that somebody serves meets the target.

        The classes that the fewest crews serve come first: who is added for them helps the others, and slows nobody.
        """
        kinds = list(self._kinds)
        groups = {tuple(index for index, kind in enumerate(kinds) if name in kind.classes): name for name in rates}
        for serving in sorted(filter(None, groups), key=len):
            growing = self._growing(serving)
            least = self._least(groups[serving], rates, target, kinds, growing) or 0
            kinds[growing] = replace(kinds[growing], servers=max(least, kinds[growing].servers))
        added = zip(self._kinds, kinds, strict=True)
        return {kind.classes: grown.servers - kind.servers for kind, grown in added}

    def _waits(self, rates: Mapping[str, float], kinds: Sequence[Kind]) -> dict[str, Wait]:
        """The model's waits, each made longer or shorter as the run times of its pool vary."""
        answer = waits(rates, kinds)
        for part in pools(busy_kinds(rates, kinds)):
            classes = frozenset[str]().union(*(kind.classes for kind in part)) & answer.keys()
            factor = self._variation(sum(rates.get(name, 0.0) for name in classes), part)
            answer |= {name: answer[name].times(factor) for name in classes}
        return answer

    def _variation(self, rate: float, part: Sequence[Kind]) -> float:
        """The factor of a pool, by how the run times vary around the means of its crews."""
        near = [crew for crew in self._crews if any(crew.classes == kind.classes for kind in part)]
        squared = sum(crew.deliveries * crew.squared for crew in near) / sum(crew.deliveries for crew in near)
        busy = rate / sum(kind.servers / kind.service for kind in part)
        return variation(squared, min(1.0, busy), sum(kind.servers for kind in part))


def _pool_of(kind: Kind, kinds: Sequence[Kind]) -> list[Kind]:
    """The kinds that share classes with one, directly or by way of others, in their order."""
    (part,) = (part for part in pools(kinds) if any(other is kind for other in part))
    return [other for other in kinds if any(other is each for each in part)]


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


def utilisations(rates: Mapping[str, float], kinds: Sequence[Kind]) -> dict[str, float]:
    """How busy those are that serve a class, in the tightest group of them: 1 and more cannot be served."""
    answer = dict[str, float]()
    for part in pools(busy_kinds(rates, kinds)):
        for own, rate, ring in circles(rates, part):
            for name in own:
                answer[name] = max(answer.get(name, 0.0), rate * ring.service / ring.servers)
    return answer
