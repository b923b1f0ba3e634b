"""The benchmark without a server: its rows, what is reckoned from samples, and what is made of that."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from airflow_provider_zkmq.bench import agent, plots
from airflow_provider_zkmq.bench.catalogue import catalogue
from airflow_provider_zkmq.bench.command import Order, carry_out, chosen, list_rows
from airflow_provider_zkmq.bench.crew import Crews, python_agent
from airflow_provider_zkmq.bench.gauge import Gauge
from airflow_provider_zkmq.bench.jobs import BenchError
from airflow_provider_zkmq.bench.measuring import Figures, measure
from airflow_provider_zkmq.bench.report import of_way, ratio, record, verdicts
from airflow_provider_zkmq.bench.rows import Goal, Row, Way
from airflow_provider_zkmq.bench.scale import Costs, Demand, Ensemble, fit, simulate
from airflow_provider_zkmq.bench.tables import sentence, text
from airflow_provider_zkmq.cli.main import parse
from airflow_provider_zkmq.engine import ConfigError

GOALS = (
    Goal("fast", 2, "slow"),
    Goal("fast", 1.2, unit="requests"),
    Goal("fast", 400, unit="client_us"),
    Goal("absent", 3, "slow"),
)
ROW = Row("race", "a race", (Way("fast", "f", ours=True), Way("slow", "s"), Way("absent", "a")), GOALS)


def a_sample(seconds: float, requests: float | None = None) -> dict[str, float]:
    """A hundred tasks, half of the time at work."""
    counted = {} if requests is None else {"requests": requests, "transactions": 100.0}
    return {"tasks": 100.0, "seconds": seconds, "cpu": seconds / 2, "waits": 50.0, **counted}


@pytest.fixture
def figures() -> Figures:
    """Three rounds; in the last all was slow."""
    return Figures(
        ROW,
        {"fast": [a_sample(1, 120), a_sample(2, 130), a_sample(10, 110)], "slow": [*map(a_sample, (3, 4, 40))]},
        {"absent": "it is not installed"},
    )


def test_the_catalogue_is_sound() -> None:
    """Each goal is about ways of its row, each way in Python is something that agents know, each row has a key.

    The long rows are asked for by name; those about depth ask for no more requests, and go as deep as is asked for.
    """
    rows = catalogue(500)
    for row in rows:
        names = [way.name for way in row.ways]
        assert len(set(names)) == len(names)
        assert {goal.way for goal in row.goals} | {goal.against for goal in row.goals if goal.against} <= {*names}
    verbs = {way.verb for row in rows for way in row.ways if way.agent is python_agent}
    assert verbs == agent.VERBS.keys()
    assert len({row.key for row in rows}) == len(rows) == len(list_rows())
    assert "depth" not in [row.key for row in chosen(rows, ())]
    assert [row.key for row in chosen(rows, ("depth", "claim"))] == ["claim", "depth"]
    assert chosen(rows, ("all",)) == [*rows]
    keyed = {row.key: row for row in rows}
    assert [way.number for way in keyed["waiters-many"].ways] == [1, 50]
    for key in ("depth", "depth-cold", "start", "filtered"):
        assert keyed[key].ways[1].number == 500
        assert {goal.unit for goal in keyed[key].goals} == {"rate", "requests"}


def test_what_cannot_be_measured_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A row that is not there, with those of similar names; too few; plots without matplotlib."""
    with pytest.raises(ConfigError, match=r"no row 'enque'.*enqueue"):
        chosen(catalogue(), ("enque",))
    for order in (Order(rounds=0), Order(tasks=1), Order(ensemble=0), Order(depth=0)):
        with pytest.raises(ConfigError, match="at least one round"):
            carry_out(order, print)
    monkeypatch.setattr(plots.importlib.util, "find_spec", lambda _name: None)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"pip install 'airflow-provider-zkmq\[spark\]'"):
        carry_out(Order(plots=tmp_path), print)


def median(figures: Figures, way: str, unit: str) -> tuple[float, float, float]:
    """The lowest, the median and the highest figure of a way."""
    spread = of_way(figures, way, unit)
    assert spread is not None
    return spread.low, spread.median, spread.high


def test_ratios_are_those_of_the_same_round(figures: Figures) -> None:
    """So a round in which everything was slow does not spoil them. System calls are those of the traced sample.

    Which is slow, and counts for nothing else.
    """
    figures.traced["fast"] = a_sample(60) | {"syscalls": 700.0}
    spread = ratio(figures, "fast", "slow")
    assert spread is not None
    assert (spread.low, spread.median, spread.high) == pytest.approx((2, 3, 4))
    assert median(figures, "fast", "rate") == pytest.approx((10, 50, 100))
    assert median(figures, "fast", "syscalls")[1] == 7
    assert of_way(figures, "slow", "syscalls") is None


def test_goals_are_met_missed_or_not_measured(figures: Figures) -> None:
    """As sentences, and in the record, which has every sample."""
    assert [verdict.met for verdict in verdicts(figures)] == [True, True, False, None]
    said = [sentence(verdict) for verdict in verdicts(figures)]
    assert said[:2] == ["fast ≥ 2 × slow: 3.00 (2.00–4.00), met", "fast ≤ 1.2 requests: 1.20 (1.10–1.30), met"]
    assert said[2].endswith("missed")
    assert said[3] == "absent ≥ 3 × slow: not measured"
    (row,) = record([figures], {"rounds": 3})["rows"]
    assert row["ways"]["fast"]["samples"] == figures.samples["fast"]
    assert row["ways"]["slow"]["requests"] is None
    assert row["ways"]["absent"] == {"skipped": "it is not installed"}
    assert [goal["met"] for goal in row["goals"]] == [True, True, False, None]


def test_the_text_has_a_line_for_each_way(figures: Figures) -> None:
    """What the servers did not say is blank; a way that was skipped says why."""
    lines = text([figures]).splitlines()
    assert lines[0] == "race: a race"
    assert [line.split()[0] for line in lines[2:5]] == ["fast", "slow", "absent"]
    assert lines[2].split()[1:5] == ["50", "10–100", "1.2", "1.0"]
    assert "–" in lines[3].split()
    assert lines[4].endswith("skipped: it is not installed")


def test_the_commands_of_the_page_are_understood() -> None:
    """And each row that they name is there."""
    text = (Path(__file__).parents[2] / "docs" / "performance.md").read_text()
    lines = re.findall(r"^(zkmq bench.*?)(?:  +#.*)?$", text, re.MULTILINE)
    assert len(lines) > 5
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        args = parse(words[: words.index(">")] if ">" in words else words)
        assert chosen(catalogue(), args.rows)


def test_a_way_that_fails_is_named_with_its_row(tmp_path: Path) -> None:
    """Its agent says why, and ends with the others; one that has ended is said with its exit code."""
    ended = [sys.executable, "-c", "raise SystemExit(3)"]
    for way, said in (
        (Way("fast", "no-such-verb"), r"race, fast: KeyError: 'no-such-verb'"),
        (Way("fast", "f", agent=lambda *_: ended), "exit code 3"),
    ):
        with Crews("127.0.0.1:1", "/none", str(tmp_path)) as crews, pytest.raises(BenchError, match=said):
            measure([Row("race", "a race", (way,))], crews, Gauge("127.0.0.1:1"), 2, 1, lambda _line: None)


# --- the model of one ensemble: what it is fitted to it explains, and what a demand takes


@pytest.mark.parametrize("costs", [Costs(0.0005, 0.0003, 0.0), Costs(0.002, 0.0004, 0.001), Costs(0.0, 0.001, 0.004)])
def test_a_simulated_server_is_told_from_three_rates(costs: Costs) -> None:
    """Fitted to what a simulation says with 1, 8 and 64 at once, the model predicts it with more, within a fifth."""
    found = fit({at_once: simulate(costs, at_once) for at_once in (1, 8, 64)})
    for at_once in (1, 10, 100, 1_000):
        assert simulate(found, at_once) == pytest.approx(simulate(costs, at_once), rel=0.2)


def test_the_model_of_an_ensemble_stays_within_what_can_be() -> None:
    """More callers never exceed what each costs; rates of a busy machine, which nothing explains, give no minus."""
    costs = Costs(0.001, 0.0005, 0.01)
    rates = [simulate(costs, at_once) for at_once in (1, 10, 100, 1_000)]
    assert rates == sorted(rates)
    assert costs.most * 0.95 <= rates[-1] <= costs.most
    costs = fit({1: 500, 8: 100, 64: 90})
    assert min(costs.together, costs.between) >= 0
    assert costs.each > 0


def test_what_runs_out_first_says_how_many_ensembles_it_takes() -> None:
    ensemble = Ensemble(calls_s=3_000, heap=1 << 30, calls=3, znodes=7, data=600)
    assert ensemble.needed(Demand(100, 10_000)) == {"calls": 1, "heap": 1}
    assert ensemble.needed(Demand(5_000, 10_000)) == {"calls": 10, "heap": 1}
    assert ensemble.needed(Demand(1, 1_000_000)) == {"calls": 1, "heap": 7}
    assert ensemble.needed(Demand(1, 0, watched=10_000_000)) == {"calls": 1, "heap": 3}
