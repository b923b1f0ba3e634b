"""Whatever somebody types, `zkmq` says in a sentence what is wrong with it, or does it."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from airflow_provider_zkmq.engine import Integer, Zkmq
from tests.integration.command import Cli, carry_out
from tests.support import fresh_root
from tests.verbs import VERBS

#: They start servers, write what the shell reads, or speak to whatever host is typed.
LEFT_OUT = {"server"}
OPTIONS = sorted(
    {
        *("--json", "--state", "--selector", "--batch", "--error", "--limit", "--all", "--yes", "--force", "--token"),
        *(
            "--filter",
            "--node",
            "--priority",
            "--delay",
            "--not-before",
            "--task-id",
            "--metadata",
            "--attempts",
            "--lock",
        ),
        *("--create", "--update", "--requeue", "--only-new", "--then", "--lines", "--idempotency-key"),
        *("--lease", "--timeout", "--lifetime", "--hung-after", "--why", "--wait", "--event", "--result", "--dedupe"),
        *("--no-retry", "--backoff", "--note", "--repair", "--dry-run", "--queue", "--order", "--final", "--archive"),
        *("--min-backoff", "--max-backoff", "--backoff-factor", "--task-gc-lifetime", "--follow", "--no-follow"),
        *(
            "--threads",
            "--prefetch",
            "--until-empty",
            "--max-tasks",
            "--throttle",
            "--grace",
            "--warn-size",
            "--handler",
        ),
        *(
            "--root",
            "--auth",
            "--tls",
            "--tls-ca",
            "--tls-cert",
            "--tls-key",
            "--tls-key-password-file",
            "--allow-open",
        ),
        *("--session-timeout", "--request-timeout", "--connect-timeout", "--to", "--directory", "--since", "--until"),
        *("--help", "-h", "--version", "--no-such-option", "-x", "--", "-", "--state=", "--limit=3", "--=", "-=-"),
    }
)
VALUES = (
    *(
        "q",
        "queued",
        "dead",
        "claimed",
        "nowhere",
        "",
        " ",
        "a b",
        "a/b",
        "..",
        ".",
        "é",
        "😀",
        "\udcff",
        "\x1b[31m",
        "\n",
    ),
    *("0", "1", "-1", "-0", "007", "9" * 30, "9" * 5000, "1e308", "-1e308", "nan", "inf", "1_000", "0x10", "٣"),
    *(
        "5m",
        "1h30m",
        "PT1H",
        "P1000000000Y",
        "9" * 25 + "d",
        "2026-11-22T10:31:05Z",
        "9999-12-31T23:59:59-23:59",
        "now",
    ),
    *("size=1", "size=x", "=", "a=", "=b", "size==1", "size<=", "any(1, size==1)", "((((", "any(" * 200, '"', "\\"),
    *("{}", "[]", '{"a":', '{"a": NaN}', '{"a": 1e999}', "[" * 3000, "null", "u:p", ":", "u", "/", "/a/../b", "*" * 50),
    *("inserted", "finished", "scheduled", "unbounded", "fifo", "json:dumps", "json", ":", "a.tq", "/nowhere", "-n"),
)
ANY = st.one_of(st.sampled_from(VALUES), st.text(max_size=12).filter(lambda text: not text.startswith("~")))
NO_NUL = ANY.map(lambda text: text.replace("\0", "�"))
WORDS = st.lists(st.one_of(st.sampled_from(OPTIONS), NO_NUL), max_size=7)
LINES = st.one_of(
    st.tuples(st.sampled_from(sorted(VERBS.keys() - LEFT_OUT)), st.just(["q"]), WORDS),
    st.tuples(st.sampled_from(sorted(VERBS.keys() - LEFT_OUT)), st.just([]), WORDS),
    st.tuples(st.sampled_from(("", "queue", "task", "dead", "--json", "nonsense")), st.just([]), WORDS),
)


def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Ctrl-C comes after a while: some verbs wait for what never comes."""
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(params=["servers", "files"])
def somewhere(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    """A command line with a queue `q`, on ZooKeeper or in a file; what it writes besides goes to a new folder."""
    monkeypatch.chdir(tmp_path)
    if request.param == "files":
        cli = Cli(f"textqueue://{tmp_path / 'queues'}", "/zkmq")
    else:
        cli = Cli(request.getfixturevalue("zookeeper"), fresh_root())
    cli.env |= {"HOME": str(tmp_path)}
    cli.env.pop("ZKMQ_ARCHIVE_DIR", None)
    options: dict[str, Any] = {} if request.param == "files" else {"root": cli.root}
    with Zkmq.connect(cli.hosts, **options) as zk:
        zk.queue("q").configure(filters={"size": Integer()})
        yield cli


@settings(
    max_examples=int(os.environ.get("ZKMQ_FUZZ", "150")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(line=LINES)
@example(("export", ["q"], ["a\0b"]))
@example(("enqueue", ["q", "x"], ["--metadata", '{"a": "\\ud800"}']))
@example(("enqueue", ["q", "x"], ["--filter", "size=\udcff"]))
@example(("enqueue", ["q", "x"], ["--then", "\udcff", "--batch", "\udcff"]))
@example(("list", ["q"], ["--selector", "size==\udcff"]))
@example(("fail", ["q", "t"], ["--force", "--error", "\udcff"]))
@example(("claim", ["q"], ["--lease", "9" * 25 + "d"]))
@example(("complete", ["q", "t"], ["--token", "9" * 30]))
@example(("status", [], ["--tls-ca", "\0"]))
@example(("report", ["q"], ["--directory", "\0", "--since", "9" * 25 + "d"]))
@example(("worker", ["q"], ["--handler", "\0:x"]))
def test_nothing_that_is_typed_gives_a_traceback(somewhere: Cli, line: tuple[str, list[str], list[str]]) -> None:
    """The code is one of the page, an error is one sentence, and nobody sees Python's own words for it."""
    verb, operands, words = line
    with interrupted_after(1.5):
        ended = carry_out((*verb.split(), *operands, *words), somewhere.env, b"one\ntwo")
    assert ended.returncode in {*range(8), 130}, (ended.stderr, "8 is a mistake of zkmq itself")
    assert "Traceback" not in ended.stdout + ended.stderr
    if ended.returncode in {2, 6}:
        *_, last = ended.stderr.splitlines()
        assert re.match("zkmq: .", last)
        assert all(char.isprintable() for char in last)
