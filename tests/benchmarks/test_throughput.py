"""The benchmark of throughput runs, and leaves nothing behind; what it measures is for people to read."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.throughput import ROWS
from tests.benchmarks.trees import TOP

LIMIT_S = 300


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


def alive(temporary: Path) -> list[str]:
    """The command lines of processes that work in a benchmark's tree."""
    processes = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            folder = (process / "cwd").readlink()
        except OSError:  # it has ended, or belongs to somebody else
            continue
        if folder.is_relative_to(temporary):
            processes.append((process / "cmdline").read_text())
    return processes


def test_each_row_has_a_figure_for_both_trees(zookeeper: str, tmp_path: Path) -> None:
    """With tiny numbers: the table is whole; the work tree and the processes are gone afterwards."""
    work_trees()
    with benchmark(zookeeper, tmp_path, "--tasks", "12", "--rounds", "1") as process:
        table, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors
    figures = {row: re.search(rf"^{re.escape(row)} +([\d.]+) +([\d.]+) ", table, re.MULTILINE) for row in ROWS}
    assert all(match and float(match[1]) > 0 and float(match[2]) > 0 for match in figures.values()), table
    assert str(tmp_path) not in work_trees()
    assert not alive(tmp_path)
    assert not list(tmp_path.iterdir())


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
    assert str(tmp_path) not in work_trees()
    assert not alive(tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_unknown_revision_is_named(tmp_path: Path) -> None:
    """One line says what is wrong, before anything is started."""
    work_trees()
    with benchmark("127.0.0.1:1", tmp_path, "--against", "no-such-revision") as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "no-such-revision" in errors
    assert "Traceback" not in errors
