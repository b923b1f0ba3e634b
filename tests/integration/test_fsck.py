"""`zkmq fsck` on a real ZooKeeper: many damages at once, and a queue in use, which is whole."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import Any

import pytest

from airflow_provider_zkmq.cli.main import main
from airflow_provider_zkmq.engine import DuplicateTask, Message, RetryPolicy, Zkmq
from tests.integration.fronts import KINDS, connected
from tests.integration.test_damage import SETTINGS, with_damages

#: So many tasks wait in the queue that is looked at while it is in use.
TASKS = int(os.environ.get("ZKMQ_FSCK_TASKS", "1000"))


def fsck(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """What the command line says, and its exit code."""
    code = main(["--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_many_damages_at_once_are_told_and_repaired(
    zookeeper: str, root: str, zk: Zkmq, capsys: pytest.CaptureFixture[str]
) -> None:
    """Told first, by exit code 7; then repaired, for good; healthy tasks are handled after it."""
    queue, client = zk.queue("q"), zk._session.client
    queue.configure(**SETTINGS)
    with_damages(queue, client, f"{root}/q")
    healthy = set(queue.enqueue_many([Message(b"x", task_id=f"good{number}") for number in range(5)]))
    at = ("--hosts", zookeeper, "--root", root, "fsck", "q")
    code, told = fsck(capsys, *at)
    assert (code, any(each["repaired"] for each in told["findings"])) == (7, False)
    assert {f"{root}/q/tasks/surrogate/state", f"{root}/q/archive"} <= {each["path"] for each in told["findings"]}
    code, repaired = fsck(capsys, *at, "--repair")
    assert (code, all(each["repaired"] for each in repaired["findings"])) == (0, True)
    assert {each["path"] for each in repaired["findings"]} >= {each["path"] for each in told["findings"]}
    assert fsck(capsys, *at) == (0, {"queue": "q", "count": repaired["count"], "findings": []})
    assert {task.id for task in queue.tasks(state="dead")} >= {"surrogate"}
    done = set()
    while (claim := queue.claim()) is not None:
        claim.complete()
        done.add(claim.task.id)
    assert done >= healthy


@pytest.mark.parametrize("front", KINDS)
def test_a_queue_in_use_is_found_whole(zookeeper: str, root: str, zk: Zkmq, front: str) -> None:
    """While tasks are enqueued one by one and in batches, claimed, failed, redriven and collected, again and again."""
    queue, over = zk.queue("q"), Event()
    queue.configure(policy=RetryPolicy(attempts=2, factor=0), task_gc_lifetime=0, task_gc_interval=1)
    queue.enqueue_many([Message(b"x", priority=-1) for _ in range(TASKS)])

    def produce() -> None:
        for number in range(100_000):
            if over.is_set():
                return
            members = [Message(b"x", delay=member % 2 * 0.05) for member in range(5)]
            queue.enqueue_many(members, batch=f"batch{number}", then=Message(b"then"))
            with suppress(DuplicateTask):  # it has a run in escrow already
                queue.enqueue(b"x", task_id="again", on_conflict="requeue")

    def handle(task: Any) -> bytes:
        if hash(task.id) % 3 == 0:
            raise ValueError("again")
        return b"r"

    def redrive() -> None:
        while not over.is_set():
            for task in queue.tasks(state="dead", limit=20):
                queue.drop(task.id) if hash(task.id) % 2 else queue.redrive(task.id)

    with (
        connected("blocking", zookeeper, root=root) as mine,
        connected(front, zookeeper, root=root, gc=False) as looking,
        ThreadPoolExecutor(3) as pool,
    ):
        worker = mine.queue("q").worker(handle, threads=2)
        running = [pool.submit(worker.run), pool.submit(produce), pool.submit(redrive)]
        try:
            for repair in (False, True, False):
                report = looking.queue("q").fsck(repair=repair)
                assert report.findings == ()
                assert report.tasks >= TASKS
        finally:
            over.set()
            worker.stop()
            for each in running:
                each.result(60)


def test_a_file_has_no_tree_to_check(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused by name, with the exit code of bad input."""
    code, told = fsck(capsys, "--hosts", f"textqueue://{tmp_path}", "fsck", "q")
    assert code == 2
    assert "fsck" in told["message"]
