"""The floor: kazoo alone writes the znodes that one task of ours consists of, with as many requests under way.

Which znodes those are it reads from a task that the engine has enqueued, so that it follows the tree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from airflow_provider_zkmq.bench.jobs import GROUP, PAYLOAD, Asked, BenchError, Done, Run, Verb

if TYPE_CHECKING:
    from kazoo.client import KazooClient

#: Tasks in a transaction, as the engine's `enqueue_many` has them.
_TOGETHER: Final = 20
Tree = list[tuple[str, bytes]]


def below(kazoo: KazooClient, path: str) -> Iterator[tuple[str, bytes]]:
    """A znode and all under it, each with its data, parents first."""
    yield path, kazoo.get(path)[0]
    for name in sorted(kazoo.get_children(path)):
        yield from below(kazoo, f"{path}/{name}")


def model(asked: Asked) -> tuple[str, Tree]:
    """The id of a task that is enqueued for the purpose, and the znodes that it consists of."""
    queue, kazoo = asked.queue, asked.clients.kazoo
    task = queue.enqueue(PAYLOAD)
    base = f"{queue.root}/{queue.name}"
    entries = [each for each in below(kazoo, f"{base}/queue") if each[0].endswith(f"~{task}")]
    return task, [*below(kazoo, f"{base}/tasks/{task}"), *entries]


def _write(kazoo: KazooClient, first: str, tree: Tree, tasks: int, window: int) -> None:
    under_way: deque[Any] = deque()
    for start in range(0, tasks, _TOGETHER):
        if len(under_way) == window:
            _check(under_way.popleft())
        under_way.append(_commit(kazoo, first, tree, min(_TOGETHER, tasks - start)))
    for each in under_way:
        _check(each)


def _commit(kazoo: KazooClient, first: str, tree: Tree, tasks: int) -> Any:
    transaction = kazoo.transaction()
    for _ in range(tasks):
        task = uuid4().hex
        for path, data in tree:
            transaction.create(path.replace(first, task), data)
    return transaction.commit_async()


def _check(pending: Any) -> None:
    for result in pending.get():
        if not isinstance(result, str):
            raise BenchError(f"a transaction of the bare client was refused: {result!r}")


@contextmanager
def _enqueueing(asked: Asked) -> Iterator[Run]:
    """As many transactions under way as `enqueue_many` of a hundred has; finding out what to write is not measured."""
    first, tree = model(asked)

    def run() -> Done:
        _write(asked.clients.kazoo, first, tree, asked.tasks, GROUP // _TOGETHER)
        return Done(asked.tasks)

    yield run


VERBS: Final[dict[str, Verb]] = {"bare-enqueue": Verb(_enqueueing)}
