"""What a queue does by itself: configuration that takes effect at once, clean-up by whoever uses it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from airflow_provider_zkmq.engine import Integer, Message, Queue, RetryPolicy, Zkmq
from airflow_provider_zkmq.engine.api import background_maintenance
from airflow_provider_zkmq.engine.core.maintenance import due_work
from airflow_provider_zkmq.engine.core.zk_operations import Wait
from airflow_provider_zkmq.engine.queue_internals import internals
from tests.integration.conftest import taken
from tests.integration.fronts import KINDS, connected
from tests.support import eventually


def test_configuration_takes_effect_at_once_in_every_client(other: Zkmq, q: Queue) -> None:
    """A client that has read the configuration obeys what another one changes, as soon as its watch has told it."""
    there = other.queue("census")
    assert there.claim() is None

    def told() -> bool:
        watch = there._context.configuration.watch
        return watch is not None and watch.fired

    q.configure(filters={"size": Integer()}, policy=RetryPolicy(attempts=1), lock=1)
    eventually(told)
    there.enqueue(b"x", {"size": 3})
    first = taken(there, selector="size>=3")
    assert first._claimed.claim["lease"] == 1
    assert first.fail("once is enough") == "dead"
    q.pause()
    eventually(told)
    there.enqueue(b"x")
    assert there.claim() is None
    q.resume()
    eventually(told)
    assert there.claim() is not None


def test_who_produces_or_consumes_cleans_up(zk: Zkmq, zookeeper: str, root: str, q: Queue) -> None:
    """Finished tasks vanish after their lifetime though nobody asks for it; a client that opted out does nothing."""
    q.configure(task_gc_lifetime=0, task_gc_interval=1)
    q.enqueue(b"x", task_id="a")
    taken(q).complete()
    before = set(threading.enumerate())
    assert zk._maintenance is None
    assert q.task("a").state == "finished"
    with Zkmq.connect(zookeeper, root=root) as other:
        other.queue("census").enqueue(b"y", task_id="b")
        eventually(lambda: [task.id for task in q.tasks()] == ["b"])
    assert not [new for new in set(threading.enumerate()) - before if new.name == "zkmq-upkeep"]


def runs(zk: Zkmq, path: str) -> int:
    """How often clean-up has run."""
    version: int = zk._session.client.exists(f"{path}/gc").version
    return version


def finish(zk: Zkmq, path: str, q: Queue, task_id: str) -> None:
    """A task that has ended by the server's clock, too: its client's estimate of the end may be ahead of that."""
    q.enqueue(b"x", task_id=task_id)
    taken(q).complete()
    client = zk._session.client
    ended = json.loads(client.get(f"{path}/tasks/{task_id}/state")[0])["ended"]
    eventually(lambda: internals(q).zxid() > 0 and client.exists(f"{path}/clock").mtime > ended)


def overdue(zk: Zkmq, path: str, name: str) -> Queue:
    """A queue that was never cleaned up, in which task `a` is over its lifetime."""
    q = zk.queue(name)
    q.configure(task_gc_lifetime=0, task_gc_interval=3600)
    finish(zk, path, q, "a")
    return q


def test_a_producer_of_one_enqueue_makes_an_overdue_clean_up(
    zk: Zkmq, zookeeper: str, root: str, subtests: pytest.Subtests
) -> None:
    """Or of one transaction, taking or putting; not again before the interval has passed, and not if it opted out."""
    uses: dict[str, Callable[[Any], object]] = {
        "enqueues": lambda client: client.queue("enqueues").enqueue(b"y"),
        "takes": lambda client: client.transaction().try_take("takes"),
        "puts": lambda client: (tx := client.transaction()).put("puts", b"y") and tx.commit(),
    }
    for (name, use), kind in product(uses.items(), KINDS):
        with subtests.test(name, kind=kind):
            q = overdue(zk, f"{root}/{name}", name)
            for number in range(3):
                with connected(kind, zookeeper, root=root, gc=number > 0) as client:
                    use(client)
                assert (runs(zk, f"{root}/{name}"), "a" in internals(q).ids()) == (min(number, 1), number == 0)
            q.delete(confirm=True, force=True)


def test_a_clean_up_that_does_not_end_holds_up_no_close(
    zk: Zkmq, zookeeper: str, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests are not answered: the client closes all the same, its lock goes, and the next one cleans up."""
    q, entered = overdue(zk, f"{root}/q", "q"), list[Any]()

    def stuck(context: Any) -> Any:
        assert (yield from due_work.take_lock(context))
        entered.append(context.run.new_signal())
        yield Wait(entered[0], 0, 600)

    for task_id, instead in (("b", stuck), ("c", background_maintenance.collect_if_due)):
        with monkeypatch.context() as patch:
            patch.setattr(background_maintenance, "collect_if_due", instead)
            with Zkmq.connect(zookeeper, root=root) as producer:
                producer.queue("q").enqueue(b"y", task_id=task_id)
        assert (len(entered), producer.closed) == (1, True)
    entered[0].fire()
    assert [task.id for task in q.tasks()] == ["b", "c"]


def test_a_shorter_lifetime_or_interval_takes_effect_at_once(zk: Zkmq, zookeeper: str, root: str) -> None:
    """A lifetime whatever the interval is, once only; who sleeps out the old interval is woken by the new one."""
    q, path = zk.queue("q"), f"{root}/q"
    q.configure(task_gc_lifetime=86_400, task_gc_interval=3600)
    with Zkmq.connect(zookeeper, root=root) as other, Zkmq.connect(zookeeper, root=root) as third:
        for client in (other, third):
            client.queue("q").enqueue(b"y")
        eventually(lambda: runs(zk, path) == 1)
        q.clear()
        finish(zk, path, q, "a")
        assert q.collect_garbage().collected == 0
        q.configure(task_gc_lifetime=0)
        eventually(lambda: q.tasks() == [])
        eventually(lambda: runs(zk, path) == 3)
        q.configure(task_gc_interval=1)
        eventually(lambda: runs(zk, path) >= 5)


def test_consumers_say_what_they_are_working_on(zk: Zkmq, root: str, q: Queue) -> None:
    """`consumers/<id>/current` lists the tasks in hand; `clear` empties a queue and takes them from their consumers."""
    q.enqueue_many([Message(b"x", task_id="a"), Message(b"x", task_id="b"), Message(b"x", task_id="c", delay=60)])
    claim = taken(q)
    client = zk._session.client
    (consumer,) = client.get_children(f"{root}/census/consumers")
    assert client.get_children(f"{root}/census/consumers/{consumer}/current") == [claim.task.id]
    assert q.clear("claimed") == 1
    assert client.get_children(f"{root}/census/consumers/{consumer}/current") == []
    assert q.clear() == 2
    assert sum(q.counts().values()) == 0
