"""Transactions that nobody waits for, on a connection whose socket the test plays, from both fronts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.protocol import serialization as wire
from kazoo.protocol.states import KeeperState

from airflow_provider_zkmq.engine.api import background_maintenance
from airflow_provider_zkmq.engine.api.client import new_context
from airflow_provider_zkmq.engine.core.client_state import Claimed
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.tasks import settle
from airflow_provider_zkmq.engine.core.zk_operations import MAX_REQUEST, Get, Multi, Post, SetData
from airflow_provider_zkmq.engine.errors import TaskTooLarge
from airflow_provider_zkmq.engine.zk.acl_check import Access
from airflow_provider_zkmq.engine.zk.procedure_drivers import arun, run
from airflow_provider_zkmq.engine.zk.session import Session
from tests.support import eventually
from tests.unit.test_connection import Wire, arrives, ask, flush, frame, line, open_line, rung, session

__all__ = ["line", "session"]
MARK = Multi((SetData("/a", b"x"),))
_PART = wire.multiheader_struct
#: Replies to a transaction of one part: carried out, and refused.
WRITTEN = _PART.pack(5, False, -1) + wire.stat_struct.pack(*range(11)) + _PART.pack(-1, True, -1)
REFUSED = _PART.pack(-1, False, -103) + wire.int_struct.pack(-103) + _PART.pack(-1, True, -1)


def on_a_loop(session: Session, procedure: Any) -> Any:
    return asyncio.run(arun(session, procedure))


@pytest.fixture(params=[run, on_a_loop], ids=["blocking", "on a loop"])
def post(request: pytest.FixtureRequest, session: Session) -> Callable[..., bool]:
    """Posts a transaction by one of the two drivers."""

    def carried_out(lost: list[str], multi: Multi = MARK) -> Any:
        def posted() -> Any:
            return (yield Post(multi, lambda: lost.append("lost")))

        return request.param(session, posted())

    session.connected.set()
    return carried_out


def test_it_is_written_at_once_and_in_order(session: Session, line: Wire, post: Any) -> None:
    """Before it what was queued, after it what is asked for later; nobody waits, and nothing is told of a success."""
    lost: list[str] = []
    session.send("Get", wire.GetData("/first", None), session.client.handler.async_result(), more=True)
    assert post(lost)
    ask(session, Get("/last"))
    assert ([kind for _, kind in line.requests], rung(session)) == ([4, 14, 4], False)
    assert session.requests["Multi"] == 1
    arrives(session, line, frame(1, wire.write_buffer(b"") + b"\0" * wire.stat_struct.size) + frame(2, WRITTEN))
    assert (lost, len(session.client.send_queue)) == ([], 1)


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(frame(1, REFUSED), id="refused"), pytest.param(frame(1, error=-102), id="denied"),
        KeeperState.CONNECTING, KeeperState.EXPIRED_SESSION, KeeperState.CLOSED,
    ],
)  # fmt: skip
def test_what_was_not_carried_out_is_told(session: Session, line: Wire, post: Any, end: Any) -> None:
    """Refused, or not answered: it is told by the connection's thread."""
    lost: list[str] = []
    assert post(lost)
    assert lost == []
    if isinstance(end, bytes):
        arrives(session, line, end)
    else:
        session.client._notify_pending(end)
    assert lost == ["lost"]


@pytest.mark.parametrize("why", ["away", "closed", "refused by state", "tls", "thread writes", "rest"])
def test_where_it_cannot_be_sent_at_once_nothing_is(session: Session, line: Wire, post: Any, why: str) -> None:
    """Whoever posts it hears so at once; nothing is queued, since that would be lost with this process."""
    match why:
        case "away":
            session.connected.clear()
        case "closed":
            session.closed = True
        case "refused by state":
            session.client._state = KeeperState.EXPIRED_SESSION
        case "tls":
            open_line(session, None)
        case "thread writes":
            session.client.send_queue.take(lambda: None)
        case "rest":
            line.takes = [3]
            ask(session, Get("/large"))
    under_way, lost = len(session.client.send_queue), []  # type: ignore[var-annotated]
    assert not post(lost)
    assert (len(session.client.send_queue), lost, session.requests.get("Multi", 0)) == (under_way, [], 0)


def test_what_the_system_takes_no_whole_of_is_not_given_to_it(session: Session, line: Wire, post: Any) -> None:
    """It is sent by the connection's thread, in order; whoever posts it is told that it has not been yet."""
    lost: list[str] = []
    for number, taken in enumerate((0, 7, BrokenPipeError()), 1):
        line.takes = [taken]
        assert not post(lost)
        assert rung(session)
        flush(session)
        assert [kind for _, kind in line.requests] == [14] * number
        arrives(session, line, frame(number, WRITTEN))
        assert lost == []


def test_what_is_to_be_looked_at_before_or_is_too_large_is_not_skipped(
    session: Session, line: Wire, post: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With credentials nothing is written where it has not been seen to be ours alone. A closed bell is no error."""
    with pytest.raises(TaskTooLarge):
        post([], Multi((SetData("/a", b"x" * MAX_REQUEST),)))
    with monkeypatch.context() as patched:
        patched.setattr(session.access, "secured", True)
        patched.setattr(Access, "questions", lambda _self, _ops: iter([iter(())]))
        assert not post([])
    assert line.requests == []
    line.takes = [0]
    session.client.handler.notifier.close()  # the connection is being closed while the socket takes nothing
    assert not post([])


# --- what was lost is a debt


def claimed_one(session: Session) -> Claimed:
    state = TaskState(State.CLAIMED, place="p", nonce="n", consumer="c")
    return Claimed("t", 7, 1, state, 0, session=session.id, prefetched=True, sent=1e18)


def test_a_lost_mark_is_paid_while_another_thread_has_the_memory(
    session: Session, line: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection's thread waits for no lock of the client's, and whoever pays is there as soon as that is free."""
    paid, context = threading.Event(), new_context(session, "q")

    def finish_later(_context: object) -> Any:
        context.pending.unmarked_starts.clear()
        paid.set()
        return
        yield

    monkeypatch.setattr(background_maintenance, "finish_pending", finish_later)
    session.connected.set()
    claimed = claimed_one(session)
    run(session, settle.begin(context, claimed))
    assert (claimed.prefetched, line.requests, context.pending.unmarked_starts) == (False, [(1, 14)], {})
    ends = threading.Thread(target=session.client._notify_pending, args=(KeeperState.CONNECTING,))
    with session.memory:
        ends.start()
        ends.join(20)
        assert not ends.is_alive()
        assert context.pending.unmarked_starts == {("t", 7): claimed}
        assert not paid.is_set()
    assert paid.wait(20)
    eventually(lambda: not context.pending.finishing)


def test_where_no_thread_is_to_be_had_the_debt_stays(
    session: Session, line: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection's thread goes on, and the next claim pays."""
    context = new_context(session, "q")
    session.connected.set()
    run(session, settle.begin(context, claimed_one(session)))

    def start(_thread: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        session.client._notify_pending(KeeperState.CONNECTING)
    assert background_maintenance.has_pending(context)
    assert not context.pending.finishing
