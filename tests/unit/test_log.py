"""The log of ended runs: each run that ended, once, in the order of their ends, whatever became of its task since."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.model.letters import Ended, Letter, Unreadable
from airflow_provider_zkmq.engine.core.protocol.ops import Children, GetMany
from airflow_provider_zkmq.engine.core.protocol.writes import MAX_REQUEST, Create, Delete, SetData
from airflow_provider_zkmq.engine.core.reading import archiving, inspect, letters, log, runs, trimmed
from airflow_provider_zkmq.engine.core.tasks import configure, operate
from airflow_provider_zkmq.engine.core.upkeep import collect, rescue
from airflow_provider_zkmq.engine.errors import ConfigError
from tests.unit.world import LOST_REPLY, Client, at, new_queue


def followed(**conf: Any) -> Client:
    return new_queue(follow=True, **conf)


def ended(client: Client, after: int = 0, until: int | None = None) -> list[Ended]:
    return client.do(log.ended_between(client.context, after, until))


def latest(client: Client) -> int:
    return client.do(log.latest_end(client.context))


def read(client: Client, which: list[Ended], **options: Any) -> list[inspect.Task]:
    return client.do(runs.read_ended(client.context, which, **options))


def told(client: Client) -> list[tuple[str, str, bytes, bytes | None]]:
    """Every run: its id, state, data and result."""
    return [(task.id, str(task.state), task.data, task.result) for task in read(client, ended(client))]


def trim(client: Client) -> int | None:
    """Up to where clean-up says that it has deleted."""
    mark = client.do(trimmed.trimmed(client.context))
    return None if mark is None else mark.upto


def since(client: Client) -> int:
    """The transaction that made the queue a followed one."""
    return client.do(trimmed.trimmed(client.context)).since


def requests(client: Client, procedure: Any) -> int:
    """How many requests a procedure costs."""
    asked: list[Any] = []
    client.do(procedure, asked.append)
    return len(asked)


def finish(client: Client, task_id: str, data: bytes = b"x", result: bytes = b"r", **options: Any) -> None:
    client.put(data, task_id=task_id, **options)
    client.complete(client.claimed(), result=result)


def end_each_way(client: Client) -> None:
    """One finished, one dead and one cancelled."""
    finish(client, "f", b"f")
    client.put(b"d", task_id="d")
    client.fail(client.claimed(), "why", retry=False)
    client.put(b"c", task_id="c")
    client.cancel("c")


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
    assert [each.id for each in ended(client)] == ["f", "d", "c"]
    assert [each.id for each in ended(client, numbers[0], numbers[1])] == ["f"]
    assert [each.id for each in ended(client, numbers[1], numbers[2])] == ["d", "c"]
    assert ended(client, numbers[2], numbers[2] + 100) == []
    for each in ended(client):
        task = client.do(inspect.read_task(client.context, each.id))
        assert (each.version, each.place, read(client, [each])) == (task.version, None, [task])


DEPARTURES: dict[str, Callable[[Client], Any]] = {
    "run anew": lambda it: [it.put(b"new", task_id=name) for name in ("f", "c")],
    "redriven": lambda it: [it.do(operate.redrive(it.context, name, data=b"new")) for name in ("d", "c")],
    "dropped": lambda it: [it.do(operate.drop(it.context, name)) for name in ("f", "d", "c")],
    "cleared": lambda it: it.do(operate.clear(it.context)),
}


@pytest.mark.parametrize("mark", ["archive", "follow"])
@pytest.mark.parametrize("name", DEPARTURES)
def test_a_run_that_leaves_is_told_as_it_ended(name: str, mark: str) -> None:
    """Listed before or after it left, and read before or after: the same runs, with data, result and error."""
    client = new_queue(**{mark: True})
    end_each_way(client)
    listed = ended(client)
    before = read(client, listed)
    client.zk.advance(1)
    DEPARTURES[name](client)
    client.check()
    again = ended(client)
    assert [each[:2] for each in again] == [each[:2] for each in listed]
    assert any(each.place for each in again)
    same = [replace(task, status=task.status) for task in before]
    assert read(client, listed) == read(client, again) == same
    assert [task.data for task in before] == [b"f", b"d", b"c"]
    assert client.reports == []


def test_in_a_queue_that_nobody_reads_a_run_that_leaves_is_gone() -> None:
    """It costs nothing there; what is gone is left out of what is read."""
    client = new_queue()
    finish(client, "a")
    (first,) = ended(client)
    client.put(b"new", task_id="a")
    assert (ended(client), read(client, [first])) == ([], [])
    assert client.zk.names(client.context.paths.at("unarchived")) == []


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
    finish_all = client.work()
    assert (finish_all, [each[2] for each in told(client)]) == (["a"], [b"one", b"two"])
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
    """It is reported once; the others are told, and it is left out of what is read."""
    client = followed()
    end_each_way(client)
    client.zk.multi(0, (SetData(client.context.paths.task("f", "state"), b"{"),))
    listed = ended(client)
    assert [(each.id, isinstance(each, Unreadable)) for each in listed] == [("d", False), ("c", False), ("f", True)]
    assert [task.id for task in read(client, listed)] == ["d", "c"]
    assert len(client.reports) == 1


def test_what_is_damaged_after_the_latest_end_was_asked_for_is_told_with_it() -> None:
    """Its record was written once more, and nobody knows when it ended: whoever counts on its end hears of it."""
    client = followed()
    end_each_way(client)
    until = latest(client)
    client.zk.multi(0, (SetData(client.context.paths.task("d", "state"), b"{"),))
    listed = ended(client, 0, until)
    assert [(each.id, each.version) for each in listed if isinstance(each, Unreadable)] == [("d", until)]


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
    assert len(client.do(letters.list_letters(client.context))) == 1
    assert len(ended(client)) == 1


def test_a_result_that_does_not_fit_beside_the_next_run_is_left_out_and_reported() -> None:
    """Payload first, then the result: the next run is inserted all the same."""
    client = followed()
    finish(client, "a", b"o" * 500_000, b"r" * 500_000)
    client.put(b"n" * (MAX_REQUEST - 300_000), task_id="a")
    (task,) = read(client, ended(client))
    assert (task.id, task.data, task.result, len(client.reports)) == ("a", b"", None, 1)
    assert client.claimed().data == b"n" * (MAX_REQUEST - 300_000)


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
    client.do(operate.drop(client.context, "a"))
    (kept,) = client.do(letters.list_letters(client.context))
    path = client.context.paths.at("unarchived", kept.place)
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
    assert [each.id for each in ended(client, done)] == ["new"]
    assert requests(client, log.ended_between(client.context, done)) <= few + 3
    assert few <= 14


def test_of_a_bucket_in_which_something_is_new_only_that_is_read() -> None:
    """The entries of what ended before are told apart without their records, a thousand and more in a request."""
    client = new_queue()
    for number in range(400):
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
        client.zk.advance(200)
        client.do(collect.collect_garbage(client.context, 60))
        client.zk.advance(100)
        step()
    assert numbers == sorted(numbers)
    assert numbers[0] > 0


def test_an_end_that_comes_after_the_latest_one_was_asked_for_is_above_it() -> None:
    """What `ended_between` told up to there is complete."""
    client = followed()
    finish(client, "a")
    number = latest(client)
    finish(client, "b")
    assert [each.id for each in ended(client, 0, number)] == ["a"]
    assert [each.id for each in ended(client, number)] == ["b"]


# --- clean-up


def test_clean_up_says_what_it_trims_before_it_deletes() -> None:
    """Whoever has taken less is told; what is new is kept as always, and nothing longer than elsewhere."""
    client = followed()
    finish(client, "a")
    finish(client, "b")
    first, second = ended(client)
    assert trim(client) == 0
    client.zk.advance(100)
    finish(client, "c")
    writes: list[Any] = []
    client.do(collect.collect_garbage(client.context, 50), lambda op: writes.extend(getattr(op, "ops", ())))
    assert sorted(client.check()) == ["c"]
    assert trim(client) == second.version > first.version > since(client)
    paths = [op.path for op in writes]
    mark = paths.index(client.context.paths.at("followed"))
    assert mark < paths.index(client.context.paths.task("a", "state"))
    assert [each.id for each in ended(client, trim(client) or 0)] == ["c"]


def test_the_letters_of_a_followed_queue_live_as_long_as_ended_tasks() -> None:
    """Then they go, and that is told; a queue that is followed no more keeps none."""
    client = followed()
    finish(client, "a")
    (first,) = ended(client)
    client.do(operate.drop(client.context, "a"))
    client.zk.advance(40)
    client.do(collect.collect_garbage(client.context, 60))
    assert (len(ended(client)), trim(client)) == (1, 0)
    client.zk.advance(40)
    client.do(collect.collect_garbage(client.context, 60))
    assert (ended(client), trim(client)) == ([], first.version)
    finish(client, "b")
    client.do(operate.drop(client.context, "b"))
    client.do(configure.configure(client.context, follow=False))
    client.do(collect.collect_garbage(client.context, 60))
    assert (ended(client), trim(client)) == ([], None)


def test_of_an_archived_and_followed_queue_a_letter_waits_for_both() -> None:
    """For the archive to come so far, and for its time to pass."""
    client = followed(archive=True)
    finish(client, "a")
    client.do(operate.drop(client.context, "a"))
    client.zk.advance(100)
    client.do(collect.collect_garbage(client.context, 60))
    assert len(ended(client)) == 1
    known = client.do(archiving.archive(client.context))
    reached = replace(known, watermark=latest(client), at_death=True)
    client.do(configure.publish_archive(client.context, reached))
    client.do(collect.collect_garbage(client.context, 1000))
    assert len(ended(client)) == 1
    client.do(collect.collect_garbage(client.context, 60))
    assert ended(client) == []


def test_what_ended_before_the_mark_is_told_when_it_is_trimmed() -> None:
    """A stream that begins with everything that stands learns that clean-up has overtaken it."""
    client = new_queue()
    finish(client, "a")
    (first,) = ended(client)
    client.do(configure.configure(client.context, follow=True))
    assert (trim(client), first.version < since(client)) == (0, True)
    client.zk.advance(100)
    client.do(collect.collect_garbage(client.context, 0))
    assert (trim(client), ended(client)) == (first.version, [])


def test_a_queue_that_is_followed_anew_says_since_when() -> None:
    """Meanwhile nobody noted what was deleted: who began before has perhaps lost something."""
    client = followed()
    finish(client, "a")
    began = since(client)
    client.do(configure.configure(client.context, follow=False))
    client.zk.advance(100)
    client.do(collect.collect_garbage(client.context, 0))
    client.do(configure.configure(client.context, follow=True))
    assert (trim(client), since(client) > began) == (0, True)


@pytest.mark.parametrize("damage", [b"", b"[", b'{"trimmed":-1}', b'{"trimmed":"x"}'])
def test_a_damaged_mark_counts_as_its_last_write(damage: bytes) -> None:
    """Nothing was deleted since; it is reported, and clean-up goes on and writes it anew."""
    client = followed()
    path = client.context.paths.at("followed")
    client.zk.multi(0, (SetData(path, damage),))
    written = client.zk.nodes[path].mzxid
    assert trim(client) == written
    finish(client, "a")
    (first,) = ended(client)
    client.zk.advance(100)
    client.do(collect.collect_garbage(client.context, 0))
    assert (trim(client), client.check()) == (first.version, {})
    assert {where for where, _ in client.reports} == {path}


def test_the_mark_is_set_and_taken_away_by_configure() -> None:
    """With other values in one transaction, again without effect, and a lost reply makes no difference."""
    client = new_queue()
    assert trim(client) is None
    client.do(configure.configure(client.context, follow=True, archive=True, lock=3), at(1, LOST_REPLY))
    born = since(client)
    client.do(configure.configure(client.context, follow=True))
    assert since(client) == born == client.zk.nodes[client.context.paths.at("followed")].czxid
    client.do(configure.configure(client.context, follow=False))
    client.do(configure.configure(client.context, follow=False))
    assert trim(client) is None
    with pytest.raises(ConfigError, match="follow"):
        client.do(configure.configure(client.context, follow="yes"))


def test_a_new_queue_is_followed_from_its_first_moment() -> None:
    """It is created with the mark in one transaction."""
    client = followed()
    paths = client.context.paths
    assert client.zk.nodes[paths.at("followed")].czxid == client.zk.nodes[paths.at("tasks")].czxid


def test_what_is_no_bucket_and_no_entry_is_stepped_over() -> None:
    """Foreign znodes among what lists ended runs and letters hide none of them."""
    client = followed()
    end_each_way(client)
    client.do(operate.drop(client.context, "d"))
    for parent in ("finished", "cancelled", "unarchived", "dlq"):
        path = client.context.paths.at(parent)
        names = [name for name in client.do(iter_children(path)) if parent != "dlq"]
        for where in [path, *(f"{path}/{name}" for name in names)]:
            client.zk.multi(0, (Create(f"{where}/foreign"),))
    assert [each.id for each in ended(client)] == ["f", "d", "c"]
    assert latest(client) >= ended(client)[-1].version


def iter_children(path: str) -> Any:
    return (yield Children(path)) or []
