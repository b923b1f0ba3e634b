"""What is to be sent on one connection, and what was sent and is not answered yet."""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from kazoo.exceptions import ConnectionDropped

#: What stands before a request's body: its length, its number on this connection, its kind.
_HEAD: Final = struct.Struct("!iii")
_COUNTED: Final = 8
_LARGEST_NUMBER: Final = (1 << 31) - 1
#: So many bytes are written at once before replies are looked at again.
_BATCH: Final = 1 << 18


class Queued(NamedTuple):
    """A request with its body, and who waits for its reply; None: nobody."""

    request: Any
    body: bytes
    reply: Any


class Pending(NamedTuple):
    """A request that was sent under this number."""

    request: Any
    reply: Any
    number: int


def framed(request: Any, body: bytes, number: int) -> bytes:
    """A request as it is written."""
    return _HEAD.pack(len(body) + _COUNTED, number, request.type) + body


class Outbox:
    """Sends requests in the order in which they are given, from whichever thread is fit for it.

    Callers write to the socket themselves, which saves a hand-over to the connection's thread; what finds somebody else
    writing, or the socket full, is left to that thread, which writes all of it at once. ``lock``: re-entrant, since a
    signal's handler may send a request, too. Nothing blocks under it.
    """

    def __init__(self, ring: Callable[[], object]) -> None:
        self.lock = threading.RLock()
        self._ring = ring
        self._queued: deque[Queued] = deque()
        self._pending: deque[Pending] = deque()
        self._socket: Any = None
        self._number = 0
        self._rest = b""
        self._rung = False
        self._writing = False
        """Whether the connection's thread is about to write."""
        self._sending = False
        """Whether a caller is writing, or was interrupted at that."""

    def __len__(self) -> int:
        """How many requests are under way, sent or not."""
        return len(self._pending) + len(self._queued)

    def open(self, direct: Any) -> None:
        """A connection stands. `direct`: its socket if callers may write to it, else None."""
        with self.lock:
            self._number, self._rest, self._writing, self._sending = 0, b"", False, False
            self._socket = direct

    def close(self) -> list[Any]:
        """The connection is lost: the replies that will not come, of what was sent and of what was not."""
        with self.lock:
            self._socket = None
            pending, self._pending = self._pending, deque()
            queued, self._queued = self._queued, deque()
        replies = [each.reply for each in pending] + [each.reply for each in queued]
        return [reply for reply in replies if reply is not None]

    def post(self, queued: Queued, *, more: bool = False) -> None:
        """Send a request, or have it sent, or have it wait for a `flush`; never blocks. Under the lock.

        An interrupt leaves a request queued or not. One that meets the very write of a request costs the connection,
        since nobody knows what of it was written. Raises `OSError` if the bell is gone.
        """
        try:
            self._queued.append(queued)
            if not more:
                self._go()
        except BaseException:
            self._ring()
            raise

    def give(self, queued: Queued) -> bool:
        """Send a request from this thread if it may write now; whether the system has all of it. Under the lock.

        Where the socket takes a part only, the rest of it is left to the connection's thread. An interrupt does what it
        does to `post`.
        """
        if self._socket is None or self._rest or self._writing or self._sending:
            return False
        self.post(queued)
        return not self._rest and not self._queued

    def flush(self) -> None:
        """Send what waits; an interrupt does what it does to `post`. Raises `OSError` if the bell is gone."""
        with self.lock:
            try:
                if self._queued:
                    self._go()
            except BaseException:
                self._ring()
                raise

    def _go(self) -> None:
        if self._socket is None or self._writing or self._sending:
            self._wake()
        else:
            self._send()

    def _wake(self) -> None:
        """Wake the connection's thread, unless it is about to look. A ring too many does no harm."""
        if not self._rung:
            self._ring()
            self._rung = True

    def _send(self) -> None:
        self._sending = True  # for good, where an interrupt comes in between
        if not self._rest:  # asked only now: a signal's handler may have written until here
            frames = self._taken()
            self._rest = frames[self._write(frames) :]
        self._sending = False
        if self._rest or self._queued:
            self._wake()

    def _write(self, frames: bytes) -> int:
        try:
            return int(self._socket.send(frames))
        except OSError:
            return 0  # the socket is full; or the connection's thread meets the same, and fails what is pending

    def _taken(self, *first: bytes) -> bytes:
        """What is written next; it counts as sent from now on."""
        parts, size = list(first), 0
        while self._queued and size < _BATCH:
            request, body, reply = self._queued.popleft()
            self._number = self._number % _LARGEST_NUMBER + 1
            self._pending.append(Pending(request, reply, self._number))
            parts.append(framed(request, body, self._number))
            size += len(body)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def take(self, answer: Callable[[], object], *first: bytes) -> bytes:
        """What the connection's thread writes next: `first`, and what is queued. It calls `written` afterwards.

        `answer`: answers the ring. Raises `ConnectionDropped` where a request was interrupted while it was written.
        """
        with self.lock:
            if self._sending:
                msg = "a request was interrupted while it was written"
                raise ConnectionDropped(msg)
            answer()
            self._rung, self._writing = False, True
            taken, self._rest = self._taken(self._rest, *first), b""
            if self._queued:
                self._wake()
            return taken

    def written(self) -> None:
        """What was taken has been written."""
        self._writing = False

    def answered(self) -> Pending:
        """What the next reply answers. Raises `IndexError` where nothing was asked."""
        return self._pending.popleft()
