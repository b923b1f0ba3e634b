"""One client's memory of one queue: its parts, and who it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_zkmq.engine.core.memory.agenda import Agenda, Postponed
from airflow_provider_zkmq.engine.core.memory.claims import Claims
from airflow_provider_zkmq.engine.core.memory.clock import Clock
from airflow_provider_zkmq.engine.core.memory.debts import Debts, Maintenance
from airflow_provider_zkmq.engine.core.memory.line import Line
from airflow_provider_zkmq.engine.core.memory.listings import Listings
from airflow_provider_zkmq.engine.core.memory.marks import Marks
from airflow_provider_zkmq.engine.core.memory.quarantine import Quarantine
from airflow_provider_zkmq.engine.core.memory.readahead import Paces
from airflow_provider_zkmq.engine.core.memory.register import Census, Registration
from airflow_provider_zkmq.engine.core.memory.runtime import Runtime
from airflow_provider_zkmq.engine.core.memory.slots import Slots
from airflow_provider_zkmq.engine.core.memory.unresolved import Unresolved
from airflow_provider_zkmq.engine.core.model.conf import Conf
from airflow_provider_zkmq.engine.core.model.filters import FilterTypes
from airflow_provider_zkmq.engine.core.model.paths import Paths
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.protocol.ops import Signal, Watch


@dataclass(slots=True, eq=False)
class Configuration:
    """The queue's configuration as last read. Owner: `core.reading.configuration`."""

    conf: Conf | None = None
    watch: Watch | None = None
    changed: Callable[[], None] = lambda: None
    """Called when a part of it may have changed, by whoever is told; neither waits nor raises."""
    types: FilterTypes | None = None
    """The declarations of filters that could be read last, and the retry policy: what is followed while they cannot."""
    policy: RetryPolicy | None = None


@dataclass(slots=True, eq=False)
class Context:
    """What the procedures of one client share."""

    queue: str
    root: str
    paths: Paths
    run: Runtime
    signal: Signal
    """Fired when something in the queue may have changed; anybody may fire it."""
    describe: dict[str, Any] = field(default_factory=dict)
    """What the client's record as a consumer tells of its process."""
    configuration: Configuration = field(default_factory=Configuration)
    slots: Slots = field(default_factory=Slots)
    claims: Claims = field(default_factory=Claims)
    line: Line = field(default_factory=Line)
    registration: Registration = field(default_factory=Registration)
    census: Census = field(default_factory=Census)
    debts: Debts = field(default_factory=Debts)
    maintenance: Maintenance = field(default_factory=Maintenance)
    unresolved: Unresolved = field(default_factory=Unresolved)
    quarantine: Quarantine = field(default_factory=Quarantine)
    shared: dict[str, Signal] = field(default_factory=dict)
    """What one thread does for all; fired when it has ended. Owner: `core.reading.once`."""
    listings: Listings = field(init=False)
    sizes: Listings = field(init=False)
    """How many names stand where tasks are listed; of what lists those, the names. Owner: `core.reading.pending`."""
    clock: Clock = field(init=False)
    """Of a client with several queues it is one clock for all of them."""
    marks: Marks = field(init=False)
    postponed: Postponed = field(init=False)
    paces: Paces = field(init=False)

    def __post_init__(self) -> None:
        self.listings, self.sizes = Listings(self.run.new_signal), Listings(self.run.new_signal)
        self.clock = Clock(self.run.monotonic)
        self.marks = Marks(self.run.wall_ms)
        self.postponed = Postponed(self.run.monotonic)
        self.paces = Paces(self.run.monotonic)

    def report(self, path: str, why: str, damage: str = "") -> None:
        """Tell of a foreign or damaged znode, once, however often met; `Runtime.report` tells of what happened.

        `path` is stepped over from now on. `damage`: what is the matter, which other paths may suffer from, too.
        """
        if self.quarantine.add(path) and self.quarantine.is_news(damage):
            self.run.report(path, why)

    def forget_queue(self) -> None:
        """The queue is not there: what was remembered of its znodes is forgotten. What callers have in hand is theirs.

        One of the same name that is created later is another queue.
        """
        self.configuration = Configuration(changed=self.configuration.changed)
        self.registration.consumer = self.registration.cancel_watch = None
        self.census = Census()
        self.debts.batches.clear()
        self.debts.unmarked.clear()
        self.maintenance.left = False
        self.quarantine = Quarantine()
        self.postponed.pauses.clear()
        self.slots.open.clear()
        self.slots.buckets.clear()
        self.unresolved.marks.clear()
        self.listings.forget_unused()
        self.sizes.readings.clear()

    def tell(self, path: str, why: str, damage: str = "") -> None:
        """Tell of damage, once, and do not step over `path`: it was mended, or somebody may put it right."""
        if self.quarantine.is_news(damage or f"{path}: {why}"):
            self.run.report(path, why)

    def new_watch(self) -> Watch:
        """A watch whose event wakes whoever waits for this queue."""
        return Watch(self.signal)

    def agenda(self) -> Agenda:
        """An empty agenda."""
        return Agenda(self.run.monotonic)
