"""The values of the model: names, lanes, records, filters, selectors, policies, states and marks, read and refused."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import uuid
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from airflow_provider_zkmq.engine.core.client_state import Marks
from airflow_provider_zkmq.engine.core.model import filters
from airflow_provider_zkmq.engine.core.model.filters import (
    AllOf,
    AnyOf,
    Condition,
    Integer,
    OrderedEnum,
    String,
    choose,
    parse_filters,
    parse_selector,
)
from airflow_provider_zkmq.engine.core.model.new_message import Message
from airflow_provider_zkmq.engine.core.model.records import Attempt, TaskState, clip
from airflow_provider_zkmq.engine.core.model.settings import (
    ConsumeOnce,
    ConsumeTimes,
    RetryPolicy,
    Settings,
    load_settings,
)
from airflow_provider_zkmq.engine.core.model.states import ENDED, TRANSITIONS, Event, State, derive_status, step
from airflow_provider_zkmq.engine.core.model.znode_names import (
    MAX_PRIORITY,
    Lane,
    Paths,
    check_name,
    entry_name,
    entry_task,
    is_shortened,
    parse_lane,
)
from airflow_provider_zkmq.engine.core.tasks import enqueue
from airflow_provider_zkmq.engine.errors import ConfigError, CorruptRecord, IllegalTransition
from tests.unit.world import new_queue

NAME = st.from_regex(r"[A-Za-z0-9_:+@=-]{1,128}", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
PRIORITY = st.integers(-MAX_PRIORITY, MAX_PRIORITY)
TYPES = {"c": OrderedEnum("low", "standard", "high"), "n": Integer(), "s": String()}

#: What each constructor or parser refuses.
REFUSED: Final[dict[str, tuple[Callable[[Any], Any], list[Any]]]] = {
    "a name": (
        lambda name: check_name("task id", name),
        ["", "a/b", "..", ".", "a..b", "a\0b", "\ud800", "é", "a b", "a~b", "a\n", "x" * 129, None, 3, b"a"],
    ),
    "a queue's name": (lambda name: Paths.of("/zkmq", name), ["a/b", "", None]),
    "a filter's name": (lambda name: filters.check_types({name: Integer()}), ["a/b", "", None]),
    "a root": (
        lambda root: Paths.of(root, "q"),
        ["", "/", "a", "/a//b", "/a/../b", "//", None, "/a\0", "/zookeeper", "/zookeeper/q/"],
    ),
    "attempts": (lambda given: RetryPolicy(attempts=given), [0, -1, 1.5, "3", True, 10**7]),
    "seconds": (
        lambda given: RetryPolicy(**given),
        [
            {name: value}
            for name in ("factor", "min_backoff", "max_backoff")
            for value in (-1, float("nan"), float("inf"), "1", True, None)
        ],
    ),
    "a least backoff above the most": (lambda most: RetryPolicy(min_backoff=2, max_backoff=most), [1]),
    "an enumeration": (lambda values: OrderedEnum(*values), [(), ("a", "a"), ("",), ("a\0",), ("x" * 257,)]),
    "a task's filters": (
        lambda given: parse_filters(TYPES, given),
        [{"c": "mid"}, {"n": "x"}, {"n": True}, {"n": 1.5}, {"n": 1 << 63}, {"s": ""}, {"x": "1"}],
    ),
    "the text of a type": (filters.parse_type, ["float"]),
    "a type": (lambda type_: filters.check_types({"a": type_}), ["string"]),
    "a count": (lambda count: AnyOf(count, "a==b", "c==d"), [0, 3, True, "1"]),
    "the text of a selector": (
        parse_selector,
        ["", " ", "a", "a==", "==b", "a==b,", "a==b c==d", "all(", "any(x, a==b)", "any(2, a==b)", 'a=="b', "a=b", ")"],
    ),
}


def test_what_is_no_value_of_the_model_is_refused(subtests: pytest.Subtests) -> None:
    """Names that are no znodes, policies, filters and selectors that mean nothing: a configuration error each."""
    for what, (make, values) in REFUSED.items():
        for value in values:
            with subtests.test(what, value=value), pytest.raises(ConfigError):
                make(value)
    for data in (b"", b"[]", b"{", b'{"filters":{"a":1}}', b'{"filters":{"a":{"type":"X"}}}',
                 b'{"filters":{"a/b":{"type":"String"}}}', b'{"policy":{"attempts":0}}', b'{"lock":-1}',
                 b'{"order":"any"}', b'{"paused":1}', b'{"filters":{"a":{"type":"OrderedEnum"}}}'):  # fmt: skip
        with subtests.test("stored settings", data=data), pytest.raises(CorruptRecord, match="configure"):
            load_settings("p", data)


# --- names, lanes and filters


@given(NAME, PRIORITY, PRIORITY, st.none() | st.dictionaries(TEXT, TEXT, max_size=3))
def test_names_and_lanes_are_read_as_they_were_written(name: str, one: int, other: int, filters: Any) -> None:
    """An entry names its task; a lane is known by its name and by its data, and sorts by falling priority."""
    assert check_name("x", name) == name
    assert entry_task(entry_name("00", name)) == name
    lane = Lane(one, filters)
    assert "/" not in lane.name
    assert is_shortened(lane.name) or parse_lane(lane.name) == lane
    assert Lane.decode("p", lane.encode()) == lane
    assert (Lane(one, {}).name < Lane(other, {}).name) == (one > other)


def test_filters_are_declared_and_stored_as_text() -> None:
    """Types come from what was stored and from a command's text; values become text."""
    settings = Settings(filters.declare_types(TYPES), lock=5.0, order="fifo", paused=True)
    assert load_settings("p", settings.encode()) == (settings, TYPES)
    assert load_settings("p", b"{}") == (Settings(), {})
    assert [filters.parse_type(text) for text in ("enum:low,standard,high", "integer", "string")] == list(
        TYPES.values()
    )
    assert parse_filters(TYPES, {"n": -3, "c": "low", "s": "é"}) == {"n": "-3", "c": "low", "s": "é"}


# --- selectors


def test_at_least_takes_lower_classes_and_absolute_only_equal_ones() -> None:
    """By the order of the declaration, in which standard is below high."""
    least, same = (choose(TYPES, node={"c": "high"}, filter_method=method) for method in ("at_least", "absolute"))
    assert choose(TYPES, node={"c": "high"}) == same
    takes = [(each.matches({"c": "standard"}, TYPES), each.matches({"c": "high"}, TYPES)) for each in (least, same)]
    assert takes == [(True, True), (False, True)]


def test_missing_or_undeclared_values_never_match(subtests: pytest.Subtests) -> None:
    """Whatever they are compared with."""
    for values, text in itertools.product(({}, {"c": "gone"}, {"n": "x"}), ("c<=high", "c>=low", "n<9", "n>0")):
        with subtests.test(text, filters=values):
            assert not parse_selector(text).matches(values, TYPES)


def test_all_of_needs_all_and_any_of_its_count(subtests: pytest.Subtests) -> None:
    """Of no conditions all are met."""
    cases: dict[Any, bool] = {
        AllOf(): True,
        AllOf("c==low", "n>9"): True,
        AllOf("c==low", "n>10"): False,
        AnyOf(2, "c==low", "n>10", "s==x"): True,
        AnyOf(3, "c==low", "n>10", "s==x"): False,
    }
    for selector, matches in cases.items():
        with subtests.test(str(selector)):
            assert selector.matches({"c": "low", "n": "10", "s": "x"}, TYPES) is matches


def test_a_selector_in_the_place_of_a_node_is_one() -> None:
    """As text or made; anything else is told what belongs there."""
    parsed = parse_selector("c==low").bind(TYPES)
    assert choose(TYPES, node="c==low") == choose(TYPES, node=parse_selector("c==low")) == parsed
    with pytest.raises(ConfigError, match="not both"):
        choose(TYPES, node="c==low", selector="c==low")
    with pytest.raises(ConfigError, match=r"\['c'\] is no selector"):
        choose(TYPES, node=["c"])  # type: ignore[arg-type]


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


@given(SELECTOR, st.text() | st.text(alphabet='ab(),"\\=<> 1'))
def test_the_text_of_a_selector_is_read_as_it_was_written(selector: Any, text: str) -> None:
    """Any other text is a selector or a configuration error."""
    assert parse_selector(str(selector)) == selector
    with contextlib.suppress(ConfigError):
        parse_selector(text)


# --- policies


@given(st.integers(-5, 100), st.floats(0, 1, exclude_max=True), st.floats(0, 1e6))
def test_backoff_lies_between_half_a_power_and_a_power_of_two(attempt: int, rand: float, factor: float) -> None:
    """Times the factor, and between the least and the most."""
    power, most = 2.0 ** min(max(attempt, 0), 36), 8e9
    backoff = RetryPolicy(factor=factor, max_backoff=most).backoff(attempt + 1, rand)
    assert min(most, 0.5 * power * factor) <= backoff <= min(most, power * factor)
    assert 1 <= RetryPolicy(factor=factor, min_backoff=1, max_backoff=9).backoff(attempt + 1, rand) <= 9


@given(st.binary() | st.sampled_from([b"[]", b"3", b"null", b'{"x":1}', b'{"attempts":0}']))
def test_a_policy_is_exhausted_after_its_attempts_and_stored(data: bytes) -> None:
    """`ConsumeTimes` retries at once; what is stored is read back, and random bytes are a policy or corrupt."""
    policy = ConsumeTimes(3)
    assert [policy.exhausted(n) for n in (1, 2, 3)] == [False, False, True]
    assert policy.backoff(2, 0.5) == 0
    assert ConsumeOnce().exhausted(1)
    assert not RetryPolicy(attempts=None).exhausted(10**9)
    policy = RetryPolicy(None, 2, 1, 9)
    assert load_settings("p", Settings(policy=policy).encode())[0].policy == policy
    with contextlib.suppress(CorruptRecord):
        assert isinstance(load_settings("p", b'{"policy":%b}' % data)[0].policy, RetryPolicy)


# --- states

#: The events of each state, and where they lead to.
ROWS: Final = {
    "inserted": "claim:claimed promote:inserted cancel:cancelled update:inserted exhaust:dead rerun:inserted",
    "claimed": "complete:finished fail:inserted fail-final:dead release:inserted rescue:inserted rescue-final:dead"
    " cancel:cancelled requeue:claimed rerun:inserted",
    "finished": "requeue:finished rerun:inserted enqueue-again:inserted give-up-run:finished",
    "dead": "redrive:inserted",
    "cancelled": "redrive:inserted enqueue-again:inserted",
}


def test_only_the_listed_rows_of_the_state_machine_are_allowed(subtests: pytest.Subtests) -> None:
    """Every other event is refused in that state; finished, dead and cancelled are the states that no work changes."""
    assert {"finished", "dead", "cancelled"} == ENDED
    assert ROWS.keys() == set(State), "a state has no row in this test"
    for state, event in itertools.product(State, Event):
        after = dict(row.split(":") for row in ROWS[state].split()).get(event)
        with subtests.test(state=str(state), event=str(event)):
            assert ((state, event) in TRANSITIONS) == (after is not None)
            if after is None:
                with pytest.raises(IllegalTransition, match="task 't'"):
                    step("t", state, event)
            else:
                assert step("t", state, event) == after


def test_a_status_is_derived_from_the_stored_state() -> None:
    """With what is to come after it: a backoff, a dedupe window, a run in escrow."""
    inserted, claimed, finished = State.INSERTED, State.CLAIMED, State.FINISHED
    assert derive_status(inserted, scheduled=True) == "queued-with-backoff"
    names = ["queued", "locked", "done-awaiting-gc", "dead", "cancelled"]
    states = [inserted, claimed, finished, State.DEAD, State.CANCELLED]
    assert [derive_status(state, scheduled=False) for state in states] == names
    assert derive_status(claimed, scheduled=False, requeue=True) == "locked-with-requeue"
    assert derive_status(finished, scheduled=False, window=True) == "done-with-backoff"
    for window in (False, True):
        assert derive_status(finished, scheduled=False, requeue=True, window=window) == "done-with-requeue"


# --- records

PLAIN: Final = TaskState(State.INSERTED, 'p0;"\\/1/0~a', "n\n")
#: A value for each field that needs care, or says something although it is false.
CARE: Final[dict[str, list[Any]]] = {
    "filters": [{"größe": 'a"b'}],
    "priority": [-3],
    "attempt": [2],
    "due": [0, 1_700_000_000_000],
    "claimed": [0],
    "consumer": ["host\u2028"],
    "settled": [("a", 'b"')],
    "error": ["", "\x00\x7f"],
    "policy": [RetryPolicy(attempts=None, factor=0.5, final=["ValueError"])],
    "history": [(Attempt(1, "c", 0, 5, "failed", 'e"'), Attempt(0, "", 0, 0, ""))],
    "lock": [1.5, 3],
    "bound": [True],
    "requeue": [True],
    "result": [True],
    "rank": [0, 1 << 62],
    "ended_zxid": [0],
}


#: How those are spelt that are no texts, numbers or the like.
SPELT: Final[dict[str, dict[str, Any]]] = {
    "history": {
        "history": [
            {"number": 1, "consumer": "c", "claimed": 0, "ended": 5, "outcome": "failed", "error": 'e"'},
            {"number": 0, "consumer": "", "claimed": 0, "ended": 0, "outcome": ""},
        ]
    },
    "policy": {
        "policy": {"attempts": None, "factor": 0.5, "min_backoff": 0.0, "max_backoff": 300.0, "final": ["ValueError"]}
    },
}


@given(TEXT, st.integers(0, 9), st.dictionaries(NAME, TEXT, max_size=3), st.binary())
def test_task_records_round_trip(text: str, number: int, filters: dict[str, str], data: bytes) -> None:
    """Random bytes are a corrupt record."""
    state = TaskState(State.CLAIMED, f"p{number}//0~t", text, number, filters, number, error="e", consumer="c")
    state = state.with_attempt("failed", 5, text)
    assert TaskState.decode("p", state.encode()) == state
    with pytest.raises(CorruptRecord):
        TaskState.decode("p", data)


@pytest.mark.parametrize(("started", "claimed"), [(None, 5), (4, 4), (9, 5)])
def test_a_delivery_was_claimed_before_it_began_and_ended(started: int | None, claimed: int) -> None:
    """Of these times the claim's is an estimate, and may be a little late."""
    state = structs.replace(PLAIN, claimed=7).with_attempt("failed", 5, None, started)
    assert state.history[-1].claimed == claimed


def test_a_record_is_compact_json_without_what_is_empty(subtests: pytest.Subtests) -> None:
    """As Python's encoder spells it; what is false and says something stays, and is read again."""
    for name, value in [(name, value) for name, values in CARE.items() for value in values]:
        with subtests.test(name, value=ascii(value)):
            state = structs.replace(PLAIN, **{name: value})
            record = {"state": "inserted", "place": PLAIN.place, "nonce": PLAIN.nonce} | SPELT.get(name, {name: value})
            assert state.encode() == json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()
            assert TaskState.decode("p", state.encode()) == state


def test_whatever_an_error_says_is_kept() -> None:
    """Of a text that no bytes stand for, what cannot be stored is spelt out."""
    assert clip("caf\udce9 \x00") == "caf\\udce9 \x00"
    assert clip("x" * 5_000) == "x" * 3_999 + "…"
    assert clip(None) is None


def test_a_task_s_record_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judging the size, grouping into transactions and sending share one encoding, due at once or later."""
    encode, encoded, client = TaskState.encode, list[str](), new_queue()
    monkeypatch.setattr(TaskState, "encode", lambda state: encoded.append(state.nonce) or encode(state))
    for delay in (None, 60):
        encoded.clear()
        ids = client.do(enqueue.enqueue_many(client.context, [Message(b"x", delay=delay) for _ in range(50)]))
        assert len(ids) == len(set(encoded)) == len(encoded) == 50


# --- marks: ids, stamps and nonces


def test_threads_and_a_forked_process_get_different_marks() -> None:
    """A forked process makes others, although it has inherited what its parent was given by the system."""
    marks, found = Marks(lambda: 5), list[str]()
    make = lambda: found.extend(each() for _ in range(1_000) for each in (marks.nonce, marks.task_id))
    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == len(found) == 4 * 2 * 1_000
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, marks.nonce().encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(read, 100).decode()
    os.close(read)
    os.close(write)
    assert len(theirs) == 16
    assert theirs not in [marks.nonce() for _ in range(200)]


def test_an_id_is_a_uuid_of_version_7() -> None:
    """With the time in its first 48 bits."""
    found = uuid.UUID(Marks(lambda: (1 << 48) - 1).task_id())
    assert (found.version, found.variant, found.int >> 80) == (7, uuid.RFC_4122, (1 << 48) - 1)
