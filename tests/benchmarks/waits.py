"""Deferred waits by the thousand in one triggerer process: sessions, watches, memory, and how soon their events come.

``python -m tests.benchmarks.waits [--sensors 8000] [--batches 2000] [--rate 100] [--hosts …]``: without hosts, on an
embedded server of its own. The triggers run on one event loop, started as Airflow's triggerer starts them; another
process completes their tasks, `rate` a second (0: as fast as it can). An event's delay counts from before its
completion was sent to when the triggerer has the event.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="zkmq-airflow-"))

import airflow.jobs.triggerer_job_runner  # noqa: F401  what a triggerer has imported
import psutil

from airflow_provider_zkmq.embedded.node import mntr
from airflow_provider_zkmq.engine import Message, Zkmq
from airflow_provider_zkmq.triggers import sessions
from airflow_provider_zkmq.triggers.zkmq import ZkmqTaskTrigger
from tests.benchmarks.throughput import some_server
from tests.support import fresh_root

QUEUE: Final = "waits"
#: The triggerer starts so many in a turn of its loop.
TURN: Final = 50
#: Its watchdog wakes so often, and tells of a loop that was blocked for longer than so many seconds.
WATCH, BLOCKED = 0.1, 0.2
PATIENCE: Final = 600.0


def _complete(hosts: str, root: str, rate: float, go: Any, done: Any) -> None:
    """Complete what is pending; then tell when each completion was sent."""
    sent: dict[str, float] = {}
    with Zkmq.connect(hosts, root=root, gc=False) as zk:
        queue = zk.queue(QUEUE)
        queue.counts()
        go.wait(PATIENCE)
        begun = time.time()
        while (claim := queue.claim()) is not None:
            if rate:
                time.sleep(max(0.0, begun + len(sent) / rate - time.time()))
            sent[claim.task.id] = time.time()
            claim.complete()
    done.put(sent)


@contextmanager
def _completer(hosts: str, root: str, rate: float) -> Iterator[tuple[Any, Any]]:
    context = multiprocessing.get_context("spawn")
    go, done = context.Event(), context.Queue()
    process = context.Process(target=_complete, args=(hosts, root, rate, go, done), daemon=True)
    process.start()
    try:
        yield go, done
    finally:
        process.join(PATIENCE)


@dataclass(slots=True)
class Loop:
    """What a triggerer's loop sees of its triggers."""

    events: dict[str, float] = field(default_factory=dict)
    """When each event came, by its task."""
    failed: list[object] = field(default_factory=list)
    turns: list[float] = field(default_factory=list)
    """For how long the loop stood still, each time that the watchdog looked."""

    async def run(self, last: str, trigger: ZkmqTaskTrigger) -> None:
        """One trigger; `last`: the task whose completion ends its wait."""
        async for event in trigger.run():
            self.events[last] = time.time()
            if event.payload["status"] != "done":
                self.failed.append(event.payload)

    async def watch(self) -> None:
        """Tell when the loop stood still, as the triggerer's watchdog does."""
        while True:
            begun = time.monotonic()
            await asyncio.sleep(WATCH)
            self.turns.append(max(0.0, time.monotonic() - begun - WATCH))


def _plant(hosts: str, root: str, sensors: int, batches: int) -> list[tuple[str, dict[str, Any]]]:
    """Enqueue what is waited for; for each trigger the task that ends its wait, and its arguments."""
    waits: list[tuple[str, dict[str, Any]]] = []
    with Zkmq.connect(hosts, root=root, gc=False) as zk:
        queue = zk.queue(QUEUE)
        queue.configure()
        ids = [f"task-{number:06d}" for number in range(sensors)]
        for at in range(0, sensors, 500):
            queue.enqueue_many([Message(b"x", task_id=task_id) for task_id in ids[at : at + 500]])
        waits += [(task_id, {"task_ids": [task_id]}) for task_id in ids]
        for number in range(batches):
            name = f"batch-{number:06d}"
            queue.enqueue_many([Message(b"x", task_id=f"{name}.t")], batch=name)
            waits.append((f"{name}.t", {"batch": name}))
    return waits


async def _measure(hosts: str, waits: list[tuple[str, dict[str, Any]]], go: Any) -> dict[str, Any]:
    """Run the triggers to their ends; `go` is set once all of them wait."""
    loop, lookups, look_up, opened = Loop(), [], sessions.async_connection_options, sessions.SESSIONS.opened

    async def counted(conn_id: str) -> dict[str, Any]:
        lookups.append(conn_id)
        return await look_up(conn_id)

    sessions.async_connection_options = counted
    host, _, port = hosts.rpartition(":")
    watchdog = asyncio.create_task(loop.watch())
    process, at_rest = psutil.Process(), await asyncio.to_thread(mntr, host, int(port))
    async with sessions.SESSIONS.lease("zkmq_default"):  # imports and the session are no waiter's
        gc.collect()
        memory, begun, running = process.memory_info().rss, time.monotonic(), []
        for number, (last, arguments) in enumerate(waits):
            trigger = ZkmqTaskTrigger(queue=QUEUE, **arguments)
            running.append(asyncio.create_task(loop.run(last, trigger)))
            if number % TURN == TURN - 1:
                await asyncio.sleep(0.02)
        before = int(at_rest["zk_watch_count"])
        while (watches := int((await asyncio.to_thread(mntr, host, int(port)))["zk_watch_count"])) - before < len(
            waits
        ):
            if time.monotonic() - begun > PATIENCE:
                break
            await asyncio.sleep(0.2)
        started, starting = time.monotonic() - begun, list(loop.turns)
        grown = process.memory_info().rss - memory
        collecting = time.perf_counter()
        gc.collect()
        collected = time.perf_counter() - collecting
        alive = int((await asyncio.to_thread(mntr, host, int(port)))["zk_num_alive_connections"])
        loop.turns = []  # our own collection is no wait's doing
        go.set()
        await asyncio.wait_for(asyncio.gather(*running), PATIENCE)
    watchdog.cancel()
    sessions.async_connection_options = look_up
    return {
        "sessions": sessions.SESSIONS.opened - opened,
        "connections": alive - int(at_rest["zk_num_alive_connections"]),
        "lookups": len(lookups),
        "watches": watches - before,
        "bytes": grown / len(waits),
        "started": started,
        "collected": collected * 1000,
        "blocked": tuple(sum(still > BLOCKED - WATCH for still in turns) for turns in (starting, loop.turns)),
        "still": _percentile(loop.turns, 0.99) * 1000,
        "events": loop.events,
        "failed": loop.failed,
    }


def _percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, math.ceil(part * len(values)) - 1)]


def measure(hosts: str, sensors: int, batches: int, rate: float) -> dict[str, Any]:
    """Measure on a server; what each entry is, `main` prints."""
    root = fresh_root()
    host, _, port = hosts.rpartition(":")
    connection = {"conn_type": "zkmq", "host": host, "port": int(port), "extra": {"root": root}}
    os.environ["AIRFLOW_CONN_ZKMQ_DEFAULT"] = json.dumps(connection)
    waits = _plant(hosts, root, sensors, batches)
    with _completer(hosts, root, rate) as (go, done):
        measured = asyncio.run(_measure(hosts, waits, go))
        sent = done.get(timeout=PATIENCE)
    measured["delays"] = [(when - sent[last]) * 1000 for last, when in measured.pop("events").items()]
    measured["rate"] = len(sent) / max(0.001, max(sent.values()) - min(sent.values()))
    return measured


def main() -> int:
    """Print what was measured; exit code 1 where a wait failed."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.benchmarks.waits")
    parser.add_argument("--sensors", type=int, default=8_000)
    parser.add_argument("--batches", type=int, default=2_000)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--hosts")
    given = parser.parse_args()
    with some_server(given.hosts) as hosts:
        found = measure(hosts, given.sensors, given.batches, given.rate)
    delays = found["delays"]
    sys.stdout.write(
        f"{given.sensors} sensors, {given.batches} batches; all waiting after {found['started']:.1f} s\n"
        f"sessions: {found['sessions']}; connection lookups: {found['lookups']}; watches: {found['watches']}\n"
        f"memory for each: {found['bytes']:,.0f} bytes\n"
        f"a full garbage collection while all wait: {found['collected']:.0f} ms\n"
        + "loop blocked for more than 0.2 s: {} times at the start, {} later\n".format(*found["blocked"])
        + f"completion to event at {found['rate']:.0f} a second, ms: median {statistics.median(delays):.1f}, "
        f"p99 {_percentile(delays, 0.99):.1f}, most {max(delays):.1f}; failed: {len(found['failed'])}\n"
        f"beside that, the loop's own watchdog woke late by {found['still']:.1f} ms at the 99th percentile\n"
    )
    return 1 if found["failed"] or len(delays) < given.sensors + given.batches else 0


if __name__ == "__main__":
    sys.exit(main())
