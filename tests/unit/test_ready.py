"""Whether there is work: who looks claims nothing, is no consumer, takes nobody's wake-up, and sleeps over nothing."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.claim import claim
from airflow_provider_zkmq.engine.core.claim.wait_until_ready import ready
from airflow_provider_zkmq.engine.core.maintenance import consumer_registry
from airflow_provider_zkmq.engine.core.model.filters import String
from airflow_provider_zkmq.engine.core.model.settings import RetryPolicy
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.tasks import admin, interventions
from airflow_provider_zkmq.engine.core.zk_operations import Create, Delete, Wait
from airflow_provider_zkmq.engine.errors import ConfigError, QueueNotFound
from tests.stepping import Stepper
from tests.unit.claiming import ANY, another, queue_of, step
from tests.unit.world import Client


def queue(*names: str, order: str = "default") -> tuple[Client, Client]:
    """A client that changes the queue, and another one that looks."""
    policy = RetryPolicy(attempts=5, factor=0)
    client = queue_of(names, order=order, filters={"k": String()}, policy=policy)
    return client, another(client, "looker")


def look(looker: Client, **requested: Any) -> Any:
    return looker.do(ready(looker.context, **requested))


def waiting(looker: Client, **requested: Any) -> Stepper:
    """A client that has found nothing, and is about to wait."""
    stepper = step(looker, ready(looker.context, **({"timeout": None} | requested)))
    stepper.until(Wait)
    assert not stepper.over
    return stepper


def woken(waiter: Stepper) -> bool:
    """Let a waiter go on that was told; whether it has found work, or waits again."""
    assert waiter.op.signal.count > waiter.op.seen, "it sleeps although something has come"
    waiter.answer(True)
    waiter.until(Wait)
    return waiter.over and waiter.result is True


def in_time(client: Client, waiter: Stepper, seconds: float) -> bool:
    """Let so much time pass for a waiter; whether it has found work, or waits again."""
    client.zk.advance(seconds)
    waiter.answer(False)
    waiter.until(Wait)
    return waiter.over and waiter.result is True


def test_who_only_looks_is_no_consumer() -> None:
    """It is on no register: it has no share of a crowd, and nobody buries it. A client of both announces its claims."""
    client, looker = queue()
    client.put(task_id="a", delay=1)
    assert in_time(client, waiting(looker), 2)
    assert looker.context.registration.consumer is None
    assert not [path for path in client.zk.nodes if path.startswith(("/zkmq/q/consumers/", "/zkmq/q/live/"))]
    looker.do(consumer_registry.register(looker.context, "k=='x'"))
    look(looker, selector="k==y")
    assert looker.context.registration.consumer is not None
    assert looker.context.registration.consumer.accepts == ["k=='x'"]


def test_a_waiter_is_woken_by_an_enqueue_and_asks_for_nothing_while_it_is_idle() -> None:
    """Its second look at a queue in which nothing has happened is made from memory; it ends when told to stop."""
    client, looker = queue("a")
    client.complete(client.claimed())
    waiter = waiting(looker)
    assert waiter.op.timeout is None
    waiter.answer(True)
    requested = len(waiter.done)
    waiter.until(Wait)
    assert len(waiter.done) == requested, "nothing has happened, so that nothing is asked for"
    stop: list[bool] = []
    stopped = waiting(looker, stopping=lambda: bool(stop))
    client.put(task_id="b")
    assert woken(waiter)
    stop.append(True)
    looker.context.signal.fire()
    stopped.answer(True)
    assert stopped.finish() is False


def test_nothing_is_ready_in_a_paused_queue() -> None:
    """Who waits is woken when it is resumed."""
    client, looker = queue("a")
    client.do(admin.pause(client.context))
    waiter = waiting(looker)
    client.do(admin.resume(client.context))
    assert woken(waiter)


def test_only_what_fits_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entries of a mixed lane are judged by their records, as a claim judges them."""
    client, looker = queue()
    client.put(task_id="a", filters={"k": "x"})
    waiter = waiting(looker, selector="k==y")
    client.put(task_id="b", filters={"k": "z"})
    assert not woken(waiter)
    client.put(task_id="c", filters={"k": "y"})
    assert woken(waiter)
    with pytest.raises(ConfigError):
        look(looker, selector="nonsense==1")
    monkeypatch.setattr("airflow_provider_zkmq.engine.core.write.commit.MAX_LANES", 1)
    client, looker = queue()
    for kind in "xyz":
        client.put(filters={"k": kind})
    assert any(path.endswith(";*") for path in client.zk.nodes)
    assert [look(looker, selector=f"k=={kind}") for kind in "xyzw"] == [True, True, True, False]


def test_a_task_whose_attempts_are_used_up_is_no_work() -> None:
    """The policy was lowered meanwhile: it goes to the dead letters, as when a claim meets it."""
    client, looker = queue("a")
    client.fail(client.claimed())
    client.do(admin.configure(client.context, policy=RetryPolicy(attempts=1)))
    assert look(looker) is False
    assert client.check()["a"].state is State.DEAD
    client.put(task_id="b")
    assert look(looker) is True


def test_what_a_claim_would_step_over_is_no_work() -> None:
    """An entry without a task, which is told of once, and a task without its payload: no claim would find any."""
    client, looker = queue("a", "b")
    segment = client.context.paths.entry(client.state("a").place).rpartition("/")[0]
    client.do(interventions.drop(client.context, "a"))
    client.complete(client.claimed())
    client.zk.multi(client.session, (Create(f"{segment}/0000000000000000000000~gone"),))
    assert [look(looker), look(looker)] == [False, False]
    assert len(looker.reports) == 1
    client, looker = queue("a")
    client.zk.multi(0, (Delete(client.context.paths.task("a", "data")),))
    assert look(looker) is False


def test_it_takes_no_wake_up_from_one_who_claims() -> None:
    """An event wakes one of those who claim and one of those who look: they sit apart, though in one client."""
    _, looker = queue()
    claiming = step(looker, claim.claim(looker.context, ANY, 30))
    claiming.until(Wait)
    kinds = [
        each.op.place.kind for each in (claiming, waiting(looker), waiting(looker), waiting(looker, selector="k==x"))
    ]
    assert kinds[1] == kinds[2]
    assert len(set(kinds)) == 3


def test_a_queue_that_is_not_there_or_goes_while_it_is_waited_for_is_told_of() -> None:
    """Who waits is woken for it."""
    client, looker = queue()
    waiter = waiting(looker)
    client.do(admin.delete(client.context, confirm=True))
    assert waiter.op.signal.count > waiter.op.seen
    with pytest.raises(QueueNotFound):
        woken(waiter)
    with pytest.raises(QueueNotFound):
        look(looker)
