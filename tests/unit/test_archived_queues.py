"""An archived queue: clean-up keeps what no archive holds, and dead letters that leave are kept for the archive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.model.letters import Letter
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.protocol.ops import GetMany
from airflow_provider_zkmq.engine.core.protocol.writes import MAX_REQUEST, Create, Delete, SetData
from airflow_provider_zkmq.engine.core.reading import archiving, inspect, letters, log, settings
from airflow_provider_zkmq.engine.core.tasks import configure, operate
from airflow_provider_zkmq.engine.core.upkeep import collect
from airflow_provider_zkmq.engine.errors import ConfigError, CorruptRecord, Unavailable
from tests.unit.world import LOST_REPLY, Client, FakeZooKeeper, at, new_queue


def configured(client: Client, **options: Any) -> None:
    client.do(configure.configure(client.context, **options))


def archived_queue() -> Client:
    return new_queue(archive=True)


def mark(client: Client) -> int:
    """The number up to which an archive run would go."""
    return client.do(archiving.zxid(client.context))


def publish(client: Client, watermark: int) -> None:
    """An archive run has come so far."""
    known = client.do(archiving.archive(client.context))
    client.do(configure.publish_archive(client.context, replace(known, watermark=watermark)))


def clean_up(client: Client) -> collect.Collected:
    client.zk.advance(100)
    return client.do(collect.collect_garbage(client.context, 0))


def ended(client: Client, after: int = 0) -> list[str]:
    return [each.id for each in client.do(log.ended_between(client.context, after, mark(client)))]


def departed(client: Client, after: int = 0) -> list[letters.Departed]:
    return client.do(letters.departed_between(client.context, after, mark(client)))


def told(client: Client, after: int = 0) -> list[inspect.Task]:
    return client.do(letters.read_departed(client.context, departed(client, after)))


def dead(client: Client, task_id: str = "a", **options: Any) -> inspect.Task:
    """A dead letter, after two attempts."""
    client.put(b"payload", task_id=task_id, metadata={"owner": "ann"}, **options)
    client.fail(client.claimed(), "first", backoff=0)
    client.fail(client.claimed(), "last", retry=False)
    return client.do(inspect.read_task(client.context, task_id))


# --- the mark


def test_clean_up_before_the_first_archive_run_keeps_everything() -> None:
    """The queue is said to be archived, and no archive has run: nothing is deleted until one has."""
    client = archived_queue()
    client.put(task_id="a")
    client.put(task_id="b")
    client.work()
    report = clean_up(client)
    assert (report.collected, report.kept_unarchived, sorted(client.check())) == (0, 2, ["a", "b"])
    assert ended(client) == ["a", "b"]
    publish(client, mark(client))
    assert (clean_up(client).collected, client.check()) == (2, {})


def test_a_new_queue_is_archived_from_its_first_moment() -> None:
    """It is created with the mark in one transaction: no clean-up comes in between."""
    client, written = Client(FakeZooKeeper()), []

    def log(op: Any) -> None:
        written.append([part.path for part in getattr(op, "ops", ())])

    client.do(configure.configure(client.context, archive=True), log)
    (creation,) = [paths for paths in written if client.context.paths.at("archive") in paths]
    assert client.context.paths.at("tasks") in creation


def test_a_queue_says_whether_it_is_archived() -> None:
    """`conf` tells it, and how far the archive has come; other values leave it as it is."""
    client = new_queue()
    known = lambda: client.do(settings.conf(client.context))
    assert (known().archive, known().archived) == (False, None)
    configured(client, archive=True)
    assert (known().archive, known().archived) == (True, 0)
    publish(client, 7)
    configured(client, archive=True, lock=3)
    configured(client, task_gc_lifetime=5)
    assert (known().archive, known().archived, known().lock, known().task_gc_lifetime) == (True, 7, 3, 5)
    configured(client, archive=False)
    assert (known().archive, known().archived, known().lock) == (False, None, 3)
    configured(client, archive=False)
    assert not known().archive


def test_another_client_s_clean_up_heeds_the_mark_at_once() -> None:
    """It has read the configuration before: a watch tells it, and what it would have deleted is kept."""
    client = new_queue()
    other = Client(client.zk)
    client.put(task_id="a")
    client.work()
    assert other.do(collect.collect_garbage(other.context, 1_000)).collected == 0
    configured(client, archive=True)
    assert (clean_up(other).kept_unarchived, list(client.check())) == (1, ["a"])
    configured(client, archive=False)
    assert clean_up(other).collected == 1


@pytest.mark.parametrize("value", ["yes", 1, 0, []])
def test_only_yes_and_no_are_taken(value: Any) -> None:
    """Anything else is refused, and nothing is written."""
    client = new_queue()
    with pytest.raises(ConfigError, match="archive"):
        configured(client, archive=value, lock=3)
    assert client.do(settings.conf(client.context)).lock is None


def test_a_lost_reply_makes_no_difference_to_the_mark() -> None:
    """The same transaction, made again, meets its own mark and goes on without it."""
    client = new_queue()
    client.do(configure.configure(client.context, archive=True, lock=3), at(1, LOST_REPLY))
    known = client.do(settings.conf(client.context))
    assert (known.archive, known.lock) == (True, 3)


# --- dead letters that leave

LEAVE: dict[str, Callable[[Client], Any]] = {
    "redrive": lambda it: operate.redrive(it.context, "a"),
    "redrive with data": lambda it: operate.redrive(it.context, "a", data=b"mended"),
    "drop": lambda it: operate.drop(it.context, "a"),
    "clear": lambda it: operate.clear(it.context, "dead"),
    "clear all": lambda it: operate.clear(it.context),
}


@pytest.mark.parametrize("order", ["default", "fifo"])
@pytest.mark.parametrize("name", LEAVE)
def test_a_dead_letter_that_leaves_is_kept_for_the_archive_as_it_was(name: str, order: str) -> None:
    """With payload, metadata, error and the history of its attempts; until it is archived."""
    client = new_queue(archive=True, order=order)
    before = dead(client)
    assert (ended(client), departed(client)) == (["a"], [])
    client.zk.advance(5)
    client.do(LEAVE[name](client))
    client.check()
    (letter,) = told(client)
    assert letter == replace(before, status=letter.status)
    assert [attempt.error for attempt in letter.history] == ["first", "last"]
    clean_up(client)
    assert told(client) == [letter]
    publish(client, mark(client))
    clean_up(client)
    assert departed(client) == []
    assert client.zk.names(client.context.paths.at("unarchived")) == []
    assert client.work() == (["a"] if name.startswith("redrive") else [])
    assert client.reports == []


def test_each_death_is_told_once() -> None:
    """Redriven and dead again, then dropped: two ends, in the archive runs in which they left."""
    client = archived_queue()
    dead(client)
    client.do(operate.redrive(client.context, "a", data=b"second"))
    first = mark(client)
    client.fail(client.claimed(), "again", retry=False)
    client.zk.advance(1)
    client.do(operate.drop(client.context, "a"))
    assert sorted(task.data for task in told(client)) == [b"payload", b"second"]
    (later,) = told(client, first)
    assert (later.data, later.error, len(later.history)) == (b"second", "again", 3)


def test_clean_up_deletes_the_letters_that_the_archive_has_and_no_others() -> None:
    """One left before the archive's run and one after it."""
    client = archived_queue()
    dead(client, "a")
    client.do(operate.drop(client.context, "a"))
    publish(client, mark(client))
    dead(client, "b")
    client.do(operate.drop(client.context, "b"))
    clean_up(client)
    assert [each.id for each in departed(client)] == ["b"]


def test_without_an_archive_dead_letters_leave_nothing() -> None:
    """A queue that is not archived keeps none; one that is not any more has its letters deleted."""
    client = new_queue()
    dead(client)
    client.do(operate.drop(client.context, "a"))
    assert client.zk.names(client.context.paths.at("unarchived")) == []
    configured(client, archive=True)
    dead(client)
    client.do(operate.drop(client.context, "a"))
    assert len(departed(client)) == 1
    configured(client, archive=False)
    clean_up(client)
    assert departed(client) == []


def test_what_an_operator_drops_is_kept_if_it_had_ended() -> None:
    """Finished, cancelled and dead runs are kept as they ended, dropped or cleared; what was pending is deleted."""
    client = archived_queue()
    client.put(task_id="a")
    client.put(task_id="b")
    client.cancel("b")
    client.put(task_id="c")
    client.put(task_id="d", delay=50)
    client.complete(client.claimed(), result=b"r")
    for name in ("a", "b", "c"):
        client.do(operate.drop(client.context, name))
    client.put(task_id="e")
    client.work()
    client.do(operate.clear(client.context))
    assert [(task.id, str(task.state), task.result) for task in told(client)] == [
        ("b", "cancelled", None),
        ("a", "finished", b"r"),
        ("e", "finished", b""),
    ]
    assert client.check() == {}


def test_what_the_archive_has_is_not_kept_when_it_leaves() -> None:
    """Costs no read and no write; a dead letter counts as archived only where the archive takes them at their death."""
    client = archived_queue()
    for name in ("a", "b"):
        client.put(task_id=name)
    client.complete(client.claimed())
    client.fail(client.claimed(), retry=False)
    publish(client, mark(client))
    client.do(settings.conf(client.context))
    client.do(operate.drop(client.context, "a"))
    assert departed(client) == []
    known = client.do(archiving.archive(client.context))
    client.do(configure.publish_archive(client.context, replace(known, at_death=True)))
    dead(client, "c")
    client.do(operate.clear(client.context))
    assert [each.id for each in departed(client)] == ["c"]


def test_a_letter_whose_payload_does_not_fit_beside_the_new_one_is_kept_without_it() -> None:
    """Redriven with other large data: one transaction cannot hold both, the redrive is made and the loss reported."""
    client = archived_queue()
    client.put(b"o" * 700_000, task_id="a")
    client.fail(client.claimed(), "last", retry=False)
    client.do(operate.redrive(client.context, "a", data=b"n" * 700_000))
    (letter,) = told(client)
    assert (letter.data, letter.error, len(client.reports)) == (b"", "last", 1)
    assert client.claimed().data == b"n" * 700_000


def test_the_largest_payload_is_kept() -> None:
    """What a queue takes fits into the transaction in which it leaves, whatever its errors were."""
    client = new_queue(archive=True, policy=RetryPolicy(attempts=20, factor=0))
    client.put(b"o" * (MAX_REQUEST - 60_000), task_id="a")
    for _ in range(9):
        client.fail(client.claimed(), "e" * 5_000, backoff=0)
    client.fail(client.claimed(), "e" * 5_000, retry=False)
    client.do(operate.drop(client.context, "a"))
    (letter,) = told(client)
    assert (len(letter.data), len(letter.history), client.reports) == (MAX_REQUEST - 60_000, 10, [])


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"v":1}', b'{"v":2}\nx', b"\xff\n"])
def test_a_damaged_letter_stops_no_archive(damage: bytes) -> None:
    """It is reported once, told with its bytes and the reason, and the others are told as they were."""
    client = archived_queue()
    for name in ("a", "b"):
        dead(client, name)
        client.do(operate.drop(client.context, name))
    path = client.context.paths.at("unarchived", departed(client)[0].place)
    client.zk.multi(0, (SetData(path, damage),))
    bad, good = told(client)
    assert (bad.id, str(bad.state), bad.data, good.error) == ("a", "dead", damage, "last")
    assert path in (bad.error or "")
    assert [where for where, _ in client.reports] == [path]


def test_a_letter_says_whose_it_is() -> None:
    """What is no letter of ours is refused by its path; what was encoded is read."""
    client = archived_queue()
    dead(client)
    client.do(operate.drop(client.context, "a"))
    path = client.context.paths.at("unarchived", departed(client)[0].place)
    raw = client.zk.nodes[path].data
    letter = Letter.decode(path, raw)
    assert letter.encode() == raw
    for wrong in (
        raw.replace(b'"task_id":"a"', b'"task_id":"../a"'),
        raw.replace(b'"version":', b'"version":"x","w":'),
    ):
        with pytest.raises(CorruptRecord, match="unarchived"):
            Letter.decode(path, wrong)


def test_a_dead_letter_that_cannot_be_kept_does_not_leave() -> None:
    """The server is away before anything was sent: nothing has happened, and the call can be made again.

    By a client that has not read the queue's configuration: it asks for the mark alone.
    """
    client = archived_queue()
    dead(client)
    operator, asked = Client(client.zk), []

    def looks(op: Any) -> Exception | None:
        asked.append(op)
        return Unavailable("no server") if isinstance(op, GetMany) and op.paths[0].endswith("/archive") else None

    with pytest.raises(Unavailable):
        operator.do(operate.drop(operator.context, "a"), looks)
    assert (list(client.check()), len(asked)) == (["a"], 3)  # the record, what stands beside it, the mark
    operator.do(operate.drop(operator.context, "a"))
    assert [task.id for task in told(client)] == ["a"]


def test_the_bucket_of_a_letter_is_made_anew_where_it_was_cleared_away() -> None:
    """Its client does not rely on a bucket that it once used: the server deletes what has been emptied."""
    client = archived_queue()
    for name in ("a", "b"):
        dead(client, name)
        client.do(operate.drop(client.context, name))
        place = client.context.paths.at("unarchived", departed(client)[0].place)
        client.zk.multi(0, (Delete(place), Delete(place.rpartition("/")[0])))
    dead(client, "c")
    client.do(operate.drop(client.context, "c"))
    assert [task.id for task in told(client)] == ["c"]


def test_clean_up_steps_over_what_is_no_letter() -> None:
    """A foreign znode among the letters, and one that has children: the rest is deleted, and clean-up goes on."""
    client = archived_queue()
    dead(client)
    client.do(operate.drop(client.context, "a"))
    bucket = client.context.paths.at("unarchived", departed(client)[0].place).rpartition("/")[0]
    client.zk.multi(0, (Create(f"{bucket}/foreign"),))
    publish(client, mark(client))
    assert clean_up(client).ran
    assert (departed(client), client.zk.names(bucket)) == ([], ["foreign"])


@pytest.mark.parametrize("watermark", [-1, True, "5", 1.5, None, 1 << 63])
def test_what_is_no_watermark_is_refused(watermark: Any) -> None:
    """It would damage the record by which clean-up goes; what stands there stays."""
    client = archived_queue()
    known = client.do(archiving.archive(client.context))
    with pytest.raises(ConfigError, match="watermark"):
        client.do(configure.publish_archive(client.context, replace(known, watermark=watermark)))
    assert client.do(archiving.archive(client.context)) == known
