"""Watches on a real server: each znode bears one at the most, for as long as somebody relies on it."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from airflow_provider_zkmq.embedded import node
from airflow_provider_zkmq.engine import AsyncZkmq, Message, Queue, QueueNotFound, WaitTimeout, Zkmq
from airflow_provider_zkmq.engine.core.zk_operations import Children, Exists, Get, Sync, Watch
from airflow_provider_zkmq.engine.queue_internals import internals
from airflow_provider_zkmq.engine.zk.procedure_drivers import run
from airflow_provider_zkmq.engine.zk.session import Session, ThreadSignal
from tests.faulty import Faulty
from tests.integration.clients import spent, together
from tests.integration.conftest import taken
from tests.support import eventually

MANY = 150
NUMBERS = itertools.count()


@pytest.fixture
def there(door: Faulty, root: str, q: Queue) -> Iterator[Zkmq]:
    """A second client, on a way that can be held up."""
    with Zkmq.connect(door.hosts, root=root, session_timeout=20, gc=False) as client:
        yield client


@pytest.fixture
def session(there: Zkmq) -> Session:
    return there._session


def single(op: Any) -> Any:
    return (yield op)


def on_server(zookeeper: str) -> int:
    host, _, port = zookeeper.partition(",")[0].rpartition(":")
    return int(node.mntr(host, int(port))["zk_watch_count"])


def callbacks(session: Session) -> int:
    """What kazoo keeps of ours."""
    client = session.client
    return sum(len(found) for table in (client._data_watchers, client._child_watchers) for found in table.values())


def objects() -> Counter[str]:
    """How many objects of ours there are, by type; results that were returned and errors are nobody's any more."""
    gc.collect()
    ours = (type(one) for one in gc.get_objects() if str(type(one).__module__).startswith("airflow_provider_zkmq"))
    return Counter(kind.__name__ for kind in ours)


@contextmanager
def constant(zookeeper: str, session: Session) -> Iterator[None]:
    """As many callbacks and objects are left as there were before, and no more watches (others' sessions may end)."""
    run(session, single(Sync("/")))  # replies come in order: whatever was sent before has been answered
    server, kept, before = on_server(zookeeper), callbacks(session), objects()
    yield
    eventually(lambda: on_server(zookeeper) <= server)
    eventually(lambda: callbacks(session) == kept)
    eventually(lambda: len(session.client.send_queue) == 0)
    grown = objects() - before
    assert all(count < 10 for count in grown.values()), grown
    assert len(session.watches._fans) == kept


def wait_in_vain(_q: Queue, queue: Queue, _there: Zkmq) -> None:
    """For one task, now and then for all of them."""
    number = next(NUMBERS) % MANY
    with pytest.raises(WaitTimeout):
        queue.wait([f"t{each}" for each in ([number] if number % 50 else range(MANY))], timeout=0)


def wait_to_the_end(q: Queue, queue: Queue, _there: Zkmq) -> None:
    """The task has ended, or never was; the waiter's own read after the event leaves no watch either."""
    q.enqueue(b"x", task_id="a", priority=9)
    claim = taken(q)
    path = queue._context.paths.task("a", "state")

    def finish() -> None:
        eventually(lambda: queue._context.listings.at(path).fresh)
        claim.complete()

    together(partial(queue.wait, ["a"], timeout=20), finish)
    with pytest.raises(Exception, match="never enqueued"):
        queue.wait(["unknown"], timeout=0)


def search_in_vain(_q: Queue, queue: Queue, _there: Zkmq) -> None:
    """The list of tasks is watched once, however often it was searched."""
    with pytest.raises(WaitTimeout):
        internals(queue).find("performance_class==low", timeout=0)


def ask_for_a_missing_queue(_q: Queue, _queue: Queue, there: Zkmq) -> None:
    """Refused claims, waits for the queue that time out, and searches that wait for it."""
    absent = there.queue("absent")
    with pytest.raises(QueueNotFound):
        absent.claim()
    assert not absent.exists(0.001)
    with pytest.raises(WaitTimeout):
        internals(absent).find("all()", timeout=0.001)


def pause_and_resume(q: Queue, queue: Queue, there: Zkmq) -> None:
    """Each costs the other client the reading of what has changed."""
    for change in (q.pause, q.resume):
        watch = queue._context.configuration.watch
        assert change()
        eventually(lambda watch=watch: watch.fired)
        assert spent(there, queue.claim) == {"Get": 1}
        assert queue._context.configuration.conf.paused == (change == q.pause)


def clean_up(_q: Queue, queue: Queue, _there: Zkmq) -> None:
    """It lists the living anew."""
    queue.collect_garbage()


#: What is done, how often, and how many tasks there are meanwhile.
HABITS: dict[Callable[[Queue, Queue, Zkmq], None], tuple[int, int]] = {
    wait_in_vain: (MANY, MANY),
    wait_to_the_end: (20, 0),
    search_in_vain: (60, 1),
    ask_for_a_missing_queue: (30, 1),
    pause_and_resume: (30, 0),
    clean_up: (30, 1),
}


@pytest.mark.parametrize("act", HABITS)
def test_what_is_done_again_and_again_leaves_nothing(
    zookeeper: str, zk: Zkmq, q: Queue, there: Zkmq, act: Callable[[Queue, Queue, Zkmq], None]
) -> None:
    """Waits, searches, pauses, clean-ups, questions for a queue that is not there: a second client keeps nothing."""
    (often, tasks), queue = HABITS[act], there.queue("census")
    q.configure(task_gc_lifetime=0)
    assert queue.claim() is None
    q.enqueue_many([Message(b"x", task_id=f"t{number}") for number in range(tasks)])
    act(q, queue, there)
    with constant(zookeeper, there._session):
        for _ in range(often):
            act(q, queue, there)
    assert callbacks(zk._session) < 30


async def test_cancelled_waits_leave_nothing(zookeeper: str, root: str, q: Queue) -> None:
    """Two hundred waiters, cancelled before, during and after their reading."""
    ids = q.enqueue_many([Message(b"x") for _ in range(200)])
    async with AsyncZkmq.connect(zookeeper, root=root, gc=False) as there:
        queue = there.queue("census")
        await queue.task(ids[0])
        with constant(zookeeper, there._session):
            for number, task_id in enumerate(ids):
                waiter = asyncio.create_task(queue.wait([task_id]))
                for _ in range(number % 8):
                    await asyncio.sleep(0.0005 if number % 2 else 0)
                waiter.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiter
                del waiter
            assert not any("tasks" in path for path in queue._context.listings.readings)


# --- when a watch goes and when it stays


def watch_of(session: Session, op: type, path: str) -> Watch:
    watch = Watch(ThreadSignal())
    run(session, single(op(path, watch)))
    return watch


@pytest.fixture
def path(q: Queue, there: Zkmq) -> str:
    q.enqueue(b"x", task_id="a")
    return there.queue("census")._context.paths.task("a", "data")


def test_a_watch_is_taken_away_when_nobody_wants_it(zookeeper: str, session: Session, q: Queue, path: str) -> None:
    """By one request; of two that rely on a znode the other is told of the change. Listings have their own."""
    before, kept = on_server(zookeeper), callbacks(session)
    for number, op in enumerate((Get, Exists), 1):
        watch = watch_of(session, op, path)
        assert (on_server(zookeeper), callbacks(session)) == (before + 1, kept + 1)
        watch.fired = True
        for _ in range(3):
            session.unwatch(path)
        eventually(lambda: (on_server(zookeeper), callbacks(session)) == (before, kept))
        assert session.requests["RemoveWatches"] == number
        session.unwatch(path)
        session.unwatch(f"{path}/never")
        assert session.requests["RemoveWatches"] == number
    ours, theirs, names = (watch_of(session, op, path) for op in (Get, Exists, Children))
    ours.fired = True
    session.unwatch(path)
    assert session.requests["RemoveWatches"] == 2
    internals(q).replace("a", b"new")
    eventually(lambda: theirs.fired)
    assert not names.fired


def test_what_comes_while_a_watch_is_taken_away(
    zookeeper: str, door: Faulty, session: Session, q: Queue, path: str
) -> None:
    """An event, another waiter, the waiter's own read: each meets the removal, and nobody who waits is forgotten."""
    kept, without = callbacks(session), on_server(zookeeper)
    # The event comes first, the removal is refused: nothing is left, and a later watch works.
    watch = watch_of(session, Get, path)
    watch.fired = True
    door.hold("requests")
    session.unwatch(path)
    internals(q).replace("a", b"new")
    eventually(lambda: on_server(zookeeper) == without)
    door.flow()
    eventually(lambda: len(session.client.send_queue) == 0)
    assert callbacks(session) == kept
    first = watch_of(session, Get, path)
    internals(q).replace("a", b"newer")
    eventually(lambda: first.fired)
    # A waiter comes while the last one's watch is being taken away: it is told of the change.
    first = watch_of(session, Get, path)
    first.fired = True
    before = session.requests.get("Get", 0)
    door.hold("requests")
    session.unwatch(path)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(watch_of, session, Get, path)
        eventually(lambda: session.requests.get("Get", 0) > before)
        door.flow()
    assert callbacks(session) == kept + 1
    internals(q).replace("a", b"newest")
    eventually(lambda: second.result().fired)
    assert callbacks(session) == kept
    # A waiter ends before its reply has come, which is when kazoo would keep its callback.
    watch = Watch(ThreadSignal())
    door.hold("requests")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(run, session, single(Get(path, watch)))
        eventually(lambda: session.watches._fans.get(("data", path)) is not None)
        watch.fired = True
        session.unwatch(path)
        door.flow()
    eventually(lambda: (on_server(zookeeper), callbacks(session)) == (without, kept))
    assert ("data", path) not in session.watches._fans


def test_a_lost_connection_fires_every_watch_and_leaves_nothing(
    zookeeper: str, door: Faulty, session: Session, path: str
) -> None:
    """Armed ones and those that are about to be; then each znode is watched anew."""
    watches = [watch_of(session, op, path) for op in (Get, Exists, Children)]
    door.down(0.5)
    eventually(lambda: all(watch.fired for watch in watches))
    eventually(session.connected.is_set)
    assert callbacks(session) == len(session.watches._fans) == 0
    later = watch_of(session, Get, path)
    assert not later.fired
    assert callbacks(session) == 1


def test_unwatching_never_blocks_or_raises(door: Faulty, there: Zkmq, session: Session, path: str) -> None:
    """Not when the server is silent, the connection away, or the client closed; a thousand znodes at once too."""
    watch_of(session, Get, path)
    gc.collect()  # the watch above was dropped by its only holder
    door.hold("replies")
    for number in range(1_000):
        session.watches.reading("data", f"{path}/{number}", Watch(ThreadSignal()))
        session.unwatch(f"{path}/{number}")
    session.unwatch(path)
    assert session.requests["RemoveWatches"] >= 1
    door.down()
    door.flow()
    eventually(lambda: not session.connected.is_set())
    session.unwatch(path)
    there.close()
    session.unwatch(path)


# --- the configuration


def test_a_value_that_somebody_deleted_is_seen_when_it_comes_back(zk: Zkmq, root: str, q: Queue, there: Zkmq) -> None:
    """Meanwhile its default holds, and looking for it costs nothing."""
    queue = there.queue("census")

    def conf() -> Any:
        queue.claim()
        return queue._context.configuration.conf

    conf()
    for number, name in enumerate(("task_gc_lifetime", "task_gc_interval"), 7):
        path = f"{root}/census/conf/{name}"
        watch = queue._context.configuration.watch
        zk._session.client.delete(path)
        eventually(lambda watch=watch: watch.fired)
        assert getattr(conf(), name.removeprefix("task_")) in {86_400, 300}
        assert spent(there, queue.claim) == {}
        q.configure(**{name: number})
        eventually(lambda number=number, name=name: getattr(conf(), name.removeprefix("task_")) == number)


def test_settings_changed_by_hand_are_heard(zk: Zkmq, root: str, q: Queue, there: Zkmq) -> None:
    """Also by an editor that knows nothing of this library; what it leaves out has its default."""
    queue, path = there.queue("census"), f"{root}/census/conf"
    assert queue.claim() is None
    zk._session.client.set(path, b'{"lock": 7, "filters": {"size": {"type": "Integer"}}}')
    eventually(lambda: (queue.conf().lock, list(queue.conf().filters)) == (7, ["size"]))
    assert q.enqueue(b"x", {"size": 3}) is not None
    assert queue.claim({"size": 3}) is not None
