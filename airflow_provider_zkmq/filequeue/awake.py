"""Knowing of work in a file: whether there is any, and being woken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from airflow_provider_zkmq.engine.model import Duration, Selector, choose, optional_seconds, seconds
from airflow_provider_zkmq.filequeue import settling
from airflow_provider_zkmq.filequeue.book import Book
from airflow_provider_zkmq.filequeue.folder import Folder
from airflow_provider_zkmq.filequeue.looking import end_of, look_until
from airflow_provider_zkmq.filequeue.several import Method, Several


class Awake(Several):
    """What a queue in a file tells those who wait for work."""

    def __init__(self, folder: Folder, name: str) -> None:
        super().__init__(folder, name)
        self._wakes = 0

    def ready(
        self,
        node: Mapping[str, object] | Selector | str | None = None,
        filter_method: Method = "absolute",
        *,
        selector: Selector | str | None = None,
        timeout: Duration | None = 0,
        stopping: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Whether there is a task that fits and could be claimed now; nothing is claimed.

        Waits for one at most `timeout` seconds; None: to the end.
        """
        folder, most = self.folder, optional_seconds("timeout", timeout)

        def work(book: Book) -> settling.Seen:
            chosen = choose(book.conf.types, node=node, filter_method=filter_method, selector=selector)
            return settling.find_ready(book, chosen)

        look = partial(folder.carry_out, self.name, work, end=end_of(most))
        return look_until(self.path, look, most, folder.alarms, stopping) is not None

    @property
    def changes(self) -> int:
        """How often the queue was woken; what changes in the file tells nobody who does not wait for that."""
        return self._wakes

    def wait_for_change(self, seen: int, timeout: Duration) -> bool:
        """Wait until the queue is woken more than `seen` times, at most for `timeout`."""
        span = seconds("timeout", timeout)
        with self.folder.alarms.one() as alarm:
            return self._wakes > seen or alarm.event.wait(span)

    def wake(self) -> None:
        """Wake whoever waits for something in the folder; they look again."""
        self._wakes += 1
        self.folder.alarms.fire()

    def look_after(self) -> None:
        """Nothing is promoted or rescued in a file: whoever claims finds what is due."""
