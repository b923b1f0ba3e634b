"""Claims on the in-memory ZooKeeper: asked for as the fronts do, cut off anywhere, of lost replies, in doubt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.claim import claim
from airflow_provider_zkmq.engine.core.claim.take import Wanted
from airflow_provider_zkmq.engine.core.client_state import Caller, Claimed
from airflow_provider_zkmq.engine.core.maintenance import due_work
from airflow_provider_zkmq.engine.core.model.filters import EVERYTHING
from airflow_provider_zkmq.engine.core.model.new_message import Message
from airflow_provider_zkmq.engine.core.tasks import enqueue
from airflow_provider_zkmq.engine.core.tasks.transaction import TransactionState
from airflow_provider_zkmq.engine.core.zk_operations import Multi, Procedure, Reconnect, SetTimeout, Wait
from airflow_provider_zkmq.engine.errors import OutcomeUnknown, Unavailable
from tests.stepping import Stepper
from tests.unit.world import UNKNOWN, Client, new_queue

ORDERS = ("default", "fifo")
ANY, LEASED = Wanted(EVERYTHING), Wanted(EVERYTHING, 30)


def queue_of(names: Iterable[str], data: bytes = b"x", **conf: Any) -> Client:
    """The first client of a queue, which has enqueued these."""
    client = new_queue(**conf)
    client.do(enqueue.enqueue_many(client.context, [Message(data, task_id=name) for name in names]))
    return client


def another(client: Client, name: str = "other") -> Client:
    return Client(client.zk, name)


def step(client: Client, procedure: Any) -> Stepper:
    return Stepper(client.zk, client.session, procedure)


def delivered(client: Client, request_claim: Any) -> Procedure[list[Claimed]]:
    """What was asked for, as the fronts carry it out, for a caller that gets it."""
    claims = yield from (yield from request_claim).claiming(Caller())
    for claimed in claims:
        client.context.claims.deliver(claimed)
    return claims


def asked_by_id(client: Client, task_id: str = "a", **options: Any) -> Procedure[list[Claimed]]:
    return delivered(client, claim.request_by_id(client.context, task_id, **options))


def many(client: Client, most: int, wanted: Wanted = ANY) -> list[Claimed]:
    claims: list[Claimed] = client.do(claim.claim_many(client.context, wanted, most))
    return claims


def ids(claims: Iterable[Claimed]) -> list[str]:
    return [claimed.task_id for claimed in claims]


def after_rescue(client: Client, count: int = 1) -> Client:
    """Another client, which has given so many tasks back."""
    other = another(client)
    assert other.do(due_work.maintain(other.context)) == count
    return other


def in_doubt(client: Client, stepper: Stepper, about: str, *, arrived: bool) -> None:
    """Its next transaction about that is carried out or not; who called is told that nobody knows."""
    stepper.until(Multi, about)
    if arrived:
        assert client.zk.multi(client.session, stepper.op.ops).committed
    stepper.answer(UNKNOWN)
    assert isinstance(stepper.op, Reconnect)
    with pytest.raises(OutcomeUnknown):
        stepper.fail(Unavailable("no server answered"))


def counting(counts: Counter[str]) -> Callable[[Any], None]:
    """A fault that strikes nothing, and counts requests."""
    return lambda op: None if isinstance(op, Wait | SetTimeout) else counts.update([type(op).__name__])


def in_hand(name: str = "a", **conf: Any) -> tuple[Client, Claimed]:
    """The first client of a queue, which has this task in hand."""
    client = queue_of([name], **conf)
    return client, client.claimed()


def unit_of(client: Client, count: int = 1) -> TransactionState:
    """A transaction that has taken so many tasks."""
    return TransactionState([(client.context, client.claimed()) for _ in range(count)])


def refused(client: Client, error: type[BaseException], procedure: Any, match: str | None = None, *fault: Any) -> Any:
    """What a call is told that ends with this error."""
    with pytest.raises(error, match=match) as caught:
        client.do(procedure, *fault)
    return caught.value
