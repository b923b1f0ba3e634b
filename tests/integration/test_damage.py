"""A queue on a real ZooKeeper with znodes that used to end workers and connections: everybody goes on."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from kazoo.client import KazooClient

from airflow_provider_zkmq.engine import AsyncZkmq, CorruptRecord, Message, Queue, RetryPolicy, String, Zkmq, ZkmqError
from airflow_provider_zkmq.engine.log import log
from tests.support import eventually, fresh_root

INFINITE, DIGITS = b'{"seconds":1e999}', b'{"seconds":' + b"9" * 400 + b"}"
DEEP = b"[" * 100_000


def changed(client: KazooClient, path: str, **fields: object) -> None:
    """A record with other fields; of a text, ``\\ud800`` stays escaped."""
    record = json.loads(client.get(path)[0]) | fields
    client.set(path, json.dumps(record).encode())


def with_damages(queue: Queue, client: KazooClient, base: str) -> None:
    """A task in each state, each of them damaged, and strangers wherever something is listed."""
    for task_id in ("surrogate", "endless", "digits", "deep", "rerun"):
        queue.enqueue(b"x", task_id=task_id)
        claim = queue.claim(lease=1000)
        assert claim is not None
        if task_id == "rerun":
            queue.enqueue(b"again", task_id=task_id, requeue=True)
            claim.complete(b"first")
    queue.enqueue_many([Message(b"x", task_id="m1")], batch="broken", then=Message(b"x", task_id="then"))
    queue.enqueue_many([Message(b"x", task_id="m2")], batch="odd", then=Message(b"x", task_id="then2"))
    changed(client, f"{base}/tasks/surrogate/state", consumer="a\ud800", lease="a\ud800")
    leases = {name.partition("~")[0]: f"{base}/leases/{name}" for name in client.get_children(f"{base}/leases")}
    client.set(leases["surrogate"], b'{"seconds":0}')
    client.set(leases["endless"], INFINITE)
    client.set(leases["digits"], DIGITS)
    client.create(f"{base}/tasks/deep/metadata", DEEP)
    client.set(leases["deep"], b'{"seconds":0}')
    client.delete(f"{base}/tasks/rerun/result")
    client.set(f"{base}/batches/broken", b'{"total":1e999}')
    head, _, data = client.get(f"{base}/batches/odd/then")[0].partition(b"\n")
    client.set(
        f"{base}/batches/odd/then", head.replace(b'"filters":{}', b'"filters":{"kind":"\\ud800"}') + b"\n" + data
    )
    for path in ("leases/..~x", "leases/~x", "locks/foreign", "scheduled/0028333333", "queue/p09999/00000001/0~.."):
        client.create(f"{base}/{path}", b'{"seconds":0}', makepath=True)
    client.create(f"{base}/scheduled/0028333333/000000000000001~..", b"")
    client.delete(f"{base}/locks", recursive=True)
    client.create(f"{base}/archive", b'{"watermark":1e999}')
    client.set(f"{base}/conf/lock", b"1e999")
    client.set(f"{base}/conf/task_gc_lifetime", b"9" * 400)


def worked(connected: dict[str, Any], front: str, wanted: set[str]) -> set[str]:
    """What a worker with a connection of its own has handled once it has had all that is wanted, and one task more."""
    done: set[str] = set()

    def handle(task: Any) -> bytes:
        done.add(task.id)
        return b"r"

    async def handle_async(task: Any) -> bytes:
        return handle(task)

    async def run() -> None:
        async with AsyncZkmq.connect(**connected) as zk:
            worker = zk.queue("q").worker(handle_async, threads=2)
            running = asyncio.create_task(worker.run())
            await asyncio.to_thread(eventually, lambda: wanted <= done or running.done())
            await zk.queue("q").enqueue(b"x", task_id="last")
            await asyncio.to_thread(eventually, lambda: "last" in done or running.done())
            worker.stop()
            await running

    if front == "asyncio":
        asyncio.run(run())
        return done
    with Zkmq.connect(**connected) as zk:
        worker = zk.queue("q").worker(handle, threads=2)
        worker.start()
        eventually(lambda: wanted <= done)
        zk.queue("q").enqueue(b"x", task_id="last")
        eventually(lambda: "last" in done)
        worker.stop()
        worker.join()
    return done


@pytest.mark.parametrize("front", ["blocking", "asyncio"])
def test_workers_and_their_connections_outlive_every_damage_at_once(
    zookeeper: str, front: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Healthy tasks are handled, before and after; each damage is logged once; clean-up and every verb come back."""
    root = fresh_root()
    connected = {"hosts": zookeeper, "root": root, "gc": False}
    with Zkmq.connect(zookeeper, root=root, gc=False) as zk:
        queue, client, base = zk.queue("q"), zk._session.client, f"{root}/q"
        queue.configure(filters={"kind": String()}, policy=RetryPolicy(attempts=3, factor=0))
        with_damages(queue, client, base)
        healthy = set(queue.enqueue_many([Message(b"x", task_id=f"good{number}") for number in range(5)]))
        told: Counter[str] = Counter()
        with monkeypatch.context() as patched:
            patched.setattr(log, "warning", lambda text, *arguments, **_: told.update([text % arguments]))
            done = worked(connected, front, healthy)
        assert done >= healthy | {"last"}
        assert {message: times for message, times in told.items() if times > 1} == {}
        assert any("surrogate/state" in message for message in told)
        assert queue.collect_garbage(lifetime=0).ran
        for verb in (queue.task, queue.explain, queue.cancel, queue.drop, queue.redrive):
            with pytest.raises(CorruptRecord, match="tasks/surrogate/state"):
                verb("surrogate")
        with pytest.raises(CorruptRecord, match="batches/broken"):
            queue.batch("broken")
        assert queue.counts()["inserted"] >= 0
        queue.enqueue(b"x", task_id="after")
        claim = queue.claim()
        assert claim is not None
        claim.complete()


@pytest.mark.parametrize("front", ["blocking", "asyncio"])
def test_workers_go_on_while_filters_and_policy_cannot_be_read(zookeeper: str, front: str) -> None:
    """New tasks are handed out; what was delivered before waits for the policy, and is claimed once that is there."""
    root = fresh_root()
    connected = {"hosts": zookeeper, "root": root, "gc": False}
    with Zkmq.connect(zookeeper, root=root, gc=False) as zk:
        queue, client, base = zk.queue("q"), zk._session.client, f"{root}/q"
        policy = RetryPolicy(attempts=3, factor=0)
        queue.configure(filters={"kind": String()}, policy=policy)
        queue.enqueue(b"x", task_id="before")
        claim = queue.claim()
        assert claim is not None
        claim.fail("again")
        client.set(f"{base}/conf/policy", b'{"attempts":1e999}')
        client.set(f"{base}/conf/filters", DEEP)
        queue.enqueue(b"x", task_id="good")
        done = worked(connected, front, {"good"})
        assert done == {"good", "last"}
        with Zkmq.connect(zookeeper, root=root, gc=False) as other:
            with pytest.raises(CorruptRecord, match="conf/(policy|filters)"):
                other.queue("q").conf()
            with pytest.raises(CorruptRecord, match="conf/filters"):
                other.queue("q").claim(selector="kind==a")
            assert other.queue("q").claim() is None
            queue.configure(filters={"kind": String()}, policy=policy)
            mended = other.queue("q").claim(timeout=20)
            assert mended is not None
            assert mended.task.id == "before"
            mended.complete()


def test_no_text_of_a_record_ends_a_connection(zookeeper: str) -> None:
    """A lone surrogate in each text of a claimed task's record that becomes part of a path: one error, and we go on."""
    root = fresh_root()
    with Zkmq.connect(zookeeper, root=root, gc=False) as zk:
        queue, client, base = zk.queue("q"), zk._session.client, f"{root}/q"
        queue.enqueue(b"x", task_id="a")
        claim = queue.claim(lease=100)
        assert claim is not None
        path = f"{base}/tasks/a/state"
        good = client.get(path)[0]
        for field in ("consumer", "lease", "batch", "place", "index"):
            client.set(path, good)
            changed(client, path, **{field: "a\ud800/b/c" if field in {"place", "index"} else "a\ud800"})
            for verb in (queue.cancel, queue.drop, queue.explain):
                with pytest.raises(CorruptRecord, match=path):
                    verb("a")
            with pytest.raises(ZkmqError):
                queue.complete("a", claim.token)
            queue.look_after()
        assert client.connected
        client.set(path, good)
        queue.complete("a", claim.token)
        assert queue.task("a").state == "finished"
