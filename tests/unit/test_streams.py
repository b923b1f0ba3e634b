"""Streams of what ended: their offsets and batches, without Spark and without ZooKeeper."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark")

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import MapType, StringType, StructType

from airflow_provider_zkmq.engine import State, Unavailable
from airflow_provider_zkmq.spark.source.errors import SourceError
from airflow_provider_zkmq.spark.source.options import SourceOptions
from airflow_provider_zkmq.spark.source.streaming import TaskStream
from tests.unit.followed import FakeQueues, Interrupted, Query


@pytest.fixture
def world() -> FakeQueues:
    return FakeQueues("a", "b")


@pytest.fixture
def query(world: FakeQueues, monkeypatch: pytest.MonkeyPatch) -> Query:
    return Query(world, monkeypatch.setattr)


def names(rows: list[Any]) -> list[str]:
    return [f"{queue}/{task_id}" for queue, task_id, _ in rows]


# --- where a stream begins


def test_a_stream_begins_where_it_is_told_to(world: FakeQueues, query: Query) -> None:
    """With all that ended and stands; else by number, by word, or by the offset that another query shows."""
    first = world.end(("a", "1"), ("b", "1"))
    world.end(("b", "2"), state=State.DEAD)
    assert names(query.run()) == ["a/1", "b/1", "b/2"]
    world.end(("a", "3"))
    assert names(query.run()) == ["a/3"]
    shown = query.offsets[-1]
    world.make("c")
    world.end(("c", "4"))
    mixed = Query(world, query.patch, {"startingOffsets": json.dumps({"a": world.zxid, "b": "latest"})})
    world.end(("a", "5"))
    assert names(mixed.run()) == ["c/4", "a/5"], "a queue that is not named begins with all that stands"
    for options, expected in (
        ({"startingOffsets": json.dumps({"b": first}), "queues": "b"}, ["b/2"]),
        ({"startingOffsets": shown, "queues": "a,b"}, ["a/5"]),
    ):
        assert names(Query(world, query.patch, options).run()) == expected


@pytest.mark.parametrize("noted", [True, False])
def test_a_stream_of_what_ends_from_now_on_notes_its_beginning(world: FakeQueues, query: Query, noted: bool) -> None:
    """Its first batch is empty: after a restart it goes on from there, with what ended while it was away.

    Also where that was not committed: Spark asks again where it begins, and another answer by then changes nothing.
    """
    query.options["startingOffsets"] = "latest"
    world.end(("a", "before"))
    if noted:
        assert (query.run(), len(query.offsets)) == ([], 1)
    else:
        query.plan()
    query.kill()
    world.end(("a", "meanwhile"))
    assert names(query.run()) == ["a/meanwhile"]


def test_a_queue_that_is_not_there_is_named(world: FakeQueues, query: Query) -> None:
    query.options["queues"] = "absent"
    query.refuses("'absent' does not exist")
    query.available_now()
    query.refuses("'absent' does not exist")
    query.kill(queues="a", startingOffsets='{"b": 3}')
    query.refuses("startingOffsets names queue 'b', which is none of a")
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
    for runs in (["a1"], ["b2"], ["a3", "b3"], [f"{queue}4{n}" for n in range(3) for queue in "ab"], ["b5"]):
        world.end(*((run[0], run[1:]) for run in runs))
    query.run()
    assert [len(query.sink[number]) for number in sorted(query.sink)] == [2, 2, 6, 1]
    assert [json.loads(offset)["runs"] for offset in query.offsets] == [2, 2, 6, 1]


@pytest.mark.parametrize("available_now", [False, True])
def test_a_transaction_stays_together_that_comes_while_queues_are_asked(world, query, available_now) -> None:
    """One queue was asked before it, the other one after it."""
    query.run()
    a = world.there["a"]
    ask = a.latest_end

    def latest_end() -> int:
        newest = ask()
        a.latest_end = ask  # type: ignore[method-assign]
        world.end(("a", "1"), ("b", "1"))
        return newest

    a.latest_end = latest_end  # type: ignore[method-assign]
    if available_now:
        query.available_now()
    query.plan()
    assert names(query.write()) == ["a/1", "b/1"]


def test_a_look_that_is_cut_off_is_made_again(world: FakeQueues, query: Query) -> None:
    """ZooKeeper goes away between two queues: the query fails and says so; started again, nothing is lost."""
    query.run()
    world.end(("a", "1"))
    world.end(("b", "2"))
    b, truncated_at = world.there["b"], world.there["b"].truncated_at

    def away() -> None:
        b.truncated_at = truncated_at  # type: ignore[method-assign]
        raise Unavailable("no ZooKeeper server answered at h:1")

    for restart in (False, True):
        b.truncated_at = away  # type: ignore[assignment]
        with pytest.raises(SourceError, match=r"^no ZooKeeper server answered at h:1$"):
            query.plan()
        if restart:
            query.kill()
    assert names(query.run()) == ["a/1", "b/2"]


def test_a_backlog_is_listed_once_in_as_many_batches_as_its_limit_says(world: FakeQueues, query: Query) -> None:
    """Which a trigger may lift."""
    query.options["maxTasksPerTrigger"] = "10"
    for number in range(100):
        world.end(("a", f"{number:03}"))
    assert len(query.run()) == 100
    assert (len(query.offsets), world.listings) == (10, 2)
    assert query.start().getDefaultReadLimit() == ReadMaxRows(10)
    assert TaskStream(StructType(), SourceOptions.of({})).getDefaultReadLimit() == ReadAllAvailable()


def test_an_idle_stream_makes_no_batch_lists_nothing_and_writes_nothing(world: FakeQueues, query: Query) -> None:
    """Not even where clean-up has deleted meanwhile what the stream has."""
    world.end(("a", "1"))
    query.run()
    world.there["a"].trim(world.zxid)
    query.run()
    listings, writes = world.listings, world.writes
    for _ in range(5):
        assert query.run() == []
    assert world.listings == listings
    query.kill()
    assert query.run() == []
    assert (world.writes, len(query.offsets)) == (writes, 1)


def test_what_is_available_now_has_an_end(world: FakeQueues, query: Query) -> None:
    """What ends, and which queues come, after the trigger was pulled is for the next time."""
    query.options["maxTasksPerTrigger"] = "1"
    world.end(("a", "1"))
    world.end(("b", "2"))
    query.available_now()
    world.end(("a", "3"))
    world.make("c")
    world.end(("c", "4"))
    for expected in (["a/1", "b/2"], ["a/3", "c/4"], []):
        assert names(query.run()) == expected
        query.available_now()


def test_the_same_beginning_has_the_same_batch_in_as_many_shares_as_asked_for(world: FakeQueues, query: Query) -> None:
    for number in range(11):
        world.end(("a", f"{number}"))
    query.options["numPartitions"] = "4"
    stream = query.start()
    start = stream.initialOffset()
    first = stream.latestOffset(start, ReadMaxRows(1))
    rest = stream.latestOffset(first, ReadAllAvailable())
    assert stream.latestOffset(start, ReadMaxRows(1)) == first != rest
    assert stream.latestOffset(first, ReadAllAvailable()) == rest == stream.latestOffset(rest, ReadMaxRows(1))
    assert [len(partition.runs) for partition in stream.partitions(start, rest)] == [3, 3, 3, 1]
    assert stream.partitions(start, start) == []


# --- restarts, and what happens between


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("event", ["nothing", "redrive", "rerun", "end", "new queue"])
def test_a_batch_that_is_repeated_is_the_same_batch(world: FakeQueues, query: Query, written: bool, event: str) -> None:
    """`Query.write` compares: whatever happened to the runs between, and the next batch has the rest."""
    world.end(("a", "0"))
    query.run()
    world.end(("a", "1"))
    world.end(("b", "2"))
    query.plan()
    if written:
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


class Streaming(Interrupted):
    """Any order of ends, departures, clean-up of what is committed, batches, kills and restarts."""

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

    @precondition(lambda self: self.query.offsets and not self.query.uncommitted())
    @rule(queue=st.sampled_from("ab"))
    def clean_up(self, queue: str) -> None:
        """Of what the stream has: it is never behind."""
        self.world.there[queue].trim(json.loads(self.query.offsets[-1])["queues"][queue]["zxid"])

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


#: What happens to queue a, what is said of it, and what is read of that queue where losses are put up with.
LOSSES: dict[str, tuple[Callable[[FakeQueues], Any], str, list[str]]] = {
    "clean-up": (
        lambda world: [world.end(("a", "2")), world.there["a"].trim(world.zxid), world.end(("a", "3"))],
        r"runs of queue 'a' that ended after \d+.*clean-up has deleted.*failOnDataLoss=false",
        ["a/3"],
    ),
    "deleted": (lambda world: world.delete("a"), "'a' was deleted", []),
    "made again": (
        lambda world: [world.delete("a"), world.make("a"), world.end(("a", "2"))],
        "'a'.* was deleted and made again",
        ["a/2"],
    ),
}


@pytest.mark.parametrize("how", ["running", "restarted", "available now", "named"])
def test_what_a_stream_has_lost_is_an_error_until_it_is_put_up_with(how, monkeypatch, subtests) -> None:
    """Clean-up came first, or the queue was not there, or not the same one; told after each restart."""
    for name, (happens, why, rest) in LOSSES.items():
        with subtests.test(name):
            world = FakeQueues("a", "b")
            query = Query(world, monkeypatch.setattr, {"queues": "a,b"} if how == "named" else {})
            start = query.available_now if how == "available now" else query.start
            world.end(("a", "1"))
            query.run()
            if how == "restarted":
                query.kill()
            happens(world)
            for _ in range(2):
                if how == "available now":
                    query.available_now()
                query.refuses(why)
            query.kill(failOnDataLoss="false")
            world.end(("b", "9"))
            start()
            assert names(query.run()) == [*rest, "b/9"]
            query.kill(failOnDataLoss="true")
            if name != "deleted":
                world.end(("a", "10"))
                assert names(query.run()) == ["a/10"]


def test_what_was_deleted_before_a_stream_began_is_no_loss_unless_it_begins_with_that(world, query) -> None:
    """Nor later, when nothing else was deleted. A batch that clean-up has torn is not repeated as another one."""
    a = world.there["a"]
    a.configure(follow=True)
    first = world.end(("a", "1"))
    a.trim(first)
    world.end(("a", "2"))
    assert names(query.run()) == ["a/2"]
    query.kill()
    assert query.run() == []
    a.trim(world.zxid)
    Query(world, query.patch, {"startingOffsets": json.dumps({"a": first})}).refuses("clean-up has deleted")
    torn = Query(world, query.patch)
    world.end(("a", "3"))
    torn.plan()
    torn.kill()
    a.trim(world.zxid)
    torn.refuses("clean-up has deleted")
    assert torn.sink == {}


def test_a_queue_that_was_not_followed_for_a_while_is_a_loss(world: FakeQueues, query: Query) -> None:
    """What left it meanwhile was not kept: that is told when it comes back, although nothing has ended since."""
    world.end(("a", "1"))
    query.run()
    query.kill()
    for follow in (False, True):
        world.there["a"].configure(follow=follow)
    query.refuses("'a' was deleted and made again, or was not followed for a while")


def test_a_queue_that_is_no_longer_named_comes_back_where_it_was(world: FakeQueues, query: Query) -> None:
    for number, (queues, expected) in enumerate(
        (("a,b", ["a/0", "b/0"]), ("b", ["b/1"]), ("a,b", ["a/1", "a/2", "b/2"]))
    ):
        world.end(("a", f"{number}"), ("b", f"{number}"))
        query.kill(queues=queues)
        assert names(query.run()) == expected


def test_a_checkpoint_of_another_ensemble_is_refused(world: FakeQueues, query: Query) -> None:
    """Whether losses are put up with or not: nothing would come for long. One of something else is refused, too."""
    world.end(("a", "1"))
    query.run()
    query.world = other = FakeQueues("a", "b")
    other.zxid = 1
    for queue in other.there.values():
        queue.changed = 1
    for strict in ("true", "false"):
        query.kill(failOnDataLoss=strict)
        query.refuses("another ensemble")
    query.offsets = ['{"at": 3}']
    query.refuses("not one of a stream of zkmq")


def test_what_cannot_be_read_is_told_of_and_left_out(world, query, caplog) -> None:
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
    for expected in (["a/1", "b/1"], ["b/2"]):
        world.end(("b", expected[-1][2:]))
        assert names(query.run()) == expected
    query.kill()
    world.there["a"].runs.remove(written)  # it is listed by when it ended, and not met again
    world.end(("a", "3"))
    assert names(query.run()) == ["a/3"]


@pytest.mark.parametrize("strict", [True, False])
def test_what_clean_up_deletes_under_a_batch_is_a_loss(world: FakeQueues, query: Query, strict: bool) -> None:
    query.options["failOnDataLoss"] = str(strict).lower()
    world.end(("a", "1"))
    query.plan()
    stream = query.start()
    (partition,) = stream.partitions(stream.initialOffset(), json.loads(query.offsets[-1]))
    world.there["a"].trim(world.zxid)
    if strict:
        with pytest.raises(SourceError, match="clean-up has deleted"):
            list(stream.read(partition))
    else:
        assert sum(batch.num_rows for batch in stream.read(partition)) == 0


# --- what is asked for


def test_rows_say_what_a_run_was_and_not_what_became_of_it(world: FakeQueues, query: Query) -> None:
    """Status is that of the end: a dedupe window that was open when the row was read is not in it."""
    query.schema, kinds = StructType(), {"filters": MapType(StringType(), StringType())}
    for name in ("queue", "task_id", "version", "wait_ms", "run_ms", "status", "filters", "metadata"):
        query.schema.add(name, kinds.get(name, "long" if name in {"version", "wait_ms", "run_ms"} else "string"))
    query.options["states"] = "finished"
    zxid = world.end(("a", "1"))
    world.end(("a", "2"), state=State.DEAD)
    assert query.run() == [("a", "1", zxid, 1_000, 3_000, "done-awaiting-gc", [("size", "small")], '{"n": 1}')]


NOWHERE = ("newest", "[1]", '{"a": "soon"}', '{"a": -1}', '{"a": true}', '{"queues": {"a": 1}}')
WRONG: list[tuple[dict[str, str], str]] = [
    *(({"startingOffsets": text}, "startingOffsets|another checkpoint") for text in NOWHERE),
    ({"states": "claimed"}, "runs that ended"),
    ({"selector": "size=="}, "option selector"),
    ({"since": "1h"}, "unknown option 'since' of streams"),
    ({"maxRequests": "9"}, "unknown option .maxrequests. of streams"),
    ({"failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false"),
    ({"maxTasksPerTrigger": "some"}, "maxTasksPerTrigger must be a whole number"),
]


def test_options_are_checked_when_the_stream_starts(subtests: pytest.Subtests) -> None:
    """By whatever is asked first, and not when it is made: of that Spark would show nothing."""
    for options, error in WRONG:
        for ask in ("initialOffset", "prepareForTriggerAvailableNow", "getDefaultReadLimit"):
            with subtests.test(ask=ask, **options), pytest.raises(SourceError, match=error):
                getattr(TaskStream(StructType(), SourceOptions.of(options)), ask)()
