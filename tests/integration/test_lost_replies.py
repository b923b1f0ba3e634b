"""Every operation, its connection cut after each of its writes was carried out, on a real server.

The in-memory server of `tests/unit/test_crash_points.py` loses requests and replies; here the connection itself is
lost, with its watches, and a real client comes back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_provider_zkmq.engine import (
    Claim,
    ClaimLost,
    Message,
    OutcomeUnknown,
    Queue,
    RetryPolicy,
    Zkmq,
    ZkmqError,
)
from tests.proxy import Proxy
from tests.support import eventually, fresh_root

MOST_WRITES = 8


@pytest.fixture
def proxy(zookeeper: str) -> Iterator[Proxy]:
    made = Proxy(zookeeper)
    yield made
    made.close()


@dataclass
class World:
    zk: Zkmq
    q: Queue
    claim: Claim | None = None
    tx: Any = None

    def claimed(self) -> Claim:
        assert self.claim is not None
        return self.claim


def pending(world: World) -> None:
    world.q.enqueue(b"old", task_id="a")


def claimed(world: World) -> None:
    pending(world)
    world.claim = world.q.claim()


def leased(world: World) -> None:
    pending(world)
    world.claim = world.q.claim(lease=60)


def requeued(world: World) -> None:
    claimed(world)
    world.q.enqueue(b"new", task_id="a", requeue=True)


def finished(world: World) -> None:
    claimed(world)
    world.claimed().complete(b"r")


def dead(world: World) -> None:
    claimed(world)
    world.claimed().fail("e", retry=False)


def member(world: World) -> None:
    world.q.enqueue_many([Message(b"x", task_id="a")], batch="b", then=Message(b"then", task_id="then"))
    world.claim = world.q.claim()


def in_order(world: World) -> None:
    world.q.configure(order="fifo")


def taken(world: World) -> None:
    pending(world)
    world.tx = world.zk.transaction()
    world.tx.try_take("q")
    world.tx.put("out", b"y", task_id="b")


NEW = {"task_id": "a"}
QUEUED, LOCKED, DONE = "queued", "locked", "done-awaiting-gc"
#: name: (what is there before, the operation, the statuses after it)
OPERATIONS: dict[str, tuple[Callable[[World], Any], Callable[[World], Any], dict[str, str]]] = {
    "configure": (pending, lambda w: w.q.configure(lock=5), {"a": QUEUED}),
    "enqueue": (lambda _: None, lambda w: w.q.enqueue(b"x", **NEW), {"a": QUEUED}),
    "enqueue, delayed": (lambda _: None, lambda w: w.q.enqueue(b"x", delay=60, **NEW), {"a": "queued-with-backoff"}),
    "enqueue_many": (
        lambda _: None,
        lambda w: w.q.enqueue_many([Message(b"x", task_id=name) for name in "abc"]),
        dict.fromkeys("abc", QUEUED),
    ),
    "batch": (
        lambda _: None,
        lambda w: w.q.enqueue_many([Message(b"x", task_id=name) for name in "abc"], batch="b"),
        dict.fromkeys("abc", QUEUED),
    ),
    "enqueue, again": (finished, lambda w: w.q.enqueue(b"x", **NEW), {"a": QUEUED}),
    "update": (pending, lambda w: w.q.enqueue(b"x", update=True, priority=2, **NEW), {"a": QUEUED}),
    "requeue": (claimed, lambda w: w.q.enqueue(b"x", requeue=True, **NEW), {"a": "locked-with-requeue"}),
    "claim": (pending, lambda w: w.q.claim(), {"a": LOCKED}),
    "claim, leased": (pending, lambda w: w.q.claim(lease=60), {"a": LOCKED}),
    "claim, in order": (lambda w: (in_order(w), pending(w)), lambda w: w.q.claim(), {"a": LOCKED}),
    "complete": (claimed, lambda w: w.claimed().complete(b"r"), {"a": DONE}),
    "complete, window": (claimed, lambda w: w.claimed().complete(dedupe=60), {"a": "done-with-backoff"}),
    "complete, requeued": (requeued, lambda w: w.claimed().complete(b"r"), {"a": QUEUED}),
    "complete, requeued, window": (requeued, lambda w: w.claimed().complete(dedupe=60), {"a": "done-with-requeue"}),
    "fail": (claimed, lambda w: w.claimed().fail("e"), {"a": QUEUED}),
    "fail, backoff": (claimed, lambda w: w.claimed().fail("e", backoff=60), {"a": "queued-with-backoff"}),
    "fail, finally": (claimed, lambda w: w.claimed().fail("e", retry=False), {"a": "dead"}),
    "release": (claimed, lambda w: w.claimed().release(), {"a": QUEUED}),
    "snooze": (claimed, lambda w: w.claimed().snooze(60), {"a": "queued-with-backoff"}),
    "extend": (leased, lambda w: w.claimed().extend(60), {"a": LOCKED}),
    "progress": (claimed, lambda w: w.claimed().progress(0.5, "half"), {"a": LOCKED}),
    "cancel": (pending, lambda w: w.q.cancel("a"), {"a": "cancelled"}),
    "cancel, claimed": (requeued, lambda w: w.q.cancel("a"), {"a": "cancelled"}),
    "redrive": (dead, lambda w: w.q.redrive("a"), {"a": QUEUED}),
    "redrive with data": (dead, lambda w: w.q.redrive("a", data=b"new"), {"a": QUEUED}),
    "replace": (pending, lambda w: w.q.replace("a", b"new"), {"a": QUEUED}),
    "drop": (dead, lambda w: w.q.drop("a"), {}),
    "pause": (pending, lambda w: w.q.pause(), {"a": QUEUED}),
    "clear": (pending, lambda w: w.q.clear(), {}),
    "gc": (finished, lambda w: w.q.collect_garbage(0), {}),
    "last of a batch": (member, lambda w: w.claimed().complete(), {"a": DONE, "then": QUEUED}),
    "commit": (taken, lambda w: w.tx.commit(), {"a": DONE}),
    "rollback": (taken, lambda w: w.tx.rollback(), {"a": QUEUED}),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_lost_reply_leaves_one_effect(proxy: Proxy, name: str) -> None:
    """Whichever of its writes loses its reply, the call succeeds and has happened exactly once."""
    before, operate, after = OPERATIONS[name]
    for at in range(MOST_WRITES):
        with Zkmq.connect(proxy.hosts, root=fresh_root(), gc=False) as zk:
            proxy.cut(None)
            world = World(zk, zk.queue("q"))
            world.q.configure(policy=RetryPolicy(factor=0))
            before(world)
            proxy.cut(at)
            cuts = proxy.cuts
            operate(world)
            assert {task.id: str(task.status) for task in world.q.tasks()} == after
            counts = world.q.counts()
            assert sum(counts.values()) - counts["scheduled"] == len(after)
            if name == "commit":
                assert [task.id for task in zk.queue("out").tasks()] == ["b"]
            if proxy.cuts == cuts:
                assert at > 0, "the operation writes nothing"
                return
    pytest.fail(f"{name} writes more than {MOST_WRITES} times")


def test_what_the_record_has_forgotten_is_told_as_such_by_token_too(zookeeper: str, proxy: Proxy) -> None:
    """A release whose reply is lost, and four others settle the task: first unknown, then lost, and never denied."""
    root, told = fresh_root(), list[ZkmqError]()
    with (
        Zkmq.connect(proxy.hosts, root=root, gc=False, request_timeout=2) as zk,
        Zkmq.connect(zookeeper, root, gc=False) as others,
    ):
        q, other = zk.queue("q"), others.queue("q")
        q.enqueue(b"x", task_id="a")
        claim = q.claim(lease=600)
        assert claim is not None

        def asked() -> ZkmqError:
            with pytest.raises((OutcomeUnknown, ClaimLost)) as error:
                q.release("a", claim.token)
            told.append(error.value)
            return error.value

        going = threading.Thread(target=lambda: (eventually(lambda: proxy.cuts, within=60), proxy.down()))
        going.start()
        proxy.cut(0)
        assert isinstance(asked(), OutcomeUnknown)
        going.join()
        for _ in range(4):
            taken = other.claim(timeout=60)
            assert taken is not None
            taken.release()
        proxy.up()
        eventually(lambda: isinstance(asked(), ClaimLost), within=60)
        assert isinstance(asked(), ClaimLost)
        assert [type(each) for each in told[-3:]] == [OutcomeUnknown, ClaimLost, ClaimLost]
        assert all("cannot be told any more" in str(each) for each in told[-3:])
        last = q.claim()
        assert last is not None
        assert (last.task.id, last.task.attempt) == ("a", 1)
        last.complete()
