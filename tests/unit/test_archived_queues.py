"""Archived and followed queues: what leaves is kept as it ended, and clean-up keeps what no reader has seen yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.model.letters import Letter
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.protocol.ops import GetMany
from airflow_provider_zkmq.engine.core.protocol.writes import MAX_REQUEST, Create, Delete, SetData
from airflow_provider_zkmq.engine.core.reading import archiving, settings
from airflow_provider_zkmq.engine.core.tasks import configure, operate
from airflow_provider_zkmq.engine.core.upkeep import collect
from airflow_provider_zkmq.engine.errors import ConfigError, CorruptRecord, Unavailable
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
    publish,
    read_letters,
    since,
    trim,
)
from tests.unit.world import LOST_REPLY, Client, at, new_queue


def archived() -> Client:
    return new_queue(archive=True)


def followed() -> Client:
    return new_queue(follow=True)


# --- the marks


def test_the_marks_are_set_and_taken_away_by_configure() -> None:
    """With other values in one transaction; again without effect; a lost reply makes no difference, `conf` tells it."""
    client = new_queue()
    known = lambda: client.do(settings.conf(client.context))
    assert (known().archive, known().archived, trim(client)) == (False, None, None)
    client.do(configure.configure(client.context, follow=True, archive=True, lock=3), at(1, LOST_REPLY))
    assert (known().archive, known().archived, known().lock) == (True, 0, 3)
    born = since(client)
    publish(client, 7)
    configured(client, follow=True, archive=True)
    configured(client, task_gc_lifetime=5)
    assert (known().archive, known().archived, known().lock, known().task_gc_lifetime) == (True, 7, 3, 5)
    assert since(client) == born == client.zk.nodes[client.context.paths.at("followed")].czxid
    for name in ("follow", "archive"):
        for value in ("yes", 1, 0, []):
            with pytest.raises(ConfigError, match=name):
                configured(client, **{name: value}, lock=9)
    for _ in range(2):
        configured(client, follow=False, archive=False)
        assert (known().archive, known().archived, known().lock, trim(client)) == (False, None, 3, None)


def test_a_new_queue_is_archived_and_followed_from_its_first_moment() -> None:
    """It is created with the marks in one transaction: no clean-up comes in between."""
    client = new_queue(archive=True, follow=True)
    made = {client.zk.nodes[client.context.paths.at(each)].czxid for each in ("archive", "followed", "tasks")}
    assert len(made) == 1


def test_what_is_no_watermark_is_refused(subtests: pytest.Subtests) -> None:
    """It would damage the record by which clean-up goes; what stands there stays."""
    client = archived()
    known = client.do(archiving.archive(client.context))
    for watermark in (-1, True, "5", 1.5, None, 1 << 63):
        with subtests.test(watermark=watermark):
            with pytest.raises(ConfigError, match="watermark"):
                client.do(configure.publish_archive(client.context, replace(known, watermark=watermark)))
            assert client.do(archiving.archive(client.context)) == known


def test_a_damaged_mark_counts_as_its_last_write(subtests: pytest.Subtests) -> None:
    """Nothing was deleted since; it is reported, and clean-up goes on and writes it anew."""
    for damage in (b"", b"[", b'{"trimmed":-1}', b'{"trimmed":"x"}'):
        with subtests.test(damage=damage):
            client = followed()
            path = client.context.paths.at("followed")
            client.zk.multi(0, (SetData(path, damage),))
            assert trim(client) == client.zk.nodes[path].mzxid
            finish(client, "a")
            (first,) = ended(client)
            clean_up(client)
            assert (trim(client), client.check()) == (first.version, {})
            assert {where for where, _ in client.reports} == {path}


# --- what clean-up keeps


def test_clean_up_before_the_first_archive_run_keeps_everything() -> None:
    """The queue is said to be archived, and no archive has run: nothing is deleted until one has."""
    client = archived()
    client.put(task_id="a")
    client.put(task_id="b")
    client.work()
    report = clean_up(client)
    assert (report.collected, report.kept_unarchived, sorted(client.check())) == (0, 2, ["a", "b"])
    assert ids(client) == ["a", "b"]
    publish(client)
    assert (clean_up(client).collected, client.check()) == (2, {})


def test_another_client_s_clean_up_heeds_the_mark_at_once() -> None:
    """It has read the configuration before: a watch tells it, and what it would have deleted is kept."""
    client = new_queue()
    other = Client(client.zk)
    client.put(task_id="a")
    client.work()
    assert clean_up(other, 1_000, later=0).collected == 0
    configured(client, archive=True)
    assert (clean_up(other).kept_unarchived, list(client.check())) == (1, ["a"])
    configured(client, archive=False)
    assert clean_up(other).collected == 1


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
    assert paths.index(client.context.paths.at("followed")) < paths.index(client.context.paths.task("a", "state"))
    assert ids(client, trim(client) or 0) == ["c"]


def test_the_letters_of_a_followed_queue_live_as_long_as_ended_tasks() -> None:
    """Then they go, and that is told; a queue that is followed no more keeps none."""
    client = followed()
    finish(client, "a")
    (first,) = ended(client)
    drop(client, "a")
    clean_up(client, 60, later=40)
    assert (ids(client), trim(client)) == (["a"], 0)
    clean_up(client, 60, later=40)
    assert (ended(client), trim(client)) == ([], first.version)
    finish(client, "b")
    drop(client, "b")
    configured(client, follow=False)
    clean_up(client, 60, later=0)
    assert (ended(client), trim(client)) == ([], None)


def test_of_an_archived_and_followed_queue_a_letter_waits_for_both() -> None:
    """For the archive to come so far, and for its time to pass."""
    client = new_queue(archive=True, follow=True)
    finish(client, "a")
    drop(client, "a")
    clean_up(client, 60)
    assert ids(client) == ["a"]
    publish(client, latest(client), at_death=True)
    clean_up(client, 1000, later=0)
    assert ids(client) == ["a"]
    clean_up(client, 60, later=0)
    assert ended(client) == []


def test_what_ended_before_the_mark_is_told_when_it_is_trimmed() -> None:
    """A stream that begins with everything that stands learns that clean-up has overtaken it."""
    client = new_queue()
    finish(client, "a")
    (first,) = ended(client)
    configured(client, follow=True)
    assert (trim(client), first.version < since(client)) == (0, True)
    clean_up(client)
    assert (trim(client), ended(client)) == (first.version, [])


def test_a_queue_that_is_followed_anew_says_since_when() -> None:
    """Meanwhile nobody noted what was deleted: who began before has perhaps lost something."""
    client = followed()
    finish(client, "a")
    began = since(client)
    configured(client, follow=False)
    clean_up(client)
    configured(client, follow=True)
    assert (trim(client), since(client) > began) == (0, True)


def test_what_is_no_bucket_and_no_entry_is_stepped_over() -> None:
    """Foreign znodes among what lists ended runs and letters hide none of them, nor do they stop clean-up."""
    client = new_queue(archive=True, follow=True)
    end_each_way(client)
    drop(client, "d")
    for parent in ("finished", "cancelled", "unarchived", "dlq"):
        path = client.context.paths.at(parent)
        buckets = [f"{path}/{name}" for name in client.zk.names(path) if parent != "dlq"]
        client.zk.multi(0, tuple(Create(f"{where}/foreign") for where in (path, *buckets)))
    assert ids(client) == ["f", "d", "c"]
    assert latest(client) >= ended(client)[-1].version
    bucket = letter_paths(client)[0].rpartition("/")[0]
    publish(client)
    assert clean_up(client).ran
    assert (departed(client), ended(client), client.zk.names(bucket)) == ([], [], ["foreign"])


# --- letters: what has left

LEAVE: dict[str, Callable[[Client], Any]] = {
    "redrive": lambda it: operate.redrive(it.context, "a"),
    "redrive with data": lambda it: operate.redrive(it.context, "a", data=b"mended"),
    "drop": lambda it: operate.drop(it.context, "a"),
    "clear": lambda it: operate.clear(it.context, "dead"),
    "clear all": lambda it: operate.clear(it.context),
}


@pytest.mark.parametrize("order", ["default", "fifo"])
def test_a_dead_letter_that_leaves_is_kept_for_the_archive_as_it_was(order: str, subtests: pytest.Subtests) -> None:
    """With payload, metadata, error and the history of its attempts; until it is archived."""
    for name, leave in LEAVE.items():
        with subtests.test(case=name):
            client = new_queue(archive=True, order=order)
            before = dead(client)
            assert (ids(client), departed(client)) == (["a"], [])
            client.zk.advance(5)
            client.do(leave(client))
            client.check()
            (letter,) = read_letters(client)
            assert letter == replace(before, status=letter.status)
            assert [attempt.error for attempt in letter.history] == ["first", "last"]
            clean_up(client)
            assert read_letters(client) == [letter]
            publish(client)
            clean_up(client)
            assert departed(client) == client.zk.names(client.context.paths.at("unarchived")) == []
            assert client.work() == (["a"] if name.startswith("redrive") else [])
            assert client.reports == []


def test_each_death_is_told_once() -> None:
    """Redriven, dead again, and dropped: two ends; the first letter goes when the archive has it, the other stays."""
    client = archived()
    dead(client)
    client.do(operate.redrive(client.context, "a", data=b"second"))
    first = client.do(archiving.zxid(client.context))
    client.fail(client.claimed(), "again", retry=False)
    client.zk.advance(1)
    drop(client, "a")
    assert sorted(task.data for task in read_letters(client)) == [b"payload", b"second"]
    (later,) = read_letters(client, first)
    assert (later.data, later.error, len(later.history)) == (b"second", "again", 3)
    publish(client, first)
    clean_up(client)
    assert read_letters(client) == [later]


def test_what_an_operator_drops_is_kept_if_it_had_ended() -> None:
    """Finished, cancelled and dead runs are kept as they ended, dropped or cleared; what was pending is deleted."""
    client = archived()
    client.put(task_id="a")
    client.put(task_id="b")
    client.cancel("b")
    client.put(task_id="c")
    client.put(task_id="d", delay=50)
    client.complete(client.claimed(), result=b"r")
    for name in ("a", "b", "c"):
        drop(client, name)
    client.put(task_id="e")
    client.work()
    client.do(operate.clear(client.context))
    assert [(task.id, str(task.state), task.result) for task in read_letters(client)] == [
        ("b", "cancelled", None),
        ("a", "finished", b"r"),
        ("e", "finished", b""),
    ]
    assert client.check() == {}


def test_what_the_archive_has_is_not_kept_when_it_leaves() -> None:
    """Costs no read and no write; a dead letter counts as archived only where the archive takes them at their death."""
    client = archived()
    for name in ("a", "b"):
        client.put(task_id=name)
    client.complete(client.claimed())
    client.fail(client.claimed(), retry=False)
    publish(client)
    client.do(settings.conf(client.context))
    drop(client, "a")
    assert departed(client) == []
    publish(client, client.do(archiving.archive(client.context)).watermark, at_death=True)
    dead(client, "c")
    client.do(operate.clear(client.context))
    assert [each.id for each in departed(client)] == ["c"]


def test_the_largest_payload_is_kept() -> None:
    """What a queue takes fits into the transaction in which it leaves, whatever its errors were."""
    client = new_queue(archive=True, policy=RetryPolicy(attempts=20, factor=0))
    client.put(b"o" * (MAX_REQUEST - 60_000), task_id="a")
    for number in range(10):
        client.fail(client.claimed(), "e" * 5_000, backoff=0, retry=number < 9)
    drop(client, "a")
    (letter,) = read_letters(client)
    assert (len(letter.data), len(letter.history), client.reports) == (MAX_REQUEST - 60_000, 10, [])


def test_a_damaged_letter_stops_no_archive(subtests: pytest.Subtests) -> None:
    """It is reported once, told with its bytes and the reason, and the others are told as they were."""
    for damage in (b"", b"{", b"[]", b'{"v":1}', b'{"v":2}\nx', b"\xff\n"):
        with subtests.test(damage=damage):
            client = archived()
            for name in ("a", "b"):
                dead(client, name)
                drop(client, name)
            path = letter_paths(client)[0]
            client.zk.multi(0, (SetData(path, damage),))
            bad, good = read_letters(client)
            assert (bad.id, str(bad.state), bad.data, good.error) == ("a", "dead", damage, "last")
            assert path in (bad.error or "")
            assert [where for where, _ in client.reports] == [path]


def test_a_letter_says_whose_it_is() -> None:
    """What is no letter of ours is refused by its path; what was encoded is read."""
    client = archived()
    dead(client)
    drop(client, "a")
    (path,) = letter_paths(client)
    raw = client.zk.nodes[path].data
    assert Letter.decode(path, raw).encode() == raw
    for right, wrong in ((b'"task_id":"a"', b'"task_id":"../a"'), (b'"version":', b'"version":"x","w":')):
        with pytest.raises(CorruptRecord, match="unarchived"):
            Letter.decode(path, raw.replace(right, wrong))


def test_a_dead_letter_that_cannot_be_kept_does_not_leave() -> None:
    """The server is away before anything was sent: nothing has happened, and the call can be made again.

    By a client that has not read the queue's configuration: it asks for the mark alone.
    """
    client = archived()
    dead(client)
    operator, asked = Client(client.zk), []

    def looks(op: Any) -> Exception | None:
        asked.append(op)
        return Unavailable("no server") if isinstance(op, GetMany) and op.paths[0].endswith("/archive") else None

    with pytest.raises(Unavailable):
        operator.do(operate.drop(operator.context, "a"), looks)
    assert (list(client.check()), len(asked)) == (["a"], 3)  # the record, what stands beside it, the mark
    drop(operator, "a")
    assert [task.id for task in read_letters(client)] == ["a"]


def test_the_bucket_of_a_letter_is_made_anew_where_it_was_cleared_away() -> None:
    """Its client does not rely on a bucket that it once used: the server deletes what has been emptied."""
    client = archived()
    for name in ("a", "b", "c"):
        dead(client, name)
        drop(client, name)
        assert [task.id for task in read_letters(client)] == [name]
        (path,) = letter_paths(client)
        client.zk.multi(0, (Delete(path), Delete(path.rpartition("/")[0])))
