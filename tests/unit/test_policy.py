"""Backoff and retry policies."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zkmq.engine.core.model.policy import ConsumeOnce, ConsumeTimes, RetryPolicy, exp_backoff
from airflow_provider_zkmq.engine.errors import ConfigError, CorruptRecord


@given(st.integers(-5, 100), st.floats(0, 1, exclude_max=True), st.floats(0, 1e6))
def test_backoff_lies_between_half_a_power_and_a_power_of_two(attempt, rand, factor):
    power = 2.0 ** min(max(attempt, 0), 36)
    assert 0.5 * power * factor <= exp_backoff(attempt, rand, factor=factor) <= power * factor
    assert 1 <= exp_backoff(attempt, rand, factor=factor, least=1, most=9) <= 9


@pytest.mark.parametrize("attempts", [0, -1, 1.5, "3", True, 10**7])
def test_bad_attempts_are_refused(attempts):
    with pytest.raises(ConfigError):
        RetryPolicy(attempts=attempts)


@pytest.mark.parametrize("name", ["factor", "min_backoff", "max_backoff"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "1", True, None])
def test_bad_seconds_are_refused(name, value):
    with pytest.raises(ConfigError):
        RetryPolicy(**{name: value})


def test_a_least_backoff_above_the_most_is_refused():
    with pytest.raises(ConfigError):
        RetryPolicy(min_backoff=2, max_backoff=1)


def test_consume_times_is_exhausted_after_so_many_and_retries_at_once():
    policy = ConsumeTimes(3)
    assert [policy.exhausted(n) for n in (1, 2, 3)] == [False, False, True]
    assert policy.backoff(2, 0.5) == 0
    assert ConsumeOnce().exhausted(1)
    assert not RetryPolicy(attempts=None).exhausted(10**9)


def test_a_policy_round_trips():
    policy = RetryPolicy(None, 2, 1, 9)
    assert RetryPolicy.decode("p", policy.encode()) == policy
    assert RetryPolicy.decode("p", b"") == RetryPolicy()


@given(st.binary() | st.sampled_from([b"[]", b"3", b"null", b'{"x":1}', b'{"attempts":0}']))
def test_random_bytes_are_a_corrupt_policy_or_a_policy(data):
    with contextlib.suppress(CorruptRecord):
        assert isinstance(RetryPolicy.decode("p", data), RetryPolicy)
