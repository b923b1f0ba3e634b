"""The model of one ensemble: what it is fitted to it explains, and what a demand takes."""

from __future__ import annotations

import pytest

from airflow_provider_zkmq.bench.scale import Costs, Demand, Ensemble, fit, simulate


@pytest.mark.parametrize("costs", [Costs(0.0005, 0.0003, 0.0), Costs(0.002, 0.0004, 0.001), Costs(0.0, 0.001, 0.004)])
def test_a_simulated_server_is_told_from_three_rates(costs: Costs) -> None:
    """Fitted to what a simulation says with 1, 8 and 64 at once, the model predicts it with more, within a fifth."""
    found = fit({at_once: simulate(costs, at_once) for at_once in (1, 8, 64)})
    for at_once in (1, 10, 100, 1_000):
        assert simulate(found, at_once) == pytest.approx(simulate(costs, at_once), rel=0.2)


def test_more_callers_never_exceed_what_each_costs() -> None:
    costs = Costs(0.001, 0.0005, 0.01)
    rates = [simulate(costs, at_once) for at_once in (1, 10, 100, 1_000)]
    assert rates == sorted(rates)
    assert rates[-1] <= costs.most
    assert rates[-1] == pytest.approx(costs.most, rel=0.05)


def test_rates_that_no_model_explains_give_no_negative_costs() -> None:
    """On a busy machine eight callers may be slower than one."""
    costs = fit({1: 500, 8: 100, 64: 90})
    assert min(costs.together, costs.between) >= 0
    assert costs.each > 0


def test_what_runs_out_first_says_how_many_ensembles_it_takes() -> None:
    ensemble = Ensemble(calls_s=3_000, heap=1 << 30, calls=3, znodes=7, data=600)
    assert ensemble.needed(Demand(100, 10_000)) == {"calls": 1, "heap": 1}
    assert ensemble.needed(Demand(5_000, 10_000)) == {"calls": 10, "heap": 1}
    assert ensemble.needed(Demand(1, 1_000_000)) == {"calls": 1, "heap": 7}
    assert ensemble.needed(Demand(1, 0, watched=10_000_000)) == {"calls": 1, "heap": 3}
