"""How many consumers are needed: the formula meets a simulated queue, and says what it cannot know."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from airflow_provider_zkmq.spark.reporting.capacity import Crew, Target, crews, erlang_c, expected_wait, needs
from tests.unit.queueing import Simulation, Staff, constant, exponential, two_sided

SQUARED = {exponential: 1.0, constant: 0.0, two_sided: 4.0}
ARRIVALS = 60_000
LONG = partial(pytest.param, marks=pytest.mark.full)
ONE_POOL = [(1, 0.5), (1, 0.8), (3, 0.7), (5, 0.7), (5, 0.9), (10, 0.8), (20, 0.85)]


def crew(classes: str, servers: int, squared: float = 1.0) -> Crew:
    """Consumers whose tasks take a second, and that had as many tasks of each of their classes."""
    return Crew(Counter(dict.fromkeys(classes, 1_000)), servers, servers, 1.0, squared)


def need_of(seen: list[Crew], rates: dict[str, float], target: Target | None = None) -> dict[str, dict]:
    """What is said of each crew, by the classes that it serves."""
    known = dict.fromkeys(("arrivals", "burst", "measured_mean", "measured_p95"), 0)
    classes = {name: known | {"rate": rate, "peak_rate": rate} for name, rate in rates.items()}
    return {"".join(row["classes"]): row for row in needs("q", seen, classes, target or Target())}


@pytest.mark.full
@pytest.mark.parametrize("draw", SQUARED, ids=lambda draw: draw.__name__)
@pytest.mark.parametrize(("servers", "load"), ONE_POOL)
def test_the_mean_wait_is_that_of_a_simulated_queue(servers, load, draw) -> None:
    """Within a fifth, or within 10 % of a run time, whatever the run times vary like."""
    told = expected_wait(servers * load, 1.0, SQUARED[draw], servers)[0]
    queue = Simulation({"a": servers * load}, [Staff("a", servers, 1.0)], draw, seed=7)
    simulated = queue.run(ARRIVALS * (5 if load > 0.8 else 1)).mean("a")
    assert math.isclose(told, simulated, rel_tol=0.2, abs_tol=0.1), (told, simulated)


@pytest.mark.parametrize("wanted", [0.5, 3.0])
@pytest.mark.parametrize("draw", [exponential, LONG(two_sided)], ids=lambda draw: draw.__name__)
@pytest.mark.parametrize("load", [0.8, 4.5, LONG(12.0)])
def test_as_many_consumers_are_asked_for_as_a_simulated_queue_needs(load, draw, wanted) -> None:
    """The least number that keeps 95 of 100 waits short, within one, or 20 %, of what is found by trying."""
    told = Target(wanted).needed(load, 1.0, SQUARED[draw])
    tried = next(
        servers
        for servers in range(math.ceil(load), 99)
        if Simulation({"a": load}, [Staff("a", servers, 1.0)], draw, 5).run(ARRIVALS // 2).quantile("a", 0.95) <= wanted
    )
    assert told is not None
    assert abs(told - tried) <= max(1, 0.2 * tried), (told, tried)


@pytest.mark.parametrize("rate", [0.5, LONG(1.5), LONG(2.6)])
def test_of_consumers_that_take_several_classes_one_more_or_less_is_asked_for(rate) -> None:
    """They are busy with the share of the lower class that they have taken, beside nodes that take it alone."""
    rates, lower = {"a": 3.0, "b": rate}, Staff("a", 3, 1.0)
    queue = lambda more: Simulation(rates, [lower, Staff("ab", more, 1.0)], seed=5).run(ARRIVALS // 2)
    simulation = queue(max(1, round(rate) + 1))
    told = need_of([_observed(simulation, member) for member in simulation.staff], rates, Target(2.0))["ab"]
    tried = next(
        more for more in range(1, 20) if sum(rates.values()) < more + 3 and queue(more).quantile("b", 0.95) <= 2
    )
    assert abs(told["needed"] - tried) <= 1, (told, tried)


def _observed(simulation: Simulation, member: Staff) -> Crew:
    """A crew as its deliveries show it."""
    tasks = [task for task in simulation.served if task.consumer.startswith(f"{member.classes}-")]
    times = [task.ended - task.claimed for task in tasks]
    seen = Counter(task.name for task in tasks)
    squared = statistics.pvariance(times) / statistics.mean(times) ** 2
    return Crew(seen, member.servers, member.servers, statistics.mean(times), squared)


def test_the_formula_is_the_one_of_the_tables() -> None:
    """M/M/1, where the chance to wait is the load, and two busy telephones; constant run times halve the wait."""
    assert erlang_c(0.5, 1) == pytest.approx(0.5)
    assert erlang_c(1.0, 2) == pytest.approx(1 / 3)
    assert expected_wait(2.0, 0.25, 1.0, 1)[0] == pytest.approx(0.25)
    assert expected_wait(2.0, 0.25, 0.0, 1)[0] == pytest.approx(0.125)
    assert expected_wait(2.0, 1.0, 1.0, 2) == (math.inf, math.inf)


def test_classes_of_the_same_consumers_are_one_class() -> None:
    """All of them keep those consumers busy; a class of which they took a part does so by that part."""
    told = need_of([crew("ab", 5)], {"a": 3.0, "b": 1.0})
    assert list(told) == ["ab"]
    assert (told["ab"]["model_mean"], told["ab"]["model_p95"]) == expected_wait(4.0, 1.0, 1.0, 5)
    told = need_of(
        [Crew(Counter({"a": 300}), 3, 3, 1.0, 1.0), Crew(Counter({"a": 100, "b": 100}), 2, 2, 1.0, 1.0)],
        {"a": 2.0, "b": 1.0},
    )
    assert (told["ab"]["servers"], told["ab"]["utilisation"]) == (2, pytest.approx((1.0 + 2.0 / 4) / 2))
    assert (told["a"]["servers"], told["a"]["utilisation"]) == (3, pytest.approx(2.0 * 3 / 4 / 3))


def test_what_only_some_or_nobody_accepts_waits_for_ever() -> None:
    """Who has more to do than there are threads never ends; nobody knows how fast those would be that are none."""
    told = need_of([crew("a", 3), crew("b", 2)], {"a": 1.0, "b": 3.0}, Target(5.0))
    assert (told["b"]["model_mean"], told["b"]["utilisation"], told["b"]["needed"] > 3) == (math.inf, 1.5, True)
    assert told["a"]["needed"] <= told["a"]["servers"]
    need = need_of([crew("a", 1), replace(crew("z", 1), servers=0)], {"a": 0.5, "z": 1.0})["z"]
    assert (need["model_mean"], need["servers"], need["needed"]) == (math.inf, 0, None)
    assert (need_of([], {"z": 0.0}), need_of([crew("z", 1)], {"z": 0.0})) == ({}, {})


def test_a_target_may_be_how_busy_they_are() -> None:
    """Then no wait is asked for, or both are."""
    needed = lambda *target: Target(*target).needed(7.0, 1.0, 1.0)
    assert (needed(None, 0.7), needed(None)) == (10, 8)
    assert needed(0.01, 0.7) > 10
    assert Target().needed(1e6, 1.0, 1.0) is None


def test_consumers_that_served_little_are_counted_with_those_they_resemble() -> None:
    """Three tasks tell little about what a consumer accepts; a thousand do. Restarted ones are the same kind."""
    many = Crew(Counter({"a": 900, "b": 100}), 2, 2, 1.0, 1.0)
    few = Crew(Counter({"a": 9}), 3, 3, 2.0, 0.0)
    sure = Crew(Counter({"a": 5_000}), 2, 2, 1.0, 1.0)
    (joined,) = crews([few, many])
    assert (set(joined.seen), joined.servers, joined.seen.total()) == ({"a", "b"}, 5, 1_009)
    assert joined.service == pytest.approx((1_000 + 18) / 1_009)
    assert [each.servers for each in crews([sure, many])] == [2, 2]
    assert len(crews([sure, replace(sure, servers=1), few])) == 1
    joined = Crew(Counter({"a": 1}), 1, 1, 1.0, 0.0).joined(Crew(Counter({"a": 1}), 1, 1, 3.0, 0.0))
    assert (joined.service, joined.squared) == (2.0, pytest.approx(0.25)), "the variation between them counts, too"
