"""The directory of the queue files: what the queues of one connection share, and how they are waited for."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from ..engine.core.model.names import check_name
from ..engine.core.model.states import State
from ..engine.errors import ConfigError, CorruptRecord, QueueError, QueueNotFound, SessionLost, Unavailable, ZkmqError
from ..textqueue import HostileFile, LockHeld, StaleMessage, TextQueue, TextQueueError
from ..textqueue.file import changes
from ..textqueue.mutex import new_owner
from .queue_file import CachedFiles, FileConf, QueueFile, WarnOnce, delete_results, read_conf, write_conf

# --- Waiting for something to be found in a file: looked for after each change of it, and when a time has come.

T = TypeVar("T")
#: A call whose own time is over goes on so many seconds with what takes no time unless somebody is in the way.
_GRACE: Final = 1.0
#: A look: what was found, and when (seconds since 1970) there may be something new without any change.
Look: TypeAlias = Callable[[], tuple[T | None, float | None]]


class Alarm:
    """Sets an event when a time has come."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self._timer: threading.Timer | None = None

    def ring_in(self, seconds: float | None) -> None:
        """Ring after so many seconds, instead of when it would have rung; None: never."""
        self.silence()
        if seconds is not None:
            self._timer = threading.Timer(min(max(seconds, 0.0), threading.TIMEOUT_MAX), self.event.set)
            self._timer.daemon = True
            self._timer.start()

    def silence(self) -> None:
        """Do not ring."""
        if self._timer is not None:
            self._timer.cancel()


class Alarms:
    """The alarms of those who wait, so that all can be woken at once."""

    def __init__(self) -> None:
        self._all: set[Alarm] = set()
        self._lock = threading.Lock()

    def fire(self) -> None:
        """Wake everybody."""
        with self._lock:
            for alarm in self._all:
                alarm.event.set()

    @contextlib.contextmanager
    def one(self) -> Iterator[Alarm]:
        """An alarm, silenced afterwards."""
        alarm = Alarm()
        with self._lock:
            self._all.add(alarm)
        try:
            yield alarm
        finally:
            alarm.silence()
            with self._lock:
                self._all.discard(alarm)


def end_of(timeout: float | None) -> float | None:
    """Until when a call with a time of its own waits for a file's lock: a little longer; None without such a time."""
    return time.monotonic() + timeout + _GRACE if timeout else None


def look_until(path: Path, look: Look[T], timeout: float | None, alarms: Alarms, over: Callable[[], bool]) -> T | None:
    """What `look` finds, waiting for it at most `timeout` seconds, and until `over`; None if it finds nothing."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        with alarms.one() as alarm:
            for _ in changes(path, alarm.event):
                result, again = look()
                left = None if deadline is None else deadline - time.monotonic()
                if result is not None or over() or (left is not None and left <= 0):
                    return result
                waits = [left, None if again is None else again - time.time() + 0.001]
                alarm.ring_in(min((wait for wait in waits if wait is not None), default=None))


# --- The folder of the queue files: what the queues of one connection share.

SCHEME: Final = "textqueue://"
SUFFIX: Final = ".tq"
#: How often a change is begun anew because somebody replaced the file meanwhile.
TRIES: Final = 20
#: For so long a call waits for the lock of a queue's file, unless it has a time of its own.
LOCK_SECONDS: Final = 30.0


class Directory:
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
        self.warnings = WarnOnce()
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

    def _try(self, path: Path, work: Callable[[QueueFile], T], *, create: bool, end: float | None) -> T:
        latest = time.monotonic() + LOCK_SECONDS
        end = latest if end is None else min(end, latest)
        for _ in range(TRIES):
            try:
                with TextQueue.open(path, create=create) as file, file.locked(end - time.monotonic()):
                    self.warnings.look_at(file)
                    return self._use(file, work)
            except StaleMessage:
                continue
        msg = f"{path} is being written by something that does not respect its lock, such as an editor"
        raise Unavailable(msg)

    def _use(self, file: TextQueue, work: Callable[[QueueFile], T]) -> T:
        """Do the work; what was read of the file is kept, also after a refusal. After any other error it is not."""
        conf, known = read_conf(conf_path(file.path)), self.kept.take(file)
        if known is not None:
            known.use(file, conf)
        queue_file = known or QueueFile(file, conf, self.warnings.warn_once)
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

    def configure(self, queue: str, change: Callable[[FileConf], FileConf]) -> None:
        """Make the queue if it is not there, and change its configuration."""

        def work(queue_file: QueueFile) -> None:
            if (conf := change(queue_file.conf)) != FileConf() or conf_path(queue_file.file.path).exists():
                write_conf(conf_path(queue_file.file.path), conf, queue_file.file.mode)

        self.carry_out(queue, work, create=True)


def conf_path(queue: Path) -> Path:
    """Where a queue's configuration stands."""
    return queue.with_name(f"{queue.stem}.conf.json")


# --- Deleting a queue's file, with what stands beside it.


def delete_queue(directory: Directory, queue: str, *, confirm: bool, force: bool) -> int:
    """Delete the file of a queue; returns how many tasks were in it. See `FileQueue.delete`."""
    count = directory.carry_out(queue, partial(_delete, confirm=confirm, force=force))
    directory.forget(queue)
    return count


def _delete(queue_file: QueueFile, *, confirm: bool, force: bool) -> int:
    """The file itself goes last: one whose deletion was cut off is still there, to be deleted once more."""
    path, count = queue_file.file.path, len(queue_file.tasks)
    claimed = sum(queue_file.state(lines) is State.CLAIMED for lines in queue_file.tasks.values())
    if claimed and not force:
        raise QueueError(f"{path} is in use: {claimed} claimed task(s); stop the workers first, or delete it by force")
    if not confirm:
        msg = f"deleting {path} loses its {count} task(s) for good; nothing was deleted: say confirm=True"
        raise ConfigError(msg)
    delete_results(path)
    conf_path(path).unlink(missing_ok=True)
    path.unlink()
    return count
