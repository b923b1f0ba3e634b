"""A queue file: its tasks, their variables, results and configuration; read whole and changed under its lock."""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from ..engine.core.model.filters import FilterType, Selector, as_selector, declare_types
from ..engine.core.model.new_message import encode_metadata
from ..engine.core.model.settings import RetryPolicy, load_settings
from ..engine.core.model.states import State, derive_status
from ..engine.core.model.values import dump, load, parse_duration, seconds
from ..engine.core.model.znode_names import check_name
from ..engine.core.read.inspect import Task
from ..engine.core.zk_operations import MAX_PAYLOAD
from ..engine.errors import ConfigError, CorruptRecord, TaskNotFound
from ..engine.log import log
from ..textqueue import HostileFile, Message, Status, TextQueue, message_mutex
from ..textqueue.message import BYTE, encode, whole_number
from ..textqueue.message_mutex import RESERVED
from ..textqueue.plain_files import read_plain, replace_plain
from ..textqueue.text_queue import ALL
from .refusals import ENDLESS, refusal

# --- Results that do not fit into a queue's file: ``<queue>.results/<task id>``, with the mode of the queue's file.

_NOT_A_DIRECTORY: Final = {errno.ELOOP, errno.EMLINK, errno.ENOTDIR}


def delete_results(queue: Path) -> None:
    """Delete the results of a queue; a symbolic link in their place is taken away, and not followed."""
    directory = _results(queue)
    if directory.is_symlink():
        directory.unlink()
    elif directory.is_dir():
        shutil.rmtree(directory)


def _results(queue: Path) -> Path:
    return queue.with_name(f"{queue.stem}.results")


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[int]:
    """A folder by its descriptor, so that what is opened in it cannot be led elsewhere meanwhile."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in _NOT_A_DIRECTORY:
            raise
        msg = f"{directory} is no folder, or a symbolic link, which is not followed"
        raise HostileFile(msg) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


# --- A task's variables: ``\name=value``, what changes with reserved room, and their values as text.
#
# In the order of the file: ``id``; with room: ``attempts``, ``claims``, ``due`` (ISO 8601), ``error`` and ``result``
# (JSON text), the mutex; as they were enqueued: ``enqueued``, ``filters``, ``metadata``, ``policy``, ``lock``,
# ``encoding``. ``moved-from`` stands while a message is moved to the end of the file, see `QueueFile.whole`.

#: Bytes reserved for what changes.
ROOMS: Final = {"attempts": 7, "claims": 7, "due": 32, "error": 200, "result": 200, "mutex": len(RESERVED) - 6}
KEPT: Final = ("enqueued", "filters", "metadata", "policy", "lock", "encoding")
MOVED: Final = "moved-from"
#: Where a result stands in the file of its own.
ELSEWHERE: Final = "@file"


def pad(text: str, size: int) -> str:
    """The text with spaces up to so many bytes."""
    return text + " " * (size - width(text))


def width(text: str) -> int:
    """How many bytes a text takes in the file."""
    return len(encode(text))


def body_of(data: bytes) -> tuple[str, str]:
    """The data as a message's text, and how it is encoded: as it is, or, where that is no plain text, in base64."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if all(char >= " " or char in "\n\t" for char in text):
        return text, ""
    return base64.encodebytes(data).decode().rstrip("\n"), "base64"


def quote(text: str) -> str:
    """A text on one line, as JSON; what is no valid text is escaped."""
    return json.dumps(text.encode("utf-8", "backslashreplace").decode(), ensure_ascii=False)


def unquote(value: str) -> str:
    """The text that `quote` spelled; what a person wrote without quotes, as it stands."""
    try:
        text = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return text if isinstance(text, str) else value


def bytes_of(text: str) -> bytes:
    """A text's bytes; those that were no UTF-8 as they were, what is no text at all, as a person may write, escaped."""
    try:
        return encode(text)
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace")


def clipped(text: str) -> str:
    """An error quoted within its room, ending with … where it was too long."""
    room = ROOMS["error"]
    if width(quote(text)) <= room:
        return quote(text)
    text = text[:room]
    while width(quote(text + "…")) > room:
        text = text[:-1]
    return quote(text + "…")


def spell_time(when: float) -> str:
    """A time in seconds since 1970 as people read it, to the millisecond."""
    return datetime.fromtimestamp(when, UTC).isoformat(timespec="milliseconds")


def time_of(value: str) -> float | None:
    """Seconds since 1970; a time without a zone is UTC. None for what is no time."""
    try:
        when = datetime.fromisoformat(value)
        return (when.astimezone(UTC) if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):  # also a time that is in no year in UTC
        return None


# --- A queue's configuration: ``<queue>.conf.json``, which may be missing; a person may edit it.

#: How long a claim holds without being extended, where neither it, nor its task, nor the queue says so.
DEFAULT_LOCK: Final = 60.0
#: The longest; its end must fit into a mutex's room.
LONGEST_LOCK: Final = 1e8
#: A configuration is never that long, in bytes.
MOST_KEPT: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FileConf:
    """The declared filters, when failed tasks run again, and how long a claim holds (seconds)."""

    types: Mapping[str, FilterType] = field(default_factory=dict)
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    lock: float = DEFAULT_LOCK


def lock_span(what: str, value: object) -> float:
    """How long a claim holds: more than 0 seconds. Raises `ConfigError`."""
    span = seconds(what, value)
    if span == 0:
        raise refusal(ENDLESS)
    if span > LONGEST_LOCK:
        msg = f"{what} {value!r} is not allowed: at most {LONGEST_LOCK:.0f} seconds"
        raise ConfigError(msg)
    return span


def read_conf(path: Path) -> FileConf:
    """The configuration; the defaults without the file. Raises `CorruptRecord`, `HostileFile` for no plain file."""
    try:
        record = load(str(path), read_plain(path, MOST_KEPT))
    except FileNotFoundError:
        return FileConf()
    lock = record.pop("lock", DEFAULT_LOCK)
    try:
        lock = lock_span("lock", parse_duration(lock, "lock") if isinstance(lock, str) else lock)
    except ConfigError as error:
        msg = f"{path}: {error}"
        raise CorruptRecord(msg) from error
    settings, types = load_settings(str(path), dump(record))
    return FileConf(types, settings.policy, lock)


def write_conf(path: Path, conf: FileConf, mode: int) -> None:
    """Put it in place of what was there, with the mode of the queue's file; who reads sees one or the other."""
    record = {"filters": declare_types(conf.types), "policy": asdict(conf.policy), "lock": conf.lock}
    replace_plain(path, (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode(), mode)


# --- A message of the file as a task.


class TaskLines:
    """A message that is no comment; what its variables say, and nothing where they are not understood."""

    def __init__(self, message: Message) -> None:
        self.message = message
        #: Its id in the queue; given by the `QueueFile`.
        self.id = ""

    @cached_property
    def _at(self) -> dict[str, int]:
        places: dict[str, int] = {}
        for index, variable in enumerate(self.message.variables):
            name, separator, _ = variable.partition("=")
            if separator and not message_mutex.is_mutex(variable):
                places.setdefault(name, index)
        at = message_mutex.place(self.message.variables)
        return places if at is None else places | {"mutex": at}

    def value(self, name: str) -> str:
        """A variable's value without its padding; blank without the variable."""
        at = self._at.get(name)
        return "" if at is None else self.message.variables[at].partition("=")[2].strip()

    def set(self, name: str, value: str) -> None:
        """Write a variable in place, of an item that is `whole`."""
        self.message.set_variable(self._at[name], f"{name}={value}")

    @property
    def own_id(self) -> str | None:
        """The id that its variable gives it."""
        try:
            return check_name("task id", self.value("id"))
        except ConfigError:
            return None

    @property
    def is_copy(self) -> bool:
        """Whether it is queued under the id of another task: a person copied that one's lines."""
        return self.own_id not in {self.id, None} and self.message.status is Status.QUEUED

    @property
    def whole(self) -> bool:
        """Whether it has its id and all the room that is reserved, so that every change can be made in place."""
        sizes = {name: width(self.message.variables[at]) - width(name) - 1 for name, at in self._at.items()}
        return self.own_id == self.id and all(sizes.get(name, -1) >= room for name, room in ROOMS.items())

    def number(self, name: str) -> int:
        """A count; 0 for what is none."""
        return whole_number(self.value(name))

    def record(self, name: str) -> dict[str, Any]:
        """A JSON object; an empty one for what is none."""
        try:
            record = json.loads(self.value(name) or "{}")
            encode_metadata(record)  # neither NaN nor 1e999, which others could not be given
        except (ValueError, RecursionError):
            return {}
        return record if isinstance(record, dict) else {}

    @property
    def holder(self) -> tuple[str, float] | None:
        """Who has it, or had, and until when (seconds since 1970)."""
        at = self._at.get("mutex")
        return None if at is None else message_mutex.holder(self.message.variables[at])

    @property
    def due(self) -> float:
        """Not to be handled before (seconds since 1970)."""
        return time_of(self.value("due")) or 0.0

    @property
    def filters(self) -> dict[str, str]:
        """The filters' values by name."""
        return {name: value for name, value in self.record("filters").items() if isinstance(value, str)}

    def policy(self, conf: FileConf) -> RetryPolicy:
        """The task's own policy, else the queue's."""
        try:
            own = self.value("policy")
            return load(self.id, bytes_of(own), RetryPolicy, "a retry policy") if own else conf.policy
        except CorruptRecord:
            return conf.policy

    def span(self, conf: FileConf) -> float:
        """How long a claim of it holds: the task's own lock, else the queue's."""
        try:
            return lock_span("lock", parse_duration(self.value("lock"), "lock")) if self.value("lock") else conf.lock
        except ValueError:
            return conf.lock


# --- A queue file, read whole and changed while its lock is held.


class QueueFile:
    """The tasks of a file, by their ids in the order of the lines, to be used while its lock is held."""

    def __init__(self, file: TextQueue, conf: FileConf, warn_once: Callable[[str], None] = log.warning) -> None:
        self.place = file.place
        self.warn_once = warn_once
        self.tasks: dict[str, TaskLines] = {}
        #: Those of them that had not ended when they were last looked at.
        self._open: dict[str, TaskLines] = {}
        #: How far the file was read.
        self._end = 0
        self.use(file, conf)
        self.read()
        copies = [lines for lines in self.tasks.values() if lines.is_copy]
        for lines in copies:  # at once: their ids must not depend on what becomes of the tasks they were copied from
            with self.stepping_over():
                self._copy(lines)
        if copies:
            self.read()
        for offset, why in self.file.reports.items():
            self.warn_once(f"{self.file.path}, byte {offset}: {why}")

    def use(self, file: TextQueue, conf: FileConf) -> None:
        """Take the file as it was opened now: what was read of it before stands there still."""
        self.file = file
        self.conf = conf
        self.now = time.time()

    @contextlib.contextmanager
    def stepping_over(self) -> Iterator[None]:
        """Inside the block a message that cannot be changed is reported: it must not keep others from being handled."""
        try:
            yield
        except CorruptRecord as error:
            self.warn_once(f"{error}; stepped over")

    def read(self) -> None:
        """Read the file, after a move that a crash cut off was brought to its end."""
        end, self.file.grown = self.file.size(), None
        all_lines = self._read_lines()
        cut_off = [lines for lines in all_lines if lines.value(MOVED)]
        for lines in cut_off:
            self._end_move(lines, {other.message.offset: other for other in all_lines})
        self.tasks = name_all(self._read_lines() if cut_off else all_lines)
        self._open, self._end = dict(self.tasks), end

    def read_on(self) -> bool:
        """Read what was appended since; False where that is not ours alone, and all has to be read anew."""
        start, end = self._end, self.file.size()
        if end == start:
            return True
        if self.file.grown != (start, end):
            return False
        for lines in self._read_lines(start):  # each has to be simply one more task, or another run
            name, before = lines.own_id, self.tasks.get(lines.own_id or "")
            if name is None or lines.value(MOVED) or (before is not None and before.message.status is Status.QUEUED):
                return False
            self._put_last(name, lines)
        self._end = end
        return True

    def _put_last(self, name: str, lines: TaskLines) -> None:
        lines.id = name
        for tasks in (self.tasks, self._open):
            tasks.pop(name, None)
            tasks[name] = lines

    def unended(self) -> Iterator[TaskLines]:
        """The tasks that are not marked as ended, in order; what has ended is passed by once, and forgotten."""
        for lines in list(self._open.values()):
            if lines.message.status is Status.QUEUED:
                yield lines
            elif self._open.get(lines.id) is lines:
                del self._open[lines.id]

    def _read_lines(self, start: int = 0) -> list[TaskLines]:
        messages = self.file.messages(ALL, start=start)
        return [TaskLines(message) for message in messages if message.status is not Status.COMMENT]

    def find(self, task_id: str) -> TaskLines:
        """Raises `TaskNotFound`."""
        try:
            return self.tasks[task_id]
        except KeyError:
            msg = f"task {task_id!r} is not in {self.file.path}: never enqueued, or its line was deleted"
            raise TaskNotFound(msg) from None

    def state(self, lines: TaskLines) -> State:
        """The task's state now. Dead is also one whose owner let the last claim that its policy allows expire."""
        match lines.message.status:
            case Status.PROCESSED:
                return State.FINISHED
            case Status.ERROR:
                return State.DEAD
        if lines.holder is None:
            return State.INSERTED
        if lines.holder[1] > self.now:
            return State.CLAIMED
        return State.DEAD if lines.policy(self.conf).exhausted(lines.number("attempts")) else State.INSERTED

    def matching(self, state: State | None, selector: Selector | str | None) -> list[TaskLines]:
        """The tasks in a state (None: any) that the selector accepts, in the order of the lines."""
        types = self.conf.types
        chosen = None if selector is None else as_selector(selector).bind(types)
        all_lines = (lines for lines in self.tasks.values() if state is None or self.state(lines) is state)
        return [lines for lines in all_lines if chosen is None or chosen.matches(lines.filters, types)]

    def task(self, lines: TaskLines) -> Task:
        """The task as others see it. A file keeps neither its history nor when it was claimed and ended."""
        state, data, due = self.state(lines), lines.message.data, lines.due
        if lines.value("encoding") == "base64":
            with contextlib.suppress(ValueError):  # what is no base64 is given as it stands
                data = base64.b64decode(data)
        return Task(
            id=lines.id,
            state=state,
            status=derive_status(state, scheduled=state is State.INSERTED and due > self.now),
            attempt=lines.number("attempts"),
            priority=0,
            filters=lines.filters,
            metadata=lines.record("metadata"),
            data=data,
            result=self._result(lines),
            error=unquote(lines.value("error")) or None,
            consumer=lines.holder[0] if lines.holder is not None and state is State.CLAIMED else None,
            enqueued_ms=int((time_of(lines.value("enqueued")) or 0.0) * 1000),
            claimed_ms=None,
            ended_ms=None,
            due_ms=int(due * 1000) if due else None,
            history=(),
            version=lines.number("claims"),
        )

    def append(self, text: str | bytes, values: Mapping[str, str], more: list[str] | None = None) -> None:
        """Add a message at the end with its variables, those with room padded to it."""
        variables = [f"id={values['id']}"]
        variables += [pad(f"{name}={values.get(name, '')}", len(name) + 1 + room) for name, room in ROOMS.items()]
        variables += [f"{name}={values[name]}" for name in KEPT if values.get(name)]
        self.file.append(text, [*variables, *(more or [])])

    def whole(self, lines: TaskLines) -> TaskLines:
        r"""The item with all its variables, each with its room.

        A plain line, or one whose rooms an editor trimmed, is moved to the end, what stood there becoming a comment.
        A copy of another task begins anew. The new message is written first; its ``\moved-from=<offset>`` says that
        the old one does not count any more. Raises `CorruptRecord` where a copy of it would not read back as it is.
        """
        if lines.whole:
            return lines
        self._copy(lines)
        start, end = self._end, self.file.size()
        appended = self._read_lines(start) if self.file.grown == (start, end) else []
        if [each.own_id for each in appended] == [lines.id]:  # nothing else has to be read
            self._end_move(appended[0], {lines.message.offset: lines})
            self._put_last(lines.id, appended[0])
            self._end, self.file.grown = end, None
        else:
            self.read()
        return self.tasks[lines.id]

    def _copy(self, lines: TaskLines) -> None:
        names = KEPT if lines.is_copy else (*ROOMS, *KEPT)
        values = {"id": lines.id} | {name: lines.value(name) for name in names}
        came = pad(f"{MOVED}={lines.message.offset}", len(MOVED) + 16)
        own, foreign = {"id", MOVED, *ROOMS, *KEPT}, []
        for variable in lines.message.variables:
            name, separator, _ = variable.partition("=")
            if not (message_mutex.is_mutex(variable) or (separator and name in own)):
                foreign.append(variable)  # it stays as it stands
        try:
            self.append(lines.message.data, values, [*foreign, came])
        except (ValueError, HostileFile) as error:
            msg = f"task {lines.id!r} cannot be moved to where there is room for its variables: {error}"
            raise CorruptRecord(msg) from error

    def _end_move(self, lines: TaskLines, others: Mapping[int, TaskLines]) -> None:
        old = others.get(lines.number(MOVED))
        if old is not None and old is not lines and old.message.data == lines.message.data:
            message = old.message
            if message.status is Status.QUEUED:
                message.overwrite(message.offset, message.head[:1], BYTE[Status.COMMENT])
        lines.set(MOVED, "")

    def _result(self, lines: TaskLines) -> bytes | None:
        if lines.message.status is not Status.PROCESSED:
            return None
        value = lines.value("result")
        if value != ELSEWHERE:
            return bytes_of(unquote(value))
        try:
            with _opened(_results(self.file.path)) as descriptor:
                return read_plain(lines.id, MAX_PAYLOAD, folder=descriptor)
        except FileNotFoundError:
            return None
        except (HostileFile, OSError) as error:
            self.warn_once(f"the result of task {lines.id!r} cannot be read: {error}")
            return None

    def keep_result(self, lines: TaskLines, data: bytes) -> None:
        """Keep a result in its variable, or in a file of its own where it is too large or no text.

        Raises `HostileFile` where the folder of the results leads elsewhere, and `OSError`.
        """
        value = ELSEWHERE
        with contextlib.suppress(UnicodeDecodeError):
            text = quote(data.decode()) if data else ""
            value = text if width(text) <= ROOMS["result"] else ELSEWHERE
        if value == ELSEWHERE:
            directory, mode, made = _results(self.file.path), self.file.mode, False
            with contextlib.suppress(FileExistsError):
                directory.mkdir(0o700)
                made = True
            with _opened(directory) as descriptor:
                if made:  # by its descriptor: meanwhile a symbolic link may have taken its place
                    os.fchmod(descriptor, mode | (mode & 0o444) >> 2)  # who may read a file of it may look it up
                replace_plain(Path(lines.id), data, mode, folder=descriptor)
        lines.set("result", value)


def name_all(all_lines: list[TaskLines]) -> dict[str, TaskLines]:
    """The tasks by id. The later of two with one id is another run of it if the first has ended, else a copy.

    Copies and lines without an id are named by their place: ``line-<offset>``.
    """
    tasks: dict[str, TaskLines] = {}
    nameless = []
    for lines in all_lines:
        name = lines.own_id
        if name is None or (name in tasks and tasks[name].message.status is Status.QUEUED):
            nameless.append(lines)
            continue
        lines.id = name
        tasks.pop(name, None)
        tasks[name] = lines
    for lines in nameless:
        name = lines.id = f"line-{lines.message.offset}"
        number = 1
        while lines.id in tasks:
            number += 1
            lines.id = f"{name}-{number}"
        tasks[lines.id] = lines
    return dict(sorted(tasks.items(), key=lambda pair: pair[1].message.offset))


# --- What was read of queue files, kept from one call to the next for as long as nobody else has written to them.
#
# A file of many tasks is read once, and not for each claim. What this process writes it writes through what it keeps,
# which stays true; then it gives the file a time of writing of its own, so that whatever another process or an editor
# writes is seen by that time, as by the file's identity and size.

#: So many files are kept at the most, those that were used last.
MOST_CACHED: Final = 4
#: A file that was written to so short a time ago, in nanoseconds, may be once more at what is the same time to it.
_TICK: Final = 50_000_000


class CachedFiles:
    """What is kept of a connection's files. Each is taken, used and put back while the file is locked."""

    def __init__(self) -> None:
        self._files: dict[Path, tuple[tuple[int, ...], QueueFile]] = {}

    def take(self, file: TextQueue) -> QueueFile | None:
        """What was read of a file, the caller's until it is put back; None where it has to be read."""
        identity, queue_file = self._files.pop(file.path, (None, None))
        file.begun = file.identity()
        if queue_file is None or identity != file.begun:
            return None
        file.place = queue_file.place
        file.place.file = file
        return queue_file

    def put(self, queue_file: QueueFile, *, known: bool) -> None:
        """Keep what was read of a file, as it is now, unless somebody else has written to it since it was opened.

        `known`: it was told from others by its time of writing before.
        """
        file = queue_file.file
        if file.written and (file.disturbed or not file.stamp()):
            return
        identity = file.identity()
        if not file.written and identity != file.begun:
            return
        if identity is None or not (known or file.written or time.time_ns() - identity[-1] > _TICK):
            return
        self._files[file.path] = (identity, queue_file)
        for path in list(self._files)[:-MOST_CACHED]:
            self._files.pop(path, None)
