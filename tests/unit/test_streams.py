"""Streams of what ended: their offsets and batches, without Spark and without ZooKeeper."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

pytest.importorskip("pyspark")

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import MapType, StringType, StructType

from airflow_provider_zkmq.engine import State, Unavailable
from airflow_provider_zkmq.spark.source import access
from airflow_provider_zkmq.spark.source.errors import SourceError
from airflow_provider_zkmq.spark.source.following import TaskStream
from airflow_provider_zkmq.spark.source.options import Options
from tests.unit.followed import FakeQueues, Query


@pytest.fixture
def world() -> FakeQueues:
    return FakeQueues("a", "b")


@pytest.fixture
def query(world: FakeQueues, monkeypatch: pytest.MonkeyPatch) -> Query:
    return Query(world, monkeypatch.setattr)


def names(rows: list[Any]) -> list[str]:
    return [f"{queue}/{task_id}" for queue, task_id, _ in rows]


# --- where a stream begins


def test_a_stream_begins_with_all_that_ended_and_stands(world: FakeQueues, query: Query) -> None:
    world.end(("a", "1"))
    world.end(("b", "2"), state=State.DEAD)
    assert names(query.run()) == ["a/1", "b/2"]
    world.end(("a", "3"))
    assert names(query.run()) == ["a/3"]


def test_a_stream_of_what_ends_from_now_on_notes_its_beginning(world: FakeQueues, query: Query) -> None:
    """Its first batch is empty: after a restart it goes on from there, with what ended while it was away."""
    query.options["startingOffsets"] = "latest"
    world.end(("a", "before"))
    assert (query.run(), len(query.offsets)) == ([], 1)
    query.kill()
    world.end(("a", "meanwhile"))
    assert names(query.run()) == ["a/meanwhile"]


def test_a_beginning_that_was_not_committed_is_the_same_after_a_restart(world: FakeQueues, query: Query) -> None:
    """Spark asks again where the first batch begins: that the answer is another one by now changes nothing."""
    query.options["startingOffsets"] = "latest"
    query.plan()
    query.kill()
    world.end(("a", "1"))
    assert names(query.run()) == ["a/1"]


def test_queues_begin_where_they_are_told_to(world: FakeQueues, query: Query) -> None:
    """By number, word, or not named at all: then with all that ended and stands."""
    first = world.end(("a", "1"), ("b", "1"))
    world.end(("a", "2"), ("b", "2"))
    world.make("c")
    world.end(("c", "3"))
    query.options["startingOffsets"] = json.dumps({"a": world.zxid, "b": "latest"})
    world.end(("a", "4"))
    assert names(query.run()) == ["c/3", "a/4"]
    other = Query(world, query.patch, {"startingOffsets": json.dumps({"b": first}), "queues": "b"})
    assert names(other.run()) == ["b/2"]


def test_the_offset_that_a_query_shows_is_a_beginning(world: FakeQueues, query: Query) -> None:
    world.end(("a", "1"))
    query.run()
    world.end(("a", "2"))
    other = Query(world, query.patch, {"startingOffsets": query.offsets[-1]})
    assert names(other.run()) == ["a/2"]


@pytest.mark.parametrize("text", ["newest", "[1]", '{"a": "soon"}', '{"a": -1}', '{"a": true}', '{"queues": {"a": 1}}'])
def test_no_other_beginnings(text: str) -> None:
    with pytest.raises(SourceError, match=r"startingOffsets|another checkpoint"):
        TaskStream(StructType(), Options.of({"startingOffsets": text})).initialOffset()


def test_a_queue_that_is_not_there_is_named(world: FakeQueues, query: Query) -> None:
    query.options["queues"] = "absent"
    with pytest.raises(SourceError, match="'absent' does not exist"):
        query.run()
    query.kill()
    query.start().prepareForTriggerAvailableNow()
    with pytest.raises(SourceError, match="'absent' does not exist"):
        query.run()
    query.kill()
    query.options |= {"queues": "a", "startingOffsets": '{"b": 3}'}
    with pytest.raises(SourceError, match="startingOffsets names queue 'b', which is none of a"):
        query.run()
    assert sorted(world.there) == ["a", "b"]


def test_queues_that_come_later_are_followed_from_their_first_run_on(world: FakeQueues, query: Query) -> None:
    """Also in a stream that began with the latest, and if they come while it is away; not where others are named."""
    query.options["startingOffsets"] = "latest"
    named = Query(world, query.patch, {"queues": "a"})
    named.run()
    query.run()
    world.make("c")
    world.end(("c", "1"))
    assert names(query.run()) == ["c/1"]
    query.kill()
    world.make("d")
    world.end(("d", "2"))
    world.end(("c", "3"))
    assert names(query.run()) == ["d/2", "c/3"]
    assert named.run() == []


# --- batches


def test_a_batch_has_so_many_runs_and_no_part_of_a_transaction(world: FakeQueues, query: Query) -> None:
    """What one transaction ended in two queues stays together; one that is too large makes a batch of its own."""
    query.options["maxTasksPerTrigger"] = "3"
    world.end(("a", "1"))
    world.end(("b", "2"))
    world.end(("a", "3"), ("b", "3"))
    world.end(*((queue, f"4{n}") for n in range(3) for queue in "ab"))
    world.end(("b", "5"))
    query.run()
    assert [len(query.sink[number]) for number in sorted(query.sink)] == [2, 2, 6, 1]
    assert [json.loads(offset)["runs"] for offset in query.offsets] == [2, 2, 6, 1]


@pytest.mark.parametrize("available_now", [False, True])
def test_a_transaction_stays_together_that_comes_while_queues_are_asked(
    world: FakeQueues, query: Query, available_now: bool
) -> None:
    """One queue was asked before it, the other one after it."""
    query.run()
    ask, a = world.there["a"].latest_end, world.there["a"]

    def latest_end() -> int:
        newest = ask()
        a.latest_end = ask  # type: ignore[method-assign]
        world.end(("a", "1"), ("b", "1"))
        return newest

    a.latest_end = latest_end  # type: ignore[method-assign]
    if available_now:
        query.start().prepareForTriggerAvailableNow()
    query.plan()
    assert names(query.write()) == ["a/1", "b/1"]


def test_a_look_that_is_cut_off_is_made_again(world: FakeQueues, query: Query) -> None:
    """ZooKeeper goes away between two queues: the query fails and says so; started again, nothing is lost."""
    query.run()
    world.end(("a", "1"))
    world.end(("b", "2"))
    b, trimmed = world.there["b"], world.there["b"].trimmed

    def away() -> None:
        b.trimmed = trimmed  # type: ignore[method-assign]
        raise Unavailable("no ZooKeeper server answered at h:1")

    for restart in (False, True):
        b.trimmed = away  # type: ignore[assignment]
        with pytest.raises(SourceError, match=r"^no ZooKeeper server answered at h:1$"):
            query.plan()
        if restart:
            query.kill()
    assert names(query.run()) == ["a/1", "b/2"]


def test_a_trigger_may_lift_the_limit(world: FakeQueues) -> None:
    stream = TaskStream(StructType(), Options.of({"maxTasksPerTrigger": "3"}))
    assert stream.getDefaultReadLimit() == ReadMaxRows(3)
    assert TaskStream(StructType(), Options.of({})).getDefaultReadLimit() == ReadAllAvailable()


def test_a_backlog_is_listed_once(world: FakeQueues, query: Query) -> None:
    query.options["maxTasksPerTrigger"] = "10"
    for number in range(100):
        world.end(("a", f"{number:03}"))
    assert len(query.run()) == 100
    assert (len(query.offsets), world.listings) == (10, 2 + 0)


def test_an_idle_stream_makes_no_batch_lists_nothing_and_writes_nothing(world: FakeQueues, query: Query) -> None:
    """Not even where clean-up has deleted meanwhile what the stream has."""
    world.end(("a", "1"))
    query.run()
    world.there["a"].trim(world.zxid)
    query.run()
    listings, writes = world.listings, world.writes
    for _ in range(5):
        assert query.run() == []
    assert (world.listings, world.writes, len(query.offsets)) == (listings, writes, 1)
    query.kill()
    assert query.run() == []
    assert (world.writes, len(query.offsets)) == (writes, 1)


def test_what_is_available_now_has_an_end(world: FakeQueues, query: Query) -> None:
    """What ends, and which queues come, after the trigger was pulled is for the next time."""
    query.options["maxTasksPerTrigger"] = "1"
    world.end(("a", "1"))
    world.end(("b", "2"))
    query.start().prepareForTriggerAvailableNow()
    world.end(("a", "3"))
    world.make("c")
    world.end(("c", "4"))
    assert names(query.run()) == ["a/1", "b/2"]
    query.start().prepareForTriggerAvailableNow()
    assert names(query.run()) == ["a/3", "c/4"]
    query.start().prepareForTriggerAvailableNow()
    assert query.run() == []


def test_the_same_beginning_has_the_same_batch_however_often_it_is_asked_for(world: FakeQueues, query: Query) -> None:
    world.end(("a", "1"))
    world.end(("a", "2"))
    stream = query.start()
    start = stream.initialOffset()
    first = stream.latestOffset(start, ReadMaxRows(1))
    second = stream.latestOffset(first, ReadMaxRows(1))
    assert stream.latestOffset(start, ReadMaxRows(1)) == first != second
    assert stream.latestOffset(first, ReadMaxRows(1)) == second == stream.latestOffset(second, ReadMaxRows(1))


def test_partitions_are_shares_of_a_batch(world: FakeQueues, query: Query) -> None:
    for number in range(10):
        world.end(("a", f"{number}"))
    query.options["numPartitions"] = "4"
    stream = query.start()
    start = stream.initialOffset()
    partitions = stream.partitions(start, stream.latestOffset(start, ReadAllAvailable()))
    assert [len(partition.runs) for partition in partitions] == [3, 3, 3, 1]
    assert stream.partitions(start, start) == []


# --- restarts, and what happens between


@pytest.mark.parametrize("killed_after", ["plan", "write"])
@pytest.mark.parametrize("event", ["nothing", "redrive", "rerun", "end", "new queue"])
def test_a_batch_that_is_repeated_is_the_same_batch(
    world: FakeQueues, query: Query, killed_after: str, event: str
) -> None:
    """`Query.write` compares: whatever happened to the runs between, and the next batch has the rest."""
    world.end(("a", "0"))
    query.run()
    world.end(("a", "1"))
    world.end(("b", "2"))
    query.plan()
    if killed_after == "write":
        query.write()
    query.kill()
    if event in ("redrive", "rerun"):
        world.depart("a", "1")
    if event in ("rerun", "end"):
        world.end(("a", "1"))
    if event == "new queue":
        world.make("c")
        world.end(("c", "3"))
    query.run()
    news = {"rerun": ["a/1"], "end": ["a/1"], "new queue": ["c/3"]}.get(event, [])
    assert names(query.rows()) == ["a/0", "a/1", "b/2", *news]


class Streaming(RuleBasedStateMachine):
    """Any order of ends, departures, clean-up of what is committed, batches, kills and restarts."""

    patch: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.world = FakeQueues("a", "b")
        self.query = Query(self.world, self.patch)
        self.expected: list[tuple[str, str, int]] = []

    @rule(runs=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("123")), min_size=1, max_size=4, unique=True))
    def end(self, runs: list[tuple[str, str]]) -> None:
        runs = [(queue, task_id) for queue, task_id in runs if queue in self.world.there]
        for queue, task_id in runs:
            if any(run.id == task_id and run.place is None for run in self.world.there[queue].runs):
                self.world.depart(queue, task_id)
        zxid = self.world.end(*runs)
        self.expected += [(queue, task_id, zxid) for queue, task_id in sorted(runs)]

    @precondition(lambda self: "c" not in self.world.there)
    @rule()
    def a_queue_comes(self) -> None:
        self.world.make("c")

    @rule(most=st.sampled_from(["1", "2", "5", ""]))
    def restart(self, most: str) -> None:
        self.query.options["maxTasksPerTrigger"] = most
        self.query.kill()

    @rule()
    def plan(self) -> None:
        self.query.plan()

    @precondition(lambda self: len(self.query.offsets) > self.query.commits)
    @rule()
    def write(self) -> None:
        self.query.write()

    @precondition(lambda self: len(self.query.offsets) > self.query.commits)
    @rule()
    def batch(self) -> None:
        self.query.finish()

    @precondition(lambda self: self.query.offsets and len(self.query.offsets) == self.query.commits)
    @rule(queue=st.sampled_from("ab"))
    def clean_up(self, queue: str) -> None:
        """Of what the stream has: it is never behind."""
        upto = json.loads(self.query.offsets[-1])["queues"][queue]["zxid"]
        self.world.there[queue].trim(upto)

    @invariant()
    def rows_are_a_beginning_of_what_ended(self) -> None:
        rows = self.query.rows()
        assert rows == self.expected[: len(rows)]

    @invariant()
    def no_transaction_is_torn(self) -> None:
        last = [batch[-1][2] for _, batch in sorted(self.query.sink.items()) if batch]
        first = [batch[0][2] for _, batch in sorted(self.query.sink.items()) if batch]
        assert all(end < begin for end, begin in zip(last, first[1:], strict=False))

    def teardown(self) -> None:
        self.query.run()
        assert self.query.rows() == self.expected


def test_each_ended_run_is_in_one_batch_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    Streaming.patch = staticmethod(monkeypatch.setattr)
    run_state_machine_as_test(Streaming, settings=settings(max_examples=150, stateful_step_count=25, deadline=None))


# --- losses


def test_a_stream_that_clean_up_has_overtaken_says_so(world: FakeQueues, query: Query) -> None:
    world.end(("a", "1"))
    query.run()
    world.end(("a", "2"))
    world.there["a"].trim(world.zxid)
    world.end(("a", "3"))
    with pytest.raises(SourceError, match=r"runs of queue 'a' that ended after \d+.*failOnDataLoss=false"):
        query.run()
    query.kill()
    with pytest.raises(SourceError, match="clean-up has deleted"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    query.kill()
    assert names(query.run()) == ["a/3"]
    query.options.clear()
    query.kill()
    assert query.run() == []


def test_a_batch_that_clean_up_has_torn_is_not_repeated_as_another_one(world: FakeQueues, query: Query) -> None:
    world.end(("a", "1"))
    query.plan()
    query.kill()
    world.there["a"].trim(world.zxid)
    with pytest.raises(SourceError, match="clean-up has deleted"):
        query.run()
    assert query.sink == {}


def test_what_was_deleted_before_a_stream_began_is_no_loss(world: FakeQueues, query: Query) -> None:
    """Nor later, when nothing else was deleted."""
    world.there["a"].configure(follow=True)
    world.end(("a", "1"))
    world.there["a"].trim(world.zxid)
    world.end(("a", "2"))
    assert names(query.run()) == ["a/2"]
    query.kill()
    assert query.run() == []


def test_a_number_to_begin_with_must_not_be_trimmed(world: FakeQueues, query: Query) -> None:
    world.there["a"].configure(follow=True)
    first = world.end(("a", "1"))
    world.end(("a", "2"))
    world.there["a"].trim(world.zxid)
    query.options["startingOffsets"] = json.dumps({"a": first})
    with pytest.raises(SourceError, match="clean-up has deleted"):
        query.run()


@pytest.mark.parametrize("running", [True, False])
def test_a_queue_that_was_deleted_and_made_again_is_a_loss(world: FakeQueues, query: Query, running: bool) -> None:
    """While the stream runs, or is away; told again after a restart; put up with, the new queue is followed."""
    world.end(("a", "1"))
    query.run()
    if not running:
        query.kill()
    world.delete("a")
    world.make("a")
    world.end(("a", "2"))
    for _ in range(2):
        with pytest.raises(SourceError, match="'a'.* was deleted and made again"):
            query.run()
        query.kill()
    query.options["failOnDataLoss"] = "false"
    assert names(query.run()) == ["a/2"]
    query.options.clear()
    query.kill()
    world.end(("a", "3"))
    assert names(query.run()) == ["a/3"]


def test_a_queue_that_was_not_followed_for_a_while_is_a_loss(world: FakeQueues, query: Query) -> None:
    """What left it meanwhile was not kept: that is told when it comes back, although nothing has ended since."""
    world.end(("a", "1"))
    query.run()
    query.kill()
    for follow in (False, True):
        world.there["a"].configure(follow=follow)
    with pytest.raises(SourceError, match="'a' was deleted and made again, or was not followed for a while"):
        query.run()


@pytest.mark.parametrize("available_now", [False, True])
@pytest.mark.parametrize("options", [{}, {"queues": "a,b"}])
def test_a_queue_that_was_deleted_is_a_loss(
    world: FakeQueues, query: Query, options: dict[str, str], available_now: bool
) -> None:
    query.options |= options
    world.end(("a", "1"))
    query.run()
    world.delete("a")
    if available_now:
        query.start().prepareForTriggerAvailableNow()
    with pytest.raises(SourceError, match="'a' was deleted"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    query.kill()
    world.end(("b", "2"))
    if available_now:
        query.start().prepareForTriggerAvailableNow()
    assert names(query.run()) == ["b/2"]


def test_a_queue_that_is_no_longer_named_comes_back_where_it_was(world: FakeQueues, query: Query) -> None:
    world.end(("a", "1"), ("b", "1"))
    query.run()
    for queues, expected in (("b", ["b/2"]), ("a,b", ["a/2", "a/3", "b/3"])):
        world.end(("a", expected[0][2:]), ("b", expected[0][2:])) if queues == "b" else world.end(
            ("a", "3"), ("b", "3")
        )
        query.options["queues"] = queues
        query.kill()
        assert names(query.run()) == expected


def test_a_checkpoint_of_another_ensemble_is_refused(
    world: FakeQueues, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether losses are put up with or not: nothing would come for long."""
    world.end(("a", "1"))
    query.run()
    query.kill()
    other = FakeQueues("a", "b")
    other.zxid = 1
    for queue in other.there.values():
        queue.changed = 1
    query.world = other
    for strict in ("true", "false"):
        query.options["failOnDataLoss"] = strict
        with pytest.raises(SourceError, match="another ensemble"):
            query.run()
        query.kill()


def test_a_checkpoint_of_something_else_is_refused(query: Query) -> None:
    query.offsets = ['{"at": 3}']
    query.commits = 1
    with pytest.raises(SourceError, match="not one of a stream of zkmq"):
        query.run()


def test_what_cannot_be_read_is_told_of_and_left_out(
    world: FakeQueues, query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged run, and one that vanished although clean-up has not come so far; the stream goes on."""
    for task_id in "123":
        world.end(("a", task_id))
    world.there["a"].runs[0].damaged = True
    with caplog.at_level(logging.WARNING):
        query.plan()
        del world.there["a"].runs[1]
        query.finish()
    assert (names(query.rows()), json.loads(query.offsets[-1])["runs"]) == (["a/3"], 3)
    assert [record.getMessage()[:5] for record in caplog.records] == ["1 run", "1 run"]
    world.end(("a", "4"))
    assert names(query.run()) == ["a/4"]


@pytest.mark.parametrize("damaged", [True, False])
def test_a_record_that_was_written_by_hand_ends_no_stream(world: FakeQueues, query: Query, damaged: bool) -> None:
    """Its number is above all that ended there, and only what another queue has ended since brings it into the look."""
    world.end(("a", "1"))
    world.end(("a", "2"))
    (written,) = (run for run in world.there["a"].runs if run.id == "2")
    written.version, written.damaged = world.tick(), damaged
    world.end(("b", "1"))
    assert names(query.run()) == ["a/1", "b/1"]
    world.end(("b", "2"))
    assert names(query.run()) == ["b/2"]
    query.kill()
    world.there["a"].runs.remove(written)  # it is listed by when it ended, and not met again
    world.end(("a", "3"))
    assert names(query.run()) == ["a/3"]


@pytest.mark.parametrize("strict", [True, False])
def test_what_clean_up_deletes_under_a_batch_is_a_loss(world: FakeQueues, query: Query, strict: bool) -> None:
    query.options["failOnDataLoss"] = str(strict).lower()
    world.end(("a", "1"))
    stream = query.start()
    start = stream.initialOffset()
    (partition,) = stream.partitions(start, stream.latestOffset(start, ReadAllAvailable()))
    world.there["a"].trim(world.zxid)
    if strict:
        with pytest.raises(SourceError, match="clean-up has deleted"):
            list(stream.read(partition))
    else:
        assert sum(batch.num_rows for batch in stream.read(partition)) == 0


# --- what is asked for


TYPES = {"wait_ms": "long", "run_ms": "long", "version": "long", "filters": MapType(StringType(), StringType())}


def rows_of(world: FakeQueues, monkeypatch: pytest.MonkeyPatch, *columns: str, **options: str) -> list[dict[str, Any]]:
    schema = StructType()
    for name in columns:
        schema.add(name, TYPES.get(name, "string"))
    monkeypatch.setattr(access, "connect", lambda _options: world)
    monkeypatch.setattr(access, "cached", lambda _options: world)
    stream = TaskStream(schema, Options.of(options))
    start = stream.initialOffset()
    partitions = stream.partitions(start, stream.latestOffset(start, ReadAllAvailable()))
    return [row for partition in partitions for batch in stream.read(partition) for row in batch.to_pylist()]


def test_rows_say_what_a_run_was_and_not_what_became_of_it(world: FakeQueues, monkeypatch: pytest.MonkeyPatch) -> None:
    """Status is that of the end: a dedupe window that was open when the row was read is not in it."""
    zxid = world.end(("a", "1"))
    names = ("queue", "task_id", "status", "filters", "wait_ms", "run_ms", "version", "metadata")
    (row,) = rows_of(world, monkeypatch, *names)
    assert row == {
        "queue": "a", "task_id": "1", "status": "done-awaiting-gc", "filters": [("size", "small")], "wait_ms": 1_000,
        "run_ms": 3_000, "version": zxid, "metadata": '{"n": 1}',
    }  # fmt: skip


def test_states_and_selectors_choose_runs(world: FakeQueues, monkeypatch: pytest.MonkeyPatch) -> None:
    world.end(("a", "1"))
    world.end(("a", "2"), state=State.DEAD)
    assert rows_of(world, monkeypatch, "task_id", states="dead") == [{"task_id": "2"}]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"states": "claimed"}, "runs that ended"),
        ({"selector": "size=="}, "option selector"),
        ({"since": "1h"}, "unknown option 'since' of streams"),
        ({"maxRequestsInFlight": "9"}, "unknown option .maxrequestsinflight. of streams"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false"),
        ({"maxTasksPerTrigger": "some"}, "maxTasksPerTrigger must be a whole number"),
    ],
)
def test_options_are_checked_when_the_stream_starts(options: dict[str, str], error: str) -> None:
    """By whatever is asked first, and not when it is made: of that Spark would show nothing."""
    for ask in ("initialOffset", "prepareForTriggerAvailableNow", "getDefaultReadLimit"):
        stream = TaskStream(StructType(), Options.of(options))
        with pytest.raises(SourceError, match=error):
            getattr(stream, ask)()
