"""How many consumers are needed: the formulas meet a simulated queue, and say what they cannot know."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from airflow_provider_zkmq.spark.answers.capacity import Crew, Model, Target, crews, utilisations
from airflow_provider_zkmq.spark.answers.erlang import ENDLESS, erlang_c, pool, variation
from airflow_provider_zkmq.spark.answers.skills import Kind, circles, waits
from tests.unit.queueing import Simulation, Staff, constant, exponential, two_sided

SQUARED = {exponential: 1.0, constant: 0.0, two_sided: 4.0}
ARRIVALS = 60_000
LONG = partial(pytest.param, marks=pytest.mark.full)
ONE_POOL = [(1, 0.5), (1, 0.8), (3, 0.7), (5, 0.7), (5, 0.9), (10, 0.8), (20, 0.85)]
#: Classes by what accepts them: nested as `at_least` nests them, apart as `absolute` parts them, and overlapping.
SEVERAL = [
    ({"a": 1.2, "b": 0.8}, [Staff("a", 2, 1.0), Staff("ab", 2, 1.0)]),
    ({"a": 1.7, "b": 1.0}, [Staff("a", 2, 1.0), Staff("ab", 2, 1.0)]),
    ({"a": 3.0, "b": 1.0, "c": 0.8}, [Staff("a", 3, 1.2), Staff("ab", 2, 1.0), Staff("abc", 2, 0.7)]),
    ({"a": 8.0, "b": 7.0}, [Staff("a", 8, 1.2), Staff("ab", 10, 1.0)]),
    ({"a": 1.5, "b": 1.0, "c": 1.6}, [Staff("ab", 2, 1.0), Staff("bc", 3, 1.0)]),
    ({"a": 1.4, "b": 2.2}, [Staff("a", 2, 1.0), Staff("b", 3, 1.0)]),
]


def model(staff, squared: float = 1.0) -> Model:
    return Model(
        [Crew(dict.fromkeys(who.classes, 1_000), who.servers, who.servers, who.service, squared) for who in staff]
    )


def near(told: float, simulated: float, slack: float = 0.0) -> bool:
    """Within 20 %; `slack`: of the time a task runs, below which nobody cares."""
    return math.isclose(told, simulated, rel_tol=0.2, abs_tol=slack)


@pytest.mark.full
@pytest.mark.parametrize("draw", SQUARED, ids=lambda draw: draw.__name__)
@pytest.mark.parametrize(("servers", "load"), ONE_POOL)
def test_the_mean_wait_of_a_pool_is_that_of_a_simulated_one(servers, load, draw) -> None:
    """One class, equal consumers: within 20 %, whatever the run times vary like, or within 5 % of a run time."""
    staff = [Staff("a", servers, 1.0)]
    rates = {"a": servers * load}
    told = model(staff, SQUARED[draw]).waits(rates)["a"].mean
    simulated = Simulation(rates, staff, draw, seed=7).run(ARRIVALS * (5 if load > 0.8 else 1)).mean("a")
    assert near(told, simulated, slack=0.06), (told, simulated)


@pytest.mark.full
@pytest.mark.parametrize("draw", [exponential, two_sided], ids=lambda draw: draw.__name__)
@pytest.mark.parametrize(("rates", "staff"), SEVERAL)
def test_the_mean_wait_of_each_class_is_that_of_a_simulated_one(rates, staff, draw) -> None:
    """Several classes, some of which only some consumers accept: each class within 20 %."""
    told = model(staff, SQUARED[draw]).waits(rates)
    simulation = Simulation(rates, staff, draw, seed=3).run(ARRIVALS * 2)
    for name in rates:
        assert near(told[name].mean, simulation.mean(name), slack=0.02), (name, told[name], simulation.mean(name))


@pytest.mark.parametrize(("rates", "slow"), [({"a": 2.0, "b": 0.4}, 2.0), LONG({"a": 1.8, "b": 0.5}, 0.5)])
def test_run_times_that_go_by_the_class_are_met_by_how_they_vary(rates, slow) -> None:
    """The model knows the run times of each crew only; classes that take longer are variation, and within 20 % too."""
    staff = [Staff("a", 2, 1.0), Staff("ab", 2, 1.0)]
    simulation = Simulation(rates, staff, seed=2, slow={"b": slow}).run(ARRIVALS * 2)
    told = Model([_observed(simulation, member) for member in staff]).waits(rates)
    for name in rates:
        assert near(told[name].mean, simulation.mean(name), slack=0.02), (name, told[name], simulation.mean(name))


def _observed(simulation: Simulation, member: Staff) -> Crew:
    """A crew as its deliveries show it."""
    tasks = [task for task in simulation.served if task.consumer.startswith(f"{member.classes}-")]
    times = [task.ended - task.claimed for task in tasks]
    seen = Counter(task.name for task in tasks)
    squared = statistics.pvariance(times) / statistics.mean(times) ** 2
    return Crew(seen, member.servers, member.servers, statistics.mean(times), squared)


@pytest.mark.parametrize("wanted", [0.5, 3.0])
@pytest.mark.parametrize("draw", [exponential, LONG(two_sided)], ids=lambda draw: draw.__name__)
@pytest.mark.parametrize("load", [0.8, 4.5, LONG(12.0)])
def test_as_many_consumers_are_asked_for_as_a_simulated_queue_needs(load, draw, wanted) -> None:
    """The least number that keeps 95 of 100 waits short, within 20 % of the one that is found by trying."""
    told = model([Staff("a", 1, 1.0)], SQUARED[draw]).needs({"a": load}, Target(wanted))["a"].needed
    tried = next(
        servers
        for servers in range(math.ceil(load), 99)
        if Simulation({"a": load}, [Staff("a", servers, 1.0)], draw, 5).run(ARRIVALS // 2).quantile("a", 0.95) <= wanted
    )
    assert told is not None
    assert abs(told - tried) <= 0.2 * tried, (told, tried)


@pytest.mark.parametrize("busy", [0.5, 1.5, 2.6])
def test_as_many_high_performance_nodes_are_asked_for_as_a_simulated_queue_needs(busy) -> None:
    """Of consumers that take all classes, beside others that take only the lower one, which stay as they are."""
    rates, lower = {"a": 3.0, "b": busy}, Staff("a", 3, 1.0)
    told = model([lower, Staff("ab", 1, 1.0)]).needs(rates, Target(2.0))["b"]
    late = lambda more: (
        Simulation(rates, [lower, Staff("ab", more, 1.0)], seed=5).run(ARRIVALS // 2).quantile("b", 0.95)
    )
    tried = next(more for more in range(1, 20) if sum(rates.values()) < more + 3 and late(more) <= 2.0)
    assert (told.servers, told.grow) == (1, {"a", "b"})
    assert told.needed == pytest.approx(tried, rel=0.2)


def test_erlang_s_formula_is_the_one_of_the_tables() -> None:
    """M/M/1, where the chance to wait is the load, and two busy telephones; also where several kinds accept all."""
    assert erlang_c(0.5, 1) == pytest.approx(0.5)
    assert erlang_c(1.0, 2) == pytest.approx(1 / 3)
    assert pool(2.0, 0.25, 1).mean == pytest.approx(0.25)
    assert variation(0.0, 0.8, 1) == 0.5
    assert variation(3.0, 0.8, 1) == pytest.approx(2.0)
    assert variation(1.0, 0.5, 9) == pytest.approx(1.0)
    told = waits({"a": 3.0, "b": 1.0}, [Kind(frozenset("ab"), 2, 1.0), Kind(frozenset("ab"), 3, 1.0)])
    assert told["a"].mean == told["b"].mean == pytest.approx(pool(4.0, 1.0, 5).mean)
    assert told["a"].chance == pytest.approx(erlang_c(4.0, 5))


def test_what_piles_up_is_told_of_its_own_class_alone() -> None:
    """The class that nobody can keep up with waits for ever; who has consumers of its own does not."""
    staff = [Staff("a", 3, 1.0), Staff("ab", 2, 1.0)]
    told = model(staff).waits({"a": 1.0, "b": 3.0})
    assert told["b"] == ENDLESS
    assert told["a"].mean == pytest.approx(pool(1.0, 1.0, 3).mean), "who is swamped by b is no help to a"
    needs = model(staff).needs({"a": 1.0, "b": 3.0}, Target(5.0))
    assert needs["b"].utilisation == pytest.approx(1.5)
    assert needs["b"].needed > 3
    assert needs["a"].needed <= needs["a"].servers
    told = Model([Crew({"a": 9, "b": 9}, 1, 1, 1.0, 1.0)]).waits({"a": 2.0})
    assert told == {"a": ENDLESS, "b": ENDLESS}, "no arrivals of b, which the swamped ones serve, too"


def test_what_only_some_or_nobody_accepts_is_held_against_those() -> None:
    """The tightest group tells how busy a class's consumers are; nobody knows how fast those would be that are none."""
    kinds = [Kind(frozenset("a"), 2, 1.0), Kind(frozenset("ab"), 2, 1.0)]
    busy = utilisations({"a": 0.5, "b": 1.8}, kinds)
    assert busy == {"a": pytest.approx(2.3 / 4), "b": pytest.approx(0.9)}
    assert sorted(len(own) for own, _, _ in circles({"a": 0.5, "b": 1.8}, kinds)) == [1, 2]
    need = model([Staff("a", 1, 1.0)]).needs({"a": 0.5, "z": 1.0}, Target())["z"]
    assert (need.wait, need.servers, need.needed) == (ENDLESS, 0, None)
    assert model([]).needs({"z": 1.0}, Target())["z"].wait == ENDLESS
    assert model([]).needs({"z": 0.0}, Target())["z"].wait.mean == 0


def test_a_target_may_be_how_busy_they_are() -> None:
    """Then no wait is asked for, or both are."""
    needed = lambda *target: model([Staff("a", 9, 1.0)]).needs({"a": 7.0}, Target(*target))["a"].needed
    assert (needed(None, 0.7), needed(None)) == (10, 8)
    assert needed(0.01, 0.7) > 10


def test_hundreds_of_consumers_are_reckoned_within_bounds() -> None:
    """Where the exact sum is too long, each group of consumers is held against the classes that it must serve."""
    staff = [Staff("a", 300, 1.0), Staff("ab", 300, 1.0)]
    needs = model(staff).needs({"a": 350.0, "b": 240.0}, Target(1.0))
    assert not needs["a"].exact
    assert needs["b"].wait.mean == pytest.approx(pool(590.0, 1.0, 600).mean, rel=1e-6)
    assert needs["b"].utilisation == pytest.approx(590 / 600)
    many = [Staff("ab", 2, 1.0)] + [Staff("a" + chr(99 + n), 1, 1.0) for n in range(12)]
    assert model(many).waits({"a": 5.0, "b": 1.0})["b"].mean > 0


def test_consumers_that_served_little_are_counted_with_those_they_resemble() -> None:
    """Three tasks tell little about what a consumer accepts; a thousand do. Restarted ones are the same kind."""
    many = Crew({"a": 900, "b": 100}, 2, 2, 1.0, 1.0)
    few = Crew({"a": 9}, 3, 3, 2.0, 0.0)
    sure = Crew({"a": 5_000}, 2, 2, 1.0, 1.0)
    (joined,) = crews([few, many])
    assert (joined.classes, joined.servers, joined.deliveries) == ({"a", "b"}, 5, 1_009)
    assert joined.service == pytest.approx((1_000 + 18) / 1_009)
    assert [crew.servers for crew in crews([sure, many])] == [2, 2]
    assert len(crews([sure, replace(sure, servers=1), few])) == 1
    joined = Crew({"a": 1}, 1, 1, 1.0, 0.0).joined(Crew({"a": 1}, 1, 1, 3.0, 0.0))
    assert (joined.service, joined.squared) == (2.0, pytest.approx(0.25)), "the variation between them counts, too"
