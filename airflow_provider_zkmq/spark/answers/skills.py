"""Consumers of several kinds, each of which accepts some of the classes: the exact M/M/c queue of such a system.

A node that takes `at_least` its class serves many classes, one that takes its class `absolute` serves one. Tasks are
taken first come, first served by whoever accepts them. For Poisson arrivals and exponential service times, whose mean
depends on the consumer, the balance has a product form: J. Visschers, I. Adan, G. Weiss, "A product form solution to a
system with multi-type jobs and multi-type servers", Queueing Systems 70 (2012); I. Adan, G. Weiss, "A skill based
parallel service system under FCFS-ALIS", Stochastic Systems 4 (2014). Its sum over all orders of the consumers is taken
here over the numbers of busy ones of each kind. With one kind it is Erlang's formula.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from airflow_provider_zkmq.spark.answers.erlang import ENDLESS, NONE, Wait, pool

#: With more combinations of busy consumers, or more kinds, the sum is not taken: of each group of consumers that must
#: serve some classes alone Erlang's formula is, and the longest wait counts.
MOST_STATES: Final = 10_000
MOST_KINDS: Final = 8
_Counts: TypeAlias = tuple[int, ...]
_NEVER: Final = -math.inf


@dataclass(frozen=True, slots=True)
class Kind:
    """Consumers that accept the same `classes`: so many `servers`, each needing `service` seconds on the average."""

    classes: frozenset[str]
    servers: int
    service: float


def waits(rates: Mapping[str, float], kinds: Sequence[Kind]) -> dict[str, Wait]:
    """The wait of each class; `rates`: its arrivals a second. A class that nobody accepts waits for ever."""
    answer = {name: ENDLESS if rate else NONE for name, rate in rates.items()}
    for part in pools(busy_kinds(rates, kinds)):
        answer |= _of_pool(_arriving(rates, part), part)
    return answer


def busy_kinds(rates: Mapping[str, float], kinds: Iterable[Kind]) -> list[Kind]:
    """The kinds that have servers, and something to do."""
    return [kind for kind in kinds if kind.servers and any(rates.get(name) for name in kind.classes)]


def _arriving(rates: Mapping[str, float], kinds: Iterable[Kind]) -> dict[str, float]:
    return {name: rates[name] for kind in kinds for name in kind.classes if rates.get(name)}


def pools(kinds: Iterable[Kind]) -> list[list[Kind]]:
    """The kinds in groups that have no class in common, so that each group can be reckoned by itself."""
    groups = list[list[Kind]]()
    for kind in kinds:
        near = [group for group in groups if any(kind.classes & other.classes for other in group)]
        groups = [group for group in groups if group not in near] + [[kind, *itertools.chain(*near)]]
    return groups


def circles(rates: Mapping[str, float], kinds: Sequence[Kind]) -> list[tuple[frozenset[str], float, Kind]]:
    """Groups of kinds with the classes that nobody else accepts, their arrivals a second, and the group as one kind.

    However the rest of the pool helps out, these consumers must serve these classes.
    """
    answer = []
    for group in _groups(kinds):
        classes = frozenset[str]().union(*(kind.classes for kind in group))
        own = classes.difference(*(kind.classes for kind in kinds if kind not in group))
        rate = sum(rates.get(name, 0.0) for name in own)
        servers = sum(kind.servers for kind in group)
        speed = sum(kind.servers / kind.service for kind in group)
        if rate:
            answer.append((own, rate, Kind(own, servers, servers / speed)))
    return answer


def _groups(kinds: Sequence[Kind]) -> Iterable[Sequence[Kind]]:
    """Every choice of kinds; of many kinds only each one and all."""
    if len(kinds) > MOST_KINDS:
        return [*([kind] for kind in kinds), kinds]
    return [group for size in range(1, len(kinds) + 1) for group in itertools.combinations(kinds, size)]


def exact(kinds: Sequence[Kind]) -> bool:
    """Whether the exact sum over these kinds is short enough to be taken."""
    return len(kinds) == 1 or math.prod(kind.servers + 1 for kind in kinds) <= MOST_STATES


def _of_pool(rates: Mapping[str, float], kinds: Sequence[Kind]) -> dict[str, Wait]:
    """The waits of classes that share consumers. Whoever serves a class that piles up is lost to the others."""
    rings = circles(rates, kinds)
    beyond = [own for own, rate, ring in rings if rate * ring.service >= ring.servers]
    if beyond:
        piled = frozenset[str]().union(*beyond)
        others = {name: rate for name, rate in rates.items() if name not in piled}
        return dict.fromkeys(piled, ENDLESS) | waits(others, [kind for kind in kinds if not kind.classes & piled])
    if len(kinds) > 1 and exact(kinds):
        return _Lattice(rates, kinds).waits()
    alone = [(own, pool(rate, ring.service, ring.servers)) for own, rate, ring in rings]
    return {name: max((wait for own, wait in alone if name in own), key=lambda wait: wait.mean) for name in rates}


class _Lattice:
    """The states of a pool by the numbers of its busy consumers of each kind, and their weights as logarithms."""

    def __init__(self, rates: Mapping[str, float], kinds: Sequence[Kind]) -> None:
        self.full = tuple(kind.servers for kind in kinds)
        self._speeds = [1 / kind.service for kind in kinds]
        self._groups: dict[_Counts, float] = {}  # arrivals by the kinds that accept them
        self._group_of: dict[str, _Counts] = {}
        for name, rate in rates.items():
            group = tuple(index for index, kind in enumerate(kinds) if name in kind.classes)
            self._group_of[name] = group
            self._groups[group] = self._groups.get(group, 0.0) + rate

    def waits(self) -> dict[str, Wait]:
        """The wait of each class."""
        spare = {busy: self._spare(busy) for busy in self._states()}
        busy_first, idle_last = self._busy(spare), self._idle()
        onwards = self._onwards(spare, idle_last)
        total = onwards[tuple(0 for _ in self.full)]
        chances, means = dict.fromkeys(self._groups, 0.0), dict.fromkeys(self._groups, 0.0)
        for busy in self._states():
            for group in self._stuck(busy):
                chances[group] += math.exp(busy_first[busy] + idle_last[self._rest(busy)] - total)
                means[group] += math.exp(busy_first[busy] + onwards[busy] - total) / spare[busy]
        return {name: Wait(min(1.0, chances[group]), means[group]) for name, group in self._group_of.items()}

    def _states(self) -> Iterable[_Counts]:
        return itertools.product(*(range(count + 1) for count in self.full))

    def _rest(self, busy: _Counts) -> _Counts:
        return tuple(full - count for full, count in zip(self.full, busy, strict=True))

    def _stuck(self, busy: _Counts) -> list[_Counts]:
        """The groups all of whose consumers are busy."""
        return [group for group in self._groups if all(busy[index] == self.full[index] for index in group)]

    def _spare(self, busy: _Counts) -> float:
        """By how much the busy ones are faster than what only they may take arrives."""
        speed = sum(count * speed for count, speed in zip(busy, self._speeds, strict=True))
        return (speed or math.inf) - sum(self._groups[group] for group in self._stuck(busy))

    def _awaited(self, idle: _Counts) -> float:
        """How fast tasks arrive that one of the idle ones may take."""
        return sum(rate for group, rate in self._groups.items() if any(idle[index] for index in group))

    def _busy(self, spare: Mapping[_Counts, float]) -> dict[_Counts, float]:
        """The weight of all orders in which these became busy."""
        weights = dict[_Counts, float]()
        for busy in self._states():
            steps = [
                math.log(full - before[index]) + weights[before]
                for index, (before, full) in enumerate(zip(_fewer(busy), self.full, strict=True))
                if before[index] >= 0
            ]
            weights[busy] = _sum(steps) - math.log(spare[busy]) if steps else 0.0
        return weights

    def _idle(self) -> dict[_Counts, float]:
        """The weight of all orders in which these became idle."""
        weights = dict[_Counts, float]()
        for idle in self._states():
            steps = [
                math.log(idle[index]) + weights[before]
                for index, before in enumerate(_fewer(idle))
                if before[index] >= 0
            ]
            weights[idle] = _sum(steps) - math.log(self._awaited(idle)) if steps else 0.0
        return weights

    def _onwards(self, spare: Mapping[_Counts, float], idle: Mapping[_Counts, float]) -> dict[_Counts, float]:
        """The weight of all ways to go on from where these are the longest busy."""
        weights = dict[_Counts, float]()
        for busy in reversed(list(self._states())):
            steps = [
                math.log(left) + weights[after] - math.log(spare[after])
                for left, after in zip(self._rest(busy), _more(busy), strict=True)
                if left
            ]
            weights[busy] = _sum([idle[self._rest(busy)], *steps])
        return weights


def _fewer(counts: _Counts) -> list[_Counts]:
    return [(*counts[:index], count - 1, *counts[index + 1 :]) for index, count in enumerate(counts)]


def _more(counts: _Counts) -> list[_Counts]:
    return [(*counts[:index], count + 1, *counts[index + 1 :]) for index, count in enumerate(counts)]


def _sum(logarithms: Sequence[float]) -> float:
    """The logarithm of a sum, of logarithms."""
    largest = max(logarithms, default=_NEVER)
    return largest + math.log(sum(math.exp(each - largest) for each in logarithms))
