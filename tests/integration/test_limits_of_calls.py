"""Every call ends within its own limit, whatever becomes of the servers and however many callers there are.

The seconds asserted here are those that users set, and the two more that every call may take.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from airflow_provider_zkmq.embedded import EmbeddedServer
from airflow_provider_zkmq.engine import (
    AsyncZkmq,
    HostNotFound,
    Message,
    OutcomeUnknown,
    Success,
    TransportError,
    Unavailable,
    Zkmq,
)
from airflow_provider_zkmq.engine.api import client
from airflow_provider_zkmq.engine.core.tasks.settle_by_outcome import Settlement
from tests.integration.conftest import taken
from tests.integration.fronts import connected, event_loop
from tests.support import eventually, fresh_root

CALLERS = 50
#: A busy machine needs some seconds; calls that waited one after the other would need more.
MORE = 15.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("frozen"), force_sync=False) as running:
        yield running


@contextlib.contextmanager
def frozen(server: EmbeddedServer) -> Iterator[None]:
    """Inside the block the server's process is stopped: its connections stand, and nothing is answered."""
    server.pause(0)
    try:
        eventually(lambda: _is_stopped(server.pids[0]))  # threads of it may answer for a moment yet
        yield
    finally:
        server.resume(0)


def _is_stopped(pid: int) -> bool:
    """Whether each of a process's threads has stopped; on systems that cannot tell it is taken to be so."""
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(state == "T" for state in states)


@contextlib.contextmanager
def silent() -> Iterator[str]:
    """A port whose connections are accepted, and where nobody says anything."""
    with socket.create_server(("127.0.0.1", 0), backlog=4 * CALLERS) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@contextlib.contextmanager
def dropping() -> Iterator[str]:
    """A port where nobody answers at all: its queue is full, so the system drops what arrives."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@dataclass
class Ended:
    """How a call ended: after how many seconds, and with which error."""

    name: str
    seconds: float
    error: BaseException | None


def all_at_once(calls: dict[str, Callable[[], Any]]) -> list[Ended]:
    """Each call in a thread of its own; those of an asynchronous client are tasks of one loop."""
    ended: list[Ended] = []

    def do(name: str, call: Callable[[], Any]) -> None:
        began, error = time.monotonic(), None
        try:
            call()
        except BaseException as raised:  # noqa: BLE001  it is looked at
            error = raised
        ended.append(Ended(name, time.monotonic() - began, error))

    threads = [threading.Thread(target=do, args=item, daemon=True) for item in calls.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(ended) == len(calls)
    return ended


def judge(ended: list[Ended], limit: str, seconds: float) -> None:
    """Each ended in its time, and its error names the limit and how long that is."""
    late = [one for one in ended if one.seconds > seconds + MORE]
    assert not late, late
    wrong = [one for one in ended if not (isinstance(one.error, TransportError) and limit in str(one.error))]
    assert not wrong, wrong


# --- connecting


@pytest.mark.parametrize("hole", [silent, dropping])
def test_connecting_into_a_black_hole_ends_in_time(hole: Any) -> None:
    """Fifty that connect, by threads or on a loop, end in `connect_timeout` and leave nothing behind."""
    options: dict[str, Any] = {"connect_timeout": 1, "session_timeout": 30, "gc": False}
    before = threading.active_count()
    with hole() as hosts:
        ended = all_at_once({f"{at}": lambda: Zkmq.connect(hosts, **options) for at in range(CALLERS)})
        judge(ended, "connect_timeout (1 s)", 1)
        assert all(isinstance(one.error, Unavailable) and hosts in str(one.error) for one in ended)
        eventually(lambda: threading.active_count() <= before)
    if hole is silent:
        with hole() as hosts, event_loop() as loop:

            async def connect() -> None:
                await AsyncZkmq.connect(hosts, **options)

            call = lambda: asyncio.run_coroutine_threadsafe(connect(), loop).result()
            judge(all_at_once({f"{at}": call for at in range(CALLERS)}), "connect_timeout (1 s)", 1)


@pytest.mark.full
def test_a_host_that_is_not_there_leaves_time_for_the_others(server: EmbeddedServer) -> None:
    """Of two servers one swallows what is sent to it: the other is found in time, whichever comes first."""
    for hole in (dropping, silent):
        with hole() as hosts:
            for _ in range(4):
                both = f"{hosts},{server.hosts}"
                with Zkmq.connect(both, root=fresh_root(), connect_timeout=3, session_timeout=30, gc=False) as zk:
                    assert zk.queues() == []


def test_a_name_that_is_not_known_is_said_at_once(server: EmbeddedServer) -> None:
    """By an error of its own, which hides no server that can be reached; so is a port where nobody listens."""
    (ended,) = all_at_once({"": lambda: Zkmq.connect("no-such-host.invalid:2181", connect_timeout=30)})
    assert isinstance(ended.error, HostNotFound)
    assert "no-such-host.invalid" in str(ended.error)
    assert ended.seconds < 30
    with Zkmq.connect(f"no-such-host.invalid:2181,{server.hosts}", root=fresh_root(), gc=False) as zk:
        assert zk.queues() == []
    with silent() as hosts:
        assert hosts  # a port that is closed after the block
    with pytest.raises(Unavailable, match=hosts):
        Zkmq.connect(hosts, connect_timeout=1)


# --- a frozen server


def calls_of_all_kinds(q: Any, ids: list[str]) -> dict[str, Callable[[], Any]]:
    """Fifty calls; each would be answered at once by a server that goes on."""
    claims = [taken(q) for _ in range(5)]
    makers: list[Callable[[int], Callable[[], Any]]] = [
        lambda at: lambda: q.enqueue(b"new", task_id=f"new{at}"),
        lambda _: q.claim,
        lambda _: lambda: q.claim(timeout=20),
        lambda at: lambda: q.wait([ids[at % len(ids)]], timeout=20),
        lambda _: q.counts,
        lambda at: lambda: q.task(ids[at % len(ids)]),
        lambda _: q.tasks,
        lambda at: claims[at % 5].complete,
        lambda _: q.pause,
        lambda at: lambda: q.cancel(ids[-1 - at % 3]),
    ]
    return {f"{at} of kind {at % len(makers)}": makers[at % len(makers)](at) for at in range(CALLERS)}


@pytest.mark.full
@pytest.mark.parametrize(("kind", "warm"), [("blocking", True), ("blocking", False), ("asynchronous", True)])
def test_fifty_callers_of_a_frozen_server_end_together(server: EmbeddedServer, kind: str, warm: bool) -> None:
    """Each within `request_timeout`; then each task is in one place, claims are given back, everybody goes on."""
    root = fresh_root()
    with connected(kind, server.hosts, root=root, request_timeout=2, session_timeout=30, gc=False) as zk:
        q = zk.queue("q")
        ids = q.enqueue_many([Message(b"x")] * 20)
        calls = calls_of_all_kinds(q, ids)
        if not warm:
            zk._contexts["q"].configuration.watch = None
            zk._contexts["q"].registration.consumer = None
            zk._contexts["q"].listings.readings.clear()
        with frozen(server):
            ended = all_at_once(calls)
        judge([one for one in ended if "kind 2" not in one.name or one.error], "request_timeout (2 s)", 2)
        q.resume()
        names = []
        while (claim := q.claim()) is not None:
            names.append(claim.task.id)
            claim.complete()
        assert len(names) == len(set(names))
        states = [str(task.state) for task in q.tasks()]
        assert set(states) <= {"finished", "cancelled", "claimed"}
        assert states.count("claimed") <= 5, "those that the test itself had claimed"


def test_a_call_s_own_timeout_binds_its_requests_too(server: EmbeddedServer) -> None:
    """The error names it; calls in turn wait for their own limit only; what was sent is never denied."""
    options: dict[str, Any] = {"root": fresh_root(), "session_timeout": 30, "gc": False}
    with (
        Zkmq.connect(server.hosts, request_timeout=30, **options) as patient,
        Zkmq.connect(server.hosts, request_timeout=2, **options) as zk,
    ):
        q, there = zk.queue("q"), patient.queue("q")
        task_id, *_ = q.enqueue_many([Message(b"x")] * 10)
        tx = zk.transaction()
        assert tx.try_take("q") is not None
        own: dict[str, Callable[[], Any]] = {
            "claim": lambda: there.claim(timeout=1),
            "wait": lambda: there.wait([task_id], timeout=1),
            "follow": lambda: there.follow(task_id, lambda _task: None, timeout=1),
            "transaction": lambda: patient.transaction().try_take("q", timeout=1),
        }
        in_turn: dict[str, Callable[[], Any]] = {f"{at}": lambda: tx.try_take("q") for at in range(8)}
        with frozen(server):
            judge(all_at_once(own), "timeout (1 s)", 1)
            ended = all_at_once(in_turn | {"enqueue": lambda: q.enqueue(b"y", task_id="y")})
        judge(ended, "request_timeout (2 s)", 2)
        assert [type(one.error) for one in ended if one.name == "enqueue"] == [OutcomeUnknown]
        tx.rollback()
        assert q.enqueue(b"y", task_id="y") == "y"
        eventually(lambda: q.counts()["inserted"] == 11)


@pytest.mark.full
def test_closing_ends_in_time(tmp_path: Path) -> None:
    """A silent server is waited for a moment: not as long as by a request, nor for each queue."""
    with EmbeddedServer(tmp_path, force_sync=False) as own:
        for leave, come_back in ((own.pause, own.resume), (own.kill, own.restart)):
            zk = Zkmq.connect(own.hosts, root=fresh_root(), request_timeout=60, session_timeout=60)
            tried = Zkmq.connect(own.hosts, root=fresh_root(), request_timeout=12, session_timeout=4, gc=False)
            tried.queue("a").configure()
            for name in map(str, range(20)):
                zk.queue(name).enqueue(b"x")
                taken(zk.queue(name))
            leave(0)
            ended = all_at_once({"close": zk.close})
            with pytest.raises(Unavailable):
                tried.queue("a").counts()
            ended += all_at_once({"close": tried.close})
            come_back(0)
            assert [one.error for one in ended] == [None, None]
            assert max(one.seconds for one in ended) < 10


@pytest.mark.full
def test_what_was_handled_is_settled_by_closing_however_long_a_server_is_silent(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its completion has as long as any call; the caller hears of a success, and the task is finished for others."""
    monkeypatch.setattr(client, "DISCONNECT_SECONDS", 0.05)
    root, settled = fresh_root(), SimpleQueue[tuple[bool, Exception | None]]()
    zk = Zkmq.connect(server.hosts, root=root, request_timeout=60, session_timeout=60, gc=False)
    zk.queue("a").enqueue(b"x", task_id="x")
    claim = taken(zk.queue("a"))
    with frozen(server):
        claim.settle_later(Success(b"done"), Settlement(), lambda *told: settled.put(told))
        closing = threading.Thread(target=zk.close)
        closing.start()
        closing.join(1)  # far longer than closing waits where nothing is to be settled
        assert settled.empty()
    closing.join(60)
    assert settled.get(timeout=1) == (True, None)
    with Zkmq.connect(server.hosts, root=root, gc=False) as other:
        assert other.queue("a").wait(["x"], timeout=60)[0].result == b"done"
        assert other.queue("a").claim() is None
