"""The folder of the queue files: what the queues of one connection share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from airflow_provider_zkmq.engine.errors import (
    ConfigError,
    CorruptRecord,
    QueueNotFound,
    SessionLost,
    Unavailable,
    ZkmqError,
)
from airflow_provider_zkmq.engine.model import check_name
from airflow_provider_zkmq.filequeue.book import Book
from airflow_provider_zkmq.filequeue.conf import Conf, read_conf, write_conf
from airflow_provider_zkmq.filequeue.kept import Kept
from airflow_provider_zkmq.filequeue.looking import Alarms
from airflow_provider_zkmq.filequeue.notices import Notices
from airflow_provider_zkmq.textqueue import HostileFile, LockHeld, StaleMessage, TextQueue, TextQueueError
from airflow_provider_zkmq.textqueue.mutex import new_owner

T = TypeVar("T")
SCHEME: Final = "textqueue://"
SUFFIX: Final = ".tq"
#: How often a change is begun anew because somebody replaced the file meanwhile.
TRIES: Final = 20
#: For so long a call waits for the lock of a queue's file, unless it has a time of its own.
LOCK_SECONDS: Final = 30.0


class Folder:
    """Opens the files; names the owner of what is claimed; remembers what that is.

    Raises `ConfigError` for what is no absolute path, `Unavailable` where there can be no such folder.
    """

    def __init__(self, url: str) -> None:
        path = url.removeprefix(SCHEME)
        if not url.startswith(SCHEME) or not path.startswith("/") or "\0" in path:
            msg = f"{url!r} is not understood: write textqueue:///path/dir, for a folder on this machine"
            raise ConfigError(msg)
        self.path = Path(path)
        self.owner = new_owner()
        self.alarms = Alarms()
        self.notices = Notices()
        self.kept = Kept()
        self.closed = False
        #: What was claimed without a lease: (queue, task id, token).
        self.in_hand: set[tuple[str, str, int]] = set()
        self._lock = threading.Lock()
        try:
            self.path.mkdir(0o700, parents=True, exist_ok=True)
        except OSError as error:
            msg = f"{url}: {error}"
            raise Unavailable(msg) from error

    def file(self, queue: str) -> Path:
        """A queue's file. Raises `ConfigError` for a bad name."""
        return self.path / f"{check_name('queue name', queue)}{SUFFIX}"

    def queues(self) -> list[str]:
        """The names of the queues."""
        files = (path for path in self.path.glob(f"*{SUFFIX}") if path.is_file() and not path.is_symlink())
        return sorted(path.stem for path in files)

    def hold(self, queue: str, task_id: str, token: int, *, held: bool) -> None:
        """Remember, or forget, what is to be given back at the end."""
        with self._lock:
            (self.in_hand.add if held else self.in_hand.discard)((queue, task_id, token))

    def forget(self, queue: str) -> None:
        """Forget what was claimed from a queue that was deleted, and wake whoever waits for something in it."""
        with self._lock:
            self.in_hand = {held for held in self.in_hand if held[0] != queue}
        self.alarms.fire()

    def carry_out(self, queue: str, work: Callable[[Book], T], *, create: bool = False, end: float | None = None) -> T:
        """Do something with a queue's file while it is locked; from the start again if it is replaced meanwhile.

        A lock of others is waited for until `end`, by the monotonic clock, and at most `LOCK_SECONDS`.

        Raises `QueueNotFound` where there is no file, unless it is to be made; `SessionLost` once the connection is
        closed; `CorruptRecord` for a file that is no queue's, too large, or a symbolic link; `Unavailable` where it
        cannot be read or written.
        """
        if self.closed:
            msg = f"the connection to {self.path} is closed"
            raise SessionLost(msg)
        path = self.file(queue)
        try:
            return self._try(path, work, create=create, end=end)
        except FileNotFoundError:
            raise QueueNotFound.among(queue, f"in {self.path}", self.queues()) from None
        except LockHeld as error:
            limit = f"lock wait ({LOCK_SECONDS:g} s)" if end is None else "timeout"
            raise Unavailable(f"{error}; nothing was done within {limit}") from error
        except HostileFile as error:
            raise CorruptRecord(str(error)) from error
        except (OSError, TextQueueError) as error:
            raise Unavailable(str(error)) from error

    def _try(self, path: Path, work: Callable[[Book], T], *, create: bool, end: float | None) -> T:
        latest = time.monotonic() + LOCK_SECONDS
        end = latest if end is None else min(end, latest)
        for _ in range(TRIES):
            try:
                with TextQueue.open(path, create=create) as file, file.locked(end - time.monotonic()):
                    self.notices.look_at(file)
                    return self._use(file, work)
            except StaleMessage:
                continue
        msg = f"{path} is being written by something that does not respect its lock, such as an editor"
        raise Unavailable(msg)

    def _use(self, file: TextQueue, work: Callable[[Book], T]) -> T:
        """Do the work; what was read of the file is kept, also after a refusal. After any other error it is not."""
        conf, known = read_conf(conf_path(file.path)), self.kept.take(file)
        book = Book(file, conf, self.notices.tell, known)
        refusal: ZkmqError | None = None
        try:
            done = work(book)
        except ZkmqError as error:
            refusal = error
        if book.read_on():
            self.kept.put(file, book.kept, known=known is not None)
        if refusal is not None:
            raise refusal
        return done

    def configure(self, queue: str, change: Callable[[Conf], Conf]) -> None:
        """Make the queue if it is not there, and change its configuration."""

        def work(book: Book) -> None:
            if (conf := change(book.conf)) != Conf() or conf_path(book.file.path).exists():
                write_conf(conf_path(book.file.path), conf, book.file.mode)

        self.carry_out(queue, work, create=True)


def conf_path(queue: Path) -> Path:
    """Where a queue's configuration stands."""
    return queue.with_name(f"{queue.stem}.conf.json")
