"""`zkmq bench` runs, and leaves nothing behind; what it measures is for people to read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_zkmq.bench.catalogue import catalogue
from airflow_provider_zkmq.bench.page import MARKS
from airflow_provider_zkmq.bench.scale import report
from tests.integration.clients import kazoo
from tests.integration.command import carry_out

LIMIT_S = 600
TINY = ("--tasks", "6", "--rounds", "1", "--depth", "120")


def bench(temporary: Path, *options: str, **variables: str) -> subprocess.Popen[str]:
    """A benchmark whose folders are made in `temporary`."""
    return subprocess.Popen(
        [sys.executable, "-m", "airflow_provider_zkmq", "bench", *options],
        env={**os.environ, "TMPDIR": str(temporary), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder for a benchmark's own, through which other users may pass: PostgreSQL does not run as root."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o711)
        yield Path(made)


def roots(hosts: str) -> list[str]:
    """The benchmarks' znodes."""
    with kazoo(hosts) as client:
        return [name for name in client.get_children("/") if name.startswith("zkmq-bench-")]


def alive(temporary: Path) -> list[str]:
    """The command lines of processes whose folder for temporary files is there."""
    lines = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(temporary) in (process / "environ").read_text(errors="replace"):
                lines.append((process / "cmdline").read_text())
        except OSError:  # it has ended, or belongs to somebody else
            continue
    return [line for line in lines if line]  # those that ended and were not waited for have none


@pytest.mark.full
def test_each_way_of_each_row_has_a_figure_or_says_why_not(zookeeper: str, folder: Path, tmp_path: Path) -> None:
    """With tiny numbers. The page and the plots are written; the servers and this machine are as they were."""
    page = tmp_path / "page.md"
    page.write_text(f"# Mine\n{MARKS[0]}\n{MARKS[1]}\n")
    options = ("--hosts", zookeeper, "--rows", "all", "--json", "--plots", str(tmp_path / "plots"), "--page", str(page))
    with bench(folder, *TINY, *options) as process:
        out, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors
    rows = {row["key"]: row for row in json.loads(out)["rows"]}
    assert rows.keys() == {row.key for row in catalogue()}
    ways = [way for row in rows.values() for way in row["ways"].values()]
    assert all(way.get("skipped") or way["rate"]["median"] > 0 for way in ways)
    enqueue = rows["enqueue"]["ways"]["enqueue()"]  # an enqueue is one transaction, as the servers count
    assert enqueue["transactions"]["median"] >= 1
    assert enqueue["requests"]["median"] >= 1
    for row in catalogue():
        assert (tmp_path / "plots" / f"{row.key}.svg").is_file()
        assert f"](plots/{row.key}.svg)" in page.read_text()
    assert roots(zookeeper) == []
    assert alive(folder) == []
    assert list(folder.iterdir()) == []


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_benchmark_leaves_nothing(zookeeper: str, folder: Path, number: int) -> None:
    """Neither znodes nor processes nor folders."""
    with bench(folder, "--hosts", zookeeper, "--rows", "enqueue", "--rounds", "1000") as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("enqueue: round 1")
        assert process.stderr.readline().startswith("enqueue: round 2")
        process.send_signal(number)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, errors
    assert roots(zookeeper) == []
    assert alive(folder) == []
    assert list(folder.iterdir()) == []


def test_without_hosts_a_server_is_started(folder: Path) -> None:
    """Also where the environment names some: a benchmark is no work for servers that others use."""
    with bench(folder, "--rows", "gc", *TINY, "--no-sync", ZKMQ_HOSTS="127.0.0.1:1") as process:
        out, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, "collect_garbage()" in out) == (0, True), errors
    assert list(folder.iterdir()) == []


def test_what_is_asked_for_wrongly_is_refused_in_one_line(subtests: pytest.Subtests) -> None:
    for options, words in (
        (("--rows", "claimm"), "no row 'claimm'"),
        (("--rounds", "0"), "at least one round"),
        (("--auth", "a:b"), "without TLS and credentials"),
        (("--page", "no-such-page.md"), "no-such-page.md is no file"),
    ):
        with subtests.test(msg=words):
            ended = carry_out(("bench", *options), {**os.environ})
            assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (2, "", 1)
            assert words in ended.stderr


@pytest.mark.full
def test_a_benchmark_of_servers_that_do_not_answer_fails_in_one_line(folder: Path) -> None:
    with bench(folder, "--hosts", "127.0.0.1:1", "--rows", "enqueue", *TINY) as process:
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 6, errors
    assert "Traceback" not in errors
    assert list(folder.iterdir()) == []


@pytest.mark.full
def test_what_is_counted_of_an_ensemble_is_what_was_predicted(zookeeper: str) -> None:
    """Of the model of one ensemble, with ten times of what it was fitted to; rates are only measured.

    Other tests may use the server at the same time: what it counts of all is compared only roughly.
    """
    lines: list[str] = []
    rows = {row.what: row for row in report(zookeeper, 10, 1e9, lines.append)}
    claim = rows["requests of a first claim, tasks"]
    assert claim.predicted == claim.measured
    assert rows["watches, waiters"].measured >= rows["watches, waiters"].size
    znodes = rows["zk_znode_count, tasks"]
    assert 0.8 < znodes.measured / znodes.predicted < 1.2
    assert rows["enqueues/s, so many at once"].measured > 0
    assert sum("ensemble(s)" in line for line in lines) == 4
