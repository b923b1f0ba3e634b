"""Limits on a real server: how many tasks are claimed at once, and how many in a period."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zkmq.embedded import EmbeddedServer
from airflow_provider_zkmq.engine import (
    Claim,
    ConfigError,
    Integer,
    Limit,
    Message,
    Queue,
    RetryPolicy,
    String,
    Zkmq,
)
from airflow_provider_zkmq.engine.core.claim import limits
from tests.integration.clients import clients, end_session, kazoo
from tests.integration.conftest import started, waits
from tests.integration.transaction_log import writes
from tests.support import eventually


@pytest.fixture
def q(zk: Zkmq) -> Queue:
    queue: Queue = zk.queue("q")
    queue.configure(filters={"customer": String(), "size": Integer()})
    return queue


def put(queue: Queue, customers: str, **more: Any) -> list[str]:
    """A task of each customer, a letter for each."""
    return list(queue.enqueue_many([Message(b"x", {"customer": one}, **more) for one in customers]))


def customers_of(claims: list[Claim]) -> str:
    return "".join(claim.task.filters["customer"] for claim in claims)


def all_there_is(queue: Queue) -> list[Claim]:
    claims: list[Claim] = []
    while (claim := queue.claim()) is not None:
        claims.append(claim)
    return claims


# --- At once.


def test_of_each_customer_so_many_are_claimed_at_once_by_whomever(q: Queue, zookeeper: str, root: str) -> None:
    """Five clients claim one by one and several together; each gets some, and of each customer there are two."""
    q.configure(limit=Limit(concurrency=2, by="customer"))
    put(q, "aaaaabbbbbccccc")
    with clients(zookeeper, root, 5) as others:
        queues = [other.queue("q") for other in others]
        claims = [claim for each in queues for claim in [each.claim(), *each.claim_many(2)] if claim is not None]
        assert not any(each.claim() for each in queues)
        assert Counter(customers_of(claims)) == dict.fromkeys("abc", 2)
        assert q.counts()["claimed"] == 6
        assert not any(each.ready() for each in queues)


@pytest.mark.parametrize(
    "end",
    [
        lambda claim, _: claim.complete(),
        lambda claim, _: claim.fail("e", retry=False),
        lambda claim, _: claim.release(delay=60),
        lambda claim, queue: queue.cancel(claim.task.id),
        lambda claim, queue: queue.claim_handle(claim.task.id, claim.token).complete(),
    ],
    ids=["complete", "fail", "release", "cancel", "by token"],
)
def test_whoever_waits_for_a_slot_gets_it_when_a_claim_ends(
    q: Queue, other: Zkmq, end: Callable[[Claim, Queue], object]
) -> None:
    """However it ends; and while it waits it sends nothing."""
    q.configure(limit=Limit(concurrency=1))
    put(q, "aa")
    held = q.claim()
    assert held is not None
    queue = other.queue("q")
    waiting = started(lambda: queue.claim(timeout=30))
    eventually(lambda: waits(queue) == 1)
    before = dict(other.requests)
    assert q.counts()["inserted"] == 1
    assert dict(other.requests) == before
    end(held, q)
    claim = waiting.result(20)
    assert claim is not None
    claim.complete()
    assert q.claim() is None
    assert q.fsck().findings == ()


def test_the_slot_of_a_dead_consumer_is_freed_with_its_task(q: Queue, other: Zkmq) -> None:
    """Its client goes on, too, and the task is delivered again."""
    q.configure(limit=Limit(concurrency=1))
    put(q, "a")
    dead = other.queue("q").claim()
    assert dead is not None
    waiting = started(lambda: q.claim(timeout=30))
    end_session(other)
    claim = waiting.result(30)
    assert claim is not None
    assert claim.task.attempt == 2
    claim.complete()
    put(q, "b")
    again = other.queue("q").claim(timeout=5)
    assert again is not None
    again.complete()


def test_a_lower_limit_counts_what_is_in_hand(q: Queue, other: Zkmq) -> None:
    """Of five in hand four have to end before one more is claimed under a limit of two; then there are two again."""
    q.configure(limit=Limit(concurrency=5))
    put(q, "a" * 10)
    held = q.claim_many(5)
    q.configure(limit=Limit(concurrency=2))
    queue = other.queue("q")
    for claim in held[:3]:
        assert queue.claim() is None
        claim.complete()
    assert queue.claim() is None
    kept = []  # or they would be given back
    for claim in held[3:]:
        claim.complete()
        kept.append(queue.claim(timeout=20))  # the other client hears of it a moment later
        assert queue.claim() is None
    q.configure(limit=Limit())
    kept += [queue.claim(timeout=20) for _ in range(3)]
    assert None not in kept
    assert q.conf().limit == Limit()


def test_tasks_without_the_filter_are_not_limited(q: Queue) -> None:
    q.configure(limit=Limit(concurrency=1, by="size"))
    put(q, "abc")
    q.enqueue_many([Message(b"x", {"size": 7}), Message(b"x", {"size": 7}), Message(b"x", {"size": 8})])
    claims = all_there_is(q)
    assert Counter(claim.task.filters.get("size") for claim in claims) == {None: 3, "7": 1, "8": 1}


def test_customers_are_served_in_turn_however_much_one_of_them_has(q: Queue) -> None:
    """Also beyond 256 of them, where tasks of many customers stand in one lane."""
    q.configure(limit=Limit(concurrency=50, by="customer"))
    put(q, "a" * 60 + "bc")
    first = q.claim_many(6)
    assert sorted(customers_of(first[:3])) == ["a", "b", "c"]
    assert customers_of(first[3:]) == "aaa"
    many = [f"m{number}" for number in range(300)]
    q.enqueue_many([Message(b"x", {"customer": one}) for one in many for _ in range(2)])
    q.configure(limit=Limit(concurrency=1, by="customer"))
    claims = all_there_is(q)
    assert Counter(claim.task.filters["customer"] for claim in claims) == dict.fromkeys(many, 1)


def test_in_strict_order_a_customer_without_room_is_passed_by(zk: Zkmq) -> None:
    """The tasks of each customer keep their order."""
    q = zk.queue("ordered")
    q.configure(filters={"customer": String()}, order="fifo", limit=Limit(concurrency=1, by="customer"))
    q.enqueue_many([Message(f"{n}".encode(), {"customer": one}) for n, one in enumerate("aaabb")])
    first, second = q.claim_many(4)
    assert (first.task.data, second.task.data) == (b"0", b"3")
    first.complete()
    assert [claim.task.data for claim in all_there_is(q)] == [b"1"]
    second.complete()
    assert [claim.task.data for claim in all_there_is(q)] == [b"4"]


def test_every_way_to_claim_keeps_the_limit(q: Queue, zk: Zkmq) -> None:
    """By id, in a transaction, in a loop, and of whoever asks whether there is work."""
    q.configure(limit=Limit(concurrency=1))
    first, second = put(q, "ab")
    held = q.claim_task(first)
    assert held is not None
    assert q.claim_task(second) is None
    assert not q.ready()
    with zk.transaction() as tx:
        assert tx.try_take("q") is None
    held.complete()
    with zk.transaction() as tx:
        assert tx.try_take("q") is not None
        assert q.claim() is None
        tx.commit()
    put(q, "cd")
    with q.claims(timeout=0) as loop:
        assert [claim.task.filters["customer"] for claim in loop] == ["c", "d"]
    assert q.fsck().findings == ()


# --- In a period.


def test_no_more_claims_than_the_rate_in_any_period(q: Queue, other: Zkmq, zookeeper: str, root: str) -> None:
    """By the server's clock, whoever claims."""
    q.configure(limit=Limit(rate=5, per=1.5))
    put(q, "a" * 12)
    times = []
    with kazoo(zookeeper) as client:
        for queue in [q, other.queue("q")] * 6:
            claim = queue.claim(timeout=20)
            assert claim is not None
            times.append(client.exists(f"{root}/q/tasks/{claim.task.id}/claim").ctime)
            claim.complete()
    assert all(later - earlier >= 1_500 for earlier, later in zip(times, times[5:], strict=False))


def test_the_rate_of_each_customer_is_its_own(q: Queue) -> None:
    q.configure(limit=Limit(rate=2, per="1h", by="customer"))
    put(q, "aaaabbb")
    assert Counter(customers_of(q.claim_many(5))) == {"a": 2, "b": 2}
    assert q.claim() is None
    assert not q.ready()


def test_a_queue_that_was_created_anew_has_had_no_claims(q: Queue, other: Zkmq) -> None:
    """Also for a client that was not at it meanwhile, and has used up the rate of the one before."""
    limit = Limit(rate=1, per="1h")
    q.configure(limit=limit)
    put(q, "aa")
    held, queue = q.claim(), other.queue("q")
    assert held is not None
    assert q.claim() is None
    queue.delete(confirm=True, force=True)
    queue.configure(filters={"customer": String()}, limit=limit)
    put(queue, "aa")
    assert q.claim() is not None
    assert queue.claim() is None


# --- What a client remembers of keys.


@pytest.mark.parametrize("call", [Queue.claim, Queue.ready])
def test_whoever_waits_for_a_key_wakes_though_its_client_met_too_many_others(
    call: Callable[..., object], q: Queue, other: Zkmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is remembered of a key goes when there are too many, but not while somebody may wait for it."""
    monkeypatch.setattr(limits, "MOST_KEYS", 2)
    q.configure(limit=Limit(concurrency=1, by="customer"))
    put(q, "aabcdef")
    held = other.queue("q").claim(selector="customer==a")
    assert held is not None
    kept = q.claim_many(5)
    waiting = started(lambda: call(q, selector="customer==a", timeout=60))
    eventually(lambda: waits(q) == 1)
    assert not any(q.claim(selector=f"customer=={one}") for one in "bcdef")
    assert len(kept) == 5
    held.complete()
    assert waiting.result(20)


# --- What it says, refuses and repairs.


def test_explain_says_that_the_limit_has_no_room(q: Queue) -> None:
    q.configure(limit=Limit(concurrency=1, by="customer"))
    _, waiting, free = put(q, "aab")
    held = q.claim(selector="customer==a")
    assert held is not None
    assert any("customer 'a' has 1 in hand, and its limit is 1" in reason for reason in q.explain(waiting).reasons)
    assert not any("limit" in reason for reason in q.explain(free).reasons)
    q.configure(limit=Limit(rate=1, per="1h"))
    other = q.claim(selector="customer==b")
    assert other is not None
    reasons = " ".join(q.explain(waiting).reasons)
    assert "the queue has had its 1 claims per 1h; the next may follow in" in reasons


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Limit(concurrency=0), "concurrency 0"),
        (lambda: Limit(concurrency=True), "concurrency True"),
        (lambda: Limit(rate=1.5), "rate 1.5"),  # type: ignore[arg-type]
        (lambda: Limit(rate=1, per="soon"), "per 'soon'"),
        (lambda: Limit(rate=1, per=0), "per 0"),
        (lambda: Limit(rate=1, by=7), "by 7"),  # type: ignore[arg-type]
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(make: Callable[[], Limit], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


def test_a_limit_by_what_is_no_filter_is_refused_and_nothing_is_changed(q: Queue, zk: Zkmq) -> None:
    """Nor is a filter taken away by which a queue is limited."""
    for limit in (Limit(concurrency=1, by="colour"), 5):
        with pytest.raises(ConfigError, match="colour|must be a Limit"):
            q.configure(limit=limit, lock=5)  # type: ignore[arg-type]
    assert q.conf().limit == Limit()
    assert q.conf().lock is None
    q.configure(limit=Limit(concurrency=1, by="customer"))
    with pytest.raises(ConfigError, match="customer"):
        q.configure(filters={"size": Integer()})
    assert set(q.conf().filters) == {"customer", "size"}
    with pytest.raises(ConfigError, match="customer"):
        zk.queue("new").configure(limit=Limit(concurrency=1, by="customer"))
    assert "new" not in zk.queues()


def test_a_lost_slot_holds_up_nobody_and_is_repaired(q: Queue, root: str, zookeeper: str) -> None:
    """Its task is completed all the same; of one in hand `fsck` writes the slot anew, and it deletes a foreign one."""
    q.configure(limit=Limit(concurrency=1, by="customer"))
    put(q, "ab")
    claims = all_there_is(q)
    with kazoo(zookeeper) as client:
        for customer in "ab":
            client.delete(f"{root}/q/slots/customer={customer}/0")
        claims[0].complete()
        client.create(f"{root}/q/slots/customer=z/3", b"nobody", makepath=True)
        client.create(f"{root}/q/rates/customer=z", b"{")
        assert {finding.path.removeprefix(f"{root}/q/") for finding in q.fsck(repair=True).findings} == {
            f"slots/customer={claims[1].task.filters['customer']}/0",
            "slots/customer=z/3",
            "rates/customer=z",
        }
    assert q.fsck().findings == ()
    claims[1].complete()


def test_clean_up_deletes_what_counts_no_more(q: Queue, root: str, zookeeper: str, monkeypatch: Any) -> None:
    """And a claim that was prepared before looks again: its count would begin at 0 with it."""
    from airflow_provider_zkmq.engine.core.maintenance import collect

    q.configure(limit=Limit(rate=1, per=0.05))
    put(q, "abc")
    first = q.claim()
    assert first is not None
    monkeypatch.setattr(collect, "RATE_IDLE_MS", -1_000_000)
    q.collect_garbage()
    with kazoo(zookeeper) as client:
        assert client.get_children(f"{root}/q/rates") == []
        assert q.claim(timeout=5) is not None
        assert client.get_children(f"{root}/q/rates") == ["*"]


# --- Two thousand tasks of fifty customers, four workers, one of which is killed again and again.


@pytest.mark.full
def test_workers_that_are_killed_keep_the_limit_and_do_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Judged by the server's log: at most one claim of each customer at once, and ten in any second."""
    caplog.set_level(logging.ERROR)
    with EmbeddedServer(tmp_path, force_sync=False) as server, Zkmq.connect(server.hosts, root="/limited") as zk:
        queue = zk.queue("q")
        queue.configure(
            filters={"customer": String()},
            limit=Limit(concurrency=1, rate=10, per="1s", by="customer"),
        )
        names = [f"c{number}" for number in range(50)]
        queue.enqueue_many([Message(b"x", {"customer": name}) for _ in range(40) for name in names])
        workers = [_worker(server.hosts) for _ in range(4)]
        try:
            killed, deadline = 0, time.monotonic() + 240
            while queue.counts()["finished"] < 2_000:
                assert time.monotonic() < deadline, queue.counts()
                time.sleep(2)  # the pace of the kills
                os.kill(workers[0].pid, signal.SIGKILL)
                workers[0].wait()
                workers = [*workers[1:], _worker(server.hosts)]
                killed += 1
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        assert killed > 2
        assert queue.fsck().findings == ()
    held, times = Counter[str](), defaultdict[str, list[int]](list)
    for write in writes(tmp_path):
        parts = write.path.split("/")
        if parts[3:4] == ["slots"] and len(parts) == 6:
            held[parts[4]] += 1 if write.created else -1
            assert held[parts[4]] in {0, 1}, write
            times[parts[4]] += [write.ms] if write.created else []
    assert len(times) == 50
    for of_key in times.values():
        assert all(later - earlier >= 1_000 for earlier, later in zip(of_key, of_key[10:], strict=False))


def _worker(hosts: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "airflow_provider_zkmq", "worker", "q", "--hosts", hosts, "--root", "/limited"]
    command += ["--handler", "tests.integration.limited_worker:handle", "--threads", "4", "--session-timeout", "2"]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def test_a_customer_s_tasks_stay_in_order_whatever_fails(q: Queue) -> None:
    """One after the other, in strict order, without a pause before a retry: what failed comes again before the next."""
    limit = Limit(concurrency=1, by="customer")
    q.configure(filters={"customer": String()}, order="fifo", limit=limit, policy=RetryPolicy(attempts=None, factor=0))
    q.enqueue_many([Message(b"x", {"customer": name[0]}, task_id=name) for name in ("a1", "b1", "a2", "a3")])
    handled = []
    while claim := q.claim():
        handled.append(claim.task.id)
        if len(handled) % 2:
            claim.fail("again")
        else:
            claim.complete()
    assert [name for name in handled if name[0] == "a"] == sorted(name for name in handled if name[0] == "a")
    assert q.counts()["finished"] == 4
    assert len(handled) == 8
