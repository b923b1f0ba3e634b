"""The log of ended runs: each run that ended, once, in the order of their ends, whatever became of its task since."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.maintenance import due_work
from airflow_provider_zkmq.engine.core.model.records import Unreadable
from airflow_provider_zkmq.engine.core.read import completion_log, inspect
from airflow_provider_zkmq.engine.core.tasks import interventions
from airflow_provider_zkmq.engine.core.zk_operations import MAX_REQUEST, SetData
from airflow_provider_zkmq.engine.errors import ConfigError
from tests.unit.claiming import step
from tests.unit.ended_runs import Reader

# --- which runs


def test_each_end_is_told_in_order_with_its_version() -> None:
    """Finished, dead at its death, cancelled; what is open is not there; each in one interval."""
    client = Reader.of()
    client.put(task_id="open", priority=-1)
    numbers = [client.latest()]
    client.finish("f")
    numbers.append(client.latest())
    client.put(task_id="d")
    client.fail(client.claimed(), retry=False)
    client.put(task_id="c")
    client.cancel("c")
    numbers.append(client.latest())
    assert client.ids() == ["f", "d", "c"]
    assert client.ids(numbers[0], numbers[1]) == ["f"]
    assert client.ids(numbers[1], numbers[2]) == client.ids(numbers[1]) == ["d", "c"]
    assert client.ended(numbers[2], numbers[2] + 100) == []
    for each in client.ended():
        task = client.do(inspect.read_task(client.context, each.id))
        assert (each.version, each.place, client.read([each])) == (task.version, None, [task])


def test_a_run_whose_id_runs_anew_while_it_is_read_is_read_as_it_ended() -> None:
    """Whichever two requests the next run comes between: nothing of it is in what is told of the first one."""
    for number in range(1_000):
        client = Reader.of(follow=True)
        client.finish("a", b"first", b"one")
        client.zk.advance(10)
        [ended] = client.ended()
        [known] = client.read([ended], parts=("result",))
        reading = step(client, completion_log.read_ended(client.context, [ended], parts=("result",)))
        for _ in range(number):
            if not reading.over:
                reading.step()
        if reading.over:
            break
        client.put(b"second", task_id="a")
        [read] = reading.finish()
        assert replace(read, data=b"", metadata={}) == replace(known, data=b"", metadata={}), number
        assert client.work() == ["a"]
    assert number == 2, "it is read in two requests"


DEPARTURES: dict[str, Callable[[Reader], Any]] = {
    "run anew": lambda it: [it.put(b"new", task_id=name) for name in ("f", "c")],
    "redriven": lambda it: [it.redrive(name) for name in ("d", "c")],
    "redriven with data": lambda it: [it.redrive(name, b"new") for name in ("d", "c")],
    "dropped": lambda it: it.drop("f", "d", "c", "open"),
    "cleared": lambda it: it.do(interventions.clear(it.context)),
    "dead ones cleared": lambda it: it.do(interventions.clear(it.context, "dead")),
}


@pytest.mark.parametrize(("mark", "order"), [("archive", "default"), ("archive", "fifo"), ("follow", "default")])
def test_a_run_that_leaves_is_told_as_it_ended(mark: str, order: str, subtests: pytest.Subtests) -> None:
    """Listed before or after it left, and read before or after: the same runs, with all that they had and met.

    What is open is none. An archive's queue keeps them until they are archived, however often clean-up comes.
    """
    for name, leave in DEPARTURES.items():
        with subtests.test(case=name):
            client = Reader.of(**{mark: True}, order=order)
            client.end_each_way()
            client.put(task_id="open", delay=500)
            listed = client.ended()
            before = client.read(listed)
            client.zk.advance(1)
            leave(client)
            client.check()
            again = client.ended()
            assert [each[:2] for each in again] == [each[:2] for each in listed]
            assert any(each.place for each in again)
            same = [replace(task, status=task.status) for task in before]
            assert client.read(listed) == client.read(again) == same
            assert [task.data for task in before] == [b"f", b"d", b"c"]
            assert [attempt.error for attempt in before[1].history] == ["first", "why"]
            if mark == "archive":
                client.clean_up()
                assert client.read(listed) == same
                client.publish()
                client.clean_up()
                assert client.departed() == client.zk.names(client.context.paths.at("unarchived")) == []
            assert client.reports == []


def test_in_a_queue_that_nobody_reads_a_run_that_leaves_is_gone() -> None:
    """It costs nothing there, and what is gone is not read; a queue that is archived no more loses its letters."""
    client = Reader.of()
    client.finish("a")
    (first,) = client.ended()
    client.put(b"new", task_id="a")
    assert (client.ended(), client.read([first])) == ([], [])
    for archive in (False, True):
        client.configured(archive=archive)
        client.dead("d")
        client.drop("d")
        assert len(client.zk.names(client.context.paths.at("unarchived"))) == len(client.departed()) == archive
    client.configured(archive=False)
    client.clean_up()
    assert client.departed() == []


@pytest.mark.parametrize("end", ["finished", "dead"])
def test_a_run_that_is_followed_by_one_in_escrow_is_told(end: str) -> None:
    """It ends in the transaction that inserts the next one, and never stands among what has ended."""
    client = Reader.of(follow=True)
    client.put(b"one", task_id="a")
    claimed = client.claimed()
    client.put(b"two", task_id="a", on_conflict="requeue")
    if end == "finished":
        client.complete(claimed, result=b"r")
    else:
        client.fail(claimed, "why", retry=False)
    client.check()
    (run,) = client.ended()
    (task,) = client.read([run])
    assert (task.data, str(task.state), task.attempt) == (b"one", end, 1)
    assert client.read([run._replace(place=None)]) == [task], "the next run has the same version"
    assert (task.result, task.error) == ((b"r", None) if end == "finished" else (None, "why"))
    assert (task.ended_ms, task.claimed_ms is None) == (client.zk.ms, end == "dead")
    assert client.work() == ["a"]
    assert [each[2] for each in client.told()] == [b"one", b"two"]
    assert [each.version for each in client.ended()] == sorted(each.version for each in client.ended())


def test_a_run_in_escrow_that_waits_for_a_window_leaves_the_run_before_it() -> None:
    """Finished, requeued within its window: told once while it stands, and once when the next run has begun."""
    client = Reader.of(follow=True)
    client.put(b"one", task_id="a")
    client.complete(client.claimed(), result=b"r", dedupe=60)
    (first,) = client.ended()
    client.put(b"two", task_id="a", on_conflict="requeue")
    assert client.ended() == [first]
    client.zk.advance(61)
    client.do(due_work.maintain(client.context))
    assert client.state("a").state.value == "inserted"
    assert [each[:2] for each in client.ended()] == [first[:2]]
    assert client.told() == [("a", "finished", b"one", b"r")]
    assert [task.data for task in client.read([first])] == [b"one"]


def test_a_damaged_record_is_told_as_unreadable() -> None:
    """Once, and the others are read; whoever had asked up to where the log is complete hears of it there."""
    client = Reader.of(follow=True)
    client.end_each_way()
    until = client.latest()
    client.zk.multi(0, (SetData(client.context.paths.task("f", "state"), b"{"),))
    listed = client.ended()
    assert [(each.id, isinstance(each, Unreadable)) for each in listed] == [("d", False), ("c", False), ("f", True)]
    assert [task.id for task in client.read(listed)] == ["d", "c"]
    assert len(client.reports) == 1
    unreadable = [each for each in client.ended(0, until) if isinstance(each, Unreadable)]
    assert [(each.id, each.version) for each in unreadable] == [("f", until)]


def test_what_does_not_fit_beside_the_next_run_is_left_out_of_the_letter_and_reported() -> None:
    """The payload first, then the result: the next run is inserted all the same, whether enqueued or redriven."""
    client = Reader.of(follow=True)
    client.finish("a", b"o" * 500_000, b"r" * 500_000)
    large = b"n" * (MAX_REQUEST - 300_000)
    client.put(large, task_id="a")
    (task,) = client.read(client.ended())
    assert (task.id, task.data, task.result, len(client.reports)) == ("a", b"", None, 1)
    claimed = client.claimed()
    assert claimed.data == large
    client.fail(claimed, "last", retry=False)
    client.do(interventions.redrive(client.context, "a", data=b"m" * 700_000))
    letter = client.letters()[-1]
    assert (letter.data, letter.error, len(client.reports)) == (b"", "last", 2)
    assert client.claimed().data == b"m" * 700_000


def test_parts_that_are_not_asked_for_are_not_read() -> None:
    """Of a run that stands; its times are right all the same. Unknown parts are refused."""
    client = Reader.of(follow=True)
    client.finish("a", b"data", metadata={"n": 1})
    (task,) = client.read(client.ended(), parts=[])
    (whole,) = client.read(client.ended())
    assert task == replace(whole, data=b"", result=None, metadata={})
    with pytest.raises(ConfigError, match="parts"):
        client.read(client.ended(), parts=["everything"])


# --- what it costs


def test_of_a_bucket_in_which_something_is_new_only_that_is_read() -> None:
    """The entries of what ended before are told apart without their records; where nothing is new no bucket is listed.

    However much has ended before.
    """
    client = Reader.of()
    for number in range(30):
        client.zk.advance(7)
        client.finish(f"t{number}")
    done = client.latest()

    def requested() -> list[Any]:
        requested: list[Any] = []
        client.do(completion_log.ended_between(client.context, done), requested.append)
        return requested

    few = len(requested())
    assert few <= 14
    client.finish("new")
    client.zk.advance(200)
    client.finish("newer")
    assert client.ids(done) == ["new", "newer"]
    after = requested()
    assert len(after) <= few + 4
    read = [path for op in after for path in getattr(op, "paths", ()) if path.endswith("/state")]
    assert sorted(read) == [client.context.paths.task(name, "state") for name in ("new", "newer")]
    client.do(completion_log.latest_end(client.context), (latest := list[Any]()).append)
    assert len(latest) <= 6


def test_looking_for_the_latest_end_writes_nothing_and_goes_up() -> None:
    """Through ends, departures, clean-up and the server's reaping of buckets; of a new queue, too."""
    client = Reader.of(follow=True)
    numbers = [client.latest()]

    def step() -> None:
        before = client.zk.zxid
        numbers.append(client.latest())
        assert client.zk.zxid == before
        assert client.ended(numbers[-1]) == []

    for _ in range(3):
        client.zk.advance(100)
        client.end_each_way()
        step()
        client.do(interventions.clear(client.context, "dead"))
        client.put(task_id="f")
        client.work()
        step()
        client.clean_up(60, later=200)
        client.zk.advance(100)
        step()
    assert numbers == sorted(numbers)
    assert numbers[0] > 0
