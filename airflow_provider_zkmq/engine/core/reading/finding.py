"""Waiting for tasks that nobody knows by their ids yet: those that a selector accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.durations import Duration
from airflow_provider_zkmq.engine.core.model.filters import FilterTypes
from airflow_provider_zkmq.engine.core.model.moments import Moment, moment_of, optional_milliseconds
from airflow_provider_zkmq.engine.core.model.numbers import whole_number
from airflow_provider_zkmq.engine.core.model.selectors import Selector, as_selector
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Procedure, Signal, Watch
from airflow_provider_zkmq.engine.core.reading.configuration import read_conf
from airflow_provider_zkmq.engine.core.reading.deadline import Deadline
from airflow_provider_zkmq.engine.core.reading.existence import exists
from airflow_provider_zkmq.engine.core.reading.inspect import Task, read_many
from airflow_provider_zkmq.engine.core.reading.nodes import chunked
from airflow_provider_zkmq.engine.core.reading.trees import SLIM_AT_ONCE
from airflow_provider_zkmq.engine.core.reading.watched import shared_nodes, unsubscribe
from airflow_provider_zkmq.engine.errors import QueueNotFound, WaitTimeout


def find_matching(
    context: Context,
    selector: Selector | str,
    at_least: int = 1,
    timeout: Duration | None = None,
    *,
    since: Moment | None = None,
    wait_for_queue: bool = False,
) -> Procedure[list[str]]:
    """The ids of the tasks that `selector` accepts, as soon as there are `at_least` so many; waits for them.

    A task counts whatever its state, so that what finished long ago and is kept still counts, too: `since` leaves out
    what was enqueued before that moment, by ZooKeeper's clock. An id that is enqueued again counts from then on, at the
    cost of a watch on each task that is left out. `wait_for_queue`: a queue that is not there yet is waited for as
    well, and told of once, as a warning in the log. Raises `WaitTimeout`, `QueueNotFound`, and `ConfigError` for an
    unknown filter, a count below 1 or a moment without a zone.
    """
    count, begin = whole_number("at_least", at_least, 1), optional_milliseconds("since", since)
    wanted, deadline, warned = as_selector(selector), (yield from Deadline.after(context, timeout)), False
    while True:
        try:
            conf = yield from read_conf(context)
            search = _Search(context, wanted.bind(conf.types), conf.types, begin)
            return (yield from _found(search, count, deadline))
        except QueueNotFound as error:
            if not wait_for_queue:
                raise
            if not warned:
                context.run.report(context.paths.base, f"{error}; tasks that match {str(wanted)!r} are waited for")
            warned = True
            if not (yield from exists(context, deadline.left)):
                msg = f"queue {context.queue!r} did not come within {deadline}: {error}"
                raise WaitTimeout(msg, left=[str(wanted)]) from None


def _found(search: _Search, count: int, deadline: Deadline) -> Procedure[list[str]]:
    """Look, and again whenever something of it has changed, until there are `count` tasks. Raises `WaitTimeout`."""
    mine = search.context.run.new_signal()
    try:
        while True:
            yield from read_conf(search.context)  # from memory, unless it has changed: the queue may have been deleted
            seen = mine.count
            watch = Watch(mine)  # kept until the wait is over: a watch that nobody holds tells nobody
            names = yield Children(search.context.paths.at("tasks"), watch)
            matching = yield from search.look(sorted(names or ()), mine)
            if len(matching) >= count:
                return matching
            if deadline.passed:
                raise search.not_in_time(len(matching), count, deadline)
            yield from deadline.wait(mine, seen)
    finally:
        search.stop_watching(list(search.early), mine)


@dataclass(slots=True)
class _Search:
    """What is looked for, and what is known of the tasks seen so far."""

    context: Context
    selector: Selector
    types: FilterTypes
    since: int | None
    accepted: dict[str, bool] = field(default_factory=dict)
    """Whether a task counts; those that came too early are not here."""
    early: dict[str, int] = field(default_factory=dict)
    """Tasks that would count had they not been enqueued too early, and the zxids of their records."""

    def look(self, names: list[str], mine: Signal) -> Procedure[list[str]]:
        """The tasks among `names` that count; what is known already is not read again."""
        self._forget(set(names), mine)
        yield from self._read([name for name in names if name not in self.accepted and name not in self.early])
        changed = yield from self._changed(mine)
        while changed:
            yield from self._read(changed)
            self.stop_watching([name for name in changed if name not in self.early], mine)
            changed = yield from self._changed(mine)
        return [name for name in names if self.accepted.get(name)]

    def _forget(self, names: set[str], mine: Signal) -> None:
        """Forget tasks that are gone: their ids may come again."""
        for name in self.accepted.keys() - names:
            del self.accepted[name]
        gone = list(self.early.keys() - names)
        self.stop_watching(gone, mine)
        for name in gone:
            del self.early[name]

    def _read(self, names: list[str]) -> Procedure[None]:
        for chunk in chunked(names, SLIM_AT_ONCE):
            for task in (yield from read_many(self.context, chunk, parts=())):
                self._judge(task)

    def _judge(self, task: Task) -> None:
        matches = self.selector.matches(task.filters, self.types)
        self.early.pop(task.id, None)
        if matches and self.since is not None and task.enqueued_ms < self.since:
            self.early[task.id] = task.version
        else:
            self.accepted[task.id] = matches

    def _changed(self, mine: Signal) -> Procedure[list[str]]:
        """The early tasks whose records have changed since they were read; a watch tells `mine` of the next change."""
        changed: list[str] = []
        for chunk in chunked(list(self.early)):
            nodes = yield from shared_nodes(self.context, self._paths(chunk), mine)
            pairs = zip(chunk, nodes, strict=True)
            changed += [name for name, node in pairs if node is not None and node.stat.mzxid > self.early[name]]
        return changed

    def stop_watching(self, names: list[str], mine: Signal) -> None:
        """Nobody waits any more for these to be enqueued again."""
        unsubscribe(self.context, self._paths(names), mine)

    def _paths(self, names: Sequence[str]) -> list[str]:
        return [self.context.paths.task(name, "state") for name in names]

    def not_in_time(self, there: int, wanted: int, deadline: Deadline) -> WaitTimeout:
        """The error for too few of them."""
        later = "" if self.since is None else f", enqueued since {moment_of(self.since)}"
        return WaitTimeout(
            f"queue {self.context.queue!r} has {there} task(s) that match {self.selector}{later}; {wanted} did not "
            f"come within {deadline}",
            left=[str(self.selector)],
        )
