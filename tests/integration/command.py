"""`zkmq` as tests call it: in this process, which is quick, or in one of its own, where that matters."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from airflow_provider_zkmq.cli.main import main
from airflow_provider_zkmq.engine import Queue, Zkmq

LIMIT_S = 60.0
ZKMQ = [sys.executable, "-m", "airflow_provider_zkmq"]

Ended = subprocess.CompletedProcess[str]


class Cli:
    """`zkmq` with the environment of one test."""

    def __init__(self, hosts: str, root: str) -> None:
        self.hosts = hosts
        self.root = root
        self.env = os.environ | {"ZKMQ_HOSTS": hosts, "ZKMQ_ROOT": root}
        self.env.pop("ZKMQ_AUTH", None)

    def run(self, *argv: str, stdin: bytes = b"") -> Ended:
        """A command, carried out in this process."""
        return carry_out(argv, self.env, stdin)

    def told(self, line: str, code: int = 0) -> str:
        """What people read of a command line that must end with `code`."""
        ended = self.run(*shlex.split(line))
        assert ended.returncode == code, ended.stderr
        return ended.stdout

    def ask(self, line: str, code: int = 0, *, says: str = "", stdin: bytes = b"", **wanted: Any) -> Any:
        """The JSON answer to a command line: it has this exit code and these values. Errors are one line, too."""
        ended = self.run(*shlex.split(line), "--json", stdin=stdin)
        assert ended.returncode == code, ended.stderr
        answer = json.loads(ended.stdout)
        if code in {1, 2, 4, 6}:
            assert ended.stderr == f"zkmq: {answer['message']}\n"
            assert says in answer["message"]
        assert {name: answer[name] for name in wanted} == wanted
        return answer

    def in_hand(self, options: str = "") -> str:
        """The next task of `q`, claimed: what settles it on a command line."""
        claim = self.ask(f"claim q {options}")
        return f"q {claim['id']} --token {claim['token']}"

    @contextlib.contextmanager
    def background(self, *argv: str, **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
        """A command in a process of its own, ended at the latest with the block."""
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
        with subprocess.Popen([*ZKMQ, *argv], env=self.env, **streams) as process:
            try:
                yield process
            finally:
                process.kill()


def carry_out(argv: tuple[str, ...], env: dict[str, str], stdin: bytes = b"") -> Ended:
    """Run a command line in this process, and leave the process as it was."""
    out, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    with contextlib.ExitStack() as stack:
        stack.enter_context(_logging_as_it_was())
        stack.enter_context(_environment(env))
        stack.enter_context(mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(errors))
        code = main(argv)
    texts = []
    for stream in (out, errors):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(argv, code, *texts)


@contextlib.contextmanager
def _environment(env: dict[str, str]) -> Iterator[None]:
    """Only what differs is written: native threads, as those of delta-rs, may read it while a write moves it."""
    before = dict(os.environ)
    try:
        _write_environment(env)
        yield
    finally:
        _write_environment(before)


def _write_environment(env: dict[str, str]) -> None:
    for name in os.environ.keys() - env.keys():
        del os.environ[name]
    for name, value in env.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


@contextlib.contextmanager
def _logging_as_it_was() -> Iterator[None]:
    """A command sets up logging for the process, which is not its own here."""
    ours, kazoo = (logging.getLogger(name) for name in ("airflow_provider_zkmq", "airflow_provider_zkmq.kazoo"))
    level, thread_hook = ours.level, threading.excepthook
    try:
        yield
    finally:
        logging.captureWarnings(capture=False)
        threading.excepthook = thread_hook
        ours.setLevel(level)
        kazoo.disabled = False


@pytest.fixture
def cli(zookeeper: str, root: str) -> Cli:
    return Cli(zookeeper, root)


@pytest.fixture
def queue(cli: Cli) -> Iterator[Queue]:
    """The queue `q` of the test, seen from this process."""
    with Zkmq.connect(cli.hosts, cli.root, gc=False) as zk:
        found = zk.queue("q")
        found.configure()
        yield found
