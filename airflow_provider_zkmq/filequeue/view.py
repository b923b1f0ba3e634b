"""A queue in a file, as far as it is looked at and waited for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

from airflow_provider_zkmq.engine.errors import WaitTimeout
from airflow_provider_zkmq.engine.model import (
    ENDED,
    FAILED,
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
    check_name,
    checked_columns,
    checked_ids,
    checked_parts,
    not_reached,
    optional_milliseconds,
    optional_seconds,
    optional_whole_number,
    wait_event,
    whole_number,
)
from airflow_provider_zkmq.filequeue import refusals
from airflow_provider_zkmq.filequeue.directory import Folder, end_of, look_until
from airflow_provider_zkmq.filequeue.queue_file import Book, Item
from airflow_provider_zkmq.filequeue.refusals import refuse, refused

# --- Waiting for tasks of a file to be claimed, or to end.

#: The tasks, or None while something is to be waited for; and when a claim of one of them ends without any change.
_Seen: TypeAlias = tuple[list[Task] | None, float | None]


def wait(
    folder: Folder,
    queue: str,
    task_ids: Sequence[str],
    event: WaitFor | str,
    timeout: Duration | None,
    *,
    stop_at_failure: bool,
) -> list[Task]:
    """The tasks in order, once each was claimed or has ended, whichever way; or one is dead or cancelled, if asked to.

    Raises `WaitTimeout`, and `TaskNotFound` for a task that does not exist, or whose line was deleted meanwhile.
    """
    wanted, span = wait_event(event), optional_seconds("timeout", timeout)
    waiting = _Waiting(checked_ids(task_ids), wanted, stop_at_failure)
    if not waiting.ids:
        return []
    end = end_of(span)
    tasks = look_until(
        folder.file(queue),
        lambda: folder.carry_out(queue, waiting.look, end=end),
        span,
        folder.alarms,
        lambda: False,
    )
    if tasks is None:
        raise not_reached(queue, wanted, f"timeout ({span or 0:g} s)", waiting.left, waiting.failed)
    return tasks


@dataclass(slots=True)
class _Waiting:
    """What is waited for, and which of it had not got there, or had failed, at the last look."""

    ids: list[str]
    wanted: WaitFor
    stop_at_failure: bool
    left: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def look(self, book: Book) -> _Seen:
        items = [book.find(task_id) for task_id in self.ids]
        self.left = [item.id for item in items if not _reached(book, item, self.wanted)]
        self.failed = [item.id for item in items if book.state(item) in FAILED]
        if not self.left or (self.failed and self.stop_at_failure):
            return [book.task(item) for item in items], None
        return None, _next_end(book, items)


def _reached(book: Book, item: Item, wanted: WaitFor) -> bool:
    state = book.state(item)
    return state in ENDED or (wanted is WaitFor.CLAIM and (state is State.CLAIMED or item.number("attempts") > 0))


def _next_end(book: Book, items: Sequence[Item]) -> float | None:
    ends = (item.holder[1] for item in items if item.holder is not None and item.holder[1] > book.now)
    return min(ends, default=None)


def follow(folder: Folder, queue: str, task_id: str, on_change: OnChange, timeout: Duration | None) -> Task:
    """Call `on_change` with the task now and whenever it has changed; returns it once it has ended.

    The file is not locked meanwhile. Raises `WaitTimeout`, and `TaskNotFound` for a task that does not exist, or whose
    line was deleted meanwhile.
    """
    name, span = check_name("task id", task_id), optional_seconds("timeout", timeout)
    known: Task | None = None
    end = end_of(span)

    def look() -> tuple[Task | None, float | None]:
        nonlocal known
        task, again = folder.carry_out(queue, lambda book: _look_at(book, book.find(name)), end=end)
        if task != known:
            known = task
            on_change(task)
        return (task if task.state in ENDED else None), again

    ended = look_until(folder.file(queue), look, span, folder.alarms, lambda: False)
    if ended is None:
        raise WaitTimeout(
            f"task {name!r} of queue {queue!r} has not ended within timeout ({span or 0:g} s)", left=[name]
        )
    return ended


def _look_at(book: Book, item: Item) -> tuple[Task, float | None]:
    """A task, and when it changes without any change of the file: its claim ends, or it comes due."""
    due = item.due if item.due > book.now else None
    ends = [end for end in (_next_end(book, [item]), due) if end is not None]
    return book.task(item), min(ends, default=None)


# --- `FileView`: a queue in a file, as far as it is looked at.

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
