"""A process that works with the package of one tree, and measures what it is asked for.

`throughput` starts it with ``python -P agent.py HOSTS ROOT`` and the tree on ``PYTHONPATH``: so it imports nothing of
the tests, and nothing of the package but names that both revisions have. It reads a request from each line of its
input, ``{"row": …, "queue": …, "tasks": …}``, answers each with one line of JSON, and ends with its input.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import airflow_provider_zkmq
from airflow_provider_zkmq.engine import AsyncZkmq, Message, Queue, Zkmq

PAYLOAD = b"x" * 100
GROUP = 100
AT_ONCE = 64
PATIENCE = 120.0

Answer = dict[str, Any]


@contextmanager
def measured(tasks: int) -> Iterator[Answer]:
    """Fill in how long the body took, by the wall and of this process's CPU; `begun` and `ended` by the calendar."""
    gc.collect()
    answer: Answer = {"tasks": tasks, "begun": time.time()}
    wall, cpu = time.perf_counter(), time.process_time()
    yield answer
    answer |= {
        "seconds": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "ended": time.time(),
    }


def fill(queue: Queue, tasks: int) -> None:
    """Enqueue so many tasks, a group at a time."""
    for start in range(0, tasks, GROUP):
        queue.enqueue_many([Message(PAYLOAD) for _ in range(min(GROUP, tasks - start))])


def fill_strict(queue: Queue, tasks: int) -> None:
    """The same in a queue of strict order."""
    queue.configure(order="fifo")
    fill(queue, tasks)


def drain(queue: Queue) -> int:
    """Claim and complete until nothing is left; returns how many tasks that were."""
    claimed = 0
    while (claim := queue.claim()) is not None:
        claim.complete()
        claimed += 1
    return claimed


def prepare(fill_queue: Callable[[Queue, int], None], queue: Queue, tasks: int) -> Answer:
    """Fill a queue for others."""
    with measured(tasks) as answer:
        fill_queue(queue, tasks)
    return answer


def consume(queue: Queue, tasks: int) -> Answer:
    """Take part in draining a queue that another process has filled with so many tasks."""
    queue.counts()  # what a client reads at its first call is not measured
    with measured(tasks) as answer:
        answer["tasks"] = drain(queue)
    return answer


def enqueue_singly(queue: Queue, tasks: int) -> Answer:
    """One call for each task."""
    queue.enqueue(PAYLOAD)
    with measured(tasks) as answer:
        for _ in range(tasks):
            queue.enqueue(PAYLOAD)
    return answer


def enqueue_groups(queue: Queue, tasks: int) -> Answer:
    """One call for each hundred tasks."""
    queue.enqueue(PAYLOAD)
    with measured(tasks) as answer:
        fill(queue, tasks)
    return answer


def claim_and_complete(queue: Queue, tasks: int) -> Answer:
    """One caller."""
    fill(queue, tasks)
    return consume(queue, tasks)


def work(threads: int, queue: Queue, tasks: int) -> Answer:
    """A worker with an empty handler: the time from the first call of its handler to the last."""
    fill(queue, tasks)
    times: list[float] = []
    all_handled = threading.Event()

    def handler(_task: object) -> None:
        times.append(time.perf_counter())
        if len(times) == tasks:
            all_handled.set()

    with measured(tasks - 1) as answer:
        worker = queue.worker(handler, threads=threads)
        worker.start()
        in_time = all_handled.wait(PATIENCE)
        worker.stop()
        worker.join()
    if not in_time:
        raise TimeoutError(f"a worker handled {len(times)} of {tasks} tasks in {PATIENCE:g} s")
    answer["seconds"] = max(times) - min(times)
    return answer


async def _at_once(client: AsyncZkmq, name: str, tasks: int, *, claiming: bool) -> Answer:
    queue, left = client.queue(name), iter(range(tasks))

    async def enqueues() -> None:
        for _ in left:
            await queue.enqueue(PAYLOAD)

    async def claims() -> None:
        while (claim := await queue.claim()) is not None:
            await claim.complete()

    with measured(tasks) as answer:
        await asyncio.gather(*((claims if claiming else enqueues)() for _ in range(AT_ONCE)))
    return answer


def on_an_event_loop(connect: Callable[[], AsyncZkmq], claiming: bool, queue: Queue, tasks: int) -> Answer:
    """64 coroutines of one client."""
    if claiming:
        fill(queue, tasks)
    else:
        queue.enqueue(PAYLOAD)

    async def main() -> Answer:
        async with connect() as client:
            return await _at_once(client, queue.name, tasks, claiming=claiming)

    return asyncio.run(main())


def encoding(queue: Queue, tasks: int) -> Answer:
    """How often a record is encoded, and how many creates are built, while so many tasks are enqueued.

    Where the classes are differs between revisions: they are found by their names.
    """
    counts: dict[str, int] = {"records": 0, "creates": 0}

    def counted(what: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[what] += 1
            return real(*args, **kwargs)

        return call

    record, create = _defined("TaskState"), _defined("Create")
    queue.enqueue(PAYLOAD)
    with ExitStack() as stack, measured(tasks) as answer:
        stack.enter_context(mock.patch.object(record, "encode", counted("records", record.encode)))
        stack.enter_context(mock.patch.object(create, "__init__", counted("creates", create.__init__)))
        fill(queue, tasks)
    return answer | {what: count / tasks for what, count in counts.items()}


def _defined(name: str) -> Any:
    """The one class of the protocol with this name."""
    modules = [module for key, module in sys.modules.items() if key.startswith("airflow_provider_zkmq.engine.core.")]
    (only,) = {vars(module)[name] for module in modules if name in vars(module)}
    return only


def rows(hosts: str, root: str) -> dict[str, Callable[[Queue, int], Answer]]:
    """What can be asked for."""
    connect = partial(AsyncZkmq.connect, hosts, root=root, gc=False)
    return {
        "fill": partial(prepare, fill),
        "fill strict": partial(prepare, fill_strict),
        "consume": consume,
        "enqueue": enqueue_singly,
        "enqueue_many": enqueue_groups,
        "claim": claim_and_complete,
        "worker 1": partial(work, 1),
        "worker 8": partial(work, 8),
        "asyncio enqueue": partial(on_an_event_loop, connect, False),
        "asyncio claim": partial(on_an_event_loop, connect, True),
        "encoding": encoding,
    }


def _reply(answer: Answer) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Answer until the input ends."""
    hosts, root = sys.argv[1:]
    known = rows(hosts, root)
    with Zkmq.connect(hosts, root=root, gc=False) as zk:
        _reply({"package": airflow_provider_zkmq.__file__})
        for line in sys.stdin:
            requested = json.loads(line)
            _reply(known[requested["row"]](zk.queue(requested["queue"]), requested["tasks"]))


if __name__ == "__main__":
    main()
