"""Many finished tasks in little time: copies of one that the engine finished, written straight into the tree."""

from __future__ import annotations

from collections.abc import Iterator

from kazoo.client import KazooClient

from airflow_provider_zkmq.engine import Queue
from tests.integration.conftest import taken
from tests.integration.foreign import kazoo

#: Tasks in one transaction, and transactions in flight.
TOGETHER, WINDOW = 25, 16


def plant(queue: Queue, count: int, hosts: str) -> list[str]:
    """Finish one task, and copy it, and its entry in the index, `count` - 1 times; the ids of all."""
    first = queue.enqueue(b"x" * 200, {"size": "small"}, task_id="task-0000000", metadata={"owner": "somebody"})
    taken(queue, lease=60).complete(b"result " * 10)
    with kazoo(hosts) as client:
        tree = list(_znodes(client, f"{queue.root}/{queue.name}/tasks/{first}"))
        base = f"{queue.root}/{queue.name}/finished"
        (bucket,) = client.get_children(base)
        (entry,) = client.get_children(f"{base}/{bucket}")
        tree.append((f"{base}/{bucket}/{entry}", b""))
        ids = [f"task-{number:07}" for number in range(count)]
        _write(client, tree, first, ids[1:])
        return ids


def _znodes(client: KazooClient, path: str) -> Iterator[tuple[str, bytes]]:
    yield path, client.get(path)[0]
    for name in sorted(client.get_children(path)):
        yield from _znodes(client, f"{path}/{name}")


def _write(client: KazooClient, tree: list[tuple[str, bytes]], first: str, ids: list[str]) -> None:
    pending = []
    for start in range(0, len(ids), TOGETHER):
        transaction = client.transaction()
        for task_id in ids[start : start + TOGETHER]:
            for path, data in tree:
                transaction.create(path.replace(first, task_id), data.replace(first.encode(), task_id.encode()))
        pending.append(transaction.commit_async())
        if len(pending) == WINDOW:
            _check(pending)
            pending = []
    _check(pending)


def _check(pending: list) -> None:
    for each in pending:
        for result in each.get():
            assert isinstance(result, str), result
