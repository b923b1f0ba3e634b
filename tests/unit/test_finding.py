"""Waiting for tasks by a selector: whatever their state, those that were enqueued since a moment, and again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pendulum
import pytest

from airflow_provider_zkmq.engine.core.model.filters import Integer
from airflow_provider_zkmq.engine.core.protocol.ops import Get, GetMany, Op, Wait
from airflow_provider_zkmq.engine.core.reading.finding import find_matching
from airflow_provider_zkmq.engine.core.tasks import operate
from airflow_provider_zkmq.engine.errors import ConfigError, WaitTimeout
from tests.unit.world import Client, new_queue

BIG = "size>5"


@pytest.fixture
def client() -> Client:
    return new_queue(filters={"size": Integer()})


def now(client: Client) -> pendulum.DateTime:
    return pendulum.from_timestamp(client.zk.ms / 1000)


def find(client: Client, *args: Any, steps: Iterator[Callable[[], object]] | None = None, **options: Any) -> Any:
    """Find tasks; a step is done at each pause of the search, which goes on when something of it was watched."""

    def go_on(op: Op) -> None:
        step = next(steps, None) if steps is not None and isinstance(op, Wait) else None
        if step is not None:
            step()
            assert op.signal.count > op.seen, "nobody told the search of it"

    return client.do(find_matching(client.context, *args, **options), go_on)


def settled(client: Client) -> None:
    """No watch is left behind, and the tree is whole."""
    assert not any(entry.subscribers for entry in client.context.listings.readings.values())
    client.check()


def test_what_finished_long_ago_counts_unless_it_is_left_out(client: Client) -> None:
    """A selector is satisfied by a finished task of an earlier run; with a moment only by those enqueued since then."""
    client.put(task_id="old", filters={"size": 9})
    client.complete(client.claimed())
    client.zk.advance(10)
    since = now(client)
    assert find(client, BIG) == ["old"]
    with pytest.raises(
        WaitTimeout, match=r"has 0 task\(s\) that match size>5, enqueued since .*; 1 did not come"
    ) as late:
        find(client, BIG, 1, 0.5, since=since)
    assert late.value.left == (BIG,)
    client.put(task_id="new", filters={"size": 9})
    client.put(task_id="small", filters={"size": 1})
    assert find(client, BIG, since=since) == ["new"]
    assert find(client, BIG, 2) == ["new", "old"]
    settled(client)


def test_the_moment_itself_counts(client: Client) -> None:
    """What was enqueued at that very millisecond is in."""
    client.put(task_id="a", filters={"size": 9})
    created = pendulum.from_timestamp(client.zk.ms / 1000)
    assert find(client, BIG, since=created) == ["a"]
    with pytest.raises(WaitTimeout):
        find(client, BIG, timeout=0, since=created.add(microseconds=1))


def test_a_new_task_ends_the_search(client: Client) -> None:
    """Tasks that come while the search waits are seen by a watch, and the search ends with the last that is needed."""
    client.put(task_id="old", filters={"size": 9})
    client.zk.advance(10)
    other, since = Client(client.zk, "other"), now(client)
    steps = iter([
        lambda: other.put(task_id="a", filters={"size": 9}),
        lambda: other.put(task_id="small", filters={"size": 1}),
        lambda: other.put(task_id="b", filters={"size": 7}),
    ])  # fmt: skip
    assert find(client, BIG, 2, since=since, steps=steps) == ["a", "b"]
    settled(client)


@pytest.mark.parametrize("end", ["finished", "cancelled"])
def test_an_old_id_that_is_enqueued_again_ends_the_search(client: Client, end: str) -> None:
    """The next run of an id counts from its own enqueue, also where nothing new comes but that: a watch tells of it."""
    client.put(task_id="daily", filters={"size": 9})
    _ = client.complete(client.claimed()) if end == "finished" else client.cancel("daily")
    client.zk.advance(10)
    other, since = Client(client.zk, "other"), now(client)
    assert find(client, BIG, since=since, steps=iter([lambda: other.put(task_id="daily", filters={"size": 9})])) == [
        "daily"
    ]
    assert client.work() == ["daily"]
    settled(client)


def test_an_old_task_that_goes_on_is_still_old(client: Client) -> None:
    """Claims, ends and redrives of what was enqueued before change nothing; the search waits on."""
    client.put(task_id="old", filters={"size": 9})
    client.zk.advance(10)
    other, since = Client(client.zk, "other"), now(client)
    claims: list[Any] = []
    steps = iter([
        lambda: claims.append(other.claimed()),
        lambda: other.fail(claims[0], retry=False),
        lambda: other.do(operate.redrive(other.context, "old")),
        lambda: other.cancel("old"),
        lambda: other.do(operate.drop(other.context, "old")),
        lambda: other.put(task_id="old", filters={"size": 9}),
    ])  # fmt: skip
    assert find(client, BIG, since=since, steps=steps) == ["old"]
    assert next(steps, None) is None
    settled(client)


def test_an_id_that_comes_back_is_judged_anew(client: Client) -> None:
    """A task that was dropped and enqueued again with other filters is another task."""
    client.put(task_id="a", filters={"size": 1})
    other = Client(client.zk, "other")
    steps = iter([
        lambda: other.do(operate.drop(other.context, "a")),
        lambda: other.put(task_id="a", filters={"size": 9}),
    ])  # fmt: skip
    assert find(client, BIG, steps=steps) == ["a"]


def test_a_search_reads_no_payloads(client: Client) -> None:
    """Records and times are enough: what tasks hold is not read."""
    client.put(task_id="a", data=b"x" * 100_000, filters={"size": 9})
    read: list[str] = []

    def note(op: Op) -> None:
        paths = getattr(op, "paths", ()) if isinstance(op, GetMany) else (op.path,) if isinstance(op, Get) else ()
        read.extend(path.rpartition("/")[2] for path in paths)

    client.do(find_matching(client.context, BIG, since=now(client)), note)
    assert "data" not in read
    assert "state" in read


def test_a_damaged_task_is_stepped_over(client: Client) -> None:
    """A record that cannot be read is reported once, and the search finds the others and waits on."""
    for name in ("bad", "old"):
        client.put(task_id=name, filters={"size": 9})
    client.zk.nodes[client.context.paths.task("bad", "state")].data = b"\xff"
    client.zk.advance(10)
    since, other = now(client), Client(client.zk, "other")
    steps = iter([lambda: other.put(task_id="new", filters={"size": 9})])
    assert find(client, BIG, since=since, steps=steps) == ["new"]
    assert [path for path, _ in client.reports].count(client.context.paths.task("bad", "state")) == 1


@pytest.mark.parametrize("wrong", [0, -1, True, 1.0, "1", None])
def test_a_search_for_nothing_is_refused(client: Client, wrong: Any) -> None:
    """Waiting for no task would end at once: a count below 1 is one error that names it."""
    with pytest.raises(ConfigError, match="at_least .* is not allowed: a whole number, 1 or more"):
        find(client, BIG, wrong)
    with pytest.raises(ConfigError, match="since .* has no zone"):
        find(client, BIG, since=datetime(2026, 1, 1))  # noqa: DTZ001
    settled(client)
