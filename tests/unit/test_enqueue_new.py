"""Enqueue of what is not there yet: whatever is tried again, by whom and when, no id runs twice."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.maintenance import collect
from airflow_provider_zkmq.engine.core.model.new_message import Message, NewTasks
from airflow_provider_zkmq.engine.core.model.settings import RetryPolicy
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.read import server_clock
from airflow_provider_zkmq.engine.core.tasks import admin, batches, enqueue, interventions, transaction
from airflow_provider_zkmq.engine.core.tasks.enqueue import enqueue_new
from airflow_provider_zkmq.engine.core.zk_operations import (
    Children,
    Create,
    CreateContainer,
    Delete,
    Exists,
    Get,
    GetMany,
    Multi,
    Reconnect,
)
from airflow_provider_zkmq.engine.errors import (
    AccessDenied,
    BadMessage,
    ConfigError,
    CorruptRecord,
    DuplicateTask,
    OutcomeUnknown,
    QueueNotFound,
    TaskNotFound,
    Unavailable,
)
from tests.unit.claiming import another, refused, step
from tests.unit.world import BROKEN_OFF, LOST_REPLY, LOST_REQUEST, Client, Crash, new_queue

IDS = [f"t{n:02}" for n in range(50)]
JOINS_NOT = "not open for new tasks"


def loading(client: Client, *ids: str, data: bytes = b"x", **options: Any) -> Any:
    return enqueue_new(client.context, [Message(data, task_id=task_id) for task_id in ids], **options)


def load(client: Client, *ids: str, fault: Any = lambda _op: None, **options: Any) -> NewTasks:
    new: NewTasks = client.do(loading(client, *ids, **options), fault)
    return new


def writes(client: Client, op: Any, task_id: str) -> bool:
    path = client.context.paths.task(task_id)
    return isinstance(op, Multi) and any(isinstance(part, Create) and part.path == path for part in op.ops)


def with_batch(**conf: Any) -> Client:
    """A queue with a batch that is open for new members."""
    client = new_queue(**conf)
    opened = client.do(enqueue.open_shared(client.context, "b", then=Message(b"then", task_id="then")))
    assert (opened.written, opened.done, opened.total) == (False, False, 0)
    return client


def seal(client: Client) -> batches.Batch:
    return client.do(enqueue.seal(client.context, "b"))


def collected(client: Client) -> collect.Collected:
    return client.do(collect.collect_garbage(client.context))


def test_what_is_there_in_whatever_state_stays_as_it_is() -> None:
    """Also what is finished or cancelled, which an ordinary enqueue would run again; what is new is written."""
    client = new_queue()
    client.put(task_id="finished")
    client.complete(client.claimed())
    client.put(task_id="dead")
    client.fail(client.claimed(), retry=False)
    client.put(task_id="window")
    client.complete(client.claimed(), dedupe=60)
    client.put(task_id="cancelled")
    client.cancel("cancelled")
    client.put(task_id="scheduled", delay=60)
    client.put(task_id="claimed")
    client.claimed()
    client.put(task_id="queued")
    before = client.check()
    assert load(client, *before, "new", data=b"other") == NewTasks(("new",), tuple(before))
    after = client.check()
    assert ({name: after[name] for name in before}, after["new"].state) == (before, State.INSERTED)
    assert client.work() == ["queued", "new"]
    assert load(client, "queued", "new") == NewTasks((), ("queued", "new"))
    assert client.work() == []


def test_several_tasks_are_one_transaction_and_ids_in_use_cost_no_other() -> None:
    """Of 50 tasks 20 make a transaction; where 10 of them are there, those that are missing make two."""
    client, seen = new_queue(), []
    load(client, *IDS[:10])
    told = load(client, *IDS, fault=lambda op: seen.append(sum(writes(client, op, name) for name in IDS)))
    assert told == NewTasks(tuple(IDS[10:]), tuple(IDS[:10]))
    assert [many for many in seen if many] == [20, 20]
    assert client.work() == IDS


def test_two_that_write_the_same_side_by_side_write_each_task_once() -> None:
    """What comes between the look and the transaction refuses that, and what is missing then is written anew."""
    client, theirs = new_queue(), [*IDS[5:10], *IDS[30:35]]
    other, done = another(client), list[NewTasks]()

    def meanwhile(op: Any) -> None:
        if not done and writes(client, op, IDS[0]):
            done.append(load(other, *theirs))
            assert other.work() == theirs

    told = load(client, *IDS, fault=meanwhile)
    assert (done[0].written, told.existing) == (tuple(theirs), tuple(theirs))
    assert sorted([*told.written, *told.existing]) == IDS
    assert sorted(client.work()) == sorted(told.written)
    client.check()


def test_a_lost_reply_tells_what_was_written() -> None:
    """Also where a neighbour has written some of the same tasks meanwhile, as the request was lost."""
    for effect, theirs in ((LOST_REPLY, ()), (LOST_REQUEST, ()), (LOST_REQUEST, tuple(IDS[3:6]))):
        client, lost = new_queue(), iter([True])

        def cut(op: Any, client: Any = client, lost: Any = lost, effect: str = effect, ids: Any = theirs) -> Any:
            if not writes(client, op, IDS[0]) or not next(lost, False):
                return None
            load(another(client), *ids)
            return effect

        told = load(client, *IDS, fault=cut)
        assert told == NewTasks(tuple(name for name in IDS if name not in theirs), theirs)
        assert sorted(client.work()) == IDS
        client.check()


def lost_once(meanwhile: Any) -> Any:
    """A fault: the first transaction that writes tasks loses its reply; before the connection is back: `meanwhile`.

    That is called with the ids of its tasks, in their order.
    """
    ids: list[list[str]] = []

    def fault(op: Any) -> Any:
        if not ids and isinstance(op, Multi) and "/tasks/" in repr(op):
            parts = [part.path.split("/") for part in op.ops if isinstance(part, Create)]
            ids.append([part[-1] for part in parts if part[-2] == "tasks"])
            return LOST_REPLY
        if len(ids) == 1:
            ids.append([])
            meanwhile(ids[0])
        return None

    return fault


@pytest.mark.parametrize("on_conflict", ["skip", "raise"])
def test_what_one_transaction_wrote_and_another_dropped_is_not_written_again(on_conflict: Any) -> None:
    """Its reply is lost, and one task goes before the connection is back: what stands of the others tells of it."""
    for gone in range(3):
        client, dropped = new_queue(), list[str]()
        other, ids = another(client), IDS[:3] if on_conflict == "skip" else [None] * 3

        def drop(ids: list[str], other: Any = other, dropped: Any = dropped, n: int = gone) -> None:
            dropped.append(ids[n])
            other.do(interventions.drop(other.context, ids[n]))

        messages = [Message(b"x", task_id=task_id, on_conflict=on_conflict) for task_id in ids]
        told = client.do(enqueue.enqueue_each(client.context, messages), lost_once(drop))
        assert dropped[0] in told, "it was written"
        assert client.work() == [task_id for task_id in told if task_id != dropped[0]]
        client.check()


def test_what_was_sent_elsewhere_tells_nothing_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three are lost on the way; two that others have taken regroup the rest; then the three arrive late, and one goes.

    The transaction of the regrouped is refused, and what stands of it was written by the first: the others are not.
    """
    monkeypatch.setattr(enqueue, "TASKS_PER_MULTI", 3)
    client, sent, late = new_queue(), list[Multi](), list[bool]()
    other = another(client)
    client.put(task_id="before")

    def fault(op: Any) -> Any:
        if not (isinstance(op, Multi) and any(writes(client, op, name) for name in "abcdef")):
            return None
        sent.append(op)
        if len(sent) == 1:
            return LOST_REQUEST
        if len(sent) == 2:
            other.put(b"theirs", task_id="b")
            other.put(b"theirs", task_id="e")
        elif writes(client, op, "a") and writes(client, op, "d") and not late:
            other.do(interventions.drop(other.context, "b"))
            late.append(client.zk.multi(0, sent[0].ops).committed)
            return LOST_REQUEST
        return None

    told = load(client, *"abcdef", fault=fault)
    assert late == [True]
    assert set(told.written) <= client.check().keys(), "what is told to be written is there"
    assert client.check().keys() == {*"abcdef", "before"}


def test_a_batch_beside_its_repeat_is_written_to_its_last_member() -> None:
    """The repeat has written some members when the transaction of all arrives: none of the others is left out."""
    for written in (1, 8):
        client = new_queue()
        other, messages = another(client), [Message(str(number).encode()) for number in range(12)]
        first = step(client, enqueue.enqueue_batch(client.context, messages, "b"))
        while not (isinstance(first.op, Multi) and "/tasks/" in repr(first.op)):
            first.step()
        left = count()

        def broken_off(op: Any, left: Any = left, most: int = written) -> Any:
            return BROKEN_OFF if isinstance(op, Multi) and "/tasks/" in repr(op) and next(left) >= most else None

        with pytest.raises(Crash):
            other.do(enqueue.enqueue_batch(other.context, messages, "b"), broken_off)
        there = len(client.check())
        assert 0 < there < 12
        ids = first.finish()
        assert client.check().keys() == set(ids)
        assert client.work() == list(ids)
        batch = client.do(batches.read_batch(client.context, "b"))
        assert (batch.total, batch.open, batch.done) == (12, 0, True)


def test_a_batch_that_was_sealed_before_its_writer_heard_of_it_is_written() -> None:
    """The reply is lost; one member is dropped, the others are completed, somebody seals it: its writer is told."""
    client = new_queue()
    other = another(client)
    client.put(task_id="before")
    client.do(enqueue.open_shared(client.context, "b"))

    def meanwhile(_: object) -> None:
        other.do(interventions.drop(other.context, IDS[0]))
        other.work()
        other.do(enqueue.seal(other.context, "b"))

    assert load(client, *IDS[:3], batch="b", fault=lost_once(meanwhile)) == NewTasks(tuple(IDS[:3]), ())
    assert client.do(batches.read_batch(client.context, "b")).failed == (IDS[0],)


def test_tasks_without_ids_are_known_again_whatever_became_of_them() -> None:
    """Their reply is lost; the first is dropped, and the others are redriven until their records know nothing of it."""
    client, dropped = new_queue(policy=RetryPolicy(attempts=1, factor=0)), list[str]()
    other = another(client)

    def meanwhile(ids: list[str]) -> None:
        first, *rest = ids
        dropped.append(first)
        other.do(interventions.drop(other.context, first))
        for _ in range(4):
            for _ in rest:
                other.fail(other.claimed(), retry=False)
            for each in rest:
                other.do(interventions.redrive(other.context, each))

    told = client.do(enqueue.enqueue_each(client.context, [Message(b"x")] * 3), lost_once(meanwhile))
    assert client.check().keys() == set(told) - set(dropped)


def test_tasks_without_ids_run_once_though_they_went_before_anybody_looked() -> None:
    """Their reply is lost, and all of them are handled and collected as soon as the same was refused once more."""
    for number in (1, 3):
        client, sent, ran = new_queue(), list[Any](), list[str]()
        other = another(client)
        client.put(task_id="before")  # so that their lane is there
        client.work()

        def fault(op: Any, sent: Any = sent, other: Any = other, ran: Any = ran) -> Any:
            if isinstance(op, Multi) and "/tasks/" in repr(op):
                sent.append(op)
                return LOST_REPLY if len(sent) == 1 else None
            if len(sent) == 2 and isinstance(op, Get | GetMany):
                ran += other.work()
                other.do(collect.collect_garbage(other.context, 0))
            return None

        ids = client.do(enqueue.enqueue_each(client.context, [Message(b"x")] * number), fault)
        assert sorted(ran + client.work()) == sorted(ids)


def test_a_member_that_was_dropped_is_not_written_again_beside_a_repeat() -> None:
    """The repeat has written all of a batch when the transaction of all arrives; one of them was dropped by then."""
    client = new_queue()
    other, messages = another(client), [Message(str(number).encode()) for number in range(3)]
    first = step(client, enqueue.enqueue_batch(client.context, messages, "b"))
    while not (isinstance(first.op, Multi) and "/tasks/" in repr(first.op)):
        first.step()
    ids = other.do(enqueue.enqueue_batch(other.context, messages, "b"))
    other.do(interventions.drop(other.context, ids[0]))
    assert first.finish() == ids
    assert client.work() == list(ids[1:])
    assert client.do(batches.read_batch(client.context, "b")).failed == (ids[0],)


def begun(client: Client, messages: list[Message], written: int) -> None:
    """A call that writes a batch; it crashes in the transaction that writes members after so many of them."""
    left = count()

    def broken_off(op: Any) -> Any:
        return BROKEN_OFF if isinstance(op, Multi) and "/tasks/" in repr(op) and next(left) >= written else None

    with suppress(Crash, DuplicateTask):
        client.do(enqueue.enqueue_batch(client.context, messages, "b"), broken_off)


@pytest.mark.parametrize("fate", ["dropped", "died and dropped", "collected"])
@pytest.mark.parametrize("without_ids", [True, False])
def test_no_member_is_written_twice_whenever_it_goes_beside_a_repeat(fate: str, without_ids: bool) -> None:
    """One writes a batch; before each of its requests in turn another writes it, too, and its members go.

    The one is told that all are written, or that the batch is; each member was handled once, or dropped.
    """
    messages = [Message(b"x", task_id=None if without_ids else f"m{n}") for n in range(3)]
    for written in (None, 0) if without_ids else (None, 0, 1, 2):
        assert any(not _beside_a_repeat(messages, written, moment, fate) for moment in range(60))


def _beside_a_repeat(messages: list[Message], written: int | None, moment: int, fate: str) -> bool:
    """Whether the one, which has `begun` if `written` is given, made so many requests that the other came between."""
    client = new_queue(policy=RetryPolicy(attempts=1))
    other = another(client)
    if written is not None:
        begun(client, messages, written)
    ran, gone, at = list[str](), list[str](), count()

    def meanwhile(_op: Any) -> None:
        if client.zk.node(client.context.paths.batch("b")) is None or next(at) != moment:
            return
        begun(other, messages, 2)
        if fate == "collected":
            ran.extend(other.work())
            other.zk.advance(60)
            begun(other, messages, 20)
            other.do(collect.collect_garbage(other.context, 30))
            return
        for task_id in sorted(other.check())[:2]:
            if fate == "died and dropped":
                claimed = other.claimed()
                other.fail(claimed, retry=False)
                task_id = claimed.task_id
            other.do(interventions.drop(other.context, task_id))
            gone.append(task_id)

    try:
        ids = client.do(enqueue.enqueue_batch(client.context, messages, "b"), meanwhile)
    except DuplicateTask:
        ids = sorted([*ran, *gone, *client.check()])
    ran += client.work()
    assert (sorted([*ran, *gone]), len(ids)) == (sorted(ids), 3), (written, moment)
    client.check()
    with suppress(TaskNotFound):  # it was collected as well
        assert client.do(batches.read_batch(client.context, "b")).done
    return next(at) > moment + 1


@pytest.mark.parametrize("fate", ["cancelled", "cancelled and dropped", "died and dropped", "died before a requeue"])
@pytest.mark.parametrize("after", ["it waits", "it ended", "it was dropped", "it was collected"])
@pytest.mark.parametrize("on_conflict", ["skip", None])
def test_a_failed_member_stays_one_though_another_task_has_its_id(fate: str, after: str, on_conflict: Any) -> None:
    """Somebody enqueued a task of its own under that id, which may be gone, too: the repeat does not write it again."""
    client = new_queue(policy=RetryPolicy(attempts=1))
    messages = [Message(name.encode(), task_id=name) for name in "xyz"]
    begun(client, messages, 2)
    if fate.startswith("cancelled"):
        client.cancel("x")
    else:
        claimed = client.claimed()
        if fate.endswith("requeue"):
            client.put(b"other", task_id="x", priority=1, on_conflict="requeue")
        client.fail(claimed, retry=False)
    if fate.endswith("dropped"):
        client.do(interventions.drop(client.context, "x"))
    if not fate.endswith("requeue"):
        client.put(b"other", task_id="x", priority=1)
    if after == "it was dropped":
        client.do(interventions.drop(client.context, "x"))
    elif after != "it waits":
        while client.state("x").state is not State.FINISHED:
            client.complete(client.claimed())
        if after == "it was collected":
            client.do(collect.collect_garbage(client.context, 0))
    repeat = enqueue.enqueue_each(another(client).context, messages, batch="b", on_conflict=on_conflict)
    assert client.do(repeat) == ["x", "y", "z"]
    assert "x" not in client.check() or client.check()["x"].batch is None
    client.do(enqueue.seal(client.context, "b"))
    batch = client.do(batches.read_batch(client.context, "b"))
    assert (batch.total, batch.failed) == (3, ("x",))


@pytest.mark.parametrize("on_conflict", ["skip", None])
def test_a_member_of_an_earlier_batch_of_the_same_name_is_none(on_conflict: Any) -> None:
    """It is dead, and its batch was collected: the new batch does not count it as its own, and its caller hears so."""
    client = new_queue(task_gc_lifetime=100)

    def write() -> Any:
        client.do(enqueue.open_shared(client.context, "b")) if on_conflict else None
        messages = [Message(b"x", task_id=task_id) for task_id in ("x", "y")]
        done = client.do(enqueue.enqueue_each(client.context, messages, batch="b", on_conflict=on_conflict))
        return client.do(enqueue.seal(client.context, "b")) and done

    write()
    client.fail(client.claimed(), retry=False)
    client.work()
    client.zk.advance(10_000)
    collected(client)
    with pytest.raises(DuplicateTask, match="'x' is in use"):
        write()
    client.do(interventions.drop(client.context, "x"))
    assert write() == ["x", "y"]
    assert sorted(client.work()) == ["x", "y"]


def test_who_is_slower_than_the_seal_is_told_what_was_written() -> None:
    """Two transactions are under way; one is committed, and the other finds its segment gone, and the batch sealed."""
    client = new_queue()
    other = another(client)
    client.put(task_id="w", priority=5)
    client.work()
    messages = [Message(b"x", task_id="a", priority=5), Message(b"x", task_id="c")]
    seen = list[str]()

    def fault(op: Any) -> None:
        if writes(client, op, "a") and not seen:
            segment = next(part.path for part in op.ops if "/queue/" in part.path).rpartition("/")[0]
            seen.append(segment)
            assert client.zk.multi(client.session, (Delete(segment),)).committed
        elif seen and isinstance(op, Children) and len(seen) == 1:
            seen.append("sealed")
            other.do(enqueue.seal(other.context, "b"))

    told = refused(client, DuplicateTask, enqueue.enqueue_batch(client.context, messages, "b"), "another call", fault)
    assert (told.enqueued, seen[1:]) == (("c",), ["sealed"])
    assert client.check().keys() == {"w", "c"}


def test_a_batch_that_a_repeat_has_sealed_is_told_to_be_complete() -> None:
    """Its own seal, whose reply was lost: nothing is told of as written by this call, so that it may be adopted."""
    client = new_queue()
    messages = [Message(b"x", task_id=task_id) for task_id in ("a", "c")]
    begun(another(client), messages, 0)

    def lost(op: Any) -> Any:
        if isinstance(op, Multi) and isinstance(op.ops[0], Delete) and "~writing" in op.ops[0].path:
            return LOST_REPLY
        return Unavailable("no server") if isinstance(op, Reconnect) else None

    refused(client, OutcomeUnknown, enqueue.enqueue_batch(client.context, messages, "b"), None, lost)
    told = refused(client, DuplicateTask, enqueue.enqueue_batch(client.context, messages, "b"), "a name of its own")
    assert (told.enqueued, told.duplicates) == ((), ())
    assert client.do(batches.read_batch(client.context, "b")).total == 2


@pytest.mark.parametrize("on_conflict", ["skip", None])
def test_what_went_with_its_batch_is_written_again(on_conflict: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is deleted and made anew in the middle of a batch: the same client's next call writes all members."""
    monkeypatch.setattr(enqueue, "TASKS_PER_MULTI", 1)
    monkeypatch.setattr(enqueue, "WINDOW", 1)
    client = new_queue()
    other = another(client)
    messages = [Message(b"x", task_id=task_id) for task_id in ("a", "c")]
    client.do(enqueue.open_shared(client.context, "b"))

    def deleted(op: Any) -> None:
        if writes(client, op, "c") and "a" in other.check():
            other.do(admin.delete(other.context, confirm=True, force=True))
            other.do(admin.configure(other.context))

    call = lambda: enqueue.enqueue_each(client.context, messages, batch="b", on_conflict=on_conflict)
    refused(client, ConfigError, call(), "deleted, or never opened", deleted)
    client.do(enqueue.open_shared(client.context, "b"))
    assert client.do(call()) == ["a", "c"]
    assert client.work() == ["a", "c"]


def test_clean_up_gives_no_batch_up_to_which_a_member_was_just_added() -> None:
    """It has read that nobody wrote the batch for long; then a member comes and ends: the batch stays open."""
    client = with_batch(task_gc_lifetime=100)
    other = another(client)
    client.zk.advance(1_000)
    added = list[str]()

    def meanwhile(op: Any) -> None:
        if isinstance(op, Multi) and isinstance(op.ops[0], Delete) and "~writing" in op.ops[0].path and not added:
            added.append("a")
            load(other, "a", batch="b")
            other.work()

    client.do(collect.collect_garbage(client.context), meanwhile)
    assert added == ["a"]
    assert load(client, "a", "c", batch="b") == NewTasks(("c",), ("a",))


@pytest.mark.parametrize("verb", ["many", "replace", "batch", "load"])
def test_what_was_sent_is_known_again_though_credentials_are_refused_meanwhile(verb: str) -> None:
    """The reply is lost, and the same is refused for its rights when it is sent again: it may have been carried out."""
    client, sent = new_queue(), count()
    client.do(enqueue.open_shared(client.context, "b"))
    on_conflict: Any = {"replace": "replace", "load": "skip"}.get(verb)
    messages = [Message(b"x", task_id=task_id) for task_id in ("a", "c")]
    options: dict[str, Any] = {"on_conflict": on_conflict, "batch": "b" if verb in {"batch", "load"} else None}

    def fault(op: Any) -> Any:
        if writes(client, op, "a"):
            return {0: LOST_REPLY, 1: AccessDenied("no rights")}.get(next(sent))
        return None

    refused(client, AccessDenied, enqueue.enqueue_each(client.context, messages, **options), None, fault)
    ran = client.work()
    assert client.do(enqueue.enqueue_each(client.context, messages, **options)) == ["a", "c"]
    assert sorted(ran + client.work()) == ["a", "c"]


def test_a_load_that_is_repeated_asks_once_for_its_batch() -> None:
    """However many members are there: nothing is asked for each of them."""
    client, seen = with_batch(), list[Any]()
    load(client, *IDS, batch="b")
    load(another(client), *IDS, batch="b", fault=lambda op: seen.append(op) if isinstance(op, Exists) else None)
    assert len([op for op in seen if "/batches/" in op.path]) == 1


def test_clean_up_touches_nothing_of_a_batch_that_it_could_not_give_up() -> None:
    """A member was added meanwhile, or its request was lost: who failed stays failed, and is not written again."""
    for lost in (False, True):
        client = with_batch(task_gc_lifetime=100)
        load(client, "a", batch="b")
        client.do(interventions.drop(client.context, "a"))
        client.zk.advance(1_000)

        def meanwhile(op: Any, client: Client = client, lost: bool = lost) -> Any:
            if isinstance(op, Multi) and isinstance(op.ops[0], Delete) and "~writing" in op.ops[0].path:
                return LOST_REQUEST if lost else load(another(client), "n", batch="b") and None
            return None

        client.do(collect.collect_garbage(client.context), meanwhile)
        assert client.do(batches.read_batch(client.context, "b")).failed == ("a",)
        assert "a" in load(client, "a", "n", batch="b").existing
        assert client.work() == ["n"]


def test_a_redriven_task_of_an_earlier_batch_is_no_member_of_the_new_one() -> None:
    """The new batch was refused for its id; redriven, it runs as it was, and the repeat of the batch writes its own."""
    client = new_queue(task_gc_lifetime=100, policy=RetryPolicy(attempts=1))
    write = lambda data: enqueue.enqueue_batch(
        client.context, [Message(data, task_id=task_id) for task_id in ("a", "c")], "b"
    )
    client.do(write(b"old"))
    client.fail(client.claimed(), retry=False)
    client.work()
    client.zk.advance(10_000)
    collected(client)
    refused(client, DuplicateTask, write(b"new"), "'a' is in use")
    client.do(interventions.redrive(client.context, "a"))
    assert client.check()["a"].batch is None
    assert sorted(client.work()) == ["a", "c"]
    assert client.do(write(b"new")) == ["a", "c"]
    assert client.work() == ["a"]
    batch = client.do(batches.read_batch(client.context, "b"))
    assert (batch.total, batch.done, batch.failed) == (2, True, ())


def test_a_batch_that_lost_its_list_of_the_failed_takes_members() -> None:
    """A batch that lacks a part holds up none of its members: it gets an empty list."""
    client = with_batch()
    client.zk.multi(client.session, (Delete(client.context.paths.batch("b", "failed")),))
    client.put(task_id="d")
    client.work()
    messages = [Message(b"x", task_id=task_id) for task_id in ("a", "c", "d")]
    assert load(client, "a", "c", batch="b") == NewTasks(("a", "c"), ())
    client.zk.multi(client.session, (Delete(client.context.paths.batch("b", "failed")),))
    assert client.do(enqueue.enqueue_batch(client.context, messages, "b")) == ["a", "c", "d"]
    assert client.do(batches.read_batch(client.context, "b")).total == 3


def test_what_went_with_its_queue_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is deleted between two transactions of a call; once it is there again, the same call writes all."""
    monkeypatch.setattr(enqueue, "TASKS_PER_MULTI", 1)
    monkeypatch.setattr(enqueue, "WINDOW", 1)
    client = new_queue()
    other = another(client)

    def deleted(op: Any) -> None:
        if writes(client, op, "b") and "a" in other.check():
            other.do(admin.delete(other.context, confirm=True, force=True))

    refused(client, QueueNotFound, loading(client, "a", "b"), None, deleted)
    client.do(admin.configure(client.context))
    assert load(client, "a", "b") == NewTasks(("a", "b"), ())
    assert client.check().keys() == {"a", "b"}


@pytest.mark.parametrize("on_conflict", ["raise", "replace"])
def test_an_enqueue_that_was_sent_and_meets_no_server_later_is_unknown(on_conflict: Any) -> None:
    """Its first request may be carried out still, once somebody has made the bucket that it missed."""
    client = new_queue()
    steps = list[str]()
    if on_conflict == "replace":
        client.put(task_id="a")

    def fault(op: Any) -> Any:
        if isinstance(op, CreateContainer) and "sent" in steps:
            return Unavailable("no server answered")
        replaces = isinstance(op, Multi) and not isinstance(op.ops[0], Create)
        if isinstance(op, Multi) and "/tasks/" in repr(op) and not steps and replaces == (on_conflict == "replace"):
            steps.append("sent")
            bucket = next(part.path for part in op.ops if "/scheduled/" in part.path).rpartition("/")[0]
            assert client.zk.multi(client.session, (Delete(bucket),)).committed
            return LOST_REQUEST
        return None

    messages = [Message(b"x", task_id="a", delay=60, on_conflict=on_conflict)]
    told = refused(client, OutcomeUnknown, enqueue.enqueue_each(client.context, messages), None, fault)
    assert told.task_ids == ("a",)
    assert steps == ["sent"]
    assert client.do(enqueue.enqueue_each(client.context, messages)) == ["a"]
    client.zk.advance(100)
    assert client.work() == ["a"]


def test_a_call_of_unknown_outcome_made_again_tells_what_it_wrote() -> None:
    """It was cut off with its transaction under way: the same call finds its own tasks, and says that it wrote them.

    Through an outage: nothing sent is `Unavailable`; something sent `OutcomeUnknown`, with ids.
    """
    client = new_queue()
    refused(client, Crash, loading(client, *IDS), None, lambda op: BROKEN_OFF if writes(client, op, IDS[20]) else None)
    assert load(client, *IDS) == NewTasks(tuple(IDS), ())
    assert load(another(client), *IDS) == NewTasks((), tuple(IDS))
    assert sorted(client.work()) == IDS
    client, left, away = new_queue(), count(), Unavailable("no server")
    refused(client, Unavailable, loading(client, *IDS), None, lambda op: away if isinstance(op, Multi) else None)
    many = [f"m{n:03}" for n in range(240)]
    after_eight = lambda op: away if isinstance(op, Multi) and next(left) >= 8 else None
    assert list(refused(client, OutcomeUnknown, loading(client, *many), None, after_eight).task_ids) == many
    assert list(load(client, *many).written) == many
    assert sorted(client.work()) == many


def test_an_id_that_goes_while_it_is_looked_at_is_not_written_again() -> None:
    """It was there when the transaction was refused: whoever deleted it has not asked for another run."""
    client = new_queue()
    other, steps = another(client), list[str]()

    def meanwhile(op: Any) -> None:
        if not steps and writes(client, op, "a"):
            steps.append(other.put(task_id="a"))
        elif len(steps) == 1 and isinstance(op, GetMany):
            steps.append("dropped")
            other.do(interventions.drop(other.context, "a"))

    assert load(client, "a", "b", fault=meanwhile) == NewTasks(("b",), ("a",))
    assert (client.work(), steps) == (["b"], ["a", "dropped"])
    client.check()


def test_a_znode_that_is_no_task_is_told_by_its_path() -> None:
    """It has the id and no record: the id would never be free, and nobody waits for it. The neighbours are written."""
    client = new_queue()
    client.zk.multi(client.session, (Create(client.context.paths.task("torso")),))
    refused(client, CorruptRecord, loading(client, "a", "torso", "b"), "tasks/torso has no state")
    load(client, "a", "b")
    assert client.work() == ["a", "b"]


#: What a message may not say, the part of it that is told, and what is told of it.
BAD: list[tuple[dict[str, Any], str | None, str]] = [
    ({"task_id": "a b"}, "task_id", "task id 'a b'"),
    ({"task_id": None}, "task_id", "an id of its own"),
    ({"data": None}, "data", "data must be bytes or text"),
    ({"filters": {"size": "huge"}}, "filters", "size"),
    ({"metadata": {"a": {1}}}, "metadata", "metadata"),
    ({"priority": 10_000}, "priority", "priority"),
    ({"delay": -1}, "delay", "delay"),
    ({"on_conflict": "replace"}, None, "left alone"),
    ({"on_conflict": "requeue"}, None, "left alone"),
]


def test_a_message_that_is_refused_is_told_by_its_position_and_part(subtests: pytest.Subtests) -> None:
    """Also an update, a requeue, an id twice in one call, and what is no message at all. Nothing is written."""
    client = new_queue()
    for options, part, why in BAD:
        with subtests.test(options=options):
            messages = [Message(b"x", task_id="good"), Message(**({"data": b"x", "task_id": "bad"} | options))]
            told = refused(client, BadMessage, enqueue_new(client.context, messages), why)
            assert (told.position, part or told.part) == (1, told.part)
    refused(client, BadMessage, enqueue_new(client.context, ["x"]), "takes Message objects")  # type: ignore[list-item]
    refused(client, ConfigError, loading(client, "a", "a"), "'a' stands twice")
    assert client.check() == {}
    assert load(client) == NewTasks((), ())


# --- clean-up


def test_a_load_is_refused_before_clean_up_could_have_made_its_ids_free() -> None:
    """What a first try wrote may be done and deleted `task_gc_lifetime` later; then a second try would run it again.

    The time is the server's, whatever this machine's clock says.
    """
    client = new_queue(task_gc_lifetime=100)
    client.zk.advance(86_400)
    began = client.do(server_clock.now(client.context))
    assert began == datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=client.zk.ms)
    load(client, "a", since=began)
    client.work()
    client.zk.advance(80)
    assert load(client, "a", since=began) == NewTasks((), ("a",))
    client.zk.advance(15)
    late = r"95 s ago, and finished tasks are kept for 100 s \(task_gc_lifetime"
    refused(client, ConfigError, loading(client, "b", since=began), late)
    assert client.check().keys() == {"a"}
    client.do(admin.configure(client.context, task_gc_lifetime=1_000))
    assert load(client, "b", since=began).written == ("b",)
    refused(client, ConfigError, loading(client, "c", since=began.replace(tzinfo=None)), "since")


def test_a_batch_that_clean_up_gave_up_takes_no_members() -> None:
    """Nobody has written it for `task_gc_lifetime`, and all has ended: a second try is refused, and nothing runs."""
    client = with_batch(task_gc_lifetime=100)
    for name in ("a", "late"):
        load(client, name, batch="b")
        client.work()
        client.zk.advance(90)
    assert collected(client).kept_for_batches == 1  # since the last of them was written it is not as long yet
    assert not client.do(batches.read_batch(client.context, "b")).written
    assert load(client, "a", batch="b") == NewTasks((), ("a",))
    client.zk.advance(200)
    for _ in range(2):
        collected(client)
    refused(client, ConfigError, loading(client, "a", batch="b"), JOINS_NOT)
    assert client.check() == {}
    client.do(enqueue.open_shared(client.context, "b"))
    assert load(client, "a", batch="b").written == ("a",)


# --- batches of several writers


def test_a_batch_is_written_by_several_and_done_when_it_is_sealed_and_all_have_ended() -> None:
    """One opens, others add, one seals; before that it is not done although all of its members have ended.

    Nothing follows it before that, however slow its writers are. A load without rows is a batch without members.
    """
    client = with_batch()
    for part in (IDS[:30], IDS[20:]):
        other = another(client)
        load(other, *part, batch="b")
        other.work()
    assert (client.do(batches.read_batch(client.context, "b")).done, client.work()) == (False, [])
    sealed = seal(client)
    assert (sealed.total, sealed.done, sealed.written, sealed.failed) == (50, True, True, ())
    assert client.work() == ["then"]
    assert seal(client) == sealed
    client.zk.advance(100_000)
    assert collected(client).collected == 51  # what is sealed goes as others do
    empty = seal(with_batch())
    assert (empty.total, empty.done) == (0, True)


def test_nothing_joins_a_batch_that_is_sealed_or_not_there() -> None:
    """What is in it already is found all the same: who loads the same once more is told so."""
    client = with_batch()
    load(client, "a", batch="b")
    seal(client)
    assert client.do(enqueue.open_shared(client.context, "b")).written
    assert load(client, "a", batch="b") == NewTasks((), ("a",))
    for name in ("b", "never-opened"):
        refused(client, ConfigError, loading(client, "late", batch=name), JOINS_NOT)
    assert client.check().keys() == {"a"}
    refused(client, TaskNotFound, enqueue.seal(client.context, "never"))


def test_a_task_of_another_batch_is_no_member_and_one_that_was_dropped_is_not_written_again() -> None:
    """The batch would not wait for the one: the call is refused. The other counts as ended and failed."""
    client = with_batch()
    client.put(task_id="theirs")
    why = "'theirs' is in use by a task that is no member of batch 'b'"
    assert refused(client, DuplicateTask, loading(client, "a", "theirs", batch="b"), why).duplicates == ("theirs",)
    load(client, "a", "c", batch="b")
    client.do(interventions.drop(client.context, "a"))
    assert load(client, "a", "c", batch="b") == NewTasks((), ("a", "c"))
    assert sorted(client.work()) == ["c", "theirs"]
    sealed = seal(client)
    assert (sealed.total, sealed.done, sealed.failed) == (2, True, ("a",))


def test_a_member_that_comes_while_the_batch_is_sealed_is_counted_or_refused() -> None:
    """Whoever seals has counted the members, when another writer adds one: it counts again, but not without end."""
    for comers in (1, enqueue.COUNTS + 1):
        client = with_batch()
        load(client, "a", batch="b")
        sealing = step(client, enqueue.seal(client.context, "b"))
        for number in range(comers):
            sealing.until(Multi)
            load(another(client), f"n{number}", batch="b")
            sealing.step()
        sealed = sealing.finish()
        assert sealed.written
        assert comers > 1 or (sealed.total, sealed.open) == (2, 2)
        refused(client, ConfigError, loading(client, "late", batch="b"), JOINS_NOT)


# --- on_conflict="skip": the same for callers of `enqueue` and `enqueue_many`


def test_what_skips_existing_tasks_leaves_them_as_they_are() -> None:
    """Queued, dead or finished: the id comes back, and nothing runs again; what is missing is written."""
    client = new_queue()
    one = lambda task_id, data=b"new": client.do(
        enqueue.enqueue_one(client.context, data, task_id=task_id, on_conflict="skip")
    )
    for task_id in ("dead", "done"):
        assert one(task_id, b"old") == task_id
    client.fail(client.claimed(), retry=False)
    client.complete(client.claimed())
    assert one("queued", b"old") == "queued"
    before = client.check()
    assert [one(task_id) for task_id in ("dead", "done", "queued")] == ["dead", "done", "queued"]
    assert client.check() == before
    messages = [Message(b"new", task_id=task_id) for task_id in ("queued", "dead", "another")]
    each = client.do(enqueue.enqueue_each(client.context, messages, on_conflict="skip"))
    assert each == ["queued", "dead", "another"]
    assert client.work() == ["queued", "another"]


def test_a_batch_that_is_open_takes_what_is_missing() -> None:
    """Members are added by `enqueue_many`, as often as it is called."""
    client = with_batch()
    messages = [Message(b"x", task_id=task_id) for task_id in IDS[:3]]
    for _ in range(2):
        done = client.do(enqueue.enqueue_each(client.context, messages, batch="b", on_conflict="skip"))
        assert done == IDS[:3]
    assert seal(client).total == 3


def test_what_cannot_be_with_skip_is_refused() -> None:
    """Some messages of a call only, one without an id, a word that is none, in a transaction, and after a batch."""
    client = new_queue()
    skips = Message(b"x", task_id="a", on_conflict="skip")
    every = lambda *messages, **options: enqueue.enqueue_each(client.context, messages, **options)
    refused(client, ConfigError, every(skips, Message(b"x")), "for all messages of a call")
    refused(client, ConfigError, every(Message(b"x"), on_conflict="skip"), "by an id of its own")
    refused(client, ConfigError, every(Message(b"x"), on_conflict="update"), "use one of raise, skip, replace, requeue")
    refused(client, ConfigError, every(skips, batch="b", then=Message(b"y")), "given to open_batch")
    refused(client, ConfigError, every(Message(b"x"), batch="b", then=skips), "take no on_conflict")
    for word in ("skip", "replace", "requeue"):
        with pytest.raises(ConfigError, match="puts new tasks only"):
            transaction.put([], client.context, Message(b"x", task_id="a", on_conflict=word))  # type: ignore[arg-type]
    assert client.check() == {}
