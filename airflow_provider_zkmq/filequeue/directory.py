"""The directory of the queue files: what the queues of one connection share, and what it holds claimed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from ..engine.core.model.znode_names import check_name
from ..engine.errors import ConfigError, CorruptRecord, QueueNotFound, SessionLost, Unavailable, ZkmqError
from ..engine.log import log
from ..environment import FILES
from ..textqueue import HostileFile, LockHeld, StaleMessage, TextQueue, TextQueueError
from ..textqueue.message_mutex import new_owner
from .task_store import CachedFiles, QueueFile, read_conf
from .waiting import Alarms

T = TypeVar("T")
SUFFIX: Final = ".tq"
#: How often a change is begun anew because somebody replaced the file meanwhile.
TRIES: Final = 20
#: For so long a call waits for the lock of a queue's file, unless it has a time of its own.
LOCK_SECONDS: Final = 30.0
_OTHERS: Final = 0o007
_MOST_WARNINGS: Final = 1_000


class Directory:
    """Opens the files; names the owner of what is claimed; remembers what that is.

    Raises `ConfigError` for what is no absolute path, `Unavailable` where there can be no such folder.
    """

    def __init__(self, url: str) -> None:
        path = url.removeprefix(FILES)
        if not url.startswith(FILES) or not path.startswith("/") or "\0" in path:
            msg = f"{url!r} is not understood: write textqueue:///path/dir, for a folder on this machine"
            raise ConfigError(msg)
        self.path = Path(path)
        self.owner = new_owner()
        self.alarms = Alarms()
        self._warned: set[str] = set()
        self.kept = CachedFiles()
        self.closed = False
        #: What was claimed without a lease: (queue, task id, token).
        self.held: set[tuple[str, str, int]] = set()
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
            (self.held.add if held else self.held.discard)((queue, task_id, token))

    def forget(self, queue: str) -> None:
        """Forget what was claimed from a queue that was deleted, and wake whoever waits for something in it."""
        with self._lock:
            self.held = {held for held in self.held if held[0] != queue}
        self.alarms.fire()

    def carry_out(
        self, queue: str, work: Callable[[QueueFile], T], *, create: bool = False, end: float | None = None
    ) -> T:
        """Do something with a queue's file while it is locked; from the start again if it is replaced meanwhile.

        A lock of others is waited for until `end`, by the monotonic clock, and at most `LOCK_SECONDS`.

        Raises `QueueNotFound` where there is no file, unless it is to be made; `SessionLost` once the connection is
        closed; `CorruptRecord` for a file that is no queue's, too large, or a symbolic link; `Unavailable` where it
        cannot be read or written.
        """
        if self.closed:
            msg = f"the connection to {self.path} is closed"
            raise SessionLost(msg)
        path, latest = self.file(queue), time.monotonic() + LOCK_SECONDS
        until = latest if end is None else min(end, latest)
        try:
            for _ in range(TRIES):
                with (
                    contextlib.suppress(StaleMessage),
                    TextQueue.open(path, create=create) as file,
                    file.locked(until - time.monotonic()),
                ):
                    return self._use(file, work)
        except FileNotFoundError:
            raise QueueNotFound.among(queue, f"in {self.path}", self.queues()) from None
        except LockHeld as error:
            limit = f"lock wait ({LOCK_SECONDS:g} s)" if end is None else "timeout"
            raise Unavailable(f"{error}; nothing was done within {limit}") from error
        except HostileFile as error:
            raise CorruptRecord(str(error)) from error
        except (OSError, TextQueueError) as error:
            raise Unavailable(str(error)) from error
        msg = f"{path} is being written by something that does not respect its lock, such as an editor"
        raise Unavailable(msg)

    def _warn_once(self, notice: str) -> None:
        """Log a notice that was not logged before; remembered in bounded memory."""
        with self._lock:
            if notice in self._warned or len(self._warned) >= _MOST_WARNINGS:
                return
            self._warned.add(notice)
        log.warning("%s", notice)

    def _use(self, file: TextQueue, work: Callable[[QueueFile], T]) -> T:
        """Do the work; what was read of the file is kept, also after a refusal. After any other error it is not."""
        if file.mode & _OTHERS:  # payloads may be secret
            self._warn_once(
                f"{file.path} is open to every user of this machine (mode {file.mode:o}): chmod o= to close it"
            )
        conf, known = read_conf(conf_path(file.path)), self.kept.take(file)
        if known is not None:
            known.use(file, conf)
        queue_file = known or QueueFile(file, conf, self._warn_once)
        refusal: ZkmqError | None = None
        try:
            done = work(queue_file)
        except ZkmqError as error:
            refusal = error
        if queue_file.read_on():
            self.kept.put(queue_file, known=known is not None)
        if refusal is not None:
            raise refusal
        return done


def conf_path(queue: Path) -> Path:
    """Where a queue's configuration stands."""
    return queue.with_name(f"{queue.stem}.conf.json")
