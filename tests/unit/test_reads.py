"""What is read of a queue without changing it: ids, many tasks at once, the consumers, the archive's needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zkmq.engine import Zkmq
from airflow_provider_zkmq.engine.core.model.filters import Integer, String
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Exists, Get, GetMany, Op, Sync, Wait
from airflow_provider_zkmq.engine.core.reading import archiving, following, ids, many, nodes, register, settings
from airflow_provider_zkmq.engine.core.reading.archiving import Archive
from airflow_provider_zkmq.engine.core.reading.inspect import Task, list_tasks, read_task
from airflow_provider_zkmq.engine.core.reading.roots import queue_names
from airflow_provider_zkmq.engine.core.tasks import configure, holding, operate, settle
from airflow_provider_zkmq.engine.core.upkeep.promote import promote_due
from airflow_provider_zkmq.engine.errors import ConfigError, CorruptRecord, TaskNotFound, WaitTimeout
from tests.fake_zookeeper import FakeZooKeeper
from tests.stepping import Stepper
from tests.unit.world import Client, new_queue

BEYOND_A_CHUNK = nodes.AT_ONCE + 22


class Log:
    """A fault that does no harm: it notes the operations."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def __call__(self, op: Op) -> None:
        self.ops.append(op)

    def read(self) -> set[str]:
        """The last parts of all paths that were read with their data."""
        return {path.rpartition("/")[2] for op in self.ops if isinstance(op, GetMany) for path in op.paths}


def damage(client: Client, task_id: str, znode: str = "state") -> str:
    path = client.context.paths.task(task_id, znode)
    client.zk.nodes[path].data = b"\xff no record"
    return path


# --- ids


def test_ids_are_those_of_a_state_or_of_all() -> None:
    """Each state has its tasks, whichever way they are listed; without one all are told."""
    client = new_queue()
    for name in ("a", "b", "c", "d", "e"):
        client.put(task_id=name)
    client.complete(client.claimed())
    client.fail(client.claimed(), retry=False)
    client.claimed(lease=60)
    client.cancel("e")
    found = {state: client.do(ids.ids(client.context, state)) for state in State}
    assert found == {"finished": ["a"], "dead": ["b"], "claimed": ["c"], "inserted": ["d"], "cancelled": ["e"]}
    assert client.do(ids.ids(client.context)) == ["a", "b", "c", "d", "e"]


def test_a_selector_chooses_ids_by_their_records_alone() -> None:
    """Only records are read, in chunks; what cannot be read is reported and left out."""
    client = new_queue(filters={"size": Integer()})
    for number in range(BEYOND_A_CHUNK):
        client.put(task_id=f"t{number:03}", filters={"size": number % 2})
    path = damage(client, "t001")
    log = Log()
    found = client.do(ids.ids(client.context, "inserted", "size==1"), log)
    assert sorted(found) == [f"t{number:03}" for number in range(3, BEYOND_A_CHUNK, 2)]
    assert log.read() == {"state"}
    assert [where for where, _ in client.reports] == [path]


@pytest.mark.parametrize("wrong", [-1, -(10**6), 1.5, True, "1"])
def test_a_limit_is_a_whole_number_of_nought_or_more(tmp_path: Path, wrong: Any) -> None:
    """A negative limit would leave out the last tasks: refused, in ZooKeeper and in files; 0 gives none."""
    client = new_queue()
    for name in ("a", "b"):
        client.put(task_id=name)
    with Zkmq.connect(f"textqueue://{tmp_path}") as zk:
        q = zk.queue("q")
        q.enqueue("x")
        for read in (lambda most: client.do(list_tasks(client.context, limit=most)), lambda most: q.tasks(limit=most)):
            with pytest.raises(ConfigError, match="limit .* is not allowed: a whole number, 0 or more"):
                read(wrong)
            assert read(0) == []
            assert len(read(1)) == 1


def test_ids_refuse_what_is_unknown() -> None:
    """An unknown state, an undeclared filter and a queue that is not there are configuration errors."""
    client, nowhere = new_queue(), Client(FakeZooKeeper())
    with pytest.raises(ConfigError, match="state 'lost' is unknown"):
        client.do(ids.ids(client.context, "lost"))
    with pytest.raises(ConfigError, match="'size' is not declared"):
        client.do(ids.ids(client.context, selector="size==1"))
    with pytest.raises(ConfigError, match="does not exist"):
        nowhere.do(ids.ids(nowhere.context))


# --- many tasks


def test_many_tasks_come_each_once_in_the_order_of_their_ids() -> None:
    """What does not exist is left out, after the server was asked to catch up; what is corrupt is reported."""
    client = new_queue()
    names = [client.put(data=f"{number}".encode()) for number in range(BEYOND_A_CHUNK)]
    damage(client, names[7])
    asked = [*reversed(names), names[0], "never"]
    log = Log()
    tasks = client.do(many.read_many(client.context, asked), log)
    assert [task.id for task in tasks] == [name for name in reversed(names) if name != names[7]]
    assert tasks[-1] == client.do(read_task(client.context, names[0]))
    assert any(isinstance(op, Sync) for op in log.ops)
    assert len(client.reports) == 1


def test_what_is_there_needs_no_catching_up() -> None:
    """Where every task is found, no sync is sent."""
    client = new_queue()
    log = Log()
    client.do(many.read_many(client.context, [client.put()]), log)
    assert not any(isinstance(op, Sync) for op in log.ops)


def in_hand_with_progress(client: Client) -> Task:
    client.put(data=b"payload", metadata={"owner": "me"}, task_id="t")
    claimed = client.claimed()
    client.do(holding.progress(client.context, claimed, 0.5, "half"))
    return client.do(read_task(client.context, "t"))


def test_parts_that_are_left_out_are_empty_and_not_read() -> None:
    """Without any part there is the record still; each part comes by itself."""
    client = new_queue()
    whole = in_hand_with_progress(client)
    bare = replace(whole, data=b"", metadata={}, progress=None, note=None)
    expected = {
        (): (bare, {"state"}),
        ("data",): (replace(bare, data=whole.data), {"state", "data"}),
        ("metadata",): (replace(bare, metadata=whole.metadata), {"state", "metadata"}),
        ("progress",): (replace(bare, progress=0.5, note="half"), {"state", "claim"}),
        ("data", "metadata", "result", "progress"): (whole, {"state", "data", "metadata", "result", "claim"}),
    }
    for parts, (task, znodes) in expected.items():
        log = Log()
        assert client.do(many.read_many(client.context, ["t"], parts=parts), log) == [task]
        assert log.read() == znodes


def test_a_run_s_time_is_known_without_its_payload() -> None:
    """An id that ran before was enqueued when its payload was written, which a Stat tells."""
    client = new_queue()
    client.put(task_id="t")
    client.complete(client.claimed(), result=b"done")
    client.zk.advance(10)
    client.put(task_id="t")
    whole = client.do(read_task(client.context, "t"))
    (bare,) = client.do(many.read_many(client.context, ["t"], parts=()))
    assert bare.enqueued_ms == whole.enqueued_ms == client.zk.ms


def test_many_small_tasks_are_read_in_few_requests() -> None:
    """Without payloads and results a hundred tasks are one request and their Stats in flight together."""
    client = new_queue()
    names = [client.put() for _ in range(100)]
    log = Log()
    client.do(many.read_many(client.context, names, parts=("metadata",)), log)
    assert len([op for op in log.ops if isinstance(op, GetMany)]) == 1
    assert len([op for op in log.ops if isinstance(op, Exists)]) == len(names)


@pytest.mark.parametrize("wrong", ["t", ["a/b"], [None]])
def test_what_are_no_ids_is_refused(wrong: Any) -> None:
    """One text instead of a list, and what cannot be a znode's name."""
    client = new_queue()
    with pytest.raises(ConfigError):
        client.do(many.read_many(client.context, wrong))


@pytest.mark.parametrize("wrong", ["data", ["payload"], ["data", "state"]])
def test_unknown_parts_are_refused(wrong: Any) -> None:
    """The error names what there is."""
    client = new_queue()
    with pytest.raises(ConfigError, match="data, metadata, progress, result"):
        client.do(many.read_many(client.context, ["t"], parts=wrong))


# --- configuration and consumers


def test_a_configuration_has_the_names_of_configure() -> None:
    """What was configured can be read; defaults are told, too."""
    client = new_queue(
        filters={"k": String()}, task_gc_lifetime=7, lock=9, order="fifo", policy=RetryPolicy(attempts=3)
    )
    client.zk.nodes[client.context.paths.at("paused")] = client.zk.nodes[client.context.paths.at("dlq")]
    known = client.do(settings.conf(client.context))
    assert known == settings.QueueConf(
        filters={"k": String()},
        policy=RetryPolicy(attempts=3),
        task_gc_lifetime=7,
        task_gc_interval=300,
        lock=9,
        order="fifo",
        paused=True,
        archived=None,
    )


def test_consumers_tell_who_they_are_and_what_they_have_in_hand() -> None:
    """Live and dead ones; a leased claim is in nobody's hand."""
    client = new_queue()
    client.context.describe = {"name": "first", "host": "here", "pid": 7}
    dead = Client(client.zk, "second")
    third = Client(client.zk, "third")
    for name in ("a", "b", "c"):
        client.put(task_id=name)
    mine, theirs = client.claimed().task_id, dead.claimed().task_id
    third.claimed(lease=60)
    client.zk.expire(dead.session)
    first, second, leased = client.do(register.consumers(client.context))
    assert first.id.startswith("first-")
    assert (first.name, first.host, first.pid) == ("first", "here", 7)
    assert (first.accepts, first.in_hand, first.alive) == (("all()",), (mine,), True)
    assert (second.name, second.host, second.pid, second.in_hand, second.alive) == (
        "second",
        None,
        None,
        (theirs,),
        False,
    )
    assert (leased.name, leased.in_hand, leased.alive) == ("third", (), True)


def test_a_consumer_s_damaged_record_is_reported_and_its_tasks_are_told() -> None:
    """What a record cannot tell is None; the znode still says that it is there."""
    client = new_queue()
    client.put(task_id="a")
    consumer = client.claimed().state.consumer
    assert consumer is not None
    path = client.context.paths.consumer(consumer)
    for data in (b"\xff", b'{"name": 3, "pid": "x", "accepts": 5}'):
        client.zk.nodes[path].data = data
        (found,) = client.do(register.consumers(client.context))
        assert (found.name, found.host, found.pid, found.accepts) == (None, None, None, ())
        assert (found.id, found.in_hand, found.alive) == (consumer, ("a",), True)
    assert [where for where, _ in client.reports] == [path]


def test_a_consumer_that_leaves_while_it_is_read_is_left_out() -> None:
    """Its record is gone by then."""
    client = new_queue()
    client.put()
    consumer = client.claimed().state.consumer
    path = client.context.paths.consumer(str(consumer))

    def leaves(op: Op) -> None:
        if isinstance(op, GetMany) and op.paths == (path,):
            client.zk.nodes.pop(path)

    assert client.do(register.consumers(client.context), leaves) == []


def test_queue_names_leave_out_what_is_no_queue() -> None:
    """A root's foreign children are no queues, whatever they are called; no root, no queues."""
    client = new_queue()
    client.zk.nodes["/zkmq"].children.add("foreign ..")
    assert client.do(queue_names("/zkmq")) == ["q"]
    assert client.do(queue_names("/elsewhere")) == []


# --- following


def following_by(client: Client, steps: Iterator[Callable[[], object]]) -> tuple[Task, list[tuple[str, float | None]]]:
    """Follow task t, taking a step whenever the follower waits; what it returns, and what it was told."""
    told: list[tuple[str, float | None]] = []

    def go_on(op: Op) -> None:
        if isinstance(op, Wait) and op.signal is not client.context.signal:
            next(steps)()

    task = client.do(
        following.follow(client.context, "t", lambda seen: told.append((str(seen.status), seen.progress))), go_on
    )
    return task, told


def test_a_task_is_followed_from_the_queue_to_its_end() -> None:
    """Each change is told once, progress too; the last is the task as it is returned."""
    client = new_queue()
    other = Client(client.zk, "other")
    client.put(task_id="t")
    claimed: list[Any] = []

    def steps() -> Iterator[Callable[[], object]]:
        yield lambda: claimed.append(other.claimed())
        yield lambda: other.do(holding.progress(other.context, claimed[0], 0.5))
        yield lambda: other.do(settle.release(other.context, claimed[0]))
        yield lambda: claimed.append(other.claimed())
        yield lambda: other.complete(claimed[1])

    task, told = following_by(client, steps())
    assert told == [
        ("queued", None),
        ("locked", None),
        ("locked", 0.5),
        ("queued", None),
        ("locked", None),
        ("done-awaiting-gc", None),
    ]
    assert task == client.do(read_task(client.context, "t"))
    assert not any(entry.subscribers for entry in client.context.listings.readings.values())


def test_following_ends_when_it_must() -> None:
    """A task that has ended is told once; one that is not there, or vanishes, is not found; a time-out names it."""
    client = new_queue()
    for name in ("ended", "t", "open"):
        client.put(task_id=name)
    client.cancel("ended")
    told: list[str] = []
    tell = lambda task: told.append(task.id)
    assert client.do(following.follow(client.context, "ended", tell)).state == "cancelled"
    with pytest.raises(TaskNotFound):
        client.do(following.follow(client.context, "never", tell))
    with pytest.raises(ConfigError):
        client.do(following.follow(client.context, "a/b", tell))
    with pytest.raises(WaitTimeout, match="'open' of queue 'q' is queued") as late:
        client.do(following.follow(client.context, "open", tell, timeout=0.5))
    assert late.value.left == ("open",)
    with pytest.raises(TaskNotFound):
        following_by(client, iter([lambda: client.do(operate.drop(client.context, "t"))]))
    assert told == ["ended", "open"]
    assert not any(entry.subscribers for entry in client.context.listings.readings.values())


def test_a_task_that_is_enqueued_anew_under_the_follower_s_eyes_is_followed_on() -> None:
    """No watch stands on a record that was not there when it was to be watched: it is looked for again."""
    client = new_queue()
    other = Client(client.zk, "other")
    client.put(task_id="t")
    record = client.context.paths.task("t", "state")
    steps = iter([lambda: None, lambda: other.do(operate.drop(other.context, "t")), lambda: other.put(task_id="t")])
    waits = iter([lambda: other.cancel("t")])

    def meddle(op: Op) -> None:
        if isinstance(op, Wait):
            next(waits)()
        elif record in ((op.path,) if isinstance(op, Get) else getattr(op, "paths", ())):
            next(steps, lambda: None)()

    told: list[str] = []
    client.do(following.follow(client.context, "t", lambda task: told.append(str(task.status))), meddle)
    assert told == ["queued", "cancelled"]


def test_an_error_of_the_follower_s_function_is_raised() -> None:
    """It ends the call, and nothing is left behind."""
    client = new_queue()
    client.put(task_id="t")

    def refuses(_task: Task) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        client.do(following.follow(client.context, "t", refuses))
    assert not any(entry.subscribers for entry in client.context.listings.readings.values())


# --- the archive


def test_who_publishes_the_archive_must_have_read_it() -> None:
    """The first writes version 0; of two that read the same, the second is refused."""
    client = new_queue()
    nothing = client.do(archiving.archive(client.context))
    assert nothing == Archive(born=nothing.born)
    first = replace(nothing, watermark=7, directory="/somewhere", run="a")
    client.do(configure.publish_archive(client.context, first))
    read = client.do(archiving.archive(client.context))
    assert read == replace(first, version=0)
    assert client.do(settings.conf(client.context)).archived == 7
    client.do(configure.publish_archive(client.context, replace(read, watermark=8)))
    with pytest.raises(ConfigError, match="another archive run"):
        client.do(configure.publish_archive(client.context, replace(read, watermark=9)))
    assert client.do(archiving.archive(client.context)).watermark == 8


@pytest.mark.parametrize("data", [b"\xff", b"[]", b'{"watermark": "x"}', b'{"directory": 3}'])
def test_a_damaged_archive_is_refused_by_its_path(data: bytes) -> None:
    """Nobody archives on what cannot be read."""
    client = new_queue()
    client.do(configure.publish_archive(client.context, Archive()))
    path = client.context.paths.at("archive")
    client.zk.nodes[path].data = data
    with pytest.raises(CorruptRecord, match=path):
        client.do(archiving.archive(client.context))


@pytest.mark.parametrize("read", [settings.conf, register.consumers, archiving.zxid])
def test_a_queue_that_is_not_there_is_a_configuration_error(read: Any) -> None:
    """As everywhere else."""
    nowhere = Client(FakeZooKeeper())
    with pytest.raises(ConfigError, match="does not exist"):
        nowhere.do(read(nowhere.context))


def test_a_long_register_is_read_in_chunks() -> None:
    """However many consumers there are, a request names a bounded number of them."""
    client = new_queue()
    for number in range(BEYOND_A_CHUNK):
        client.put()
        Client(client.zk, f"c{number:03}").claimed()
    log = Log()
    assert len(client.do(register.consumers(client.context), log)) == BEYOND_A_CHUNK
    assert max(len(op.paths) for op in log.ops if isinstance(op, GetMany)) <= nodes.AT_ONCE


def test_a_task_whose_time_comes_while_tasks_are_listed_is_listed_once() -> None:
    """It goes from one list of those that wait to the other, at whichever moment."""
    for steps in range(4):
        client = new_queue()
        client.put(task_id="late", delay=10)
        client.zk.advance(20)
        listing = Stepper(client.zk, client.session, ids.ids(client.context, State.INSERTED))
        for _ in range(steps):
            listing.step()
        assert client.do(promote_due(client.context)) == 1
        assert listing.finish() == ["late"]
