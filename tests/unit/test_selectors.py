"""Selectors: what matches, and their text."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zkmq.engine.core.model.conditions import Condition
from airflow_provider_zkmq.engine.core.model.filters import Integer, OrderedEnum, String
from airflow_provider_zkmq.engine.core.model.selectors import AllOf, AnyOf, choose, parse_selector
from airflow_provider_zkmq.engine.errors import ConfigError

TYPES = {"c": OrderedEnum("low", "standard", "high"), "n": Integer(), "s": String()}


def test_at_least_takes_lower_classes_and_absolute_only_equal_ones():
    least = choose(TYPES, node={"c": "high"}, filter_method="at_least")
    same = choose(TYPES, node={"c": "high"})
    assert least.matches({"c": "standard"}, TYPES)
    assert not same.matches({"c": "standard"}, TYPES)
    assert same.matches({"c": "high"}, TYPES)


@pytest.mark.parametrize("filters", [{}, {"c": "gone"}, {"n": "x"}])
def test_missing_or_undeclared_values_never_match(filters):
    for text in ("c<=high", "c>=low", "n<9", "n>0"):
        assert not parse_selector(text).matches(filters, TYPES)


def test_all_of_needs_all_and_any_of_its_count():
    filters = {"c": "low", "n": "10", "s": "x"}
    assert AllOf().matches({}, TYPES)
    assert AllOf("c==low", "n>9").matches(filters, TYPES)
    assert not AllOf("c==low", "n>10").matches(filters, TYPES)
    assert AnyOf(2, "c==low", "n>10", "s==x").matches(filters, TYPES)
    assert not AnyOf(3, "c==low", "n>10", "s==x").matches(filters, TYPES)


@pytest.mark.parametrize("count", [0, 3, True, "1"])
def test_a_bad_count_is_refused(count):
    with pytest.raises(ConfigError):
        AnyOf(count, "a==b", "c==d")


CONDITION = st.builds(
    Condition,
    st.from_regex(r"[a-z]{1,5}", fullmatch=True),
    st.sampled_from(["==", "<=", "<", ">", ">="]),
    st.text(st.characters(exclude_categories=["C", "Z"]), max_size=8),
)
SELECTOR = st.recursive(
    CONDITION,
    lambda part: st.lists(part, min_size=1, max_size=3).flatmap(
        lambda parts: st.just(AllOf(*parts)) | st.integers(1, len(parts)).map(lambda n: AnyOf(n, *parts))
    ),
    max_leaves=8,
)


@given(SELECTOR)
def test_text_round_trips(selector):
    assert parse_selector(str(selector)) == selector


@pytest.mark.parametrize(
    "text",
    ["", " ", "a", "a==", "==b", "a==b,", "a==b c==d", "all(", "any(x, a==b)", "any(2, a==b)", 'a=="b', "a=b", ")"],
)
def test_malformed_text_is_a_config_error(text):
    with pytest.raises(ConfigError):
        parse_selector(text)


@given(st.text() | st.text(alphabet='ab(),"\\=<> 1'))
def test_random_text_raises_nothing_else(text):
    with contextlib.suppress(ConfigError):
        parse_selector(text)


def test_a_selector_in_the_place_of_a_node_is_one() -> None:
    """As text or made; anything else is told what belongs there."""
    parsed = parse_selector("c==low").bind(TYPES)
    assert choose(TYPES, node="c==low") == choose(TYPES, node=parse_selector("c==low")) == parsed
    with pytest.raises(ConfigError, match="not both"):
        choose(TYPES, node="c==low", selector="c==low")
    with pytest.raises(ConfigError, match=r"\['c'\] is no selector"):
        choose(TYPES, node=["c"])  # type: ignore[arg-type]
