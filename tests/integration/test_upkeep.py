"""What a queue does by itself: configuration that takes effect at once, clean-up by whoever uses it."""

from __future__ import annotations

import itertools
import threading

from airflow_provider_zkmq.engine import Integer, Queue, RetryPolicy, Zkmq
from tests.support import eventually


def test_configuration_takes_effect_at_once_in_every_client(zk: Zkmq, zookeeper: str, root: str, q: Queue) -> None:
    """A client that has read the configuration obeys what another one changes, as soon as its watch has told it."""
    with Zkmq.connect(zookeeper, root=root, gc=False) as other:
        there = other.queue("census")
        assert there.claim() is None

        def told() -> bool:
            watch = there._context.configuration.watch
            return watch is not None and watch.fired

        q.configure(filters={"size": Integer()}, policy=RetryPolicy(attempts=1), lock=1)
        eventually(told)
        there.enqueue(b"x", {"size": 3})
        first = there.claim(selector="size>=3")
        assert first is not None
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
    q.configure(task_gc_lifetime=0, task_gc_interval=0)
    q.enqueue(b"x", task_id="a")
    claim = q.claim()
    assert claim is not None
    claim.complete()
    assert zk._upkeep is None
    assert q.task("a").state == "finished"
    with Zkmq.connect(zookeeper, root=root) as other:
        other.queue("census").enqueue(b"y", task_id="b")
        eventually(lambda: [task.id for task in q.tasks()] == ["b"])
    assert not [thread for thread in threading.enumerate() if thread.name == "zkmq-upkeep"]


def test_many_clients_clean_up_as_often_as_one(zk: Zkmq, zookeeper: str, root: str, q: Queue) -> None:
    """Five clients with an interval of a second: between two runs, whoever makes them, a server's second passes."""
    q.configure(task_gc_interval=1)
    path, client = f"{root}/census/gc", zk._session.client
    others = [Zkmq.connect(zookeeper, root=root) for _ in range(5)]
    try:
        for other in others:
            assert other.queue("census").claim() is None
        times: dict[int, int] = {}

        def enough() -> bool:
            stat = client.exists(path)
            if stat.version:
                times[stat.version] = stat.mtime
            return stat.version >= 4

        eventually(enough, within=60)
    finally:
        for other in others:
            other.close()
    ordered = sorted(times.items())
    pairs = [(b[1] - a[1], b[0] - a[0]) for a, b in itertools.pairwise(ordered)]
    assert all(milliseconds >= 1000 * runs for milliseconds, runs in pairs), pairs


def test_a_lifetime_is_obeyed_when_it_changes(q: Queue) -> None:
    """Clean-up by the queue's own lifetime keeps what it would keep, and takes it once the lifetime is shortened."""
    q.enqueue(b"x", task_id="a")
    claim = q.claim()
    assert claim is not None
    claim.complete()
    assert q.collect_garbage().collected == 0
    q.configure(task_gc_lifetime=0)
    eventually(lambda: q.collect_garbage().collected == 1)
    assert q.tasks() == []


def test_consumers_say_what_they_are_working_on(zk: Zkmq, root: str, q: Queue) -> None:
    """`consumers/<id>/current` lists the tasks in hand; `clear` empties a queue and takes them from their consumers."""
    q.enqueue(b"x", task_id="a")
    q.enqueue(b"x", task_id="b")
    q.enqueue(b"x", task_id="c", delay=60)
    claim = q.claim()
    assert claim is not None
    client = zk._session.client
    (consumer,) = client.get_children(f"{root}/census/consumers")
    assert client.get_children(f"{root}/census/consumers/{consumer}/current") == [claim.task.id]
    assert q.clear("claimed") == 1
    assert client.get_children(f"{root}/census/consumers/{consumer}/current") == []
    assert q.clear() == 2
    assert sum(q.counts().values()) == 0
