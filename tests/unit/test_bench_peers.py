"""What the benchmark's peers of other kinds are asked by, and how their servers end, without such a server."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from pathlib import Path

import pytest

from airflow_provider_zkmq.bench.jobs import BenchError, SkippedError
from airflow_provider_zkmq.bench.peers import guarded, rabbit, redis, threaded

ASKED = b"*3\r\n$5\r\nLPUSH\r\n$5\r\ntasks\r\n$4\r\na\r\nb\r\n"


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A socket in a folder of the test's own, where a server would listen."""
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    with closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind("socket")
        listening.listen()
        yield listening


def test_a_reply_of_redis_is_read_to_its_end(listener: socket.socket) -> None:
    """Also one with ends of lines in it; the next one begins after it."""
    replies = {
        b":7\r\n": 7,
        b"+PONG\r\n": b"PONG",
        b"$-1\r\n": None,
        b"$4\r\na\r\nb\r\n": b"a\r\nb",
        b"$0\r\n\r\n": b"",
    }
    for sent, reply in replies.items():
        with redis.Connection(Path("socket")) as connection, closing(listener.accept()[0]) as server:
            server.sendall(sent + b":1\r\n")
            assert connection.call(b"LPUSH", b"tasks", b"a\r\nb") == reply
            assert connection.call(b"PING") == 1
            assert server.recv(len(ASKED)) == ASKED


def test_what_redis_refuses_is_said(listener: socket.socket) -> None:
    with redis.Connection(Path("socket")) as connection, closing(listener.accept()[0]) as server:
        server.sendall(b"-OOM command not allowed\r\n")
        with pytest.raises(BenchError, match="LPUSH with '-OOM command not allowed'"):
            connection.call(b"LPUSH", b"tasks", b"x")


def test_a_connection_that_ends_is_no_reply(listener: socket.socket) -> None:
    """Neither before one nor in the middle of one."""
    for sent in (b"", b"$10\r\nabc"):
        with redis.Connection(Path("socket")) as connection:
            with closing(listener.accept()[0]) as server:
                server.sendall(sent)
                server.shutdown(socket.SHUT_WR)
                with pytest.raises(BenchError, match="LMOVE"):
                    connection.call(b"LMOVE")


def test_without_its_server_or_its_client_a_peer_is_skipped_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(rabbit, "_DEBIAN", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SkippedError, match="apt install redis-server"), redis.running():
        pass
    with pytest.raises(SkippedError, match="apt install rabbitmq-server"), rabbit.running():
        pass
    for name in ("rabbitmq-server", "epmd"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setitem(sys.modules, "pika", None)
    monkeypatch.setattr(rabbit.importlib.util, "find_spec", lambda _name: None)  # type: ignore[attr-defined]
    with pytest.raises(SkippedError, match="pip install pika"), rabbit.running():
        pass


class Fake:
    """A client that notes what it was asked for."""

    def __init__(self, asked: list[str]) -> None:
        self.asked = asked

    def clear(self) -> None:
        self.asked.append("clear")

    def put(self, tasks: int, verb: str = "put", done: int | None = None) -> int:
        self.asked.append(f"{verb} {tasks}")
        return tasks if done is None else done

    def put_many(self, tasks: int) -> int:
        return self.put(tasks, "put-many")

    def consume(self, tasks: int) -> int:
        return self.put(tasks, "consume", 2)


def test_threads_share_what_is_put_and_what_is_there() -> None:
    """Only what a run did is counted, not what was there before."""
    asked: list[str] = []

    @contextmanager
    def running() -> Iterator[Callable[[], AbstractContextManager[Fake]]]:
        yield lambda: nullcontext(Fake(asked))

    with ExitStack() as stack:
        agent = threaded.Agent(stack, running)
        assert agent.answer("fill", "put", "n1", "12", "4") == {}
        assert agent.answer("run")["tasks"] == 12
        assert asked == ["clear", *["put 3"] * 4]
        asked.clear()
        agent.answer("fill", "consume", "n2", "12", "0")
        assert agent.answer("run")["tasks"] == 2
        assert asked == ["clear", "put-many 12", "consume 12"]


def test_a_server_ends_with_the_pipe_that_its_guard_reads(tmp_path: Path) -> None:
    """Which is closed also where who started it is killed."""
    server = guarded.start(["sleep", "1000"], tmp_path, "TERM")
    assert server.poll() is None
    server.communicate(timeout=60)
    assert server.returncode == -15


def test_what_a_server_has_started_ends_with_it(tmp_path: Path) -> None:
    """As RabbitMQ's port mapper does. Both hold a pipe open for writing: its end says that both are gone."""
    os.mkfifo(tmp_path / "pipe")
    command = ["/bin/sh", "-c", "exec >pipe; sleep 1000 & echo begun; exec sleep 1000"]
    server = guarded.start(command, tmp_path, "KILL")
    with (tmp_path / "pipe").open("rb") as pipe:
        assert pipe.readline() == b"begun\n"
        server.communicate(timeout=60)
        assert pipe.read() == b""


def test_a_server_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    server = guarded.start(["sh", "-c", "echo no room; exit 3"], tmp_path, "TERM")
    with pytest.raises(BenchError, match="Redis does not start: no room"):
        guarded.expect(server, tmp_path, "Redis", lambda: False)
    server.communicate(timeout=60)
