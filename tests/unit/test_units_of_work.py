"""ZkQueue's unit of work, before anything of it is sent and when nobody answers."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

from airflow_provider_zkmq.engine import (
    AsyncZkmq,
    ConfigError,
    IllegalTransition,
    OrderedEnum,
    OutcomeUnknown,
    TaskTooLarge,
    TransportError,
    Unavailable,
    Zkmq,
)
from airflow_provider_zkmq.engine.config import ConnectionConfig
from airflow_provider_zkmq.engine.core.memory.claims import Claimed
from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.protocol.ops import Reconnect
from airflow_provider_zkmq.engine.core.protocol.writes import Multi
from airflow_provider_zkmq.engine.core.reading import configuration
from airflow_provider_zkmq.engine.core.tasks import configure, giveback, putting, transaction
from airflow_provider_zkmq.engine.fronts.unit import Transaction
from tests.fake_zookeeper import new_context
from tests.unit.world import LOST_REPLY, LOST_REQUEST, Client, at, new_queue

NOWHERE = ConnectionConfig.of("127.0.0.1:1", request_timeout=20, session_timeout=0.2)


def unit_with(client: Client, *messages: Message, queue: str = "new") -> transaction.Transaction:
    unit = transaction.Transaction()
    context = new_context(client.zk, client.session, queue)
    for message in messages:
        putting.put(unit.put, context, message)
    return unit


def test_a_put_is_in_memory_only() -> None:
    """It needs no connection and sends nothing; what is wrong whatever the queue declares is refused all the same."""
    client = Zkmq(NOWHERE)
    unit = client.transaction()
    assert unit.put("q", b"x", {"size": 3}, task_id="a") == "a"
    assert unit.put("q", b"x") != unit.put("q", b"x")
    for wrong in (
        {"priority": 10**6},
        {"task_id": "a/b"},
        {"delay": -5},
        {"update": True},
        {"metadata": {"a": object()}},
    ):
        with pytest.raises(ConfigError):
            unit.put("q", b"x", **wrong)
    with pytest.raises(TaskTooLarge):
        unit.put("q", b"x" * 2_000_000)
    with pytest.raises(ConfigError, match="queue name"):
        unit.put("a/b", b"x")
    assert (client.requests, len(unit._subject.transaction.put)) == ({}, 3)


async def test_a_put_on_an_event_loop_is_in_memory_only() -> None:
    """The same, awaited."""
    client = AsyncZkmq(NOWHERE)
    assert await client.transaction().put("q", b"x", task_id="a") == "a"
    assert client.requests == {}


def test_a_commit_creates_the_queues_that_it_puts_into() -> None:
    """Until then there are none; the task is there with its filters as declared by then."""
    client = new_queue()
    unit = unit_with(client, Message(b"x", {"c": "low"}, task_id="a"))
    assert "/zkmq/new" not in client.zk.nodes
    maker = new_context(client.zk, client.session, "new")
    client.do(configure.configure(maker, filters={"c": OrderedEnum("low", "high")}))
    assert client.do(transaction.commit(unit)) == ["a"]
    assert client.zk.nodes["/zkmq/new/tasks/a/filters/c"].data == b"low"
    assert client.do(transaction.commit(unit_with(client, Message(b"y"), queue="other"))) != []
    assert "/zkmq/other/conf/layout" in client.zk.nodes


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([Message(b"x"), Message(b"x", {"c": "low"})], ConfigError),
        ([Message(b"x" * 600_000)] * 2, TaskTooLarge),
    ],
    ids=["an undeclared filter", "too large"],
)
def test_a_refused_commit_creates_no_queue(messages: list[Message], error: type[Exception]) -> None:
    """What was put is checked as a whole before anything is written; the transaction can be rolled back."""
    client = new_queue()
    unit, before = unit_with(client, *messages), set(client.zk.nodes)
    with pytest.raises(error):
        client.do(transaction.commit(unit))
    assert set(client.zk.nodes) == before
    client.do(transaction.rollback(unit))
    assert unit.ended


def test_filters_are_checked_at_once_where_the_queue_is_known() -> None:
    """By what the client remembers, at no request; the caller's own mapping may change afterwards."""
    client, unit = new_queue(filters={"c": OrderedEnum("low", "high")}), transaction.Transaction()
    filters = {"c": "low"}
    putting.put(unit.put, client.context, Message(b"x", filters, task_id="a"))
    filters["c"] = "nonsense"
    client.do(configuration.read_conf(client.context))
    with pytest.raises(ConfigError, match="nonsense"):
        putting.put(unit.put, client.context, Message(b"x", filters))
    assert client.do(transaction.commit(unit)) == ["a"]
    assert client.state("a").filters == {"c": "low"}


# --- rolling back what nobody answers for


def taken() -> tuple[Client, Claimed, transaction.Transaction]:
    client = new_queue()
    client.put(task_id="a")
    claimed = client.claimed()
    return client, claimed, transaction.Transaction([(client.context, claimed)])


def holder(*, over: bool) -> giveback.Holder:
    return giveback.Holder(lambda: over, giveback.REACHABLE.reach)


def test_a_rollback_after_the_end_of_its_session_asks_nobody() -> None:
    """The server gave back what the session held: the rollback is over at once, and others take the task."""
    client, _, unit = taken()
    client.zk.expire(client.session)
    asked: list[Any] = []
    client.do(transaction.rollback(unit, holder(over=True)), asked.append)
    assert (asked, unit.ended, unit.taken) == ([], True, [])
    assert Client(client.zk, "other").work() == ["a"]


def test_a_rollback_out_of_reach_of_its_session_is_owed_to_it() -> None:
    """The session was out of reach for longer than it lives, and lives: its client gives the task back all the same."""
    client, claimed, unit = taken()
    lost = at(0, Unavailable("gone"), Multi)
    over: list[bool] = []
    gone = giveback.Holder(lambda: bool(over) or over.append(True) is not None, giveback.REACHABLE.reach)
    client.do(transaction.rollback(unit, gone), lost)
    assert (unit.ended, unit.taken) == (True, [])
    assert [owed.claimed for owed in client.context.claims.owed.values()] == [claimed]
    assert Client(client.zk, "other").take() is None
    assert client.do(giveback.give_back(client.context)) == 1
    assert Client(client.zk, "other").work() == ["a"]


def test_a_rollback_whose_reply_is_lost_waits_no_longer_than_its_session_lives() -> None:
    """Sent, and cut off: it does not wait for the connection beyond the end of the session, and raises nothing."""
    client, _, unit = taken()
    asked: list[Any] = []
    lost = giveback.Holder(lambda: any(isinstance(op, Multi) for op in asked), giveback.REACHABLE.reach)

    def cut_off(op: Any) -> Any:
        asked.append(op)
        return LOST_REQUEST if isinstance(op, Multi) else None

    client.do(transaction.rollback(unit, lost), cut_off)
    assert unit.ended
    assert isinstance(asked[-1], Multi)
    client.zk.expire(client.session)
    assert Client(client.zk, "other").work() == ["a"]


def test_a_rollback_that_may_have_met_a_commit_says_so_whatever_became_of_the_session() -> None:
    """The commit was sent and its outcome is unknown: that the session is over does not tell it."""
    client, _, unit = taken()

    def cut_off(op: Any) -> Any:
        gone = Unavailable("gone") if isinstance(op, Reconnect) else None
        return LOST_REPLY if isinstance(op, Multi) else gone

    with pytest.raises(OutcomeUnknown):
        client.do(transaction.commit(unit), cut_off)
    with pytest.raises(TransportError):
        client.do(transaction.rollback(unit, holder(over=True)), lambda _op: Unavailable("gone"))
    assert not unit.ended
    with pytest.raises(IllegalTransition, match="had happened"):
        client.do(transaction.rollback(unit))


def lost_unit(client: Zkmq) -> Transaction:
    """A unit of work that was begun in a session, which is out of reach since."""
    client._session.id, client._session.away_since = 7, time.monotonic()
    return Transaction(client._session, client._context, client._used)


def test_a_session_is_over_once_it_is_out_of_reach_for_its_time_out() -> None:
    """By this machine's clock; at once where it is known to have ended, or where the connection was closed."""
    client = Zkmq(NOWHERE)
    unit = lost_unit(client)
    for event in (None, "ended", "another", "closed"):
        client._session.away_since, client._session.id = time.monotonic(), 7
        assert not unit.is_over()
        match event:
            case None:
                client._session.away_since -= 1
            case "ended":
                client._session.id = 0
            case "another":
                client._session.id = 8
            case "closed":
                client._session.closed = True
        assert unit.is_over()


def test_who_rolls_back_waits_no_longer_than_the_session_lives() -> None:
    """Cut off, a rollback ends with the session's time-out and raises nothing: nothing is left that it could free."""
    client = Zkmq(NOWHERE)
    unit = client.transaction()
    client._session.id, client._session.away_since = 7, time.monotonic()
    unit._subject._session_id = 7
    unit.rollback()
    assert not unit.open
    assert client.requests == {}


def test_a_failing_rollback_does_not_hide_what_ended_the_block(caplog: pytest.LogCaptureFixture) -> None:
    """The handler's own error leaves the block, with a note that tells of the rollback, which is logged."""

    class Broken(Exception):
        """The handler's."""

    for trouble in (OutcomeUnknown("lost"), Unavailable("away"), RuntimeError("a mistake")):
        unit = Zkmq(NOWHERE).transaction()
        unit.rollback = lambda trouble=trouble: (_ for _ in ()).throw(trouble)  # type: ignore[method-assign, misc]
        caplog.clear()
        with caplog.at_level(logging.WARNING), pytest.raises(Broken) as caught, unit:
            raise Broken
        assert str(trouble) in caught.value.__notes__[0]
        assert str(trouble) in caplog.text


async def test_a_failing_rollback_hides_nothing_on_an_event_loop(caplog: pytest.LogCaptureFixture) -> None:
    """Nor a cancellation; and where nothing ended the block, the rollback's own error is raised."""
    unit = AsyncZkmq(NOWHERE).transaction()

    async def failing() -> None:
        await asyncio.sleep(0)
        raise Unavailable("away")

    unit.rollback = failing  # type: ignore[method-assign]
    with pytest.raises(KeyError) as caught:
        async with unit:
            raise KeyError("mine")
    assert caught.value.__notes__ == ["its rollback: away"]
    with pytest.raises(Unavailable):
        async with unit:
            pass
    assert "away" in caplog.text
