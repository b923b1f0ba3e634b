"""`FileClient`: what ``Zkmq.connect("textqueue:///path/dir")`` gives."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Final, Self

from ..engine.connection_config import ConnectionConfig
from ..engine.core.model.values import Moment
from ..engine.core.read.overview import Activity, Overview
from ..engine.errors import ZkmqError
from ..engine.log import log
from ..environment import DEFAULT_ROOT
from . import operations
from .directory import Directory
from .queue import FileQueue
from .refusals import SERVERS, TRANSACTIONS, refusal, refuse, refused

#: For so long closing waits for locks of others, all in all; what is not given back is at the end of its time.
_CLOSING_SECONDS: Final = 2.0


class FileClientInternals:
    """The internals of a `FileClient`, as `ClientInternals`."""

    def __init__(self, client: FileClient) -> None:
        self._client = client

    def changed(self) -> int:
        """A number that rises: nothing tells whether a file has changed."""
        return time.monotonic_ns()

    def overviews(self, names: Sequence[str]) -> list[tuple[Overview, Activity] | ZkmqError]:
        """How queues stand, or what kept one from being read; what went on, a file does not tell."""
        found: list[tuple[Overview, Activity] | ZkmqError] = []
        for name in names:
            queue = self._client.queue(name).__internals__()
            try:
                found.append((queue.overview(), queue.activity()))
            except ZkmqError as error:
                found.append(error)
        return found


class FileClient:
    """A folder of queue files, with the interface of `Zkmq`; usable from several threads, and as a context manager."""

    transaction = refused(TRANSACTIONS)
    #: Whom a folder lets in is the file system's affair.
    open_above: tuple[str, ...] = ()
    #: No server is asked.
    server_version: str | None = None

    def __init__(self, url: str) -> None:
        self.config = ConnectionConfig(hosts=url)
        self._directory = Directory(url)

    @classmethod
    def connect(cls, url: str, root: str = DEFAULT_ROOT, *, gc: bool = True, **options: object) -> Self:
        """Open a folder, made where it does not exist. `gc` does nothing.

        Raises `ConfigError` for a URL that is not understood, `Unsupported` for what is said of servers (a root of its
        own, TLS, credentials, time-outs); `Unavailable` where there can be no such folder.
        """
        del gc
        refused = sorted(name for name, value in options.items() if value is not None)
        refuse({f"{SERVERS} ({', '.join(refused)})": refused, f"{SERVERS} (root)": root != DEFAULT_ROOT})
        return cls(url)

    def start(self) -> Self:
        """Nothing is to be connected to."""
        return self

    @property
    def closed(self) -> bool:
        """Whether the connection has been closed: nothing can be done with it any more."""
        return self._directory.closed

    @property
    def session_id(self) -> int:
        """Raises `Unsupported`: there is no session."""
        raise refusal(SERVERS)

    @property
    def requests(self) -> dict[str, int]:
        """None are sent to anybody."""
        return {}

    def queue(self, name: str) -> FileQueue:
        """A queue by its name; nothing is written. Raises `ConfigError` for a bad name."""
        return FileQueue(self._directory, name)

    def now(self) -> Moment:
        """The time by this machine's clock, which is that of queue files."""
        import pendulum  # now, not before: the command line starts faster without

        return pendulum.now("UTC")

    def queues(self) -> list[str]:
        """The names of the files in the folder that are queues."""
        return self._directory.queues()

    def delete_queue(self, name: str, *, confirm: bool = False, force: bool = False) -> int:
        """Delete a queue's file with everything in it; returns how many tasks that were. See `FileQueue.delete`."""
        return self.queue(name).delete(confirm=confirm, force=force)

    def __internals__(self) -> FileClientInternals:
        return FileClientInternals(self)

    def close(self) -> None:
        """Give back what was claimed without a lease; its next claim is another attempt. Idempotent."""
        end = time.monotonic() + _CLOSING_SECONDS
        for queue, task_id, token in list(self._directory.held):
            try:
                self._directory.carry_out(queue, partial(operations.expire, task_id=task_id, token=token), end=end)
            except ZkmqError as error:
                log.info("giving back %r: %s", task_id, error)
        self._directory.held.clear()
        self._directory.closed = True
        self._directory.alarms.fire()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
