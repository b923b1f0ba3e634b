"""How the queues of a connection stand, kept up to date for all who look: one session and one reader for each process.

However many browsers are open, each connection is read once: by a thread of its own, which asks ZooKeeper twice a
second whether anything has changed, one small read, and reads the queues only if so. Pages are told by events, and what
a page asks for besides is read once for all who ask at the same time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from ..engine import Activity, AnyClient, AnyQueue, Overview, QueueNotFound, Unavailable, Zkmq, ZkmqError, check_name
from ..engine.queue_internals import internals
from ..environment import FILES
from ..inspection import queue_status
from . import access

_LOG: Final = logging.getLogger(__name__)
#: Seconds between two looks at ZooKeeper while somebody watches, and while nobody does.
LOOK_SECONDS, IDLE_SECONDS = 0.5, 15.0
#: Leases end and tasks come due without a change of anything: so long what was read is believed.
BELIEVED_SECONDS: Final = 5.0
#: After reading all queues for some time, all of them rest for so many times as long. Those in which something has
#: happened within so many seconds, at most so many, are read between: what moves is shown at once.
SHARE: Final = 3
MOVING_SHARE: Final = 3
MOVING_SECONDS, _MOST_MOVING = 30.0, 20
#: So long after the last one looked the session ends. Until then the depth goes on being noted.
LINGER_SECONDS: Final = 3_600.0
#: Somebody watches, or has asked for something within so many seconds.
WATCHED_SECONDS: Final = 15.0
#: After so many seconds a stream of events ends, and its browser asks anew: with the rights that its user has by then,
#: and of another process where this one is to end, which waits for its streams.
STREAM_SECONDS: Final = 20.0
HEARTBEAT_SECONDS: Final = 10.0
#: A page is told soon that ZooKeeper does not answer, whatever workers may wait for.
ANSWER_SECONDS: Final = 4.0
#: What was read for one is good for others who ask within so many seconds.
SHARED_SECONDS: Final = 1.0
#: How often a connection's settings are looked up again.
SETTINGS_SECONDS: Final = 30.0
#: A task in hand is hung when nothing was heard of it for so many seconds.
HUNG_SECONDS: Final = 300.0
#: It is a trouble that tasks which somebody accepts wait longer.
LATE_SECONDS: Final = 3_600.0
#: The depth is noted each so many seconds, so many times.
DEPTH_SECONDS, DEPTH_POINTS = 15.0, 240
_SHOWN_POINTS: Final = 60


@dataclass(slots=True)
class Trace:
    """What one queue was like lately."""

    depth: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=DEPTH_POINTS))
    written: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=200))

    def note(self, now: float, pending: int, written: int) -> None:
        """Note how many tasks are pending, and how many were ever written."""
        if not self.depth or now - self.depth[-1][0] >= DEPTH_SECONDS:
            self.depth.append((int(now), pending))
        self.written.append((now, written))
        while len(self.written) > 2 and now - self.written[1][0] >= 60:
            self.written.popleft()

    @property
    def per_minute(self) -> float | None:
        """How many tasks were written in the last minute, or since somebody looks on; None until that is known."""
        if not self.written or (span := self.written[-1][0] - self.written[0][0]) < 2:
            return None
        return round((self.written[-1][1] - self.written[0][1]) * 60 / max(span, 60), 1)


class Live:
    """One connection: its session, its reader, and who watches it.

    `name`: the id of the Airflow connection. Everything may be called from any thread.
    """

    def __init__(self, name: str, options: Callable[[str], dict[str, Any]] = access.options_of) -> None:
        self.name = name
        self.version = 0
        self.rows: dict[str, dict[str, Any]] = {}
        self.overviews: dict[str, Overview] = {}
        self.traces: dict[str, Trace] = {}
        self.state: dict[str, Any] = {"connected": False, "error": None, "since": _iso(time.time())}
        self._options = options
        self._gone: dict[str, int] = {}
        self._moved: dict[str, float] = {}
        self._state_version = 0
        self._connected: tuple[AnyClient, dict[str, Any]] | None = None
        self._connecting = threading.Lock()
        self._away: Unavailable | None = None
        self._lock = threading.Condition()
        self._watchers: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._used = 0.0
        self._idle = self._hurry = False
        self._missing = 0
        self._thread: threading.Thread | None = None
        self._shared: dict[Hashable, tuple[float, Future[Any]]] = {}
        self._number, self._unread, self._due = -1, True, 0.0
        self._messages: dict[int, tuple[int, str]] = {}

    # --- The session.

    def client(self) -> AnyClient:
        """The session, opened where there is none. Raises `UnknownConnection`, `ZkmqError`.

        While the reader finds nobody who answers, nobody else waits for that to find out, too.
        """
        self._begin()
        if self._away is not None:
            raise Unavailable(str(self._away))
        return self._session()

    def queue(self, name: str) -> AnyQueue:
        """A queue that is there: a client remembers each that it is asked for, also what somebody made up.

        Raises as `client`, `ConfigError` for a bad name, and `QueueNotFound`.
        """
        check_name("queue", name)
        client = self.client()
        if name not in self.rows and name not in (names := client.queues()):
            raise QueueNotFound.among(name, f"at connection {self.name!r}", names)
        return client.queue(name)

    def _session(self) -> AnyClient:
        with self._connecting:
            if self._connected is None:
                options = self._options(self.name)
                bounds = {name: min(options.get(name) or ANSWER_SECONDS, ANSWER_SECONDS) for name in _BOUNDS}
                more = {} if options["hosts"].startswith(FILES) else bounds
                self._connected = Zkmq.connect(**options | more, gc=False), options
            return self._connected[0]

    def _close(self) -> None:
        with self._connecting:
            connected, self._connected = self._connected, None
        self._end(connected)

    def _end(self, connected: tuple[AnyClient, dict[str, Any]] | None) -> None:
        """End a session, whatever comes of it."""
        try:
            if connected is not None:
                connected[0].close()
        except Exception:  # noqa: BLE001  it is over for us in any case
            _LOG.exception("ending the session of connection %r", self.name)

    # --- Who looks.

    def _begin(self) -> None:
        """Somebody looks: have the reader run."""
        with self._lock:
            self._used = time.monotonic()
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run, name=f"zkmq-page-{self.name}", daemon=True)
                thread.start()
                self._thread = thread
            if self._idle:  # no other pause is cut short: they keep the reader from reading all the time
                self._hurry = True
                self._lock.notify_all()

    def stop(self, seconds: float = ANSWER_SECONDS * 2) -> None:
        """End the session and the reader, as if nobody had looked for long; wait so many seconds for that."""
        with self._lock:
            self._used = -LINGER_SECONDS
            self._watchers.clear()
            thread, self._hurry = self._thread, True
            self._lock.notify_all()
        if thread is not None:
            thread.join(seconds)

    async def events(self) -> AsyncIterator[str]:
        """A stream of events, as a browser reads them: how things stand, then each change."""
        changed, loop, end = asyncio.Event(), asyncio.get_running_loop(), time.monotonic() + STREAM_SECONDS
        with self._lock:
            self._watchers[changed] = loop
        seen = seen_state = -1
        try:
            await asyncio.to_thread(self._begin)
            while time.monotonic() < end:
                changed.clear()
                if seen_state != self._state_version:
                    seen_state = self._state_version
                    yield f"event: state\ndata: {json.dumps(self.state)}\n\n"
                if self._state_version and seen != self.version:
                    seen, text = await asyncio.to_thread(self._message, seen)
                    yield text
                try:
                    await asyncio.wait_for(changed.wait(), HEARTBEAT_SECONDS)
                except TimeoutError:
                    yield ": still here\n\n"
        finally:
            with self._lock:
                self._watchers.pop(changed, None)

    def _message(self, seen: int) -> tuple[int, str]:
        """What has changed since a version, made once for all who have seen that; and the version by now."""
        with self._lock:
            version, text = self._messages.get(seen, (-1, ""))
            if version != self.version:
                version = self.version
                text = f"event: queues\ndata: {json.dumps(self._changes(seen))}\n\n"
                self._messages = {since: known for since, known in self._messages.items() if known[0] == version} | {
                    seen: (version, text)
                }
            return version, text

    def _changes(self, seen: int) -> dict[str, Any]:
        rows = [row for row in self.rows.values() if row["version"] > seen]
        gone = [name for name, version in self._gone.items() if version > seen]
        return {"at": _iso(time.time()), "whole": seen < 0, "queues": rows, "gone": [] if seen < 0 else gone}

    def snapshot(self) -> dict[str, Any]:
        """How all queues stand; waits for the first look, not for long."""
        self._begin()
        with self._lock:
            self._lock.wait_for(lambda: self._state_version, ANSWER_SECONDS * 2)
            return {"state": self.state, **self._changes(-1)}

    def shared(self, key: Hashable, read: Callable[[], Any], seconds: float = SHARED_SECONDS) -> Any:
        """What `read` returns or raises; who asks by the same key within so many seconds gets the same."""
        with self._lock:
            now = time.monotonic()
            self._shared = {known: each for known, each in self._shared.items() if now < each[0] or not each[1].done()}
            known = self._shared.get(key)
            if known is None:
                future: Future[Any] = Future()
                self._shared[key] = now + seconds, future
        if known is not None:
            if not wait({known[1]}, ANSWER_SECONDS * 2).done:
                raise Unavailable("another one has asked for the same, and has no answer yet: try again")
            return known[1].result()
        try:
            future.set_result(read())
        except BaseException as error:
            with self._lock:
                self._shared[key] = now + SHARED_SECONDS, future  # a failure may pass: nobody is told of it for longer
            future.set_exception(error)
            raise
        return future.result()

    # --- The reader.

    def _run(self) -> None:
        """Look again and again, until nobody has for long."""
        read_at, pause, checked = 0.0, 0.0, time.monotonic()
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._hurry, pause)
                self._hurry, now = False, time.monotonic()
                if not self._watchers and now - self._used > LINGER_SECONDS:
                    connected, self._connected = self._connected, None
                    self._forget()
                    self._thread = None
                    break
                watched = bool(self._watchers) or now - self._used < WATCHED_SECONDS
                self._idle = not watched
            pause = LOOK_SECONDS if watched else IDLE_SECONDS
            try:
                if now - checked > SETTINGS_SECONDS:
                    checked = now
                    self._look_up_again()
                client = self._session()
                latest = internals(client).changed()
                self._unread = self._unread or latest != self._number or now - read_at > BELIEVED_SECONDS
                if self._unread and now >= self._due:
                    try:
                        self._read(client, client.queues(), whole=True)
                    finally:
                        self._due = now + (time.monotonic() - now) * (1 + SHARE)
                    self._unread, read_at = False, now
                elif latest != self._number:  # between readings of all: what moves is shown at once
                    self._read(client, self._moving(now), whole=False)
                    pause = max(pause, (time.monotonic() - now) * MOVING_SHARE)
                self._number = latest
                self._away = None
                self._set_state(None)
            except (ZkmqError, access.UnknownConnection) as error:
                self._away = error if isinstance(error, Unavailable) else None
                self._set_state(str(error))
                self._number = -1
                if not isinstance(error, Unavailable):
                    self._close()
                    pause = max(pause, 2.0)
            except Exception:  # noqa: BLE001  one failure ends no page
                _LOG.exception("reading the queues of connection %r", self.name)
                self._set_state("the queues cannot be read; Airflow's log says why")
                pause = max(pause, 5.0)
        self._end(connected)

    def _forget(self) -> None:
        """Forget what was read; the caller holds the lock. Versions go on: streams know some."""
        self.version += 1
        self._gone |= dict.fromkeys(self.rows, self.version)
        self.rows, self.overviews, self.traces, self._messages, self._moved = {}, {}, {}, {}, {}
        self._state_version, self._away = 0, None
        self._number, self._unread, self._due = -1, True, 0.0

    def _look_up_again(self) -> None:
        """End the session where the connection's settings have changed. Raises `UnknownConnection` where it is gone.

        Of a database that does not answer Airflow says the same: what is missing twice in a row is gone.
        """
        connected = self._connected
        try:
            changed = connected is not None and self._options(self.name) != connected[1]
            self._missing = 0
        except access.UnknownConnection:
            self._missing += 1
            changed = self._missing > 1
        if changed:
            self._close()
            with self._lock:
                self._forget()
                self._wake()

    def _moving(self, now: float) -> list[str]:
        """The queues in which something has happened of late; of very many some, by turns as chance has it."""
        lately = [name for name, at in self._moved.items() if now - at < MOVING_SECONDS]
        return random.sample(lately, min(len(lately), _MOST_MOVING))

    def _read(self, client: AnyClient, names: list[str], *, whole: bool) -> None:
        """Read how these queues stand; `whole`: there are no others."""
        seen = internals(client).overviews(names)
        now = time.time()
        rows = [
            (name, self._row(name, found, now))
            for name, found in zip(names, seen, strict=True)
            if whole or not isinstance(found, QueueNotFound)  # it was deleted: the next reading of all finds that
        ]
        with self._lock:
            for name, row in rows:
                known = self.rows.get(name)
                if known is None or row != {**known, "version": None}:
                    if known is not None and row["counts"] != known["counts"]:
                        self._moved[name] = time.monotonic()
                    self.version += 1
                    self.rows[name] = {**row, "version": self.version}
                    self._gone.pop(name, None)
            for name in self.rows.keys() - set(names) if whole else ():
                self.version += 1
                del self.rows[name]
                for memory in (self.traces, self.overviews, self._moved):
                    memory.pop(name, None)
                self._gone[name] = self.version
            self._wake()

    def _row(self, name: str, found: tuple[Overview, Activity] | ZkmqError, now: float) -> dict[str, Any]:
        """How one queue stands, for the overview."""
        if isinstance(found, ZkmqError):
            known = self.rows.get(name, {"queue": name, "troubles": [], "counts": {}})
            return {**known, "error": str(found), "version": None}
        seen, activity = found
        self.overviews[name] = seen
        record = queue_status.status_record(name, seen, HUNG_SECONDS)
        pending = seen.counts["inserted"] - seen.counts["scheduled"]
        trace = self.traces.setdefault(name, Trace())
        trace.note(now, pending, activity.written)
        late = seen.oldest_ms is not None and not seen.paused and now - seen.oldest_ms / 1000 > LATE_SECONDS
        if late and not any(each["kind"] in {"unaccepted", "unconsumed"} for each in record["troubles"]):
            text = "the oldest pending task has waited for more than an hour"
            record["troubles"].append({"kind": "late", "text": text, "remedy": f"zkmq consumers {name}"})
        return {
            **{key: record[key] for key in _OF_ROW},
            "error": None,
            "enqueued_per_minute": trace.per_minute,
            "finished_per_minute": _a_minute(activity, now),
            "depth": list(trace.depth)[-_SHOWN_POINTS:],
            "version": None,
        }

    def _set_state(self, error: str | None) -> None:
        connected = error is None
        with self._lock:
            if self._state_version and self.state["connected"] == connected and self.state["error"] == error:
                return
            since = self.state["since"] if self.state["connected"] == connected else _iso(time.time())
            self.state = {"connected": connected, "error": error, "since": since}
            self._state_version += 1
            self._wake()

    def _wake(self) -> None:
        """Tell all who watch; the caller holds the lock."""
        self._lock.notify_all()
        for changed, loop in list(self._watchers.items()):
            try:
                loop.call_soon_threadsafe(changed.set)
            except RuntimeError:  # the loop is closed
                self._watchers.pop(changed, None)


_BOUNDS: Final = ("connect_timeout", "request_timeout")
_OF_ROW: Final = ("queue", "troubles", "counts", "paused", "consumers", "oldest_at", "next_due_at")


def _a_minute(activity: Activity, now: float) -> float | None:
    """How many tasks finished in the last minute, of which the minute before it lends what is not over yet."""
    counts = dict(activity.finished)
    begun = int(now // 60) * 60_000
    part = now / 60 % 1
    return round(counts.get(begun, 0) + counts.get(begun - 60_000, 0) * (1 - part), 1)


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
