"""What is read of a queue on a real server, by either front."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zkmq.engine import (
    AsyncZkmq,
    ConfigError,
    Message,
    OrderedEnum,
    Queue,
    QueueConf,
    RetryPolicy,
    Task,
    TaskNotFound,
    WaitTimeout,
    Zkmq,
)
from tests.integration.clients import end_session, spent
from tests.support import eventually


class Blocking:
    """A queue whose asynchronous twin is called, each call on an event loop of its own: the same names, blocking."""

    def __init__(self, hosts: str, root: str, name: str) -> None:
        self.hosts, self.root, self.queue_name = hosts, root, name

    def __getattr__(self, verb: str) -> Any:
        async def called(*args: Any, **options: Any) -> Any:
            async with AsyncZkmq.connect(self.hosts, root=self.root, gc=False) as zk:
                return await getattr(zk.queue(self.queue_name), verb)(*args, **options)

        return lambda *args, **options: asyncio.run(called(*args, **options))


@pytest.fixture(params=["blocking", "asynchronous"])
def reads(request: pytest.FixtureRequest, zookeeper: str, root: str, q: Queue) -> Iterator[Any]:
    """The queue `q`, to be read by one of the fronts from a client that has read nothing yet."""
    if request.param == "asynchronous":
        yield Blocking(zookeeper, root, q.name)
        return
    with Zkmq.connect(zookeeper, root=root, gc=False) as other:
        yield other.queue(q.name)


def test_the_configuration_is_told(q: Queue, reads: Any) -> None:
    """What `configure` set, and what it left as it is by default."""
    q.configure(policy=RetryPolicy(attempts=2), lock=30, task_gc_lifetime=60)
    q.pause()
    classes = OrderedEnum("low", "standard", "performance", "high_performance")
    policy = RetryPolicy(attempts=2)
    assert reads.conf() == QueueConf({"performance_class": classes}, policy, 60, 300, 30, "default", True, None)


def test_a_configuration_is_read_once(zk: Zkmq, q: Queue) -> None:
    """It stays under watches: asked again, it costs nothing until it changes."""
    q.conf()
    assert spent(zk, q.conf) == {}
    q.pause()
    eventually(lambda: q.conf().paused)


def test_consumers_are_told_until_they_are_buried(zookeeper: str, root: str, q: Queue, reads: Any) -> None:
    """A session that ends leaves a dead consumer with its tasks, until somebody looks after the queue."""
    ids = sorted(q.enqueue(b"x") for _ in range(2))
    with Zkmq.connect(zookeeper, root=root, session_timeout=4, gc=False) as other:
        claims = [q.claim(selector="performance_class==low"), q.claim(), other.queue(q.name).claim()]
        assert claims[0] is None
        by_id = {consumer.id: consumer for consumer in reads.consumers()}
        mine, theirs = (by_id[q.task(claim.task.id).consumer] for claim in claims[1:] if claim is not None)
        assert sorted([*mine.in_hand, *theirs.in_hand]) == ids
        assert mine.alive
        assert mine.accepts == ("performance_class==low", "all()")
        assert mine.pid == theirs.pid
        assert mine.host == theirs.host
        end_session(other)
        eventually(lambda: any(not consumer.alive for consumer in reads.consumers()))
        eventually(lambda: q.claim() is not None)
        eventually(lambda: [consumer.id for consumer in reads.consumers()] == [mine.id])


def test_ids_of_states_and_selectors(q: Queue, reads: Any) -> None:
    """Listings, and the records of what is listed."""
    low = [q.enqueue(b"x", filters={"performance_class": "low"}) for _ in range(3)]
    high = q.enqueue(b"x", filters={"performance_class": "performance"})
    q.cancel(low[0])
    assert sorted(reads.ids()) == sorted([*low, high])
    assert reads.ids("cancelled") == low[:1]
    assert sorted(reads.ids("inserted", "performance_class<=standard")) == sorted(low[1:])
    assert reads.ids(state="dead") == []
    with pytest.raises(ConfigError, match="state 'lost' is unknown"):
        reads.ids("lost")


def test_many_tasks_with_or_without_their_payloads(q: Queue, reads: Any) -> None:
    """In the order of the ids; what is not there is left out."""
    ids = [q.enqueue(f"{number}", metadata={"n": number}) for number in range(40)]
    tasks = reads.read_many([*ids, "never"])
    assert [task.data for task in tasks] == [f"{number}".encode() for number in range(40)]
    assert tasks[3] == q.task(ids[3])
    bare = reads.read_many(ids, parts=["metadata"])
    assert bare == [replace(task, data=b"") for task in tasks]


def test_columns_of_many_tasks(q: Queue, reads: Any) -> None:
    """More than fit into the requests of one round; with empty and with large payloads."""
    ids = q.enqueue_many([Message(b"" if n % 2 else b"x" * 9_000, task_id=f"t{n}") for n in range(400)])
    q.claim(lease=60).complete(b"")  # type: ignore[union-attr]
    scanned = reads.scan([*ids, "never"], ["id", "state", "data", "result", "enqueued_ms", "metadata"], in_flight=2)
    tasks = q.read_many(ids)
    assert scanned.vanished == ("never",)
    assert scanned.columns["id"] == ids
    for name, values in scanned.columns.items():
        assert values == [getattr(task, name) for task in tasks]


def test_a_task_is_followed_to_its_end(q: Queue, reads: Any) -> None:
    """Every state is told, and what its handler reports; the last one is returned."""
    task_id = q.enqueue(b"x")
    told: list[Task] = []
    heard = threading.Condition()

    def tell(task: Task) -> None:
        with heard:
            told.append(task)
            heard.notify_all()

    def until(status: str, progress: float | None) -> None:
        with heard:
            assert heard.wait_for(lambda: told and (told[-1].status, told[-1].progress) == (status, progress), 20)

    ended: list[Task] = []
    follower = threading.Thread(target=lambda: ended.append(reads.follow(task_id, tell, timeout=60)))
    follower.start()
    until("queued", None)
    claim = q.claim()
    assert claim is not None
    until("locked", None)
    claim.progress(0.5, "half")
    until("locked", 0.5)
    claim.complete(b"done")
    follower.join(20)
    assert ended == [q.task(task_id)]
    assert told[-1] == ended[0]
    assert len({task.version for task in told}) == len(told) - 1, "progress is not the record's"


def test_following_gives_up_in_time(q: Queue, reads: Any) -> None:
    """A time-out names the task; one that is not there is not found."""
    task_id = q.enqueue(b"x")
    told: list[str] = []
    with pytest.raises(WaitTimeout) as late:
        reads.follow(task_id, lambda task: told.append(task.id), timeout=0.2)
    assert (late.value.left, told) == ((task_id,), [task_id])
    with pytest.raises(TaskNotFound):
        reads.follow("never", print)


def test_following_leaves_no_watch_behind(zk: Zkmq, q: Queue) -> None:
    """Its watches go with it."""
    task_id = q.enqueue(b"x")
    with pytest.raises(WaitTimeout):
        q.follow(task_id, lambda _task: None, timeout=0)
    assert not any(task_id in path for path in q._context.listings.readings)
    assert zk.queues() == [q.name]


def test_what_an_archive_needs(zk: Zkmq, q: Queue, reads: Any) -> None:
    """A number of now, what ended up to it, and a pointer that only its reader may move."""
    task_id = q.enqueue(b"x")
    before = q.zxid()
    q.cancel(task_id)
    now = q.zxid()
    ((ended, version, place),) = reads.ended_between(before, now)
    assert (ended, version, place) == (task_id, q.task(task_id).version, None)
    assert reads.ended_between(now, now + 1) == []
    assert reads.zxid() > now
    nothing = reads.archive()
    assert nothing.version is None
    reads.publish_archive(replace(nothing, watermark=now, directory="/archive", run="r"))
    assert reads.archive() == replace(nothing, watermark=now, directory="/archive", run="r", version=0)
    with pytest.raises(ConfigError, match="changed by another archive run"):
        reads.publish_archive(nothing)


def test_what_left_a_queue_is_told_to_its_archive(zk: Zkmq, q: Queue, reads: Any) -> None:
    """Of an archived queue: a dead letter that was dropped, as it was when it died; by both fronts."""
    reads.configure(archive=True)
    assert (reads.conf().archive, reads.conf().archived) == (True, 0)
    task_id = q.enqueue(b"x", metadata={"n": 1})
    claim = q.claim()
    assert claim is not None
    claim.fail("no", retry=False)
    dead, before = q.task(task_id), q.zxid()
    reads.drop(task_id)
    (departed,) = reads.departed_between(before, q.zxid())
    assert departed.id == task_id
    assert reads.read_departed([departed]) == [dead]
    assert reads.departed_between(0, before) == []
    q.publish_archive(replace(q.archive(), watermark=q.zxid()))
    q.collect_garbage()
    assert reads.read_departed([departed]) == []


def test_what_ended_is_told_and_read_by_both_fronts(zk: Zkmq, q: Queue, reads: Any) -> None:
    """Of a followed queue: each end once, standing or departed, up to the latest; what is trimmed is told."""
    reads.configure(follow=True)
    assert (reads.conf().follow, reads.trimmed().upto) == (True, 0)
    began, ids = reads.latest_end(), []
    for data in (b"one", b"two"):
        ids.append(q.enqueue(data, task_id="a"))
        claim = q.claim()
        assert claim is not None
        claim.complete(b"result of " + data)
    first, second = ended = reads.ended_between(began, reads.latest_end())
    assert (first.id, second.id, second.place) == ("a", "a", None)
    assert [(task.data, task.result) for task in reads.read_ended(ended)] == [
        (b"one", b"result of one"),
        (b"two", b"result of two"),
    ]
    assert reads.read_ended([first, second], parts=[])[1].data == b""
    eventually(lambda: q.collect_garbage(lifetime=0).collected == 1 or not q.ids())
    assert reads.trimmed().upto >= second.version
    assert reads.ended_between(0) == []


def test_a_queue_says_where_it_is(zk: Zkmq, root: str, q: Queue) -> None:
    """Its name and its root."""
    assert (q.name, q.root) == ("census", root)


def test_reads_cost_few_requests(zk: Zkmq, root: str, q: Queue) -> None:
    """Chunks of many tasks; two listings and two small reads for a consumer."""
    ids = [q.enqueue(b"x") for _ in range(40)]
    assert q.claim() is not None
    q.conf()
    assert spent(zk, lambda: q.read_many(ids)) == {"GetMany": 2}
    assert spent(zk, lambda: q.read_many(ids, parts=["metadata"])) == {"GetMany": 1, "Exists": len(ids)}
    assert spent(zk, q.consumers) == {"Children": 2 + 1, "GetMany": 1}
    assert spent(zk, lambda: q.ids("dead")) == {"Children": 1}
