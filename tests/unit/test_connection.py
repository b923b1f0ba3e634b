"""The connection's own part: what is written and when, and what becomes of what arrives; the test plays the server."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from itertools import count
from types import CodeType
from typing import Any
from weakref import ref

import pytest
from kazoo.exceptions import ConnectionDropped, ConnectionLoss, NoAuthError, SessionExpiredError
from kazoo.protocol import serialization as wire
from kazoo.protocol.states import KeeperState

from airflow_provider_zkmq.engine.connection_config import ConnectionConfig
from airflow_provider_zkmq.engine.core.zk_operations import Create, Exists, Get, Multi, Watch
from airflow_provider_zkmq.engine.zk import connection
from airflow_provider_zkmq.engine.zk.connection import FrameReader
from airflow_provider_zkmq.engine.zk.procedure_drivers import LoopDriver, Request, submit
from airflow_provider_zkmq.engine.zk.session import Reply, Session, ThreadSignal
from tests.interrupting import interrupted, keyboard

PATIENCE = 20.0
STAT = wire.stat_struct.pack(11, 12, 13, 14, 1, 2, 3, 4, 5, 6, 15)
EVENT, PING = -1, -2


def frame(number: int, body: bytes = b"", error: int = 0, zxid: int = 7) -> bytes:
    return wire.write_buffer(wire.reply_header_struct.pack(number, zxid, error) + body)


def got(number: int, data: bytes) -> bytes:
    """The reply to a read."""
    return frame(number, wire.write_buffer(data) + STAT)


def changed(path: str) -> bytes:
    """The event of a znode's data."""
    return frame(EVENT, wire.int_int_struct.pack(3, 3) + wire.write_string(path), zxid=-1)


# --- one connection, its socket played by the test


class Wire:
    """A socket that takes so many bytes of each write, and gives what it is told."""

    def __init__(self) -> None:
        self.sent = b""
        self.writes: list[int] = []
        self.takes: list[Any] = []
        self.gives: list[bytes] = []

    def send(self, data: bytes) -> int:
        takes = self.takes.pop(0) if self.takes else len(data)
        if isinstance(takes, BaseException):
            raise takes
        self.sent += data[:takes]
        self.writes.append(len(data))
        return min(len(data), int(takes))

    def recv(self, _size: int) -> bytes:
        return self.gives.pop(0)

    @property
    def requests(self) -> list[tuple[int, int]]:
        """Number and kind of each request that was written whole."""
        found, at = [], 0
        while at < len(self.sent):
            size, number, kind = struct.unpack_from("!iii", self.sent, at)
            found.append((number, kind))
            at += 4 + size
        assert at == len(self.sent)
        return found


@pytest.fixture
def session() -> Iterator[Session]:
    made = Session(ConnectionConfig.of("127.0.0.1:1"))
    bell, _ = made.client.handler.create_socket_pair()
    made.client._connection._read_sock = bell
    made.client._state = KeeperState.CONNECTED
    made.client._stopped.clear()
    yield made
    made.closed = True
    made.client.handler.notifier.close()
    bell.close()


@pytest.fixture
def line(session: Session, monkeypatch: pytest.MonkeyPatch) -> Wire:
    made, connection = Wire(), session.client._connection
    monkeypatch.setattr(connection, "_socket", made)
    monkeypatch.setattr(connection, "_write", lambda data, _timeout: made.send(data))
    open_line(session, made)
    return made


def open_line(session: Session, direct: Wire | None) -> None:
    session.client._connection._frame_reader = FrameReader()
    session.client.send_queue.open(direct)


def ask(session: Session, op: Request) -> Reply:
    reply: Reply = submit(session, op).reply
    return reply


def rung(session: Session) -> bool:
    """Whether the connection's thread would be woken."""
    return bool(session.client.handler.select([session.client._connection._read_sock], [], [], 0)[0])


def flush(session: Session) -> None:
    """What the connection's thread does when it was woken."""
    while rung(session):
        session.client._connection._send_request(1, 1)


def arrives(session: Session, line: Wire, *pieces: bytes) -> Any:
    """The connection's thread meets these pieces."""
    line.gives += pieces
    return [session.client._connection._read_socket(1) for _ in pieces][-1]


def test_requests_are_written_by_their_callers(session: Session, line: Wire) -> None:
    replies = [ask(session, Get("/a")), ask(session, Exists("/b")), ask(session, Exists("/c"))]
    assert (line.requests, rung(session)) == ([(1, 4), (2, 3), (3, 3)], False)
    arrives(session, line, got(1, b"A") + frame(2, error=-101) + frame(3, error=-102))
    assert [replies[0].get_nowait()[0], replies[1].get_nowait()] == [b"A", None]
    with pytest.raises(NoAuthError):
        replies[2].get_nowait()
    assert (len(session.client.send_queue), session.client.last_zxid) == (0, 7)


def test_several_are_written_at_once(session: Session, line: Wire) -> None:
    """By whoever posts them; where that may not be, as over TLS, by the connection's thread."""
    for direct in (line, None):
        open_line(session, direct)
        line.writes.clear()
        for path in ("/a", "/b", "/c"):
            submit(session, Get(path), more=True)
        assert (line.writes, rung(session)) == ([], False)
        session.client.flush()
        session.client.flush()
        assert rung(session) == (direct is None)
        flush(session)
        assert (len(line.writes), line.requests[-3:]) == (1, [(1, 4), (2, 4), (3, 4)])


async def test_what_is_posted_in_one_round_of_a_loop_is_written_at_once(session: Session, line: Wire) -> None:
    """The first one at once: it may be the only one."""
    for path in ("/a", "/b", "/c"):
        submit(session, Get(path), more=True)
        LoopDriver(session).flush()
    assert len(line.writes) == 1
    await asyncio.sleep(0)
    assert (len(line.writes), len(line.requests)) == (2, 3)
    submit(session, Get("/d"), more=True)
    LoopDriver(session).flush()
    await asyncio.sleep(0)
    assert (len(line.writes), len(line.requests)) == (3, 4)


def test_what_arrives_is_the_same_wherever_it_is_split(session: Session, line: Wire) -> None:
    """A ping's answer, an event, the reply to the write that caused it, and another: in this order, once each."""
    stream = frame(PING) + changed("/a") + got(1, b"A" * 300) + got(2, b"")
    halves = ((stream[:at], stream[at:]) for at in range(1, len(stream)))
    for pieces in (*halves, [bytes([byte]) for byte in stream]):
        open_line(session, line)
        seen: list[str] = []
        watch, connection = Watch(ThreadSignal()), session.client._connection
        watch.signal.on_next(0, lambda seen=seen: seen.append("event"))  # type: ignore[attr-defined]
        fan = session.watches.reading("data", "/a", watch).fan
        fan.standing, fan.armed = True, [ref(watch)]
        session.client._data_watchers["/a"].add(fan)
        connection.ping_outstanding.set()
        replies = [ask(session, Get("/a")), ask(session, Get("/b"))]
        flush(session)
        replies[0].rawlink(lambda _reply, seen=seen: seen.append("reply"))
        arrives(session, line, *pieces)
        assert ([reply.get_nowait()[0] for reply in replies], seen) == ([b"A" * 300, b""], ["event", "reply"])
        assert not connection.ping_outstanding.is_set()


@pytest.mark.parametrize("taken", [0, 1, 5, BlockingIOError(), OSError(errno.ENOBUFS, "no buffer space")])
def test_what_the_socket_does_not_take_is_written_first_by_the_connection(
    session: Session, line: Wire, taken: Any
) -> None:
    """Neither the caller waits, nor is anything written in between, a ping neither."""
    line.takes = [taken]
    ask(session, Get("/a"))
    assert rung(session)
    ask(session, Get("/b"))
    session.client._connection._submit(wire.PingInstance, 1, PING)
    assert [kind for _, kind in line.requests] == [4, 11, 4]
    flush(session)
    assert [number for number, _ in line.requests] == [1, PING, 2]


def test_a_socket_that_is_gone_is_the_connection_s_affair(session: Session, line: Wire) -> None:
    line.takes = [BrokenPipeError()]
    reply = ask(session, Get("/a"))
    assert not reply.ready()
    session.client._notify_pending(KeeperState.CONNECTING)
    with pytest.raises(ConnectionLoss):
        reply.get_nowait()


def test_an_interrupt_while_a_request_is_written_costs_the_connection(session: Session, line: Wire) -> None:
    """Nobody knows what was written: nothing more is, and all that was asked fails as with a lost connection."""
    line.takes = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        ask(session, Get("/a"))
    assert rung(session)
    reply = ask(session, Get("/b"))
    with pytest.raises(ConnectionDropped, match="interrupted"):
        flush(session)
    session.client._notify_pending(KeeperState.CONNECTING)
    with pytest.raises(ConnectionLoss):
        reply.get_nowait()
    assert (line.requests, len(session.client.send_queue)) == ([], 0)
    open_line(session, line)
    flush(session)
    ask(session, Get("/c"))
    assert line.requests == [(1, 4)]


def of_the_outbox(code: CodeType) -> bool:
    return code.co_filename == connection.__file__ and code.co_qualname.startswith("SendQueue.")


def at_line(number: int, act: Callable[[], object], job: Callable[[], object]) -> bool:
    """Do something before one of the outbox's lines that a job runs, as a signal does; whether there are so many."""
    return interrupted(job, number, of_the_outbox, act=act, events=frozenset({"line", "return"}))


def begin_anew(session: Session, line: Wire, takes: Any) -> None:
    """An open line on which nothing was written, and which takes so much of the first write."""
    session.client.send_queue.close()
    open_line(session, line)
    flush(session)
    line.sent, line.takes = b"", [takes]


def ask_several(session: Session) -> None:
    """As a driver does: two that are sent together, and one."""
    for path in ("/a", "/b"):
        submit(session, Exists(path), more=True)
    session.client.flush()
    ask(session, Exists("/c"))


@pytest.mark.parametrize("takes", [1_000, 5, BlockingIOError()])
@pytest.mark.parametrize("posted", [0, 2])
def test_wherever_an_interrupt_comes_the_connection_s_thread_is_woken(
    session: Session, line: Wire, posted: int, takes: Any
) -> None:
    """It writes what is left, or drops the connection: nothing waits until somebody sends the next request."""
    job = session.client.flush if posted else lambda: ask(session, Exists("/c"))
    for number in count(2 if posted else 0):  # before its first lines nothing has begun
        begin_anew(session, line, takes)
        for _ in range(posted):
            submit(session, Exists("/a"), more=True)
        if not at_line(number, keyboard, job):
            return
        line.takes.clear()
        with contextlib.suppress(ConnectionDropped):
            flush(session)
            assert len(line.requests) == len(session.client.send_queue)


@pytest.mark.parametrize("takes", [1_000, 5, BlockingIOError()])
def test_wherever_a_signal_s_handler_sends_everything_is_written_once(session: Session, line: Wire, takes: Any) -> None:
    for number in count():
        begin_anew(session, line, takes)
        if not at_line(number, lambda: ask(session, Get("/handler")), lambda: ask_several(session)):
            break
        line.takes.clear()
        flush(session)
        assert [each for each, _ in line.requests] == [1, 2, 3, 4]
        assert sorted(kind for _, kind in line.requests) == [3, 3, 3, 4]
    begin_anew(session, line, takes)
    send = line.send

    def interrupted_send(data: bytes) -> int:
        line.send = send  # type: ignore[method-assign]
        ask(session, Get("/handler"))
        return send(data)

    line.send = interrupted_send  # type: ignore[method-assign]
    ask(session, Exists("/a"))
    flush(session)
    assert line.requests == [(1, 3), (2, 4)]


def test_what_is_not_understood_is_its_caller_s_error(session: Session, line: Wire) -> None:
    """A request that cannot be encoded, and a reply that is too short: the connection goes on."""
    with pytest.raises(UnicodeEncodeError):
        ask(session, Get("/\ud800"))
    assert (line.sent, len(session.client.send_queue)) == (b"", 0)
    replies = [ask(session, Get("/a")), ask(session, Get("/b"))]
    flush(session)
    arrives(session, line, frame(1, b"\0") + got(2, b"B"))
    with pytest.raises(struct.error):
        replies[0].get_nowait()
    assert replies[1].get_nowait()[0] == b"B"


@pytest.mark.parametrize(
    "nonsense",
    [wire.int_struct.pack(-5), wire.write_buffer(b"short"), got(9, b"of another"), got(1, b"x") + got(2, b"unasked")],
)
def test_nonsense_drops_the_connection(session: Session, line: Wire, nonsense: bytes) -> None:
    reply = ask(session, Get("/a"))
    with pytest.raises(ConnectionDropped):
        arrives(session, line, nonsense)
    session.client._notify_pending(KeeperState.CONNECTING)
    assert reply.ready()


def test_much_is_written_in_several_pieces(session: Session, line: Wire) -> None:
    """Replies are looked at in between: the bell stays rung."""
    open_line(session, None)
    for number in range(5):
        ask(session, Multi((Create(f"/{number}", b"x" * 200_000),)))
    session.client._connection._send_request(1, 1)
    assert ([number for number, _ in line.requests], rung(session)) == ([1, 2], True)
    flush(session)
    assert [number for number, _ in line.requests] == [1, 2, 3, 4, 5]


async def test_replies_that_come_together_wake_a_loop_once(
    session: Session, line: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, wakes = asyncio.get_running_loop(), []
    replies = [ask(session, Get("/a")) for _ in range(64)]
    flush(session)
    tasks = [asyncio.create_task(LoopDriver(session).reply(reply, PATIENCE)) for reply in replies]
    while not replies[-1]._callbacks:  # noqa: ASYNC110  it tells nobody
        await asyncio.sleep(0)
    call = loop.call_soon_threadsafe
    monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *args: (wakes.append(1), call(*args)), raising=False)
    stream = b"".join(got(number, b"%d" % number) for number in range(1, 65))
    thread = threading.Thread(target=arrives, args=(session, line, stream))
    thread.start()
    values = await asyncio.gather(*tasks)
    thread.join(PATIENCE)
    assert ([int(data) for data, _ in values], len(wakes)) == (list(range(1, 65)), 1)


# --- whole sessions, their server played by the test


class Server:
    """Takes connections at a real socket, and answers as told."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(PATIENCE)
        self.hosts = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._stream: Any = io.BytesIO()

    def accept(self, timeout_ms: int = 10_000) -> None:
        """Take a connection and give it a session; 0: its session has ended."""
        with self._listening.accept()[0] as connection:
            connection.settimeout(PATIENCE)
            self._stream = connection.makefile("rwb")  # which holds it open
        self.read()
        body = wire.int_int_long_struct.pack(0, timeout_ms, 99) + wire.write_buffer(b"p" * 16)
        self.send(wire.write_buffer(body))

    def read(self) -> bytes:
        request: bytes = self._stream.read(*wire.int_struct.unpack(self._stream.read(4)))
        return request

    def send(self, data: bytes) -> None:
        self._stream.write(data)
        self._stream.flush()

    def drop(self) -> None:
        """Drop the connection."""
        self._stream.close()

    def close(self) -> None:
        """Drop the connection, and take no other."""
        self.drop()
        self._listening.close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def opened(server: Server) -> Iterator[Session]:
    made = Session(ConnectionConfig.of(server.hosts, request_timeout=1))
    made.client.start_async()
    server.accept()
    assert made.connected.wait(PATIENCE)
    yield made
    server.close()
    made.close()


def lose(opened: Session, server: Server) -> None:
    """The connection is lost, and a request with it."""
    lost = ask(opened, Get("/lost"))
    server.drop()
    with pytest.raises(ConnectionLoss):
        lost.get(timeout=PATIENCE)


def numbers(requests: list[bytes]) -> list[int]:
    return [struct.unpack_from("!i", request)[0] for request in requests]


def test_a_lost_connection_fails_what_is_under_way_and_the_next_begins_anew(opened: Session, server: Server) -> None:
    """Its requests are numbered from one."""
    replies = [ask(opened, Get("/a")) for _ in range(3)]
    assert numbers([server.read() for _ in replies]) == [1, 2, 3]
    server.send(got(1, b"A") + got(2, b"B")[:-1])
    assert replies[0].get(timeout=PATIENCE)[0] == b"A"
    server.drop()
    for reply in replies[1:]:
        with pytest.raises(ConnectionLoss):
            reply.get(timeout=PATIENCE)
    server.accept()
    assert opened.connected.wait(PATIENCE)
    later = ask(opened, Get("/b"))
    assert numbers([server.read()]) == [1]
    server.send(got(1, b"later"))
    assert later.get(timeout=PATIENCE)[0] == b"later"


def test_what_is_asked_while_the_connection_is_away_is_sent_when_it_stands(opened: Session, server: Server) -> None:
    """It fails where the session has ended meanwhile."""
    lose(opened, server)
    waiting = [ask(opened, Get("/b")) for _ in range(100)]
    server.accept()
    assert numbers([server.read() for _ in waiting]) == list(range(1, 101))
    server.send(b"".join(got(number, b"B") for number in range(1, 101)))
    assert {reply.get(timeout=PATIENCE)[0] for reply in waiting} == {b"B"}

    lose(opened, server)
    waiting = [ask(opened, Get("/b"))]
    server.accept(timeout_ms=0)
    with pytest.raises(SessionExpiredError):
        waiting[0].get(timeout=PATIENCE)


def test_a_session_is_ended_in_order(opened: Session, server: Server) -> None:
    """What was asked before is answered, be it larger than any buffer, then the end; then all is refused."""
    much = b"x" * 3_000_000
    reply = ask(opened, Get("/a"))
    closing = threading.Thread(target=opened.close, kwargs={"call_deadline": PATIENCE})
    closing.start()
    assert numbers([server.read(), server.read()]) == [1, 2]
    server.send(got(1, much) + frame(2))
    closing.join(PATIENCE)
    assert (closing.is_alive(), reply.get_nowait()[0]) == (False, much)
    assert opened.client._connection.connection_stopped.is_set()
    refused = Reply()
    opened.client.post(wire.Sync("/"), refused)
    assert refused.ready()
