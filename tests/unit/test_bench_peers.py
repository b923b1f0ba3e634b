"""What the benchmark's peers of other kinds are asked by, and how their servers end, without such a server."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from airflow_provider_zkmq.bench.jobs import BenchError, SkippedError
from airflow_provider_zkmq.bench.peers import guarded, redis

ASKED = b"*3\r\n$5\r\nLPUSH\r\n$5\r\ntasks\r\n$4\r\na\r\nb\r\n"


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A socket in a folder of the test's own, where a server would listen."""
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    with closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind("socket")
        listening.listen()
        yield listening


@pytest.mark.parametrize(
    ("sent", "reply"),
    [
        (b":7\r\n", 7),
        (b"+PONG\r\n", b"PONG"),
        (b"$-1\r\n", None),
        (b"$4\r\na\r\nb\r\n", b"a\r\nb"),
        (b"$0\r\n\r\n", b""),
    ],
)
def test_a_reply_of_redis_is_read_to_its_end(listener: socket.socket, sent: bytes, reply: redis.Reply) -> None:
    """Also one with ends of lines in it; the next one begins after it."""
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


def test_without_its_server_redis_is_skipped_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SkippedError, match="apt install redis-server"):
        with redis.running():
            pass


def test_a_server_ends_with_the_pipe_that_its_guard_reads(tmp_path: Path) -> None:
    """Which is closed also where who started it is killed."""
    server = guarded.start(["sleep", "1000"], tmp_path, "TERM")
    assert server.poll() is None
    server.communicate(timeout=60)
    assert server.returncode == -15


def test_a_server_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    server = guarded.start(["sh", "-c", "echo no room; exit 3"], tmp_path, "TERM")
    with pytest.raises(BenchError, match="Redis does not start: no room"):
        guarded.expect(server, tmp_path, "Redis", lambda: False)
    server.communicate(timeout=60)
