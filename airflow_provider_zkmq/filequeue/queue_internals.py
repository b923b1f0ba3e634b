"""The verbs of a queue file that only this package calls: see `engine.queue_internals`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from ..engine.core.model.filters import FilterMethods, Selector, choose
from ..engine.core.model.new_message import Message, NewTasks
from ..engine.core.model.states import State
from ..engine.core.model.values import Duration, Moment, optional_milliseconds, seconds, whole_number
from ..engine.core.read.columnar_read import Scanned
from ..engine.core.read.inspect import as_state, checked_columns, checked_ids
from ..engine.core.read.overview import Activity, HeldClaim, Overview
from ..engine.core.read.pages import MOST, SCHEDULED
from .directory import Directory
from .operations import Putting
from .refusals import BATCHES, OnlyWhatFilesHave, refuse
from .task_store import QueueFile, lock_span


class FileQueueInternals(OnlyWhatFilesHave):
    """The internals of a `FileQueue`: what of `QueueInternals` a file can do."""

    def __init__(self, directory: Directory, name: str) -> None:
        self._directory = directory
        self._name = name
        self._wakes = 0

    # --- for workers

    @property
    def closed(self) -> bool:
        """Whether the queue's connection has been closed."""
        return self._directory.closed

    @property
    def changes(self) -> int:
        """How often the queue was woken; what changes in the file tells nobody who does not wait for that."""
        return self._wakes

    def wait_for_change(self, seen: int, timeout: Duration) -> bool:
        """Wait until the queue is woken more than `seen` times, at most for `timeout`."""
        span = seconds("timeout", timeout)
        with self._directory.alarms.one() as event:
            return self._wakes > seen or event.wait(span)

    def wake(self) -> None:
        """Wake whoever waits for something in the folder; they look again."""
        self._wakes += 1
        self._directory.alarms.fire()

    def run_maintenance(self) -> None:
        """Nothing is promoted or rescued in a file: whoever claims finds what is due."""

    def check_wanted(
        self,
        node: Mapping[str, object] | None = None,
        filter_method: FilterMethods = "absolute",
        selector: Selector | str | None = None,
        lease: object = None,
    ) -> None:
        """Raise `ConfigError` for a node, selector or lease that the queue refuses."""
        if lease is not None:
            lock_span("lease", lease)
        choice = partial(choose, node=node, filter_method=filter_method, selector=selector)
        self._directory.carry_out(self._name, lambda queue_file: choice(queue_file.conf.types))

    def pending(self) -> int:
        """How many tasks are pending, those that wait for their time among them."""
        return self._directory.carry_out(self._name, lambda queue_file: len(queue_file.matching(State.INSERTED, None)))

    # --- for operators, the command line, reports and Spark

    def enqueue_new(
        self, messages: Sequence[Message], *, batch: str | None = None, since: Moment | None = None
    ) -> NewTasks:
        """Append the messages whose ids no line has; what is there stays as it is. Raises what `Putting.write` does."""
        refuse({BATCHES: batch})
        optional_milliseconds("since", since)  # no more: the file keeps what is done until somebody deletes its lines
        putting = Putting(messages, only_new=True)
        ids = self._directory.carry_out(self._name, putting.write, create=True)
        written = tuple(name for name in ids if name in putting.written)
        return NewTasks(written, tuple(name for name in ids if name not in putting.written))

    def now(self) -> Moment:
        """The time by this machine's clock, which is a file's. Raises `QueueNotFound`."""
        import pendulum  # now, not before: the command line starts faster without

        self._directory.carry_out(self._name, lambda _: None)
        return pendulum.now("UTC")

    def held_claims(self, ids: Sequence[str] | None = None) -> list[HeldClaim]:
        """The tasks in hand, of these ids or all; a file tells neither since when nor of progress."""
        named = None if ids is None else set(checked_ids(ids))

        def look(queue_file: QueueFile) -> list[HeldClaim]:
            held = []
            for lines in queue_file.matching(State.CLAIMED, None):  # one whose lock has ended is not among them
                if lines.holder is not None and (named is None or lines.id in named):
                    owner, until = lines.holder
                    attempt = queue_file.task(lines).attempt
                    ends = int(until * 1000) if math.isfinite(until) else None  # people may write anything there
                    times = (None, None, 0.0, ends)
                    held.append(HeldClaim(lines.id, owner, attempt, *times, lapsed=False, progress=None, note=None))
            return held

        return self._directory.carry_out(self._name, look)

    def overview(self) -> Overview:
        """How the queue stands, as `QueueInternals.overview`; a file registers no consumers and is never paused."""

        def look(queue_file: QueueFile) -> tuple[dict[str, int], int | None, int | None]:
            waiting = queue_file.matching(State.INSERTED, None)
            due = [lines.due for lines in waiting if lines.due > queue_file.now]
            ready = [queue_file.task(lines).enqueued_ms for lines in waiting if lines.due <= queue_file.now]
            counts = {str(state): len(queue_file.matching(state, None)) for state in State} | {"scheduled": len(due)}
            return counts, min(ready, default=None), int(min(due) * 1000) if due and math.isfinite(min(due)) else None

        counts, oldest, due = self._directory.carry_out(self._name, look)
        return Overview(counts, False, None, (), oldest, due, tuple(self.held_claims()))

    def activity(self, minutes: int = 60) -> Activity:
        """Nothing: a file does not tell when its tasks ended."""
        del minutes
        return Activity(0, ())

    def page(
        self,
        state: State | str,
        after: str | None = None,
        most: int = MOST,
        *,
        selector: Selector | str | None = None,
    ) -> list[tuple[str, str]]:
        """The next tasks in `state` behind `after`, as `QueueInternals.page`, in the order of the lines."""
        del selector  # there are no lanes that it could refuse
        count = whole_number("most", most, 1, MOST)
        waits = self.ids(State.INSERTED) if state in {SCHEDULED, State.INSERTED} else []
        late = self.scan(waits, ["due_ms"]).columns["due_ms"] if waits else []
        scheduled = {task for task, due in zip(waits, late, strict=True) if due is not None}
        listed = self.ids() if state == SCHEDULED else self.ids(state)
        ids = [each for each in listed if (each in scheduled) == (state == SCHEDULED)]
        order = {task: line for line, task in enumerate(self.ids())}  # of the task that a page ended with, too
        behind = [task for task in ids if after is None or order.get(task, 0) > order.get(after, -1)]
        return [(task, task) for task in behind[:count]]

    def ids(self, state: State | str | None = None) -> list[str]:
        """The ids of the tasks in `state` (default: any), in the order of the lines."""
        wanted = as_state(state)
        return self._directory.carry_out(
            self._name, lambda queue_file: [lines.id for lines in queue_file.matching(wanted, None)]
        )

    def scan(
        self,
        task_ids: Sequence[str],
        columns: Sequence[str],
        *,
        states: Sequence[State | str] | None = None,
        selector: Selector | str | None = None,
        since: Moment | None = None,
        in_flight: int = 8,
    ) -> Scanned:
        """Columns of the tasks among `task_ids` that are there, as `QueueInternals.scan`; all of one moment."""
        ids, names, begin = checked_ids(task_ids), checked_columns(columns), optional_milliseconds("since", since)
        chosen = None if states is None else set(map(as_state, states))
        whole_number("in_flight", in_flight, 1)

        def look(queue_file: QueueFile) -> Scanned:
            matching = {lines.id: queue_file.task(lines) for lines in queue_file.matching(None, selector)}
            rows = [matching[each] for each in ids if each in matching]
            rows = [task for task in rows if chosen is None or task.state in chosen]
            rows = [task for task in rows if begin is None or task.enqueued_ms >= begin]
            gone = tuple(each for each in ids if each not in queue_file.tasks)
            return Scanned({name: [getattr(task, name) for task in rows] for name in names}, gone, ())

        return self._directory.carry_out(self._name, look)
