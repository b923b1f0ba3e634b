"""What a merged plan, and a plan sent more than once, owe to their callers."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from airflow_provider_zkmq.engine import AsyncQueue, AsyncUnitOfWork, Queue, UnitOfWork
from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Reconnect
from airflow_provider_zkmq.engine.core.protocol.writes import Delete, Multi
from airflow_provider_zkmq.engine.core.tasks import enqueue, operate, transaction
from airflow_provider_zkmq.engine.errors import ClaimLost, OutcomeUnknown, Unavailable
from tests.unit.world import LOST_REPLY, Client, new_queue


@pytest.mark.parametrize("ghosts", [("b",), ("a",), ("a", "b")])
def test_a_transaction_leaves_behind_the_membership_that_is_missing_and_no_other(ghosts: tuple[str, ...]) -> None:
    client = new_queue()
    members = [Message(b"x", task_id=task_id) for task_id in ("a", "b")]
    client.do(enqueue.enqueue_batch(client.context, members, "batch"))
    unit = transaction.Transaction([(client.context, client.claimed()) for _ in members])
    client.zk.multi(0, tuple(Delete(client.context.paths.batch("batch", "open", ghost)) for ghost in ghosts))
    client.do(transaction.commit(unit))
    for task_id in ("a", "b"):
        state = client.state(task_id)
        assert (state.state, state.batch) == (State.FINISHED, None if task_id in ghosts else "batch")
    assert client.zk.names(client.context.paths.batch("batch", "open")) == []
    assert len(client.reports) == len(ghosts)


def test_an_enqueue_that_went_elsewhere_and_lost_its_reply_is_not_told_to_be_unsent() -> None:
    client = new_queue()
    segment = client.context.paths.entry(client.state(client.put(task_id="first")).place).rpartition("/")[0]
    assert client.take() is not None
    message, sent = Message(b"payload"), []

    def fault(op: Any) -> Any:
        if isinstance(op, Multi) and any(getattr(part, "data", None) == message.data for part in op.ops):
            sent.append(op)
            if len(sent) == 1:
                client.zk.multi(0, (Delete(segment),))
            return LOST_REPLY if len(sent) == 2 else None
        return Unavailable("no server is connected") if len(sent) > 2 else None

    with pytest.raises(OutcomeUnknown):
        client.do(enqueue.enqueue(client.context, message), fault)
    task_id = client.do(enqueue.enqueue(client.context, message))
    assert len(sent) == 3
    assert sorted(client.zk.names(client.context.paths.at("tasks"))) == sorted(["first", task_id])


def test_that_nothing_tells_any_more_what_became_of_a_commit_is_told_once() -> None:
    client, other = (made := new_queue()), Client(made.zk, "other")
    client.put(task_id="a")
    unit = transaction.Transaction([(client.context, client.claimed())])
    lost = iter([LOST_REPLY])

    def cut_off(op: Any) -> Any:
        if isinstance(op, Reconnect):
            return Unavailable("no server is connected")
        finishes = isinstance(op, Multi) and any(part.path.endswith("/result") for part in op.ops)
        return next(lost) if finishes else None

    with pytest.raises(OutcomeUnknown):
        client.do(transaction.commit(unit), cut_off)
    assert other.do(operate.clear(other.context)) == 1
    with pytest.raises(OutcomeUnknown, match="collected"):
        client.do(transaction.commit(unit))
    with pytest.raises(ClaimLost):
        client.do(transaction.commit(unit))


@pytest.mark.parametrize(
    ("method", "returns"),
    [
        (Queue.claim, "Claim | None"),
        (AsyncQueue.claim, "AsyncClaim | None"),
        (UnitOfWork.try_take, "Task | None"),
        (AsyncUnitOfWork.try_take, "Task | None"),
    ],
)
def test_what_claims_is_shown_to_return_what_its_caller_gets(method: Any, returns: str) -> None:
    assert inspect.signature(method).return_annotation == returns
