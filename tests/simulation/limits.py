"""What must hold of a queue's limit: never more claims at once, or in a period; judged from each transaction."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Final

from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.settings import Limit
from airflow_provider_zkmq.engine.core.model.states import State

#: In so many of all schedules the queue has a limit.
LIMITED: Final = 0.2
LIMITS: Final = (
    Limit(concurrency=1),
    Limit(concurrency=1),
    Limit(concurrency=3),
    Limit(concurrency=1, by="c"),
    Limit(concurrency=2, by="c"),
    Limit(rate=2, per=3),
    Limit(rate=1, per=1, by="c"),
    Limit(rate=40, per=8),
    Limit(concurrency=1, rate=2, per=2, by="c"),
)
#: What was prefetched counts for so long more, in milliseconds.
AHEAD: Final = 1_000


def limit_of(seed: str) -> Limit:
    """The limit of the queue in one schedule; most have none."""
    chance = random.Random(f"limit {seed}")
    return chance.choice(LIMITS) if chance.random() < LIMITED else Limit()


class LimitBook:
    """Which tasks were claimed when, and whether the limit has room."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.times: dict[str, list[int]] = {}
        self.undone: dict[str, list[int]] = {}
        """Claims that the servers went back behind: whoever made them counts them all the same."""

    def go_back(self, before: LimitBook) -> None:
        """The servers went back, and with them this book; `before` is how it stood until then."""
        for key, times in (*before.times.items(), *before.undone.items()):
            self.undone[key] = [*self.undone.get(key, ()), *times]

    def holds(self, claimed: TaskState, records: Iterable[TaskState], ms: int) -> bool:
        """Remember a claim at a server's time; whether the limit holds with it."""
        key = self.limit.key(claimed.filters)
        if key is None:
            return True
        times = self.times.setdefault(key, [])
        times.append(ms)
        at_once = self.limit.concurrency is None or self._held(key, records) <= self.limit.concurrency
        since = ms - self.limit.per * 1000
        return at_once and (self.limit.rate is None or sum(time > since for time in times) <= self.limit.rate)

    def has_room(self, filters: Mapping[str, str], records: Iterable[TaskState], ms: int, late: int) -> bool:
        """Whether a task with these filters could be claimed for so long, `late` milliseconds, by now."""
        key = self.limit.key(filters)
        if key is None:
            return True
        if self.limit.concurrency is not None and self._held(key, records) >= self.limit.concurrency:
            return False
        since = ms - self.limit.per * 1000 - AHEAD - late
        times = [*self.times.get(key, ()), *self.undone.get(key, ())]
        return self.limit.rate is None or sum(time > since for time in times) < self.limit.rate

    def _held(self, key: str, records: Iterable[TaskState]) -> int:
        return sum(each.state is State.CLAIMED and self.limit.key(each.filters) == key for each in records)
