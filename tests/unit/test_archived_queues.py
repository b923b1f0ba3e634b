"""Archived and followed queues: what leaves is kept as it ended, and clean-up keeps what no reader has seen yet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.maintenance import collect
from airflow_provider_zkmq.engine.core.model.records import HistoryEntry
from airflow_provider_zkmq.engine.core.read import configuration
from airflow_provider_zkmq.engine.core.tasks import admin, interventions
from airflow_provider_zkmq.engine.core.zk_operations import MAX_REQUEST, Create, Delete, GetMany, SetData
from airflow_provider_zkmq.engine.errors import ConfigError, CorruptRecord, Unavailable
from tests.unit.ended_runs import Reader
from tests.unit.world import LOST_REPLY, at

# --- the marks


def test_the_marks_are_set_and_taken_away_by_configure() -> None:
    """With other values in one transaction; again without effect; a lost reply makes no difference, `conf` tells it.

    A new queue is created with them in one transaction: no clean-up comes in between.
    """
    client = Reader.of()
    known = lambda: client.do(configuration.conf(client.context))
    assert (known().archive, known().archived, client.trim()) == (False, None, None)
    client.do(admin.configure(client.context, follow=True, archive=True, lock=3), at(1, LOST_REPLY))
    assert (known().archive, known().archived, known().lock) == (True, 0, 3)
    born = client.since()
    client.publish(7)
    client.configured(follow=True, archive=True)
    client.configured(task_gc_lifetime=5)
    assert (known().archive, known().archived, known().lock, known().task_gc_lifetime) == (True, 7, 3, 5)
    assert client.since() == born == client.zk.nodes[client.context.paths.at("followed")].czxid
    for name in ("follow", "archive"):
        for value in ("yes", 1, 0, []):
            with pytest.raises(ConfigError, match=name):
                client.configured(**{name: value}, lock=9)
    for _ in range(2):
        client.configured(follow=False, archive=False)
        assert (known().archive, known().archived, known().lock, client.trim()) == (False, None, 3, None)
    new = Reader.of(archive=True, follow=True)
    assert len({new.zk.nodes[new.context.paths.at(each)].czxid for each in ("archive", "followed", "tasks")}) == 1


def test_what_is_no_watermark_is_refused(subtests: pytest.Subtests) -> None:
    """It would damage the record by which clean-up goes; what stands there stays."""
    client = Reader.of(archive=True)
    known = client.archive()
    for watermark in (-1, True, "5", 1.5, None, 1 << 63):
        with subtests.test(watermark=watermark):
            with pytest.raises(ConfigError, match="watermark"):
                client.do(admin.publish_archive(client.context, replace(known, watermark=watermark)))
            assert client.archive() == known


def test_a_damaged_mark_counts_as_its_last_write(subtests: pytest.Subtests) -> None:
    """Nothing was deleted since; it is reported, and clean-up goes on and writes it anew."""
    for damage in (b"", b"[", b'{"truncated_at":-1}', b'{"truncated_at":"x"}'):
        with subtests.test(damage=damage):
            client = Reader.of(follow=True)
            path = client.context.paths.at("followed")
            client.zk.multi(0, (SetData(path, damage),))
            assert client.trim() == client.zk.nodes[path].mzxid
            client.finish("a")
            (first,) = client.ended()
            client.clean_up()
            assert (client.trim(), client.check()) == (first.version, {})
            assert {where for where, _ in client.reports} == {path}


# --- what clean-up keeps


def test_clean_up_says_what_it_trims_before_it_deletes() -> None:
    """Whoever has taken less is told; what is new is kept as always, and nothing longer than elsewhere.

    Also of what ended before the queue was followed. One that is followed anew says since when: nobody noted meanwhile
    what was deleted.
    """
    client = Reader.of()
    client.finish("a")
    client.configured(follow=True)
    client.finish("b")
    first, second = client.ended()
    assert (client.trim(), first.version < client.since()) == (0, True)
    client.zk.advance(100)
    client.finish("c")
    writes: list[Any] = []
    client.do(collect.collect_garbage(client.context, 50), lambda op: writes.extend(getattr(op, "ops", ())))
    assert sorted(client.check()) == ["c"]
    assert client.trim() == second.version > first.version
    paths = [op.path for op in writes]
    assert paths.index(client.context.paths.at("followed")) < paths.index(client.context.paths.task("a", "state"))
    assert client.ids(client.trim() or 0) == ["c"]
    began = client.since()
    client.configured(follow=False)
    client.clean_up()
    client.configured(follow=True)
    assert (client.trim(), client.since() > began, client.ended()) == (0, True, [])


def test_the_letters_of_a_followed_queue_live_as_long_as_ended_tasks() -> None:
    """Then they go, and that is told; a queue that is followed no more keeps none.

    Where the queue is archived, too, a letter waits for both: for the archive to come so far, and for its time to pass.
    """
    client = Reader.of(follow=True)
    client.finish("a")
    (first,) = client.ended()
    client.drop("a")
    for told in ((["a"], 0), ([], first.version)):
        client.clean_up(60, later=40)
        assert (client.ids(), client.trim()) == told
    client.finish("b")
    client.drop("b")
    client.configured(follow=False)
    client.clean_up(60, later=0)
    assert (client.ended(), client.trim()) == ([], None)

    client = Reader.of(archive=True, follow=True)
    client.finish("a")
    client.drop("a")
    client.clean_up(60)
    assert client.ids() == ["a"]
    client.publish(client.latest())
    client.clean_up(1000, later=0)
    assert client.ids() == ["a"]
    client.clean_up(60, later=0)
    assert client.ended() == []


def test_what_is_no_bucket_and_no_entry_is_stepped_over() -> None:
    """Foreign znodes among what lists ended runs and letters hide none of them, nor do they stop clean-up."""
    client = Reader.of(archive=True, follow=True)
    client.end_each_way()
    client.drop("d")
    for parent in ("finished", "cancelled", "unarchived", "dlq"):
        path = client.context.paths.at(parent)
        buckets = [f"{path}/{name}" for name in client.zk.names(path) if parent != "dlq"]
        client.zk.multi(0, tuple(Create(f"{where}/foreign") for where in (path, *buckets)))
    assert client.ids() == ["f", "d", "c"]
    assert client.latest() >= client.ended()[-1].version
    bucket = client.letter_paths()[0].rpartition("/")[0]
    client.publish()
    assert client.clean_up().ran
    assert (client.departed(), client.ended(), client.zk.names(bucket)) == ([], [], ["foreign"])


# --- letters: what has left


def test_what_the_archive_has_is_not_kept_when_it_leaves() -> None:
    """Costs no read and no write; a dead letter counts as archived from its death on."""
    client = Reader.of(archive=True)
    client.finish("a")
    client.put(task_id="b")
    client.fail(client.claimed(), retry=False)
    client.publish()
    client.do(configuration.conf(client.context))
    client.drop("a")
    client.dead("c")
    client.do(interventions.clear(client.context))
    assert [each.id for each in client.departed()] == ["c"]


def test_the_largest_payload_is_kept() -> None:
    """What a queue takes fits into the transaction in which it leaves, whatever its errors were."""
    client = Reader.of(archive=True)
    client.put(b"o" * (MAX_REQUEST - 60_000), task_id="a")
    for number in range(10):
        client.fail(client.claimed(), "e" * 5_000, backoff=0, retry=number < 9)
    client.drop("a")
    (letter,) = client.letters()
    assert (len(letter.data), len(letter.history), client.reports) == (MAX_REQUEST - 60_000, 10, [])


def test_a_damaged_letter_stops_no_archive(subtests: pytest.Subtests) -> None:
    """It is reported once, told with its bytes and the reason, and the others are told as they were."""
    for damage in (b"", b"{", b"[]", b"{}", b"{}\nx", b"\xff\n"):
        with subtests.test(damage=damage):
            client = Reader.of(archive=True)
            for name in ("a", "b"):
                client.dead(name)
                client.drop(name)
            path = client.letter_paths()[0]
            client.zk.multi(0, (SetData(path, damage),))
            bad, good = client.letters()
            assert (bad.id, str(bad.state), bad.data, good.error) == ("a", "dead", damage, "last")
            assert path in (bad.error or "")
            assert [where for where, _ in client.reports] == [path]


def test_a_letter_says_whose_it_is() -> None:
    """What is no letter of ours is refused by its path; what was encoded is read."""
    client = Reader.of(archive=True)
    client.dead()
    client.drop("a")
    (path,) = client.letter_paths()
    raw = client.zk.nodes[path].data
    assert HistoryEntry.decode(path, raw).encode() == raw
    for right, wrong in ((b'"task_id":"a"', b'"task_id":"../a"'), (b'"version":', b'"version":"x","w":')):
        with pytest.raises(CorruptRecord, match="unarchived"):
            HistoryEntry.decode(path, raw.replace(right, wrong))


def test_a_dead_letter_that_cannot_be_kept_does_not_leave() -> None:
    """The server is away before anything was sent: nothing has happened, and the call can be made again.

    By a client that has not read the queue's configuration: it asks for the mark alone.
    """
    client = Reader.of(archive=True)
    client.dead()
    operator, requested = Reader(client.zk), []

    def looks(op: Any) -> Exception | None:
        requested.append(op)
        return Unavailable("no server") if isinstance(op, GetMany) and op.paths[0].endswith("/archive") else None

    with pytest.raises(Unavailable):
        operator.do(interventions.drop(operator.context, "a"), looks)
    assert (list(client.check()), len(requested)) == (["a"], 2)  # the record, the mark
    operator.drop("a")
    assert [task.id for task in client.letters()] == ["a"]


def test_the_bucket_of_a_letter_is_made_anew_where_it_was_cleared_away() -> None:
    """Its client does not rely on a bucket that it once used: the server deletes what has been emptied."""
    client = Reader.of(archive=True)
    for name in ("a", "b", "c"):
        client.dead(name)
        client.drop(name)
        assert [task.id for task in client.letters()] == [name]
        (path,) = client.letter_paths()
        client.zk.multi(0, (Delete(path), Delete(path.rpartition("/")[0])))
