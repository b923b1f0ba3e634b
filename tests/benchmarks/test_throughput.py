"""The benchmarks of two revisions run, and leave nothing behind; what they measure is for people to read."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_zkmq.embedded import EmbeddedServer
from tests.benchmarks.heap import counted
from tests.benchmarks.throughput import ROWS
from tests.benchmarks.trees import TOP
from tests.benchmarks.waits import measure

LIMIT_S = 300


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


def work_trees() -> str:
    """What git knows of work trees that benchmarks have made."""
    done = subprocess.run(["git", "-C", str(TOP), "worktree", "list"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a benchmark against a revision needs git's history here: {done.stderr.strip()}")
    return "\n".join(line for line in done.stdout.splitlines() if "zkmq-benchmark-" in line)


def benchmark(zookeeper: str, temporary: Path, *options: str) -> subprocess.Popen[str]:
    """A benchmark of this revision against itself, whose folders are made in `temporary`."""
    command = [sys.executable, "-m", "tests.benchmarks.throughput", "--against", "HEAD", "--hosts", zookeeper, *options]
    return subprocess.Popen(
        command,
        cwd=TOP,
        env={**os.environ, "PYTHONPATH": str(TOP), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def leaves_nothing(temporary: Path) -> None:
    """Neither a work tree nor a process nor a folder."""
    assert str(temporary) not in work_trees()
    assert alive(temporary) == list(temporary.iterdir()) == []


def test_each_row_has_a_figure_for_both_trees(zookeeper: str, tmp_path: Path) -> None:
    """With tiny numbers: the table is whole; the work tree and the processes are gone afterwards."""
    work_trees()
    with benchmark(zookeeper, tmp_path, "--tasks", "12", "--rounds", "1") as process:
        table, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors
    figures = {row: re.search(rf"^{re.escape(row)} +([\d.]+) +([\d.]+) ", table, re.MULTILINE) for row in ROWS}
    assert all(match and float(match[1]) > 0 and float(match[2]) > 0 for match in figures.values()), table
    leaves_nothing(tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_benchmark_cleans_up(zookeeper: str, tmp_path: Path, number: int) -> None:
    """Neither its work tree nor one of its processes is left when it is stopped in the middle."""
    work_trees()
    with benchmark(zookeeper, tmp_path, "--tasks", "12", "--rounds", "1000", "--only", "one by one") as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("round 1")
        assert alive(tmp_path) or not Path("/proc").is_dir()
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    leaves_nothing(tmp_path)


def test_an_unknown_revision_is_named(tmp_path: Path) -> None:
    """One line says what is wrong, before anything is started."""
    work_trees()
    with benchmark("127.0.0.1:1", tmp_path, "--against", "no-such-revision") as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "no-such-revision" in errors
    assert "Traceback" not in errors


HISTOGRAM = """4711:
 num     #instances         #bytes  class name (module)
-------------------------------------------------------
   1:         18200        1456000  [B (java.base@17.0.15)
   2:            90         800000  [I (java.base@17.0.15)
   3:         12000         864000  org.apache.zookeeper.data.StatPersisted
Total         30290        3120000
"""


def test_the_bytes_of_all_classes_are_counted_but_what_fills_the_heap() -> None:
    """Neither the heading nor the total is a class."""
    assert counted(HISTOGRAM) == 1_456_000 + 864_000


@pytest.mark.full
def test_waits_share_a_session_and_have_a_watch_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many: one session, one look-up of the connection, a watch for each, some for the queue; all are told."""
    monkeypatch.setenv("AIRFLOW_CONN_ZKMQ_DEFAULT", "")
    with EmbeddedServer(tmp_path, force_sync=False) as server:
        few, many = (measure(server.hosts, sensors, sensors // 3, 0) for sensors in (30, 120))
    for found, waits in ((few, 40), (many, 160)):
        assert (found["sessions"], found["lookups"], found["failed"]) == (1, 1, [])
        assert len(found["delays"]) == waits
        assert waits <= found["watches"] <= waits + 20
