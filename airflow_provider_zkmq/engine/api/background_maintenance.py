"""What a client does in the background: it finishes what calls left, and takes its turn in clean-up."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from functools import partial
from typing import Final

from ..core.client_state import Context
from ..core.maintenance.collect import collect_if_due
from ..core.maintenance.due_work import finish_pending, has_pending, until_due
from ..core.read.configuration import read_conf
from ..core.tasks.settle import settle_deferred
from ..errors import QueueNotFound, TransportError, ZkmqError
from ..log import log
from ..zk.procedure_drivers import run
from ..zk.session import Session

# --- What calls left (`core.maintenance.consumer_registry`) is put right in the background, by a thread of its own.


#: The longest pause between two tries at pending operations, while the connection is lost.
LOOK_SECONDS: Final = 5.0
#: The pause before what could not be paid is tried again, while there is one.
RETRY_SECONDS: Final = 0.5


def finish_later(session: Session, context: Context) -> None:
    """Finish pending operations in a thread of its own, as soon as there is a connection; one at a time is enough.

    From any thread: the connection's own must not wait for the client's lock, under which a signal's handler may wait
    for the connection's thread.
    """
    if not context.pending.finishing and (context.claims.deferred or not session.closed) and os.getpid() == session.pid:
        with contextlib.suppress(RuntimeError):  # no thread is to be had: before the next claim it is put right, too
            threading.Thread(target=_finish_pending, args=(session, context), name="zkmq-pending", daemon=True).start()


def _finish_pending(session: Session, context: Context) -> None:
    with session.memory:
        if context.pending.finishing:
            return
        context.pending.finishing = True
    while _goes_on(session, context):
        seen, least = session.changed.count, RETRY_SECONDS
        try:
            run(session, settle_deferred(context) if session.closed else finish_pending(context))
            least = 0.0
        except TransportError:
            pass
        except Exception as error:  # noqa: BLE001  whatever was met: what is pending next is to be done
            what = "what calls on queue %r left is put right before its next claim: %s"
            log.warning(what, context.queue, error, exc_info=not isinstance(error, ZkmqError))
            if not context.claims.deferred:
                context.pending.finishing = False
                return
        if _goes_on(session, context):
            with session.memory:  # what is pending, or deferred meanwhile, may wait so long
                pause = until_due(context, RETRY_SECONDS if session.connected.is_set() else LOOK_SECONDS)
            session.changed.wait(seen, max(least, pause))


def _goes_on(session: Session, context: Context) -> bool:
    """Whether anything is pending still; nothing falls in between. Of a closed client: whether completions are.

    Whoever adds to it later holds the client's memory after us; or adds without it, and then asks whether a thread is
    at it: no thread is said to be before it is asked what is pending.
    """
    with session.memory:
        context.pending.finishing = False
        context.pending.finishing = bool(context.claims.deferred) if session.closed else has_pending(context)
        return context.pending.finishing


# --- Clean-up in the background: every producer and consumer takes its turn, unless it opted out.
#
# zkmq's seed has each producer collect garbage at ``conf/task_gc_interval``. Here the time of the last run stands in
# ZooKeeper, so that N processes do the work of one, and who comes late to one that is overdue makes it.


MIN_PAUSE: Final = 0.2
#: The longest sleep; a thread cannot be told to wait for as long as an interval may be.
MAX_PAUSE: Final = 3600.0
#: The first use of a queue is not disturbed by the first look at it.
FIRST_LOOK: Final = 1.0
#: The pause after a look whose queue could not tell its interval.
ERROR_PAUSE: Final = 60.0
#: How long a client that is being closed waits for its looks. A clean-up under way is told to leave then, and cut off
#: if it does not within as long again; it goes on where it was when somebody else takes the turn.
CLOSING_SECONDS: Final = 1.0
#: Clients that wait for the same moment come a little apart, in parts of the interval and in seconds at the most.
SPREAD: Final = 0.1
MAX_SPREAD: Final = 5.0


class MaintenanceThread:
    """A daemon thread that collects the garbage of the queues its client uses. Started by the first use.

    It looks at a queue a second after its first use, or when the client is closed before that; then whenever clean-up
    is due, and when the configuration changes. One lock guards the table of queues and the thread; no request is sent
    under it.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._due: dict[str, tuple[float, Context]] = {}
        self._changed: set[str] = set()
        self._seen: set[str] = set()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, context: Context) -> None:
        """Look after this queue from now on."""
        with self._lock:
            if context.queue in self._due:
                return
            self._due[context.queue] = (time.monotonic() + FIRST_LOOK, context)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="zkmq-upkeep", daemon=True)
                self._thread.start()
        context.configuration.changed = partial(self._look_soon, context)
        self._wake.set()

    def _look_soon(self, context: Context) -> None:
        """The queue's configuration has changed: what the old interval and lifetime said does not count any more."""
        with self._lock:
            self._changed.add(context.queue)
        self._wake.set()

    def stop(self, call_deadline: float) -> None:
        """End the thread; looks that were not made yet are made, and what is under way goes on, for a moment.

        `call_deadline`: for how many seconds the client's end may be waited for at all.
        """
        deadline = time.monotonic() + call_deadline
        self._stopped.set()
        self._wake.set()
        if not self.join(call_deadline):
            with self._lock:
                for _, context in self._due.values():
                    context.maintenance.closing = True
            self.join(deadline - time.monotonic())

    def join(self, call_deadline: float) -> bool:
        """Wait for the end of the thread, a moment at the most; whether it has ended."""
        with self._lock:
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout=max(0.0, min(CLOSING_SECONDS, call_deadline)))
        return not thread.is_alive()

    def _loop(self) -> None:
        """Until the end: whatever a look met is logged, and the next one comes."""
        while not self._stopped.is_set():
            self._wake.clear()
            try:
                pause = self._round()
            except BaseException:  # noqa: BLE001  the thread must not end silently
                log.exception("clean-up in the background met an error and goes on")
                pause = ERROR_PAUSE
            if not self._stopped.is_set():
                self._wake.wait(pause)
        # The client is being closed: the queues that it has used for less than a second are looked at now. So do
        # clients clean up, too, that live no longer than one enqueue.
        with self._lock:
            rest = [context for name, (_, context) in self._due.items() if name not in self._seen]
        for context in rest:
            if self._session.connected.is_set() and not self._session.closed:
                self._look(context)

    def _round(self) -> float:
        """Look at what is due; returns the seconds until the next is. Without a connection it waits for that."""
        changes = self._session.changed.count
        if not self._session.connected.is_set():
            return ERROR_PAUSE if self._session.changed.on_next(changes, self._wake.set) else 0.0
        with self._lock:
            table, changed = dict(self._due), self._changed
            self._changed = set()
        for name, (due, context) in table.items():
            if (due <= time.monotonic() or name in changed) and not self._stopped.is_set():
                pause = self._look(context)
                with self._lock:
                    if name in self._due:
                        self._due[name] = (time.monotonic() + pause, context)
        with self._lock:
            nearest = min((due for due, _ in self._due.values()), default=time.monotonic() + ERROR_PAUSE)
        return max(0.0, min(MAX_PAUSE, nearest - time.monotonic()))

    def _look(self, context: Context) -> float:
        """Clean up if it is due; returns the seconds until the next look."""
        self._seen.add(context.queue)
        interval = ERROR_PAUSE
        try:
            interval = run(self._session, read_conf(context)).gc_interval
            pause = run(self._session, collect_if_due(context)).due_in
        except QueueNotFound:  # deleted: it is looked after again when it is used again
            pause = interval
            with self._lock:
                self._due.pop(context.queue, None)
        except Exception as error:  # noqa: BLE001  one queue's trouble is not the others'
            pause = interval
            if not self._stopped.is_set():
                log.warning("clean-up of queue %r: %s", context.queue, error, exc_info=not isinstance(error, ZkmqError))
        spread = random.uniform(0, min(MAX_SPREAD, SPREAD * interval))  # noqa: S311  no secret, only spread
        return max(MIN_PAUSE, pause + spread)
