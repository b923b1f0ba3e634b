"""Names that may become znodes, lanes' names, and records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zkmq.engine.core.model.filters import Integer, check_types
from airflow_provider_zkmq.engine.core.model.lanes import MAX_PRIORITY, Lane, is_shortened, parse_lane
from airflow_provider_zkmq.engine.core.model.paths import Paths, check_name, entry_name, entry_task
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.errors import ConfigError, CorruptRecord

BAD = ["", "a/b", "..", ".", "a..b", "a\0b", "\ud800", "é", "a b", "a~b", "a\n", "x" * 129, None, 3, b"a"]
NAME = st.from_regex(r"[A-Za-z0-9_:+@=-]{1,128}", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@pytest.mark.parametrize("name", BAD)
def test_bad_names_are_refused(name):
    with pytest.raises(ConfigError):
        check_name("task id", name)
    with pytest.raises(ConfigError):
        Paths.of("/zkmq", name)
    with pytest.raises(ConfigError):
        check_types({name: Integer()})


@pytest.mark.parametrize("root", ["", "/", "a", "/a//b", "/a/../b", "//", None, "/a\0"])
def test_bad_roots_are_refused(root):
    with pytest.raises(ConfigError):
        Paths.of(root, "q")


@given(NAME)
def test_good_names_are_kept_and_entries_name_their_task(name):
    assert check_name("x", name) == name
    assert entry_task(entry_name("00", name)) == name


@given(st.integers(-MAX_PRIORITY, MAX_PRIORITY), st.none() | st.dictionaries(TEXT, TEXT, max_size=3))
def test_lanes_round_trip_by_name_and_by_data(priority, filters):
    lane = Lane(priority, filters)
    assert "/" not in lane.name
    assert is_shortened(lane.name) or parse_lane(lane.name) == lane
    assert Lane.decode("p", lane.encode()) == lane


@given(st.integers(-MAX_PRIORITY, MAX_PRIORITY), st.integers(-MAX_PRIORITY, MAX_PRIORITY))
def test_lanes_sort_by_falling_priority(one, other):
    assert (Lane(one, {}).name < Lane(other, {}).name) == (one > other)


@given(TEXT, st.integers(0, 9), st.dictionaries(NAME, TEXT, max_size=3))
def test_task_records_round_trip(text, number, filters):
    state = TaskState(State.CLAIMED, f"p{number}//0~t", text, number, filters, number, error="e", consumer="c")
    state = state.with_attempt("failed", 5, text)
    assert TaskState.decode("p", state.encode()) == state


@given(st.binary())
def test_random_bytes_are_a_corrupt_record(data):
    with pytest.raises(CorruptRecord):
        TaskState.decode("p", data)
