"""ZkQueue's unit of work, before anything of it is sent and when nobody answers."""

from __future__ import annotations

import logging
import time
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from airflow_provider_zkmq.engine import (
    AccessDenied,
    AsyncZkmq,
    ConfigError,
    DuplicateTask,
    IllegalTransition,
    OrderedEnum,
    OutcomeUnknown,
    TaskTooLarge,
    TransportError,
    Unavailable,
    Zkmq,
    ZkmqError,
)
from airflow_provider_zkmq.engine.api import transaction_procedures
from airflow_provider_zkmq.engine.api.transaction_procedures import Transaction
from airflow_provider_zkmq.engine.connection_config import ConnectionConfig
from airflow_provider_zkmq.engine.core.maintenance import due_work
from airflow_provider_zkmq.engine.core.model.new_message import Message
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.read import configuration
from airflow_provider_zkmq.engine.core.tasks import admin, batches, enqueue, interventions, transaction
from airflow_provider_zkmq.engine.core.zk_operations import Children, Create, Delete, Multi, Reconnect, SetData
from tests.unit.claiming import another, queue_of, refused, unit_of
from tests.unit.world import LOST_REPLY, LOST_REQUEST, Client, Fault, at, new_context, new_queue

NOWHERE = ConnectionConfig.of("127.0.0.1:1", request_timeout=20, session_timeout=0.2)
AWAY = Unavailable("gone")


def unit_with(client: Client, *messages: Message, queue: str = "new") -> transaction.TransactionState:
    unit = transaction.TransactionState()
    context = new_context(client.zk, client.session, queue)
    for message in messages:
        transaction.put(unit.put, context, message)
    return unit


async def test_a_put_is_in_memory_only() -> None:
    """It needs no connection and sends nothing, by either front.

    What is wrong whatever the queue declares is refused all the same.
    """
    client, awaited = Zkmq(NOWHERE), AsyncZkmq(NOWHERE)
    unit = client.transaction()
    assert unit.put("q", b"x", {"size": 3}, task_id="a") == "a"
    assert unit.put("q", b"x") != unit.put("q", b"x")
    wrong = {"priority": 10**6, "task_id": "a/b", "delay": -5, "on_conflict": "replace", "metadata": {"a": object()}}
    for name, value in wrong.items():
        with pytest.raises(ConfigError):
            unit.put("q", b"x", **{name: value})
    with pytest.raises(TaskTooLarge):
        unit.put("q", b"x" * 2_000_000)
    with pytest.raises(ConfigError, match="queue name"):
        unit.put("a/b", b"x")
    assert await awaited.transaction().put("q", b"x", task_id="a") == "a"
    assert (client.requests, awaited.requests, len(unit._transaction.transaction.put)) == ({}, {}, 3)


def test_a_commit_creates_the_queues_that_it_puts_into() -> None:
    """Until then there are none; the task is there with its filters as declared by then."""
    client = new_queue()
    unit = unit_with(client, Message(b"x", {"c": "low"}, task_id="a"))
    assert "/zkmq/new" not in client.zk.nodes
    maker = new_context(client.zk, client.session, "new")
    client.do(admin.configure(maker, filters={"c": OrderedEnum("low", "high")}))
    assert client.do(transaction.commit(unit)) == ["a"]
    assert client.zk.nodes["/zkmq/new/tasks/a/filters/c"].data == b"low"
    assert client.do(transaction.commit(unit_with(client, Message(b"y"), queue="other"))) != []
    assert "/zkmq/other/conf" in client.zk.nodes


def test_a_refused_commit_creates_no_queue() -> None:
    """What was put is checked as a whole before anything is written; the transaction can be rolled back."""
    undeclared, large = [Message(b"x"), Message(b"x", {"c": "low"})], [Message(b"x" * 600_000)] * 2
    for messages, error in ((undeclared, ConfigError), (large, TaskTooLarge)):
        client = new_queue()
        unit, before = unit_with(client, *messages), set(client.zk.nodes)
        refused(client, error, transaction.commit(unit))
        assert set(client.zk.nodes) == before
        client.do(transaction.rollback(unit))
        assert unit.ended


def test_filters_are_checked_at_once_where_the_queue_is_known() -> None:
    """By what the client remembers, at no request; the caller's own mapping may change afterwards."""
    client, unit = new_queue(filters={"c": OrderedEnum("low", "high")}), transaction.TransactionState()
    filters = {"c": "low"}
    transaction.put(unit.put, client.context, Message(b"x", filters, task_id="a"))
    filters["c"] = "nonsense"
    client.do(configuration.read_conf(client.context))
    with pytest.raises(ConfigError, match="nonsense"):
        transaction.put(unit.put, client.context, Message(b"x", filters))
    assert client.do(transaction.commit(unit)) == ["a"]
    assert client.state("a").filters == {"c": "low"}


def test_a_transaction_leaves_behind_the_membership_that_is_missing_and_no_other() -> None:
    """Of two members of a batch, the entry of one or both was deleted: both are finished, each loss is reported."""
    for ghosts in (("b",), ("a",), ("a", "b")):
        client = new_queue()
        members = [Message(b"x", task_id=task_id) for task_id in ("a", "b")]
        client.do(enqueue.enqueue_batch(client.context, members, "batch"))
        unit = unit_of(client, 2)
        client.zk.multi(0, tuple(Delete(client.context.paths.batch("batch", "open", ghost)) for ghost in ghosts))
        client.do(transaction.commit(unit))
        for task_id in ("a", "b"):
            state = client.state(task_id)
            assert (state.state, state.batch) == (State.FINISHED, None if task_id in ghosts else "batch")
        assert client.zk.names(client.context.paths.batch("batch", "open")) == []
        assert len(client.reports) == len(ghosts)


def test_an_id_that_has_ended_runs_anew_and_any_other_is_refused_with_its_status() -> None:
    """As by `enqueue`, whatever becomes of the task between two tries; a run in escrow follows at once."""
    client = queue_of("ab")
    client.complete(client.claimed())
    unit = unit_with(client, Message(b"new", task_id="a"), queue="q")
    collected = lambda op: (
        client.do(interventions.drop(client.context, "a")) if "SetData(path='/zkmq/q/tasks/a/s" in str(op) else None
    )
    assert client.do(transaction.commit(unit), collected) == ["a"]
    again = unit_with(client, Message(b"y", task_id="a"), queue="q")
    assert refused(client, DuplicateTask, transaction.commit(again)).status == "queued"
    for damaged in (False, True):
        unit = unit_of(client)
        name = unit.taken[0][1].task_id
        client.put(b"again", task_id=name, on_conflict="requeue")
        path = client.context.paths.task(name, "requeue")
        client.write(*([SetData(path, b"{")] if damaged else []))
        client.do(transaction.commit(unit))
        assert client.check()[name].state == (State.FINISHED if damaged else State.INSERTED)


# --- rolling back what nobody answers for


def taken() -> tuple[Client, transaction.TransactionState]:
    client = queue_of("a")
    return client, unit_of(client)


def holder(over: Any) -> transaction.Holder:
    return transaction.Holder(over, lambda: iter(()))


@pytest.mark.parametrize("late", [True, False])
def test_a_commit_that_was_sent_is_asked_for_though_no_other_plan_could_be_made(late: bool) -> None:
    """Lost on its way, refused as its segment had gone, then no server: it may come late, once the segment is back."""
    client, sent = queue_of(["a"]), list[Any]()
    other = another(client)
    client.put(task_id="w")
    unit = unit_of(client)
    other.complete(other.claimed())
    transaction.put(unit.put, client.context, Message(b"x", task_id="p"))
    segments = client.context.paths.at("queue")

    def fault(op: Any) -> Any:
        if isinstance(op, Multi) and any(each.path == client.context.paths.task("p") for each in op.ops):
            sent.append(op)
            if len(sent) == 1:
                entry = next(
                    each.path for each in op.ops if isinstance(each, Create) and each.path.startswith(segments)
                )
                sent.append(entry.rpartition("/")[0])
                assert client.zk.multi(0, (Delete(sent[1]),)).committed
                return LOST_REQUEST
        elif len(sent) == 3 and isinstance(op, Children):
            return Unavailable("no server")
        return None

    refused(client, OutcomeUnknown, transaction.commit(unit), None, fault)
    if late:
        assert client.zk.multi(0, (Create(sent[1]),)).committed
        assert client.zk.multi(client.session, sent[0].ops).committed
    assert client.do(transaction.commit(unit)) == ["p"]
    states = {name: record.state for name, record in client.check().items()}
    assert states == {"a": State.FINISHED, "w": State.FINISHED, "p": State.INSERTED}


def test_a_commit_that_is_denied_has_not_happened_and_can_be_rolled_back() -> None:
    """The caller hears of its rights; leaving the transaction raises nothing, and the same can be put again."""
    client = new_queue()
    unit = transaction.TransactionState()
    transaction.put(unit.put, client.context, Message(b"x", task_id="p"))
    denied = lambda op: AccessDenied("no rights") if isinstance(op, Multi) and "/tasks/p" in repr(op) else None
    refused(client, AccessDenied, transaction.commit(unit), None, denied)
    client.do(transaction.rollback(unit))
    assert client.check() == {}
    client.put(task_id="p")
    assert client.work() == ["p"]


def putting() -> tuple[Client, transaction.TransactionState, list[Multi], Fault]:
    """A transaction that only puts, what it has sent, and the fault that loses that for good."""
    client, sent = new_queue(), list[Multi]()
    unit = transaction.TransactionState()
    transaction.put(unit.put, client.context, Message(b"x", task_id="p"))

    def fault(op: Any) -> Any:
        if isinstance(op, Multi) and any(each.path == client.context.paths.task("p") for each in op.ops):
            sent.append(op)
            return LOST_REQUEST
        return Unavailable("no server") if isinstance(op, Reconnect) else None

    return client, unit, sent, fault


def test_a_commit_that_may_still_come_is_asked_for_until_something_tells() -> None:
    """Twice it was sent and no server answered: that nothing stands says nothing, as the request may be on its way."""
    client, unit, sent, fault = putting()
    for _ in range(2):
        refused(client, OutcomeUnknown, transaction.commit(unit), None, fault)
    assert client.zk.multi(client.session, sent[0].ops).committed
    assert client.work() == ["p"]
    assert client.do(transaction.commit(unit)) == ["p"]
    assert client.work() == []


def test_a_rollback_of_what_was_only_put_never_says_that_it_is_not_written() -> None:
    """The commit's request was lost, or is late: each rollback looks, and tells of it once it has come."""
    client, unit, sent, fault = putting()
    refused(client, OutcomeUnknown, transaction.commit(unit), None, fault)
    for _ in range(2):
        refused(client, OutcomeUnknown, transaction.rollback(unit), "happen still")
    assert not unit.rolling_back, "commit may be asked again"
    assert client.zk.multi(client.session, sent[0].ops).committed
    refused(client, IllegalTransition, transaction.rollback(unit), "had happened")
    assert client.work() == ["p"]


@pytest.mark.parametrize("closed", [False, True])
def test_who_asked_for_a_rollback_that_could_not_tell_may_ask_a_commit(*, closed: bool) -> None:
    """It tells, and goes on; nothing more is put. A handler whose worker closed its transaction commits no more."""
    client, unit, _, fault = putting()
    tx = Transaction(Zkmq(NOWHERE)._session, lambda _: client.context, lambda _: None)
    tx.transaction = unit
    refused(client, OutcomeUnknown, transaction_procedures.commit(tx), None, fault)
    if closed:
        tx.close()
        refused(client, ZkmqError, transaction_procedures.commit(tx), "has ended")
        assert client.work() == []
    else:
        refused(client, OutcomeUnknown, transaction_procedures.rollback(tx), "happen still")
        refused(client, ZkmqError, transaction_procedures.put(tx, "q", b"y"), "has ended")
        assert client.do(transaction_procedures.commit(tx)) == ["p"]
        assert client.work() == ["p"]
        refused(client, ZkmqError, transaction_procedures.commit(tx), "has ended")
    client.put(task_id="later")
    assert client.work() == ["later"]


def test_cancelled_members_of_a_batch_that_is_gone_run_anew_together() -> None:
    """Each would say to its batch that its record is another task's: where there is no batch, nobody has to know."""
    client, names = new_queue(), list("abcd")
    client.do(enqueue.enqueue_batch(client.context, [Message(b"x", task_id=name) for name in names], "b"))
    for name in names:
        client.cancel(name)
    client.do(batches.delete_batch(client.context, None, client.context.paths.batch("b")))
    unit = transaction.TransactionState()
    for name in names:
        transaction.put(unit.put, client.context, Message(b"y", task_id=name))
    assert client.do(transaction.commit(unit)) == names
    assert sorted(client.work()) == names
    assert client.reports == []


def test_a_rollback_after_the_end_of_its_session_asks_nobody() -> None:
    """The server gave back what the session held: the rollback is over at once, and others take the task.

    Sent, and cut off: it waits no longer than its session lives, and raises nothing.
    """
    for sent in (False, True):
        client, unit = taken()
        requested: list[Any] = []

        def fault(op: Any, requested: list[Any] = requested) -> Any:
            requested.append(op)
            return LOST_REQUEST if isinstance(op, Multi) else None

        over = lambda sent=sent, requested=requested: not sent or any(isinstance(op, Multi) for op in requested)
        if not sent:
            client.zk.expire(client.session)
        client.do(transaction.rollback(unit, holder(over)), fault)
        assert (unit.ended, unit.taken) == (True, [])
        assert isinstance(requested[-1], Multi) if sent else not requested
        client.zk.expire(client.session)
        assert another(client).work() == ["a"]


def test_a_rollback_out_of_reach_of_its_session_is_owed_to_it() -> None:
    """The session was out of reach for longer than it lives, and lives: its client gives the task back all the same."""
    client, unit = taken()
    requested, other, claimed = iter([False]), another(client), unit.taken[0][1]
    client.do(transaction.rollback(unit, holder(lambda: next(requested, True))), at(0, AWAY))
    assert (unit.ended, unit.taken) == (True, [])
    assert [owed.claimed for owed in client.context.claims.unsettled.values()] == [claimed]
    assert other.take() is None
    assert client.do(due_work.give_back(client.context)) == 1
    assert other.work() == ["a"]


def test_a_rollback_that_may_have_met_a_commit_says_so_whatever_became_of_the_session() -> None:
    """The commit was sent and its outcome is unknown: that the session is over does not tell it."""
    client, unit = taken()
    cut_off = lambda op: LOST_REPLY if isinstance(op, Multi) else AWAY if isinstance(op, Reconnect) else None
    refused(client, OutcomeUnknown, transaction.commit(unit), None, cut_off)
    refused(client, TransportError, transaction.rollback(unit, holder(lambda: True)), None, lambda _op: AWAY)
    assert not unit.ended
    refused(client, IllegalTransition, transaction.rollback(unit), "had happened")


def test_a_session_is_over_once_it_is_out_of_reach_for_its_time_out() -> None:
    """By this machine's clock; at once where it is known to have ended, or where the connection was closed.

    Cut off, a rollback ends with the session and raises nothing: nothing is left that it could free.
    """
    client = Zkmq(NOWHERE)
    session = client._session
    session.id, session.away_since = 7, time.monotonic()
    unit = Transaction(session, client._context, client._used)
    for change in ({"away_since": session.away_since - 1}, {"id": 0}, {"id": 8}, {"closed": True}):
        session.id, session.away_since = 7, time.monotonic()
        assert not unit.is_over()
        for name, value in change.items():
            setattr(session, name, value)
        assert unit.is_over()
    client = Zkmq(NOWHERE)
    begun = client.transaction()
    client._session.id, client._session.away_since = 7, time.monotonic()
    begun._transaction._session_id = 7
    begun.rollback()
    assert (begun.open, client.requests) == (False, {})


async def test_a_failing_rollback_does_not_hide_what_ended_the_block(caplog: pytest.LogCaptureFixture) -> None:
    """The handler's own error leaves the block, with a note that tells of the rollback, which is logged.

    So it does on an event loop; where nothing ended the block, the rollback's own error is raised.
    """

    class Broken(Exception):
        """The handler's."""

    for trouble in (OutcomeUnknown("lost"), Unavailable("away"), RuntimeError("a mistake")):
        unit, other = Zkmq(NOWHERE).transaction(), AsyncZkmq(NOWHERE).transaction()
        unit.rollback = Mock(side_effect=trouble)  # type: ignore[method-assign]
        other.rollback = AsyncMock(side_effect=trouble)  # type: ignore[method-assign]
        with caplog.at_level(logging.WARNING):
            with pytest.raises(Broken) as caught, unit:
                raise Broken
            with pytest.raises(Broken) as awaited:
                async with other:
                    raise Broken
        assert caught.value.__notes__ == awaited.value.__notes__ == [f"its rollback: {trouble}"]
        assert [str(trouble) in record.getMessage() + str(record.exc_info) for record in caplog.records] == [True, True]
        caplog.clear()
        with pytest.raises(type(trouble)):
            async with other:
                pass
