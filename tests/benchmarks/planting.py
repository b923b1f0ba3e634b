"""Many finished tasks in little time: copies of one that the engine finished, written straight into the tree."""

from __future__ import annotations

from collections.abc import Iterator

from kazoo.client import KazooClient

from airflow_provider_zkmq.engine import Queue

#: Tasks in one transaction, and transactions in flight.
TOGETHER, WINDOW = 25, 16


def plant(queue: Queue, count: int, hosts: str) -> list[str]:
    """Finish one task, and copy it, and its entry in the index, `count` - 1 times; the ids of all."""
    first = queue.enqueue(b"x" * 200, {"size": "small"}, task_id="task-0000000", metadata={"owner": "somebody"})
    claim = queue.claim(lease=60)
    assert claim is not None
    claim.complete(b"result " * 10)
    kazoo = KazooClient(hosts)
    kazoo.start()
    try:
        tree = list(_znodes(kazoo, f"{queue.root}/{queue.name}/tasks/{first}"))
        base = f"{queue.root}/{queue.name}/finished"
        (bucket,) = kazoo.get_children(base)
        (entry,) = kazoo.get_children(f"{base}/{bucket}")
        tree.append((f"{base}/{bucket}/{entry}", b""))
        ids = [f"task-{number:07}" for number in range(count)]
        _write(kazoo, tree, first, ids[1:])
        return ids
    finally:
        kazoo.stop()
        kazoo.close()


def _znodes(kazoo: KazooClient, path: str) -> Iterator[tuple[str, bytes]]:
    yield path, kazoo.get(path)[0]
    for name in sorted(kazoo.get_children(path)):
        yield from _znodes(kazoo, f"{path}/{name}")


def _write(kazoo: KazooClient, tree: list[tuple[str, bytes]], first: str, ids: list[str]) -> None:
    pending = []
    for start in range(0, len(ids), TOGETHER):
        transaction = kazoo.transaction()
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
