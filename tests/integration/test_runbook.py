"""The commands of the runbook, run against real servers that are in the state which the page speaks of."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from airflow_provider_zkmq.embedded import EmbeddedServer, ServerError, java
from airflow_provider_zkmq.embedded import node as fourletter
from airflow_provider_zkmq.embedded.configuration import Settings
from airflow_provider_zkmq.engine import Limit, Message, Queue, String, TaskNotFound, Zkmq
from tests.integration.clients import kazoo
from tests.integration.command import Cli, cli
from tests.integration.conftest import taken
from tests.support import eventually, fresh_root

__all__ = ["cli"]
DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "runbook.md").read_text()
_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks_of(page: str) -> dict[str, list[str]]:
    """The blocks of a page by the titles of their sections."""
    sections = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    return {section.partition("\n")[0]: _BLOCK.findall(section) for section in sections}


TO_A_FILE = "One queue, to a file and back"
#: Those of the runbook, and of the page that it leads to for a single queue.
BLOCKS = blocks_of(PAGE) | {TO_A_FILE: blocks_of((DOCS / "how-to" / "backup.md").read_text())[TO_A_FILE]}
#: What each block is preceded by: `ask`, as the page has it, and a line for each command that fails.
_PRELUDE = (
    'trap \'echo "$? ${BASH_COMMAND%% --*}" >> "$FAILED"\' ERR\n' + BLOCKS["Look first"][0].splitlines()[0] + "\n"
)
LIMIT_S = 120


class Shell:
    """A shell of somebody on call, which runs blocks of the page."""

    def __init__(self, folder: Path, hosts: str, root: str, **variables: str) -> None:
        self.folder = folder
        (folder / "handle-order").write_text("#!/bin/sh\ncat\n")
        (folder / "handle-order").chmod(0o755)
        programs = Path(sys.executable).parent
        path = f"{folder}{os.pathsep}{programs}{os.pathsep}{os.environ['PATH']}"
        where = {"ZKMQ_HOSTS": hosts, "ZKMQ_ROOT": root, "FAILED": str(folder / "failed"), "PATH": path}
        self.env = os.environ | where | variables

    def run(self, title: str, number: int = 0, fails: tuple[str, ...] = ()) -> str:
        """What the commands of a block say, of which those in ``fails``, with their exit codes, and no others fail."""
        failed = self.folder / "failed"
        failed.write_text("")
        ended = subprocess.run(
            ["bash", "-u", "-c", _PRELUDE + BLOCKS[title][number]],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert tuple(failed.read_text().splitlines()) == fails, ended.stdout
        return ended.stdout


@pytest.fixture
def shell(tmp_path: Path, zookeeper: str, root: str) -> Shell:
    return Shell(tmp_path, zookeeper, root)


@pytest.fixture
def orders(zk: Zkmq) -> Queue:
    queue = zk.queue("orders")
    queue.configure(filters={"region": String()})
    return queue


def states(queue: Queue) -> dict[str, int]:
    """How many tasks are in each state in which there are any."""
    return {state: count for state, count in queue.counts().items() if count and state != "scheduled"}


def killed(queue: Queue, errors: dict[str, int]) -> None:
    """Have so many tasks fail for good, by each of these errors."""
    for error, count in errors.items():
        for _ in range(count):
            queue.enqueue(b"x")
            taken(queue, lease=60).fail(error, retry=False)


@contextmanager
def stopped_worker(cli: Cli, *options: str, until: object) -> Iterator[int]:
    """The process of a worker that hangs from when `until` holds, which is asked while it runs."""
    with cli.background(
        "worker", "orders", "--exec", "sleep 600", "--no-gc", "--session-timeout", "40s", *options
    ) as it:
        eventually(until)  # type: ignore[arg-type]
        os.kill(it.pid, signal.SIGSTOP)
        yield it.pid


@pytest.mark.full
def test_the_first_look_finds_a_server_that_serves(shell: Shell, orders: Queue) -> None:
    """It can be written to, the queue is listed, and the server tells its mode."""
    told = shell.run("Look first")
    assert re.search(r"^writable +yes$", told, re.MULTILINE)
    assert "orders" in told
    assert "Mode: standalone" in told


@pytest.mark.full
def test_what_keeps_tasks_from_being_claimed_is_found_and_lifted(shell: Shell, orders: Queue, cli: Cli) -> None:
    """A pause, a limit, a filter that nobody accepts, no worker: each is named, and none is left."""
    orders.configure(limit=Limit(rate=1, per=3600))
    orders.enqueue_many([Message(b"x", {"region": "eu"}, priority=9) for _ in range(3)])
    with Zkmq.connect(cli.hosts, cli.root, gc=False) as gone:
        taken(gone.queue("orders")).complete()
    orders.enqueue_many([Message(b"x", {"region": "mars"}) for _ in range(2)])
    orders.pause()
    told = shell.run("Nothing is claimed")
    for sign in ("orders: paused", "no consumer lives", "no live consumer is registered"):
        assert sign in told
    shell.run("Nothing is claimed", 1)
    assert states(orders) == {"finished": 3, "cancelled": 2}
    assert shell.run("Nothing is claimed").count("zkmq ") == 0


@pytest.mark.full
def test_dead_letters_are_put_back_or_dropped_by_their_error(shell: Shell, orders: Queue) -> None:
    """The errors are counted; afterwards no dead letter is left and the queue hands out tasks again."""
    killed(orders, {"TimeoutError: the bank timed out": 5, "ValueError: no such street": 2})
    told = shell.run("Dead letters grow")
    assert re.search(r"^5 +TimeoutError", told, re.MULTILINE)
    assert re.search(r"^2 +ValueError", told, re.MULTILINE)
    assert "5 redriven" in shell.run("Dead letters grow", 1)
    assert states(orders) == {"inserted": 5}
    assert orders.conf().paused is False


@pytest.mark.full
def test_work_that_hung_workers_or_damage_hide_is_found(shell: Shell, orders: Queue, cli: Cli, zk: Zkmq) -> None:
    """A worker that was stopped is named; a task without its entry is repaired; both can be claimed afterwards."""
    with stopped_worker(cli, until=lambda: [each for each in orders.consumers() if each.alive]) as pid:
        shell.env["PID"] = str(pid)
        orders.enqueue_many([Message(b"x", task_id=name) for name in ("seen", "hidden")])
        client, top = zk._session.client, f"{cli.root}/orders/queue"
        entries = [
            f"{top}/{lane}/{segment}/{entry}"
            for lane in client.get_children(top)
            for segment in client.get_children(f"{top}/{lane}")
            for entry in client.get_children(f"{top}/{lane}/{segment}")
        ]
        client.delete(next(entry for entry in entries if entry.endswith("hidden")))
        stuck = "no consumer that accepts them takes any"
        eventually(lambda: stuck in cli.told("status orders --hung-after 1s"))
        told = shell.run("Workers idle over work", fails=("7 zkmq fsck orders",))
        assert stuck in told
        assert f'"pid": {pid}' in told
        assert "nobody would find task 'hidden'" in told
        shell.run("Workers idle over work", 1)
    claims = {taken(orders, lease=60, timeout=10).task.id for _ in range(2)}
    assert claims == {"seen", "hidden"}


@pytest.mark.full
def test_a_task_is_taken_from_a_worker_that_hangs(shell: Shell, orders: Queue, cli: Cli) -> None:
    """It is named as hung, and pending after the commands; the worker's process is gone."""
    orders.enqueue(b"x", task_id="order-7")
    held = partial(lambda: orders.counts()["claimed"] == 1)
    with stopped_worker(cli, "--lease", "1s", until=held) as pid:
        shell.env["PID"] = str(pid)
        eventually(lambda: "hung" in cli.told("status orders"))
        assert "order-7" in shell.run("A worker hangs")
        shell.run("A worker hangs", 1)
        assert states(orders) == {"inserted": 1}
        assert orders.tasks(ids=["order-7"])[0].history[-1].outcome == "revoked"


def znodes(told: str) -> int:
    return int(re.findall(r"zk_znode_count\s+(\d+)", told)[0])


@pytest.mark.full
def test_a_full_server_is_emptied_of_what_has_ended(tmp_path: Path, root: str) -> None:
    """The number of znodes falls; a payload that is too large is refused and told by its size."""
    with EmbeddedServer(tmp_path / "zk", force_sync=False) as server, Zkmq.connect(server.hosts, root, gc=False) as zk:
        queue, shell = zk.queue("orders"), Shell(tmp_path, server.hosts, root)
        queue.enqueue_many([Message(b"x") for _ in range(100)])
        for claim in queue.claim_many(50):
            claim.complete()
        killed(queue, {"ValueError: no such street": 3})
        before = znodes(shell.run("ZooKeeper is full"))
        shell.run("ZooKeeper is full", 1)
        assert znodes(shell.run("ZooKeeper is full")) < before - 100
        assert states(queue).keys() == {"inserted"}
        assert queue.conf().task_gc_lifetime == 3600
        told = shell.run("ZooKeeper is full", 2, fails=("1 zkmq enqueue orders -",))
        assert "ZooKeeper takes 1,040,000 in one request" in told


def serves(port: int) -> bool:
    """Whether a server has its place in the ensemble, or is alone."""
    try:
        return "Mode" in fourletter.srvr("127.0.0.1", port)
    except ServerError:
        return False


@pytest.mark.full
def test_a_frozen_server_and_one_without_quorum_are_told_apart(tmp_path: Path, root: str) -> None:
    """A frozen one answers nothing, one without quorum says so; both serve again with every task that was there."""
    silent, refused = "6 zkmq doctor", '1 exec 3<> "/dev/tcp/${1%:*}/${1##*:}"'
    with ExitStack() as ended:
        server = ended.enter_context(EmbeddedServer(tmp_path / "zk", ensemble=3, force_sync=False))
        zk = ended.enter_context(Zkmq.connect(server.hosts, root, session_timeout=30, gc=False))
        queue, shell = zk.queue("orders"), Shell(tmp_path, server.hosts, root)
        queue.enqueue(b"x", task_id="held")
        claim = taken(queue)
        one = Shell(tmp_path, f"127.0.0.1:{server.ports[0]}", root)
        server.pause(0)
        told = one.run("ZooKeeper is slow or silent", fails=(silent, "1 grep -E 'latency|outstanding_requests'"))
        assert "frozen" in told
        assert "zk_avg_latency" not in told
        server.resume(0)
        eventually(lambda: serves(server.ports[0]), within=60)
        assert "zk_avg_latency" in one.run("ZooKeeper is slow or silent")
        eventually(lambda: server.leader() is not None)
        leader = server.leader()
        assert leader is not None
        gone = [leader, (leader + 1) % 3]
        for node in gone:
            server.kill(node)
        told = shell.run("ZooKeeper is without quorum", fails=(silent, refused, refused))
        assert "not currently serving requests" in told
        for node in gone:
            server.restart(node, wait=False)
        eventually(lambda: all(map(serves, server.ports)), within=60)
        told = shell.run("ZooKeeper is without quorum", 1)
        assert re.search(r"^writable +yes$", told, re.MULTILINE)
        assert sorted(re.findall(r"Mode: (\w+)", told)) == ["follower", "follower", "leader"]
        claim.complete()
        assert states(queue) == {"finished": 1}


@pytest.mark.full
def test_connections_over_the_limit_are_seen_in_the_server_s_numbers(tmp_path: Path, root: str) -> None:
    """They are counted as rejected; once others have gone, the commands of the page work."""
    with EmbeddedServer(tmp_path / "zk", force_sync=False, max_connections=3) as server:
        shell = Shell(tmp_path, server.hosts, root)
        with Zkmq.connect(server.hosts, root, gc=False) as zk:
            zk.queue("orders").enqueue(b"x")
            with ExitStack() as others:
                for _ in range(2):
                    others.enter_context(kazoo(server.hosts))
                with (
                    suppress(ConnectionError),  # it is closed at once, maybe before it was seen to be open
                    socket.create_connection(("127.0.0.1", server.ports[0]), LIMIT_S) as rejected,
                ):
                    assert rejected.recv(1) == b""
            told = shell.run("Session storms")
            assert int(re.findall(r"zk_connection_rejected\s+(\d+)", told)[0]) > 0
            shell.run("Session storms", 1)
            assert states(zk.queue("orders")) == {"finished": 1}


@pytest.mark.full
def test_old_snapshots_are_deleted_while_the_server_runs(
    tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three are left of more, by ZooKeeper's own program; after a restart every task is there."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dzookeeper.snapCount=20")
    data = tmp_path / "zk" / "node-1" / "data"
    # The script of ZooKeeper's distribution reads the folder from `zoo.cfg`; the program that it starts is this one.
    purge = f"'{java.find_java().executable}' -cp '{java.class_path()}' org.apache.zookeeper.server.PurgeTxnLog"
    (tmp_path / "zkCleanup.sh").write_text(f'#!/bin/sh\n{purge} "$ZK_DATA" "$ZK_DATA" "$@"\n')
    (tmp_path / "zkCleanup.sh").chmod(0o755)
    with EmbeddedServer(tmp_path / "zk", force_sync=False) as server:
        shell = Shell(tmp_path, server.hosts, root, ZK_DATA=str(data))
        with Zkmq.connect(server.hosts, root, gc=False) as zk:

            def snapshots() -> int:
                zk.queue("orders").enqueue(b"x")
                return snapshot_count(data)

            eventually(lambda: snapshots() > 4, within=60)
            tasks = zk.queue("orders").counts()["inserted"]
        assert shell.run("A disk fills up").count("snapshot.") > 4
        shell.run("A disk fills up", 1)
        assert shell.run("A disk fills up").count("snapshot.") == 3
    with EmbeddedServer(tmp_path / "zk", force_sync=False) as server, Zkmq.connect(server.hosts, root, gc=False) as zk:
        assert zk.queue("orders").counts()["inserted"] == tasks


def snapshot_count(data: Path) -> int:
    return len(list(data.glob("version-2/snapshot.*")))


@pytest.mark.full
@pytest.mark.parametrize("running", [True, False], ids=["copied while it runs", "copied when stopped"])
def test_a_restored_copy_runs_again_what_was_finished_since(
    tmp_path: Path, running: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finished since: pending; enqueued since: gone; in hand then: given back. Nothing is orphaned, and all can end.

    The copy of a server that is stopped is of one whose log has a disk of its own; it was restored once before.
    """
    serve, root = partial(EmbeddedServer, tmp_path / "zk", force_sync=False), fresh_root()
    node = tmp_path / "zk" / "node-1"
    shell = Shell(tmp_path, "", root, ZK_DATA=str(node / "data"), COPY=str(tmp_path / "copy"))
    if not running:
        plain = Settings.zoo_cfg
        monkeypatch.setattr(Settings, "zoo_cfg", lambda *given: f"{plain(*given)}dataLogDir=./log\n")
        shell.env["ZK_LOG"] = str(node / "log")
        node.joinpath("data", "version-2.before-20260101-000000").mkdir(parents=True)
    with serve() as server:
        port = server.ports[0]
        shell.env["ZKMQ_HOSTS"] = server.hosts
        with (
            Zkmq.connect(server.hosts, root, session_timeout=2, gc=False) as zk,
            Zkmq.connect(server.hosts, root, session_timeout=2, gc=False) as holder,
        ):
            q = zk.queue("orders")
            killed(q, {"ValueError: no such street": 1})
            (dead,) = (task.id for task in q.tasks(state="dead"))
            for name in ("before", "held", "leased"):
                q.enqueue(b"x", task_id=name)
                claim = taken(holder.queue("orders"), **({"lease": 1} if name == "leased" else {}))
                if name == "before":
                    claim.complete()
            q.enqueue_many([Message(b"x", task_id=name) for name in ("charge-3", "charge-4", "untouched")])
            if running:
                with enqueuing(zk.queue("noise")):
                    shell.run("Restore ZooKeeper from a snapshot")
                worked_on(q, dead)
    if not running:
        shell.run("Restore ZooKeeper from a snapshot")
        with serve(port) as server, Zkmq.connect(server.hosts, root, gc=False) as zk:
            worked_on(zk.queue("orders"), dead)
    shell.run("Restore ZooKeeper from a snapshot", 1)
    with serve(port) as server:
        told = shell.run("Restore ZooKeeper from a snapshot", 2)
        assert {"charge-3", "charge-4", "untouched"} <= set(re.findall(r"^([\w-]+) ", told, re.MULTILINE))
        with Zkmq.connect(server.hosts, root, gc=False) as zk:
            q = zk.queue("orders")
            assert [task.id for task in q.tasks(state="dead")] == [dead]
            with pytest.raises(TaskNotFound):
                q.wait(["later"], timeout=5)
            # The sessions of the copy end: then the next who claims gives back what they held.
            eventually(lambda: not [each for each in q.consumers() if each.alive])
            shell.run("Restore ZooKeeper from a snapshot", 3)
            eventually(lambda: rest_is_done(shell, q))
            after = {task.id: (str(task.state), task.attempt) for task in q.tasks()}
            assert after == {
                dead: ("dead", 1),
                "before": ("finished", 1),
                "held": ("finished", 2),
                "leased": ("finished", 2),
                "charge-3": ("finished", 1),
                "charge-4": ("cancelled", 0),
                "untouched": ("finished", 1),
            }
            assert [zk.queue(name).fsck().findings for name in zk.queues()] == [()] * (1 + running)


@contextmanager
def enqueuing(queue: Queue) -> Iterator[None]:
    """Tasks are enqueued from before the block until after it."""
    over = Event()

    def enqueue() -> int:
        count = 0
        while not over.is_set():
            queue.enqueue(b"x")
            count += 1
        return count

    with ThreadPoolExecutor(1) as pool:
        queue.configure()
        going = pool.submit(enqueue)
        try:
            eventually(lambda: queue.counts()["inserted"] > 0)
            yield
        finally:
            over.set()
        assert going.result(60)


def worked_on(queue: Queue, dead: str) -> None:
    """What goes on after the copy was taken, and is lost with it."""
    for _ in range(2):
        taken(queue).complete()
    queue.enqueue(b"x", task_id="later")
    queue.drop(dead)
    assert {task.id for task in queue.tasks(state="finished")} >= {"before"}


def rest_is_done(shell: Shell, queue: Queue) -> bool:
    """Whether nothing is left to do; a worker runs for what was given back since."""
    if states(queue).keys() <= {"finished", "cancelled", "dead"}:
        return True
    subprocess.run(
        ["zkmq", "worker", "orders", "--exec", "cat", "--until-empty"], env=shell.env, check=True, capture_output=True
    )
    return False


@pytest.mark.full
def test_an_exported_queue_is_written_into_an_empty_one(shell: Shell, orders: Queue, zk: Zkmq) -> None:
    """With ids, payloads, filters, priorities and metadata, as often as it is done."""
    orders.enqueue_many(
        [
            Message(b"text", {"region": "eu"}, priority=3, metadata={"k": [1]}, task_id="a"),
            Message(b"\xff\x00", {"region": "mars"}, task_id="b"),
        ]
    )

    def kept() -> list[tuple[object, ...]]:
        return sorted((it.id, it.data, it.filters, it.priority, it.metadata) for it in zk.queue("orders").tasks())

    before = kept()
    shell.run(TO_A_FILE)
    assert len(json.loads((shell.folder / "orders.json").read_text())["tasks"]) == 2
    zk.delete_queue("orders", confirm=True)
    for _ in range(2):
        shell.run(TO_A_FILE, 1)
        assert kept() == before


def test_every_block_of_the_page_is_run() -> None:
    """By a test above, as its source names the block's section and number."""
    source = Path(__file__).read_text()
    for title, blocks in BLOCKS.items():
        for number in range(len(blocks)):
            call = ("TO_A_FILE" if title == TO_A_FILE else f'"{title}"') + (f", {number}" if number else "")
            assert re.search(rf"\.run\({re.escape(call)}[,)]", source), call
