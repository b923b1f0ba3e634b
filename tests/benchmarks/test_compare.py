"""The comparison with peers and the model of an ensemble run, and leave nothing behind; people read the figures."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.benchmarks.compare import agent
from tests.benchmarks.compare.__main__ import chosen, parsed
from tests.benchmarks.compare.measuring import Figures, Goal, Row, Way, of_way, python_agent, reached
from tests.benchmarks.compare.rows import rows
from tests.benchmarks.compare.tables import markdown, sentence, text
from tests.benchmarks.scale import Costs, ensembles, fit, report, simulate
from tests.integration.clients import kazoo

LIMIT_S = 600
TINY = ("--tasks", "6", "--rounds", "1", "--depth", "120")
PAGE = Path(__file__).parents[2] / "docs" / "performance.md"


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder for a benchmark's own, through which other users may pass: PostgreSQL does not run as root."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o711)
        yield Path(made)


def bench(temporary: Path, *options: str) -> subprocess.Popen[str]:
    """A benchmark whose folders are made in `temporary`."""
    command = [sys.executable, "-m", "tests.benchmarks.compare", *options]
    return subprocess.Popen(command, env={**os.environ, "TMPDIR": str(temporary)}, stdout=-1, stderr=-1, text=True)


def remains(hosts: str, temporary: Path) -> list[str]:
    """Znodes and files of benchmarks, and the command lines of processes whose folder for temporary files is there."""
    found = [path.name for path in temporary.iterdir()]
    with kazoo(hosts) as client:
        found += [name for name in client.get_children("/") if name.startswith("zkmq-bench-")]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(temporary) in (process / "environ").read_text(errors="replace"):
                found += filter(None, [(process / "cmdline").read_text()])
        except OSError:  # it has ended, or belongs to somebody else
            continue
    return found


@pytest.mark.full
def test_each_way_of_each_row_has_a_figure_or_says_why_not(zookeeper: str, folder: Path, tmp_path: Path) -> None:
    """With tiny numbers; the page and the plots are written, and nothing else is left."""
    page = tmp_path / "page.md"
    page.write_text("# Mine\n<!-- bench: begin -->\nold\n<!-- bench: end -->\nrest\n")
    written = ("--plots", str(tmp_path / "plots"), "--page", str(page))
    with bench(folder, *TINY, "--hosts", zookeeper, "--rows", "all", *written) as process:
        out, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors
    for row in rows(120):
        table = out.partition(f"\n{row.key}: {row.title}\n")[2].partition("\n\n")[0]
        for way in row.ways:
            assert re.search(rf"^{re.escape(way.name)}  +([1-9]|0\.[0-9]|skipped: \w)", table, re.MULTILINE), way.name
        assert (tmp_path / "plots" / f"{row.key}.svg").is_file()
    assert "old" not in page.read_text()
    assert (page.read_text()[:7], page.read_text()[-6:]) == ("# Mine\n", "\nrest\n")
    assert remains(zookeeper, folder) == []


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_benchmark_leaves_nothing(zookeeper: str, folder: Path, number: int) -> None:
    """Neither znodes nor processes nor folders."""
    with bench(folder, "--hosts", zookeeper, "--rows", "enqueue", "--rounds", "1000") as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("enqueue: round 1")
        assert process.stderr.readline().startswith("enqueue: round 2")
        process.send_signal(number)
        process.communicate(timeout=LIMIT_S)
    assert process.returncode != 0
    assert remains(zookeeper, folder) == []


def test_rows_ask_for_what_agents_know_and_the_page_for_rows_that_are_there() -> None:
    """Each goal is about ways of its row; the long rows are asked for by name."""
    known = rows(500)
    for row in known:
        assert {name for goal in row.goals for name in (goal.way, goal.against or goal.way)} <= {
            way.name for way in row.ways
        }
    assert {way.verb for row in known for way in row.ways if way.agent is python_agent} == agent.VERBS.keys()
    assert "depth" not in [row.key for row in chosen(known, ())]
    assert chosen(known, ("all",)) == [*known]
    lines = re.findall(r'^make bench(?: ARGS="(.*?)")?', PAGE.read_text(), re.MULTILINE)
    assert len(lines) > 3
    for line in lines:
        assert chosen(known, parsed(shlex.split(line)).rows)


def test_ratios_are_those_of_the_same_round() -> None:
    """So a round in which everything was slow does not spoil them. What was not measured is said."""
    goals = (Goal("fast", 2, "slow"), Goal("fast", 1.2, unit="requests"), Goal("absent", 3, "slow"))
    row = Row("race", "a race", (Way("fast", "f", ours=True), Way("slow", "s"), Way("absent", "a")), goals)
    sample = lambda seconds, **more: {"tasks": 100.0, "seconds": seconds, "cpu": 0.5, **more}
    fast = [sample(seconds, requests=requests) for seconds, requests in ((1, 120), (2, 130), (10, 110))]
    figures = Figures(row, {"fast": fast, "slow": [*map(sample, (3, 4, 40))]}, {"absent": "it is not installed"})
    assert [sentence(goal, reached(figures, goal)) for goal in goals] == [
        "fast ≥ 2 × slow: 3.00 (2.00–4.00), met",
        "fast ≤ 1.2 requests: 1.20 (1.10–1.30), met",
        "absent ≥ 3 × slow: not measured",
    ]
    assert of_way(figures, "slow", "requests") is None
    assert "absent  skipped: it is not installed" in text([figures])
    assert "| fast | 50 | 10–100 | 1.2 | – | 5 000 | – |" in markdown([figures])


# --- the model of one ensemble


@pytest.mark.parametrize("costs", [Costs(0.0005, 0.0003, 0.0), Costs(0.002, 0.0004, 0.001), Costs(0.0, 0.001, 0.004)])
def test_a_simulated_server_is_told_from_three_rates(costs: Costs) -> None:
    """Fitted to what a simulation says with 1, 8 and 64 at once, the model predicts it with more, within a fifth."""
    found = fit({at_once: simulate(costs, at_once) for at_once in (1, 8, 64)})
    for at_once in (1, 10, 100, 1_000):
        assert simulate(found, at_once) == pytest.approx(simulate(costs, at_once), rel=0.2)


def test_what_runs_out_first_says_how_many_ensembles_it_takes() -> None:
    assert ensembles(3_000, 1 << 30, 100, 10_000) == {"calls": 1, "heap": 1}
    assert ensembles(3_000, 1 << 30, 5_000, 10_000) == {"calls": 10, "heap": 1}
    assert ensembles(3_000, 1 << 30, 1, 1_000_000) == {"calls": 1, "heap": 7}


@pytest.mark.full
def test_what_is_counted_of_an_ensemble_is_what_was_predicted(zookeeper: str) -> None:
    """With ten times of what the model was fitted to; rates are only measured.

    Other tests may use the server at the same time: what it counts of all is compared only roughly.
    """
    said: list[str] = []
    lines = {line.what: line for line in report(zookeeper, 10, 1e9, said.append)}
    claim = lines["requests of a first claim, tasks"]
    assert claim.predicted == claim.measured
    znodes = lines["zk_znode_count, tasks"]
    assert 0.8 < znodes.measured / znodes.predicted < 1.2
    assert lines["enqueues/s, so many at once"].measured > 0
    assert sum("ensemble(s)" in line for line in said) == 4
