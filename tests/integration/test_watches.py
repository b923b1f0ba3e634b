"""Watches on a real server: each znode bears one at the most, for as long as somebody relies on it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from airflow_provider_zkmq.embedded import fourletter
from airflow_provider_zkmq.engine import AsyncZkmq, ConfigError, Message, Queue, QueueNotFound, WaitTimeout, Zkmq
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Exists, Get, Sync, Watch
from airflow_provider_zkmq.engine.zk.drivers import run
from airflow_provider_zkmq.engine.zk.session import Session
from airflow_provider_zkmq.engine.zk.signals import ThreadSignal
from tests.integration.clients import spent, together
from tests.proxy import Proxy
from tests.support import eventually

MANY = 2_000


@pytest.fixture
def proxy(zookeeper: str) -> Iterator[Proxy]:
    made = Proxy(zookeeper)
    yield made
    made.close()


@pytest.fixture
def there(proxy: Proxy, root: str, q: Queue) -> Iterator[Zkmq]:
    """A second client, on a way that can be held up."""
    with Zkmq.connect(proxy.hosts, root=root, session_timeout=20, gc=False) as client:
        yield client


@pytest.fixture
def session(there: Zkmq) -> Session:
    return there._session


def single(op: Any) -> Any:
    return (yield op)


def on_server(zookeeper: str) -> int:
    host, _, port = zookeeper.partition(",")[0].rpartition(":")
    return int(fourletter.mntr(host, int(port))["zk_watch_count"])


def callbacks(session: Session) -> int:
    """What kazoo keeps of ours."""
    client = session.client
    return sum(len(found) for table in (client._data_watchers, client._child_watchers) for found in table.values())


def objects() -> Counter[str]:
    """How many objects of ours there are, by type; results that were returned and errors are nobody's any more."""
    gc.collect()
    ours = (type(one) for one in gc.get_objects() if str(type(one).__module__).startswith("airflow_provider_zkmq"))
    return Counter(kind.__name__ for kind in ours)


def constant(zookeeper: str, session: Session, call: Callable[[], Any], often: int) -> None:
    """After a first call, many more leave as many callbacks and objects behind as it did, and no more watches.

    Fewer watches are those of another client, whose session ended a moment before.
    """
    call()
    run(session, single(Sync("/")))  # replies come in order: whatever was sent before has been answered
    server, kept = on_server(zookeeper), callbacks(session)
    before = objects()
    for _ in range(often):
        call()
    eventually(lambda: on_server(zookeeper) <= server)
    eventually(lambda: callbacks(session) == kept)
    eventually(lambda: session.client.unanswered == 0)
    grown = objects() - before
    assert all(count < 10 for count in grown.values()), grown
    assert len(session.watches._fans) == kept


def times_out(queue: Queue, *ids: str) -> None:
    with pytest.raises(WaitTimeout):
        queue.wait(ids, timeout=0)


def test_waits_for_one_task_that_time_out_leave_nothing(zookeeper: str, q: Queue, there: Zkmq) -> None:
    """Two thousand of them, one after the other."""
    q.enqueue(b"x", task_id="a")
    constant(zookeeper, there._session, partial(times_out, there.queue("census"), "a"), MANY)


def test_waits_for_many_tasks_that_time_out_leave_nothing(zookeeper: str, q: Queue, there: Zkmq) -> None:
    """Each of two thousand tasks waited for once; and all of them in one wait."""
    ids = q.enqueue_many([Message(b"x") for _ in range(MANY)])
    others = iter(ids)
    queue = there.queue("census")
    constant(zookeeper, there._session, lambda: times_out(queue, next(others)), MANY - 1)
    constant(zookeeper, there._session, lambda: times_out(queue, *ids), 2)


def test_a_wait_that_ends_leaves_nothing(zookeeper: str, q: Queue, there: Zkmq) -> None:
    """The task has ended, was deleted, or never was; the waiter's own read after the event leaves no watch either."""
    queue = there.queue("census")

    def waited() -> None:
        q.enqueue(b"x", task_id="a", priority=9)
        claim = q.claim()
        assert claim is not None
        path = queue._context.paths.task("a", "state")

        def finish() -> None:
            eventually(lambda: queue._context.listings.at(path).fresh)
            claim.complete()

        together(partial(queue.wait, ["a"], timeout=20), finish)
        with pytest.raises(Exception, match="never enqueued"):
            queue.wait(["unknown"], timeout=0)

    q.configure(task_gc_lifetime=0)
    constant(zookeeper, there._session, waited, 50)


def test_searches_that_time_out_leave_one_watch(zookeeper: str, q: Queue, there: Zkmq) -> None:
    """The list of tasks is watched once, however often it was searched in vain."""

    def search() -> None:
        with pytest.raises(WaitTimeout):
            there.queue("census").find("performance_class==low", timeout=0)

    constant(zookeeper, there._session, search, 300)


def test_what_asks_for_a_missing_queue_leaves_nothing(zookeeper: str, there: Zkmq) -> None:
    """Refused claims, waits for the queue that time out, and searches that wait for it."""
    queue = there.queue("absent")

    def ask() -> None:
        with pytest.raises(QueueNotFound):
            queue.claim()
        assert not queue.exists(0.001)
        with pytest.raises(WaitTimeout):
            queue.find("all()", timeout=0.001, wait_for_queue=True)

    constant(zookeeper, there._session, ask, 100)


def test_a_search_is_woken_by_what_it_looks_for(zk: Zkmq, q: Queue, there: Zkmq) -> None:
    """Its watch lasts as long as its wait, whatever is collected meanwhile; no task before the right one ends it."""
    queue = there.queue("census")

    def enqueue() -> None:
        for value in ("standard", "low"):
            eventually(
                lambda: there._session.watches._fans.get(("child", queue._context.paths.at("tasks"))) is not None
            )
            eventually(lambda: there._session.client.unanswered == 0)
            gc.collect()
            q.enqueue(b"x", {"performance_class": value}, task_id=value)

    found, _ = together(partial(queue.find, "performance_class==low", timeout=20), enqueue)
    assert found == ["low"]


async def test_cancelled_waits_leave_nothing(zookeeper: str, root: str, q: Queue) -> None:
    """Two hundred waiters, cancelled before, during and after their reading."""
    ids = q.enqueue_many([Message(b"x") for _ in range(200)])
    async with AsyncZkmq.connect(zookeeper, root=root, gc=False) as there:
        queue = there.queue("census")
        await queue.task(ids[0])
        server, kept = on_server(zookeeper), callbacks(there._session)
        before = objects()
        for number, task_id in enumerate(ids):
            waiter = asyncio.create_task(queue.wait([task_id]))
            for _ in range(number % 8):
                await asyncio.sleep(0.0005 if number % 2 else 0)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            del waiter
        assert queue._context.listings.readings == {} or not any(
            "tasks" in path for path in queue._context.listings.readings
        )
        for _ in range(500):
            if callbacks(there._session) == kept and on_server(zookeeper) == server:
                break
            await asyncio.sleep(0.02)  # looks again
        assert (callbacks(there._session), on_server(zookeeper)) == (kept, server)
        grown = objects() - before
        assert all(count < 10 for count in grown.values()), grown


def test_pauses_and_resumes_leave_nothing(zookeeper: str, zk: Zkmq, q: Queue, there: Zkmq) -> None:
    """Three hundred of them, seen by a second client each time; each costs it the reading of what has changed."""
    queue = there.queue("census")

    def pause_and_resume() -> None:
        for change in (q.pause, q.resume):
            watch = queue._context.configuration.watch
            assert change()
            eventually(lambda watch=watch: watch.fired)
            assert spent(there, queue.claim) == {"Exists": 1}
            assert queue._context.configuration.conf.paused == (change == q.pause)

    queue.claim()
    constant(zookeeper, there._session, pause_and_resume, 300)
    assert callbacks(zk._session) < 30


def test_clean_ups_leave_nothing(zookeeper: str, q: Queue, there: Zkmq) -> None:
    """A hundred of them, each of which lists the living anew."""
    there.queue("census").claim()
    constant(zookeeper, there._session, there.queue("census").collect_garbage, 100)


# --- when a watch goes and when it stays


def watch_of(session: Session, op: type, path: str) -> Watch:
    watch = Watch(ThreadSignal())
    run(session, single(op(path, watch)))
    return watch


@pytest.fixture
def path(q: Queue, there: Zkmq) -> str:
    q.enqueue(b"x", task_id="a")
    return there.queue("census")._context.paths.task("a", "data")


@pytest.mark.parametrize("op", [Get, Exists])
def test_a_watch_that_nobody_wants_is_taken_away(zookeeper: str, session: Session, path: str, op: type) -> None:
    """One request, once; then the server and kazoo have none."""
    before, kept = on_server(zookeeper), callbacks(session)
    watch = watch_of(session, op, path)
    assert (on_server(zookeeper), callbacks(session)) == (before + 1, kept + 1)
    watch.fired = True
    for _ in range(3):
        session.unwatch(path)
    eventually(lambda: (on_server(zookeeper), callbacks(session)) == (before, kept))
    assert session.requests["RemoveWatches"] == 1
    session.unwatch(path)
    session.unwatch(f"{path}/never")
    assert session.requests["RemoveWatches"] == 1


def test_a_watch_that_somebody_else_wants_stays(session: Session, q: Queue, path: str) -> None:
    """Of two that rely on a znode one ends its wait: the other is told of the change. Listings have their own."""
    ours, theirs, names = (watch_of(session, op, path) for op in (Get, Exists, Children))
    ours.fired = True
    session.unwatch(path)
    assert "RemoveWatches" not in session.requests
    q.replace("a", b"new")
    eventually(lambda: theirs.fired)
    assert not names.fired


def test_a_watch_that_fires_while_it_is_taken_away(
    zookeeper: str, proxy: Proxy, session: Session, q: Queue, path: str
) -> None:
    """The event comes first, the removal is refused: nothing is left, and a later watch works."""
    kept = callbacks(session)
    watch = watch_of(session, Get, path)
    before = on_server(zookeeper)
    watch.fired = True
    proxy.requests.clear()
    session.unwatch(path)
    q.replace("a", b"new")
    eventually(lambda: on_server(zookeeper) == before - 1)
    proxy.requests.set()
    eventually(lambda: session.client.unanswered == 0)
    assert callbacks(session) == kept
    later = watch_of(session, Get, path)
    q.replace("a", b"newer")
    eventually(lambda: later.fired)


def test_a_read_behind_a_removal_keeps_its_watch(
    zookeeper: str, proxy: Proxy, session: Session, q: Queue, path: str
) -> None:
    """A waiter comes while the last one's watch is being taken away: it is told of the change."""
    kept = callbacks(session)
    first = watch_of(session, Get, path)
    first.fired = True
    proxy.requests.clear()
    session.unwatch(path)
    second: list[Watch] = []

    def read() -> None:
        second.append(watch_of(session, Get, path))

    def release() -> None:
        eventually(lambda: session.requests.get("Get", 0) >= 2)
        proxy.requests.set()

    together(read, release)
    assert callbacks(session) == kept + 1
    q.replace("a", b"new")
    eventually(lambda: second[0].fired)
    assert callbacks(session) == kept


def test_a_removal_behind_a_read_takes_its_watch(zookeeper: str, proxy: Proxy, session: Session, path: str) -> None:
    """A waiter ends before its reply has come, which is when kazoo would keep its callback."""
    before, kept = on_server(zookeeper), callbacks(session)
    watch = Watch(ThreadSignal())
    proxy.requests.clear()

    def read() -> None:
        with contextlib.suppress(Exception):
            run(session, single(Get(path, watch)))

    def leave() -> None:
        eventually(lambda: session.watches._fans.get(("data", path)) is not None)
        watch.fired = True
        session.unwatch(path)
        proxy.requests.set()

    together(read, leave)
    eventually(lambda: (on_server(zookeeper), callbacks(session)) == (before, kept))
    assert ("data", path) not in session.watches._fans


def test_a_lost_connection_fires_every_watch_and_leaves_nothing(
    zookeeper: str, proxy: Proxy, session: Session, path: str
) -> None:
    """Armed ones and those that are about to be; then each znode is watched anew."""
    watches = [watch_of(session, op, path) for op in (Get, Exists, Children)]
    proxy.down(0.5)
    eventually(lambda: all(watch.fired for watch in watches))
    eventually(session.connected.is_set)
    assert callbacks(session) == len(session.watches._fans) == 0
    later = watch_of(session, Get, path)
    assert not later.fired
    assert callbacks(session) == 1


def test_unwatching_never_blocks_or_raises(proxy: Proxy, there: Zkmq, session: Session, path: str) -> None:
    """Not when the server is silent, the connection away, or the client closed; a thousand znodes at once too."""
    watch_of(session, Get, path)
    gc.collect()  # the watch above was dropped by its only holder
    proxy.replies.clear()
    for number in range(1_000):
        session.watches.reading("data", f"{path}/{number}", Watch(ThreadSignal()))
        session.unwatch(f"{path}/{number}")
    session.unwatch(path)
    assert session.requests["RemoveWatches"] >= 1
    proxy.down()
    proxy.replies.set()
    eventually(lambda: not session.connected.is_set())
    session.unwatch(path)
    there.close()
    session.unwatch(path)


# --- the configuration


def test_a_refused_configuration_is_refused_again(zk: Zkmq, root: str, q: Queue, there: Zkmq) -> None:
    """The layout becomes a newer version's: each call says so, none uses what stood before; put back, all goes on."""
    q.enqueue(b"x")
    queue = there.queue("census")
    assert queue.claim(selector="performance_class==low") is None
    layout = f"{root}/census/conf/layout"
    data, _ = zk._session.client.get(layout)
    watch = queue._context.configuration.watch
    zk._session.client.set(layout, b"99")
    eventually(lambda: watch.fired)
    for call in (queue.claim, lambda: queue.enqueue(b"y"), queue.claim, queue.pause):
        with pytest.raises(ConfigError, match="upgrade airflow-provider-zkmq"):
            call()
    zk._session.client.set(layout, data)
    eventually(lambda: queue._context.listings.at(layout).watch.fired)
    claim = queue.claim()
    assert claim is not None
    assert claim.task.data == b"x"


@pytest.mark.parametrize("name", ["lock", "order", "filters", "task_gc_interval"])
def test_a_value_that_somebody_deleted_is_seen_when_it_comes_back(
    zk: Zkmq, root: str, q: Queue, there: Zkmq, name: str
) -> None:
    """Meanwhile its default holds, and looking for it costs nothing."""
    queue = there.queue("census")
    queue.claim()
    path = f"{root}/census/conf/{name}"
    data, _ = zk._session.client.get(path)
    watch = queue._context.configuration.watch
    zk._session.client.delete(path)
    eventually(lambda: watch.fired)
    queue.claim()
    assert spent(there, queue.claim) == {}
    watch = queue._context.configuration.watch
    q.configure(lock=7, order="default", task_gc_interval=11)
    zk._session.client.ensure_path(path)
    zk._session.client.set(path, {"lock": b"7", "task_gc_interval": b"11"}.get(name, data))
    eventually(lambda: watch.fired)
    eventually(lambda: queue.claim() is None and queue._context.configuration.conf.lock == 7)
    assert (queue._context.configuration.conf.gc_interval, queue._context.configuration.conf.order) == (11, "default")
    assert list(queue._context.configuration.conf.types) == ["performance_class"]
