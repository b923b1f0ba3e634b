"""A queue on a real ZooKeeper with znodes that used to end workers and connections: everybody goes on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kazoo.client import KazooClient

from airflow_provider_zkmq.engine import CorruptRecord, Message, Queue, RetryPolicy, String, Zkmq
from airflow_provider_zkmq.engine.log import log
from tests.integration.conftest import taken
from tests.integration.fronts import KINDS, connected
from tests.support import eventually

INFINITE, DIGITS = b'{"seconds":1e999}', b'{"seconds":' + b"9" * 400 + b"}"
DEEP = b"[" * 100_000
SETTINGS: dict[str, Any] = {"filters": {"kind": String()}, "policy": RetryPolicy(attempts=3, factor=0)}
STRANGERS = {
    "queue/strange": b"", "queue/p00000;#abc": b'{"filters":3}', "queue/p09999/00000001/not-an-entry": b"",
    "queue/p09999/00000001/0000~no-such-task": b"", "queue/p09999/00000001/0~..": b"", "tasks/torso": b"",
    "leases/..~x": b'{"seconds":0}', "leases/~x": b'{"seconds":0}', "leases/strange": b"{}", "locks/foreign": b"",
    "scheduled/strange": b"", "scheduled/0028333333/000000000000001~..": b"", "requeued/strange": b"{}",
    "batches-done/strange": b"{}", "batches/strange": b"not json", "archive": b'{"watermark":1e999}',
}  # fmt: skip
CONF = {"task_gc_lifetime": b"9" * 400, "task_gc_interval": b"\xff"}


def with_damages(queue: Queue, client: KazooClient, base: str) -> None:
    """Claimed tasks and a batch that are damaged, strangers wherever something is listed, unreadable configuration."""
    for task_id in ("surrogate", "endless", "digits", "deep", "before"):
        claim = taken(queue, lease=1000) if queue.enqueue(b"x", task_id=task_id) else None
        if task_id == "before":
            claim.fail("again")
    queue.enqueue_many([Message(b"x", task_id="m1")], batch="broken", then=Message(b"x", task_id="then"))
    path = f"{base}/tasks/surrogate/state"
    record = json.loads(client.get(path)[0]) | {"consumer": "a\ud800", "lease": "a\ud800"}
    client.set(path, json.dumps(record).encode())
    over = b'{"seconds":0}'
    leases = {name.partition("~")[0]: f"{base}/leases/{name}" for name in client.get_children(f"{base}/leases")}
    for task_id, data in {"surrogate": over, "endless": INFINITE, "digits": DIGITS, "deep": over}.items():
        client.set(leases[task_id], data)
    client.create(f"{base}/tasks/deep/metadata", DEEP)
    client.set(f"{base}/batches/broken", b'{"total":1e999}')
    client.delete(f"{base}/locks", recursive=True)
    for name, data in STRANGERS.items():
        client.create(f"{base}/{name}", data, makepath=True)
    for name, data in CONF.items():
        client.ensure_path(f"{base}/conf/{name}")
        client.set(f"{base}/conf/{name}", data)


def worked(front: str, hosts: str, root: str, wanted: set[str]) -> set[str]:
    """What a worker with a connection of its own has handled once it has had all that is wanted, and one task more."""
    done: set[str] = set()

    def handle(task: Any) -> bytes:
        done.add(task.id)
        return b"r"

    async def handle_on_a_loop(task: Any) -> bytes:
        return handle(task)

    with connected(front, hosts, root=root, gc=False) as zk, ThreadPoolExecutor(1) as pool:
        worker = zk.queue("q").worker(handle if front == "blocking" else handle_on_a_loop, threads=2)
        running = pool.submit(worker.run)
        eventually(lambda: wanted <= done or running.done())
        zk.queue("q").enqueue(b"x", task_id="last")
        eventually(lambda: "last" in done or running.done())
        worker.stop()
        running.result(60)
    return done


@pytest.mark.parametrize("front", KINDS)
def test_workers_and_their_connections_outlive_every_damage_at_once(
    zookeeper: str, root: str, zk: Zkmq, other: Zkmq, front: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Healthy tasks are handled; each damage is logged once."""
    queue, later, client = zk.queue("q"), other.queue("q"), zk._session.client
    queue.configure(**SETTINGS)
    with_damages(queue, client, f"{root}/q")
    healthy = set(queue.enqueue_many([Message(b"x", task_id=f"good{number}") for number in range(5)]))
    told: Counter[str] = Counter()
    with monkeypatch.context() as patched:
        patched.setattr(log, "warning", lambda text, *arguments, **_: told.update([text % arguments]))
        done = worked(front, zookeeper, root, healthy)
    assert done >= healthy | {"last"}
    assert {message: times for message, times in told.items() if times > 1} == {}
    assert any("surrogate/state" in message for message in told)
    queue.enqueue(b"x", task_id="later", filters={"kind": "a"})
    assert taken(later, selector="kind==a").task.id == "later"
    assert queue.collect_garbage(lifetime=0).ran
    verbs: list[tuple[Callable[..., object], str, str]] = [
        *((verb, "surrogate", "tasks/surrogate/state") for verb in (queue.task, queue.explain, queue.cancel)),
        *((verb, "surrogate", "tasks/surrogate/state") for verb in (queue.drop, queue.redrive)),
        *((queue.batch, name, f"batches/{name}") for name in ("broken", "strange")),
        (lambda name: queue.enqueue(b"x", task_id=name), "torso", "tasks/torso"),
    ]
    for verb, name, path in verbs:
        with pytest.raises(CorruptRecord, match=path):
            verb(name)
    assert queue.counts()["inserted"] >= 0
    queue.enqueue(b"x", task_id="after")
    taken(queue).complete()
    assert client.connected
