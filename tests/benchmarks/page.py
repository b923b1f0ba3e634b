"""What the page of queues costs: ``python -m tests.benchmarks.page``.

100 000 pending tasks, 5 000 dead letters with 40 errors, 200 queues. It prints the time and the requests of each
view, by how much memory the server's process has grown, and what a hundred streams of events cost beside one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from airflow_provider_zkmq.embedded import EmbeddedServer, node
from airflow_provider_zkmq.embedded.server import free_ports
from airflow_provider_zkmq.engine import Message, Queue, RetryPolicy, String, Zkmq

BASE = "/zkmq/api/connections/zkmq_default"


def fill(zk: Zkmq, *, pending: int, dead: int, errors: int, queues: int) -> None:
    """Make the queues: one deep one with dead letters, the others small."""
    deep = zk.queue("deep")
    deep.configure(filters={"region": String()}, policy=RetryPolicy(attempts=1))
    kill(deep, dead, errors)
    for start in range(0, pending, 5_000):
        batch = range(start, min(start + 5_000, pending))
        deep.enqueue_many([Message(b"x" * 100, {"region": f"r{number % 20}"}) for number in batch])
    for number in range(queues - 1):
        zk.queue(f"q{number:03}").enqueue_many([Message(b"x")] * 5)


def kill(queue: Queue, count: int, errors: int) -> None:
    """Make so many dead letters of so many errors."""
    queue.enqueue_many([Message(b"x" * 100) for _ in range(count)])
    for start in range(0, count, 64):
        for number, claim in enumerate(queue.claim_many(64), start):
            kind = f"Error{chr(65 + number % errors // 26)}{chr(65 + number % errors % 26)}"
            claim.fail(f"{kind}: task {claim.task.id} failed\nTraceback\n" + "deep\n" * 20)


def serve(port: int) -> None:
    """An api-server with the page, whose every user is an administrator."""
    import uvicorn
    from airflow.api_fastapi.app import create_app

    from airflow_provider_zkmq.plugins.zkmq import QueuePage

    app = create_app(apps="core")
    app.mount("/zkmq", QueuePage())
    app.router.routes.insert(0, app.router.routes.pop())
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


@contextlib.contextmanager
def serving(hosts: str, home: Path) -> Iterator[tuple[str, int]]:
    """The same in a process of its own: its address and its pid."""
    (port,) = free_ports("127.0.0.1", 1)
    connection = {"conn_type": "zkmq", "host": hosts, "port": 0, "extra": {"root": "/page"}}
    environment = os.environ | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "AIRFLOW__API_AUTH__JWT_SECRET": "s" * 64,
        "AIRFLOW_CONN_ZKMQ_DEFAULT": json.dumps(connection),
    }
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], env=environment, check=True, **quiet)
    command = [sys.executable, "-m", "tests.benchmarks.page", "--serve", str(port)]
    with subprocess.Popen(command, env=environment, **quiet) as process:
        try:
            yield f"http://127.0.0.1:{port}", process.pid
        finally:
            process.terminate()
            process.wait(60)
            process.kill()


def resident(pid: int) -> float:
    """Megabytes."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


class Packets:
    """How many requests ZooKeeper has received."""

    def __init__(self, hosts: str) -> None:
        self._host, _, self._port = hosts.rpartition(":")

    def __call__(self) -> int:
        return int(node.srvr(self._host, int(self._port))["Received"])


def logged_in(url: str) -> httpx.Client:
    """A browser; waits for the server."""
    for _ in range(600):
        with contextlib.suppress(httpx.HTTPError):
            token = httpx.get(f"{url}/auth/token", timeout=60).json()["access_token"]
            return httpx.Client(base_url=url, cookies={"_token": token}, timeout=120)
        time.sleep(0.2)
    raise AssertionError("no api-server answered")


def say(line: str) -> None:
    """Tell a line."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


VIEWS = {
    "all queues": "queues",
    "a queue": "queue?queue=deep",
    "pending tasks": "tasks?queue=deep&state=inserted",
    "tasks by a filter": "tasks?queue=deep&state=inserted&selector=region==r7",
    "dead tasks by their error": "tasks?queue=deep&state=dead&error=ErrorBA",
    "errors": "errors?queue=deep",
}


def watch(browser: httpx.Client, seconds: float) -> None:
    """Read the events of the connection for so long."""
    end = time.monotonic() + seconds
    with contextlib.suppress(httpx.HTTPError), browser.stream("GET", f"{BASE}/events") as answer:
        for _ in answer.iter_lines():
            if time.monotonic() > end:
                return


def of_streams(url: str, packets: Packets, count: int, seconds: float) -> int:
    """The requests while so many browsers read events, and nothing else happens."""
    browsers = [logged_in(url) for _ in range(count)]
    threads = [threading.Thread(target=watch, args=(browser, seconds), daemon=True) for browser in browsers]
    for thread in threads:
        thread.start()
    time.sleep(2)
    before = packets()
    time.sleep(seconds / 2)
    spent = packets() - before
    for thread in threads:
        thread.join(seconds + 30)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", type=int)
    parser.add_argument("--pending", type=int, default=100_000)
    parser.add_argument("--dead", type=int, default=5_000)
    parser.add_argument("--queues", type=int, default=200)
    parser.add_argument("--streams", type=int, default=100)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.serve)
        return
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer(Path(folder, "zk"), force_sync=False) as server:
        with Zkmq.connect(server.hosts, "/page", gc=False) as zk:
            fill(zk, pending=asked.pending, dead=asked.dead, errors=40, queues=asked.queues)
        packets = Packets(server.plain_hosts)
        with serving(server.hosts, Path(folder)) as (url, pid):
            browser = logged_in(url)
            browser.get("/zkmq/api/connections").raise_for_status()
            before = resident(pid)
            say(f"{'view':28} {'first':>8} {'again':>8} {'requests':>9} {'bytes':>9}")
            for name, path in VIEWS.items():
                row = []
                for _ in range(2):
                    sent, start = packets(), time.perf_counter()
                    answer = browser.get(f"{BASE}/{path}")
                    row.append((time.perf_counter() - start, packets() - sent, len(answer.content)))
                    answer.raise_for_status()
                    time.sleep(1.2)
                (first, requests, size), (again, _, _) = row
                say(f"{name:28} {first:7.2f}s {again:7.2f}s {requests:9} {size:9}")
            say(f"the server's process has grown by {resident(pid) - before:.0f} MB")
            one = of_streams(url, packets, 1, 12.0)
            many = of_streams(url, packets, asked.streams, 12.0)
            say(f"requests in six seconds: {one} for one stream of events, {many} for {asked.streams}")
            say(f"the server's process has grown by {resident(pid) - before:.0f} MB")


if __name__ == "__main__":
    main()
