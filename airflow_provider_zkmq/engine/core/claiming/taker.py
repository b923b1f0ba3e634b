"""Who claims, for whom, and which entries are to be tried."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from airflow_provider_zkmq.engine.core.memory.claims import Caller, Claimed
from airflow_provider_zkmq.engine.core.memory.register import Consumer
from airflow_provider_zkmq.engine.core.model.conf import Conf
from airflow_provider_zkmq.engine.core.model.selectors import Selector


class Unregistered(Exception):
    """This session is no consumer any more: it is a new one, or was taken for dead. Whoever claims registers again."""


class CallerLeft(Exception):
    """Whoever asked for the claim has gone away: nothing more is taken for it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a consumer asks for. ``lease`` (seconds): the claim outlives the process; None: it ends with its session.

    ``ahead``: the handling of all but the first begins later, see `core.tasks.holding.begin`.
    """

    selector: Selector
    lease: float | None = None
    ahead: bool = False

    @property
    def kind(self) -> Hashable:
        """What those have in common who are after the same tasks: where one finds nothing, none does."""
        return str(self.selector)


@dataclass(frozen=True, slots=True)
class Taker:
    """Who claims, for whom, and by what rules."""

    conf: Conf
    wanted: Wanted
    consumer: Consumer
    caller: Caller
    most: int = 1
    """How many tasks are wanted."""
    taken: list[Claimed] = field(default_factory=list)
    """What has been claimed, in order."""

    @property
    def room(self) -> int:
        """How many tasks are wanted still."""
        return self.most - len(self.taken)

    def accepts(self, filters: Mapping[str, str]) -> bool:
        """Whether a task with these filters is wanted."""
        return self.wanted.selector.matches(filters, self.conf.types)


@dataclass(frozen=True, slots=True)
class Pick:
    """An entry that is to be tried; ``rank``: its place in strict order."""

    entry: str
    segment: str
    rank: int | None = None

    @property
    def path(self) -> str:
        """Where it stands."""
        return f"{self.segment}/{self.entry}"
