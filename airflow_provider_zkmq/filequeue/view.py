"""`FileView`: a queue in a file, as far as it is looked at."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeVar

from airflow_provider_zkmq.engine.model import (
    PARTS,
    Duration,
    Moment,
    OnChange,
    OnProgress,
    Part,
    QueueConf,
    Scanned,
    Selector,
    State,
    Task,
    WaitFor,
    as_selector,
    as_state,
    checked_columns,
    checked_ids,
    checked_parts,
    optional_milliseconds,
    optional_seconds,
    optional_whole_number,
    whole_number,
)
from airflow_provider_zkmq.filequeue import refusals
from airflow_provider_zkmq.filequeue.book import Book
from airflow_provider_zkmq.filequeue.folder import Folder
from airflow_provider_zkmq.filequeue.items import Item
from airflow_provider_zkmq.filequeue.looking import look_until
from airflow_provider_zkmq.filequeue.refusals import refuse, refused
from airflow_provider_zkmq.filequeue.waiting import follow, wait

T = TypeVar("T")


class FileView:
    """The methods of `Queue` that change nothing, over a file. They raise what those raise."""

    tree = refused(refusals.TREES)
    explain = refused(refusals.EXPLAINING)
    find = refused(refusals.FINDING)
    batch = wait_batch = refused(refusals.BATCHES)
    consumers = refused(refusals.CONSUMERS)
    zxid = ended_between = read_ended = latest_end = trimmed = refused(refusals.ARCHIVES)
    archive = refused(refusals.ARCHIVES)

    def __init__(self, folder: Folder, name: str) -> None:
        self.folder = folder
        self.name = name
        self.path = folder.file(name)

    def now(self) -> Moment:
        """The time by this machine's clock, which is a file's. Raises `QueueNotFound`."""
        import pendulum  # now, not before: the command line starts faster without

        self._do(lambda _: None)
        return pendulum.now("UTC")

    @property
    def root(self) -> str:
        """The folder of the file."""
        return str(self.folder.path)

    @property
    def consumer(self) -> str:
        """By which name this connection's claims stand in the file."""
        return self.folder.owner

    @property
    def closed(self) -> bool:
        """Whether its connection has been closed."""
        return self.folder.closed

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}>"

    def conf(self) -> QueueConf:
        """How the queue is configured. Its order is that of the lines; files are never cleaned up, paused, archived."""
        conf = self._do(lambda book: book.conf)
        return QueueConf(
            filters=dict(conf.types),
            policy=conf.policy,
            task_gc_lifetime=None,
            task_gc_interval=None,
            lock=conf.lock,
            order="fifo",
            paused=False,
            archived=None,
        )

    def task(self, task_id: str) -> Task:
        """One task. Raises `TaskNotFound`."""
        return self._do(lambda book: book.task(book.find(task_id)))

    def tasks(
        self,
        *,
        state: State | str | None = None,
        selector: Selector | str | None = None,
        batch: str | None = None,
        limit: int | None = None,
    ) -> list[Task]:
        """Tasks in `state` (default: any) that `selector` accepts, at most `limit`, in the order of the lines.

        Raises `Unsupported` for a `batch`.
        """
        refuse({refusals.BATCHES: batch is not None})
        wanted, most = as_state(state), optional_whole_number("limit", limit)
        return self._do(lambda book: [book.task(item) for item in _fitting(book, wanted, selector)[:most]])

    def ids(self, state: State | str | None = None, selector: Selector | str | None = None) -> list[str]:
        """The ids of the tasks in `state` (default: any) that `selector` accepts, in the order of the lines."""
        wanted = as_state(state)
        return self._do(lambda book: [item.id for item in _fitting(book, wanted, selector)])

    def read_many(self, task_ids: Sequence[str], *, parts: Collection[Part] = PARTS) -> list[Task]:
        """The tasks among `task_ids` that are there, each once, in the order of the ids; all of one moment.

        `parts`: which of ``data``, ``metadata`` and ``result`` are told; the others are empty in the tasks.
        """
        ids, chosen = checked_ids(task_ids), checked_parts(parts)

        def look(book: Book) -> list[Task]:
            items = [book.tasks[each] for each in ids if each in book.tasks]
            return [_only(book.task(item), chosen) for item in items]

        return self._do(look)

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
        """Columns of the tasks among `task_ids` that are there, as `Queue.scan` reads them; all of one moment."""
        ids, names, begin = checked_ids(task_ids), checked_columns(columns), optional_milliseconds("since", since)
        chosen = None if states is None else set(map(as_state, states))
        whole_number("in_flight", in_flight, 1)

        def look(book: Book) -> Scanned:
            fitting = {item.id: book.task(item) for item in _fitting(book, None, selector)}
            tasks = [task for each in ids if (task := fitting.get(each)) is not None]
            rows = [task for task in tasks if _in(chosen, task) and (begin is None or task.enqueued_ms >= begin)]
            gone = tuple(each for each in ids if each not in book.tasks)
            return Scanned({name: [getattr(task, name) for task in rows] for name in names}, gone, ())

        return self._do(look)

    def counts(self) -> dict[str, int]:
        """How many tasks are in each state, ``scheduled`` being the part of ``inserted`` that waits for its time."""

        def look(book: Book) -> dict[str, int]:
            states = [(book.state(item), item.due > book.now) for item in book.tasks.values()]
            counted = {str(state): sum(seen is state for seen, _ in states) for state in State}
            return counted | {"scheduled": states.count((State.INSERTED, True))}

        return self._do(look)

    def pending(self) -> int:
        """How many tasks are pending, those that wait for their time among them."""
        return self.counts()["inserted"]

    def wait(
        self,
        task_ids: Sequence[str],
        event: WaitFor | str = WaitFor.COMPLETION,
        timeout: Duration | None = None,
        on_progress: OnProgress | None = None,
        *,
        stop_at_failure: bool = False,
    ) -> list[Task]:
        """Wait until every task was claimed, or has ended; returns the tasks in order. See `Queue.wait`."""
        refuse({refusals.PROGRESS: on_progress})
        return wait(self.folder, self.name, task_ids, event, timeout, stop_at_failure=stop_at_failure)

    def follow(self, task_id: str, on_change: OnChange, timeout: Duration | None = None) -> Task:
        """Call `on_change` with the task now and whenever it has changed; returns it once it has ended.

        Raises `WaitTimeout`, `TaskNotFound`. See `Queue.follow`.
        """
        return follow(self.folder, self.name, task_id, on_change, timeout)

    def exists(self, timeout: Duration | None = 0, *, stopping: Callable[[], bool] = lambda: False) -> bool:
        """Whether the queue's file is there; waits for it at most `timeout` seconds (None: without bound)."""
        span = optional_seconds("timeout", timeout)
        look = lambda: (self.path.is_file() or None, None)  # noqa: E731
        return bool(look_until(self.path, look, span, self.folder.alarms, lambda: stopping() or self.closed))

    def _do(self, work: Callable[[Book], T], *, create: bool = False) -> T:
        """Do something with the file while it is locked; see `Folder.carry_out`."""
        return self.folder.carry_out(self.name, work, create=create)


def _fitting(book: Book, wanted: State | None, selector: Selector | str | None) -> list[Item]:
    types = book.conf.types
    chosen = None if selector is None else as_selector(selector).bind(types)
    items = (item for item in book.tasks.values() if wanted is None or book.state(item) is wanted)
    return [item for item in items if chosen is None or chosen.matches(item.filters, types)]


def _in(states: Collection[State | None] | None, task: Task) -> bool:
    return states is None or task.state in states


def _only(task: Task, parts: Collection[str]) -> Task:
    """The task with the parts that were not asked for empty."""
    return replace(
        task,
        data=task.data if "data" in parts else b"",
        metadata=task.metadata if "metadata" in parts else {},
        result=task.result if "result" in parts else None,
    )
