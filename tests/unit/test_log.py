"""The log of ended runs: each run that ended, once, in the order of their ends, whatever became of its task since."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.model.letters import Letter, Unreadable
from airflow_provider_zkmq.engine.core.protocol.ops import GetMany
from airflow_provider_zkmq.engine.core.protocol.writes import MAX_REQUEST, Create, Delete, SetData
from airflow_provider_zkmq.engine.core.reading import inspect, letters, log
from airflow_provider_zkmq.engine.core.tasks import operate
from airflow_provider_zkmq.engine.core.upkeep import rescue
from airflow_provider_zkmq.engine.errors import ConfigError
from tests.unit.ended_runs import (
    clean_up,
    configured,
    dead,
    departed,
    drop,
    end_each_way,
    ended,
    finish,
    ids,
    latest,
    letter_paths,
    read,
    read_letters,
)
from tests.unit.world import LOST_REPLY, Client, at, new_queue


def followed() -> Client:
    return new_queue(follow=True)


def told(client: Client) -> list[tuple[str, str, bytes, bytes | None]]:
    """Every run: its id, state, data and result."""
    return [(task.id, str(task.state), task.data, task.result) for task in read(client, ended(client))]


def requests(client: Client, procedure: Any) -> int:
    """How many requests a procedure costs."""
    asked: list[Any] = []
    client.do(procedure, asked.append)
    return len(asked)


# --- which runs


def test_each_end_is_told_in_order_with_its_version() -> None:
    """Finished, dead at its death, cancelled; what is open is not there; each in one interval."""
    client = new_queue()
    client.put(task_id="open", priority=-1)
    numbers = [latest(client)]
    finish(client, "f")
    numbers.append(latest(client))
    client.put(task_id="d")
    client.fail(client.claimed(), retry=False)
    client.put(task_id="c")
    client.cancel("c")
    numbers.append(latest(client))
    assert ids(client) == ["f", "d", "c"]
    assert ids(client, numbers[0], numbers[1]) == ["f"]
    assert ids(client, numbers[1], numbers[2]) == ids(client, numbers[1]) == ["d", "c"]
    assert ended(client, numbers[2], numbers[2] + 100) == []
    for each in ended(client):
        task = client.do(inspect.read_task(client.context, each.id))
        assert (each.version, each.place, read(client, [each])) == (task.version, None, [task])


DEPARTURES: dict[str, Callable[[Client], Any]] = {
    "run anew": lambda it: [it.put(b"new", task_id=name) for name in ("f", "c")],
    "redriven": lambda it: [it.do(operate.redrive(it.context, name, data=b"new")) for name in ("d", "c")],
    "dropped": lambda it: [drop(it, name) for name in ("f", "d", "c")],
    "cleared": lambda it: it.do(operate.clear(it.context)),
}


@pytest.mark.parametrize("mark", ["archive", "follow"])
def test_a_run_that_leaves_is_told_as_it_ended(mark: str, subtests: pytest.Subtests) -> None:
    """Listed before or after it left, and read before or after: the same runs, with data, result and error."""
    for name, leave in DEPARTURES.items():
        with subtests.test(case=name):
            client = new_queue(**{mark: True})
            end_each_way(client)
            listed = ended(client)
            before = read(client, listed)
            client.zk.advance(1)
            leave(client)
            client.check()
            again = ended(client)
            assert [each[:2] for each in again] == [each[:2] for each in listed]
            assert any(each.place for each in again)
            same = [replace(task, status=task.status) for task in before]
            assert read(client, listed) == read(client, again) == same
            assert [task.data for task in before] == [b"f", b"d", b"c"]
            assert client.reports == []


def test_in_a_queue_that_nobody_reads_a_run_that_leaves_is_gone() -> None:
    """It costs nothing there, and what is gone is not read; a queue that is archived no more loses its letters."""
    client = new_queue()
    finish(client, "a")
    (first,) = ended(client)
    client.put(b"new", task_id="a")
    assert (ended(client), read(client, [first])) == ([], [])
    for archive in (False, True):
        configured(client, archive=archive)
        dead(client, "d")
        drop(client, "d")
        assert len(client.zk.names(client.context.paths.at("unarchived"))) == len(departed(client)) == archive
    configured(client, archive=False)
    clean_up(client)
    assert departed(client) == []


def test_each_run_of_an_id_is_told_with_its_own_result() -> None:
    """Five runs of one id, the last of which stands."""
    client = followed()
    for number in range(5):
        finish(client, "a", b"data %d" % number, b"result %d" % number)
    assert told(client) == [("a", "finished", b"data %d" % n, b"result %d" % n) for n in range(5)]


@pytest.mark.parametrize("end", ["finished", "dead"])
def test_a_run_that_is_followed_by_one_in_escrow_is_told(end: str) -> None:
    """It ends in the transaction that inserts the next one, and never stands among what has ended."""
    client = followed()
    client.put(b"one", task_id="a")
    claimed = client.claimed()
    client.put(b"two", task_id="a", requeue=True)
    if end == "finished":
        client.complete(claimed, result=b"r")
    else:
        client.fail(claimed, "why", retry=False)
    client.check()
    (run,) = ended(client)
    (task,) = read(client, [run])
    assert (task.data, str(task.state), task.attempt) == (b"one", end, 1)
    assert read(client, [run._replace(place=None)]) == [task], "the next run has the same version"
    assert (task.result, task.error) == ((b"r", None) if end == "finished" else (None, "why"))
    assert (task.ended_ms, task.claimed_ms is None) == (client.zk.ms, end == "dead")
    assert client.work() == ["a"]
    assert [each[2] for each in told(client)] == [b"one", b"two"]
    assert [each.version for each in ended(client)] == sorted(each.version for each in ended(client))


def test_a_run_in_escrow_that_waits_for_a_window_leaves_the_run_before_it() -> None:
    """Finished, requeued within its window: told once while it stands, and once when the next run has begun."""
    client = followed()
    client.put(b"one", task_id="a")
    client.complete(client.claimed(), result=b"r", dedupe=60)
    (first,) = ended(client)
    client.put(b"two", task_id="a", requeue=True)
    assert ended(client) == [first]
    client.zk.advance(61)
    client.do(rescue.tend(client.context))
    assert client.state("a").state.value == "inserted"
    assert [each[:2] for each in ended(client)] == [first[:2]]
    assert told(client) == [("a", "finished", b"one", b"r")]
    assert [task.data for task in read(client, [first])] == [b"one"]


def test_a_damaged_record_is_told_as_unreadable() -> None:
    """Once, and the others are read; whoever had asked up to where the log is complete hears of it there."""
    client = followed()
    end_each_way(client)
    until = latest(client)
    client.zk.multi(0, (SetData(client.context.paths.task("f", "state"), b"{"),))
    listed = ended(client)
    assert [(each.id, isinstance(each, Unreadable)) for each in listed] == [("d", False), ("c", False), ("f", True)]
    assert [task.id for task in read(client, listed)] == ["d", "c"]
    assert len(client.reports) == 1
    unreadable = [each for each in ended(client, 0, until) if isinstance(each, Unreadable)]
    assert [(each.id, each.version) for each in unreadable] == [("f", until)]


def test_what_the_next_run_wrote_is_not_taken_for_the_run_before() -> None:
    """The task is run anew between two reads of its tree: it is read from where it is kept."""
    client = followed()
    finish(client, "a", b"old")
    listed, other = ended(client), Client(client.zk)
    real, once = client.zk.perform, iter([True])

    def torn(session: int, op: Any) -> Any:
        if isinstance(op, GetMany) and op.paths[0].endswith("/a/state") and next(once, False):
            record = real(session, GetMany(op.paths[:1]))
            other.put(b"new", task_id="a")
            return [*record, *real(session, GetMany(op.paths[1:]))]
        return real(session, op)

    client.zk.perform = torn  # type: ignore[method-assign]
    (task,) = read(client, listed)
    assert (task.data, task.result, task.version) == (b"old", b"r", listed[0].version)


def test_a_lost_reply_keeps_one_letter() -> None:
    """The transaction is made again, and refused since the first one was carried out."""
    client = followed()
    finish(client, "a")
    client.zk.advance(1)
    client.do(operate.drop(client.context, "a"), at(1, LOST_REPLY))
    assert len(client.do(letters.list_letters(client.context))) == len(ended(client)) == 1


def test_what_does_not_fit_beside_the_next_run_is_left_out_of_the_letter_and_reported() -> None:
    """The payload first, then the result: the next run is inserted all the same, whether enqueued or redriven."""
    client = followed()
    finish(client, "a", b"o" * 500_000, b"r" * 500_000)
    large = b"n" * (MAX_REQUEST - 300_000)
    client.put(large, task_id="a")
    (task,) = read(client, ended(client))
    assert (task.id, task.data, task.result, len(client.reports)) == ("a", b"", None, 1)
    claimed = client.claimed()
    assert claimed.data == large
    client.fail(claimed, "last", retry=False)
    client.do(operate.redrive(client.context, "a", data=b"m" * 700_000))
    letter = read_letters(client)[-1]
    assert (letter.data, letter.error, len(client.reports)) == (b"", "last", 2)
    assert client.claimed().data == b"m" * 700_000


def test_parts_that_are_not_asked_for_are_not_read() -> None:
    """Of a run that stands; its times are right all the same. Unknown parts are refused."""
    client = followed()
    finish(client, "a", b"data", metadata={"n": 1})
    (task,) = read(client, ended(client), parts=[])
    (whole,) = read(client, ended(client))
    assert task == replace(whole, data=b"", result=None, metadata={})
    with pytest.raises(ConfigError, match="parts"):
        read(client, ended(client), parts=["everything"])


def test_letters_of_older_versions_are_told_by_what_stands_in_them() -> None:
    """Their names tell no version; those of dead letters have no result."""
    client = followed()
    finish(client, "a")
    drop(client, "a")
    (kept,), (path,) = client.do(letters.list_letters(client.context)), letter_paths(client)
    letter = Letter.decode(path, client.zk.nodes[path].data)
    older = f"{path.rpartition('/')[0]}/{kept.name.when:015d}~a"
    client.zk.multi(0, (Delete(path), Create(older, replace(letter, result=None).encode())))
    assert [each[:2] for each in ended(client)] == [("a", letter.version)]
    assert told(client) == [("a", "finished", b"x", None)]
    assert ended(client, letter.version) == []


# --- what it costs


def test_what_has_not_changed_is_not_read() -> None:
    """A look that finds nothing new lists no bucket and reads no record, however much has ended before."""
    client = new_queue()
    for number in range(30):
        client.zk.advance(7)
        finish(client, f"t{number}")
    done = latest(client)
    few = requests(client, log.ended_between(client.context, done))
    client.zk.advance(200)
    finish(client, "new")
    assert ids(client, done) == ["new"]
    assert requests(client, log.ended_between(client.context, done)) <= few + 3
    assert few <= 14


def test_of_a_bucket_in_which_something_is_new_only_that_is_read() -> None:
    """The entries of what ended before are told apart without their records, a thousand and more in a request."""
    client = new_queue()
    for number in range(300):
        finish(client, f"t{number}")
    done, read_at_all = latest(client), []
    finish(client, "new")

    def look(op: Any) -> None:
        read_at_all.extend(getattr(op, "paths", ()))

    assert [each.id for each in client.do(log.ended_between(client.context, done), look)] == ["new"]
    assert [path for path in read_at_all if path.endswith("/state")] == [client.context.paths.task("new", "state")]


def test_looking_for_the_latest_end_writes_nothing_and_goes_up() -> None:
    """Through ends, departures, clean-up and the server's reaping of buckets; of a new queue, too."""
    client = followed()
    numbers = [latest(client)]

    def step() -> None:
        before = client.zk.zxid
        numbers.append(latest(client))
        assert client.zk.zxid == before
        assert ended(client, numbers[-1]) == []

    for _ in range(3):
        client.zk.advance(100)
        end_each_way(client)
        step()
        client.do(operate.clear(client.context, "dead"))
        client.put(task_id="f")
        client.work()
        step()
        clean_up(client, 60, later=200)
        client.zk.advance(100)
        step()
    assert numbers == sorted(numbers)
    assert numbers[0] > 0
