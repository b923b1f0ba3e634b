"""Waiting by watches: for each change of one task, and for tasks that match a selector, old ones and new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pendulum
import pytest

from airflow_provider_zkmq.engine.core.model.filters import Integer
from airflow_provider_zkmq.engine.core.read.inspect import Task, read_task
from airflow_provider_zkmq.engine.core.read.watch_tasks import find_matching, follow
from airflow_provider_zkmq.engine.core.tasks import interventions, settle
from airflow_provider_zkmq.engine.core.zk_operations import Get, GetMany, Op, Wait
from airflow_provider_zkmq.engine.errors import ConfigError, TaskNotFound, WaitTimeout
from tests.unit.world import Client, new_queue

BIG = "size>5"


@pytest.fixture
def client() -> Client:
    return new_queue(filters={"size": Integer()})


@pytest.fixture
def other(client: Client) -> Iterator[Client]:
    """Another client; in the end the first one has left no watch behind."""
    yield Client(client.zk, "other")
    assert not any(entry.subscribers for entry in client.context.listings.readings.values())


def paths_of(op: Op) -> tuple[str, ...]:
    """What an operation reads with its data."""
    return (op.path,) if isinstance(op, Get) else op.paths if isinstance(op, GetMany) else ()


# --- one task


def following_by(client: Client, *steps: Callable[[], object]) -> tuple[Task, list[tuple[str, float | None]]]:
    """Follow task t, taking a step whenever the follower waits; what it returns, and what it was told."""
    told: list[tuple[str, float | None]] = []
    left = iter(steps)

    def go_on(op: Op) -> None:
        if isinstance(op, Wait) and op.signal is not client.context.signal:
            next(left)()

    task = client.do(follow(client.context, "t", lambda seen: told.append((str(seen.status), seen.progress))), go_on)
    return task, told


def test_a_task_is_followed_from_the_queue_to_its_end(client: Client, other: Client) -> None:
    """Each change is told once, progress too; the last is the task as it is returned."""
    client.put(task_id="t")
    claimed: list[Any] = []
    task, told = following_by(
        client,
        lambda: claimed.append(other.claimed()),
        lambda: other.do(settle.progress(other.context, claimed[0], 0.5)),
        lambda: other.do(settle.release(other.context, claimed[0])),
        lambda: claimed.append(other.claimed()),
        lambda: other.complete(claimed[1]),
    )
    assert [status for status, _ in told] == ["queued", "locked", "locked", "queued", "locked", "done-awaiting-gc"]
    assert [progress for _, progress in told] == [None, None, 0.5, None, None, None]
    assert task == client.do(read_task(client.context, "t"))


def test_following_ends_when_it_must(client: Client, other: Client) -> None:
    """A task that has ended is told once; one that is not there, or vanishes, is not found; a time-out names it.

    An error of the follower's own function ends the call.
    """
    for name in ("ended", "t", "open"):
        client.put(task_id=name)
    client.cancel("ended")
    told: list[str] = []
    tell = lambda task: told.append(task.id)
    assert client.do(follow(client.context, "ended", tell)).state == "cancelled"
    for name, error in {"never": TaskNotFound, "a/b": ConfigError}.items():
        with pytest.raises(error):
            client.do(follow(client.context, name, tell))
    with pytest.raises(WaitTimeout, match="'open' of queue 'q' is queued") as late:
        client.do(follow(client.context, "open", tell, timeout=0.5))
    assert late.value.left == ("open",)

    def refuses(_task: Task) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        client.do(follow(client.context, "t", refuses))
    with pytest.raises(TaskNotFound):
        following_by(client, lambda: other.do(interventions.drop(other.context, "t")))
    assert told == ["ended", "open"]


def test_a_task_that_is_enqueued_anew_under_the_follower_s_eyes_is_followed_on(client: Client, other: Client) -> None:
    """No watch stands on a record that was not there when it was to be watched: it is looked for again."""
    client.put(task_id="t")
    record = client.context.paths.task("t", "state")
    steps = iter(
        [lambda: None, lambda: other.do(interventions.drop(other.context, "t")), lambda: other.put(task_id="t")]
    )
    waits = iter([lambda: other.cancel("t")])

    def meddle(op: Op) -> None:
        if isinstance(op, Wait):
            next(waits)()
        elif record in paths_of(op):
            next(steps, lambda: None)()

    told: list[str] = []
    client.do(follow(client.context, "t", lambda task: told.append(str(task.status))), meddle)
    assert told == ["queued", "cancelled"]


# --- tasks that match


def now(client: Client) -> pendulum.DateTime:
    return pendulum.from_timestamp(client.zk.ms / 1000)


def find(client: Client, *args: Any, steps: Iterator[Callable[[], object]] | None = None, **options: Any) -> Any:
    """Find tasks; a step is done at each pause of the search, which goes on when something of it was watched."""

    def go_on(op: Op) -> None:
        step = next(steps, None) if steps is not None and isinstance(op, Wait) else None
        if step is not None:
            step()
            assert op.signal.count > op.seen, "nobody told the search of it"

    return client.do(find_matching(client.context, BIG, *args, **options), go_on)


def put(client: Client, task_id: str, size: int = 9) -> None:
    client.put(task_id=task_id, filters={"size": size})


@pytest.mark.usefixtures("other")
def test_what_finished_long_ago_counts_unless_it_is_left_out(client: Client) -> None:
    """A selector is satisfied by a finished task of an earlier run; with a moment only by those enqueued since then."""
    put(client, "old")
    client.complete(client.claimed())
    client.zk.advance(10)
    since = now(client)
    assert find(client) == ["old"]
    why = r"has 0 task\(s\) that match size>5, enqueued since .*; 1 did not come within timeout \(0.5 s\)"
    with pytest.raises(WaitTimeout, match=why) as late:
        find(client, 1, 0.5, since=since)
    assert late.value.left == (BIG,)
    put(client, "new")
    put(client, "small", 1)
    assert find(client, since=since) == ["new"]
    assert find(client, 2) == ["new", "old"]
    assert find(client, since=now(client)) == ["new"], "what was enqueued at that very millisecond is in"
    with pytest.raises(WaitTimeout):
        find(client, timeout=0, since=now(client).add(microseconds=1))


def test_a_new_task_ends_the_search(client: Client, other: Client) -> None:
    """Tasks that come while the search waits are seen by a watch, and the search ends with the last that is needed.

    A damaged record is reported once, and stepped over.
    """
    for name in ("bad", "old"):
        put(client, name)
    path = client.context.paths.task("bad", "state")
    client.zk.nodes[path].data = b"\xff"
    client.zk.advance(10)
    since = now(client)
    steps = iter([lambda: put(other, "a"), lambda: put(other, "small", 1), lambda: put(other, "b", 7)])
    assert find(client, 2, since=since, steps=steps) == ["a", "b"]
    assert [where for where, _ in client.reports].count(path) == 1


@pytest.mark.parametrize("end", ["finished", "cancelled"])
def test_an_old_id_that_is_enqueued_again_ends_the_search(client: Client, other: Client, end: str) -> None:
    """The next run of an id counts from its own enqueue, also where nothing new comes but that: a watch tells of it."""
    put(client, "daily")
    _ = client.complete(client.claimed()) if end == "finished" else client.cancel("daily")
    client.zk.advance(10)
    assert find(client, since=now(client), steps=iter([lambda: put(other, "daily")])) == ["daily"]
    assert client.work() == ["daily"]


def test_an_old_task_that_goes_on_is_still_old(client: Client, other: Client) -> None:
    """Claims, ends and redrives of what was enqueued before change nothing; the search waits on.

    One that was dropped and enqueued again is another task, judged anew: also by other filters.
    """
    put(client, "old")
    client.zk.advance(10)
    claims: list[Any] = []
    steps = iter([
        lambda: claims.append(other.claimed()),
        lambda: other.fail(claims[0], retry=False),
        lambda: other.do(interventions.redrive(other.context, "old")),
        lambda: other.cancel("old"),
        lambda: other.do(interventions.drop(other.context, "old")),
        lambda: put(other, "old"),
    ])  # fmt: skip
    assert find(client, since=now(client), steps=steps) == ["old"]
    assert next(steps, None) is None
    client.check()
    drop = lambda: other.do(interventions.drop(other.context, "small"))
    put(client, "small", 1)
    assert find(client, 2, steps=iter([drop, lambda: put(other, "small")])) == ["old", "small"]


@pytest.mark.usefixtures("other")
def test_a_search_reads_no_payloads(client: Client) -> None:
    """Records and times are enough: what tasks hold is not read."""
    client.put(task_id="a", data=b"x" * 100_000, filters={"size": 9})
    read: set[str] = set()
    note = lambda op: read.update(path.rpartition("/")[2] for path in paths_of(op))
    client.do(find_matching(client.context, BIG, since=now(client)), note)
    assert ("data" in read, "state" in read) == (False, True)


def test_a_search_for_nothing_is_refused(client: Client) -> None:
    """Waiting for no task would end at once: a count below 1 is one error that names it."""
    for wrong in (0, -1, True, 1.0, "1", None):
        with pytest.raises(ConfigError, match="at_least .* is not allowed: a whole number, 1 or more"):
            find(client, wrong)
    with pytest.raises(ConfigError, match="since .* has no zone"):
        find(client, since=datetime(2026, 1, 1))  # noqa: DTZ001
