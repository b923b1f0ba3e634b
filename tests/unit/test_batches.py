"""A batch ends, whatever happens between the end of its last member and its own; and nobody is told of a failure."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import product
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.client_state import Claimed
from airflow_provider_zkmq.engine.core.maintenance import collect, due_work
from airflow_provider_zkmq.engine.core.model.new_message import Message
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.read import inspect, watch_tasks
from airflow_provider_zkmq.engine.core.tasks import batches, enqueue, interventions, settle, transaction
from airflow_provider_zkmq.engine.core.write import batch_end, new_task
from airflow_provider_zkmq.engine.core.zk_operations import (
    Create,
    Delete,
    Exists,
    Get,
    GetMany,
    Multi,
    Pipeline,
    SetData,
    Sync,
)
from airflow_provider_zkmq.engine.errors import ClaimLost, SessionLost, TaskNotFound, Unavailable, WaitTimeout
from tests.unit.claiming import many, refused, unit_of
from tests.unit.world import BROKEN_OFF, Client, Crash, new_queue

THEN = Message(b"then", task_id="then")
ENDED = {State.FINISHED, State.DEAD, State.CANCELLED}
AWAY = Unavailable("no server")
#: What ends a member that is in hand, and what deletes it.
END: dict[str, Callable[[Client, Claimed], Any]] = {
    "complete": lambda client, claimed: settle.complete(client.context, claimed, b"r"),
    "fail": lambda client, claimed: settle.fail(client.context, claimed, "e", retry=False),
    "cancel": lambda client, _: interventions.cancel(client.context, "a"),
    "commit": lambda client, claimed: transaction.commit(transaction.TransactionState([(client.context, claimed)])),
}
DELETE: dict[str, Callable[[Client], Any]] = {
    "drop": lambda client: interventions.drop(client.context, "a"),
    "clear": lambda client: interventions.clear(client.context),
}


def batch_with(*ids: str, name: str = "b", then: Message | None = None, client: Client | None = None) -> Client:
    """A queue with a batch of these members, and its client."""
    made = client or new_queue()
    messages = [Message(b"x", task_id=task_id) for task_id in ids]
    assert made.do(enqueue.enqueue_batch(made.context, messages, name, then)) == list(ids)
    return made


def batch_of(client: Client, name: str = "b") -> batches.Batch:
    return client.do(batches.read_batch(client.context, name))


def done(client: Client, name: str = "b") -> bool:
    return batch_of(client, name).done


def collected(client: Client, lifetime: float = 3_600, *fault: Any) -> list[str]:
    """The batches that clean-up leaves."""
    client.do(collect.collect_garbage(client.context, lifetime), *fault)
    return client.zk.names(client.context.paths.at("batches"))


def path(client: Client, part: str) -> str:
    return client.context.paths.batch("b", *part.split("/"))


def cut(client: Client, effect: Any) -> Callable[[Any], Any]:
    """The connection is lost when the batch is looked at, which follows the settlement."""
    looked_at = path(client, "open")
    return lambda op: effect if isinstance(op, Exists) and op.path == looked_at else None


def test_a_settlement_is_told_as_it_happened_though_its_batch_cannot_be_ended(subtests: pytest.Subtests) -> None:
    """Connection lost, or call broken off, after the last commit: success is told; the client's next look ends it."""
    for (name, end), effect in product(END.items(), (AWAY, SessionLost("closed"), BROKEN_OFF)):
        with subtests.test(end=name, effect=repr(effect)):
            client = batch_with("a", then=THEN)
            claimed = client.claimed()
            with pytest.raises(Crash) if effect == BROKEN_OFF else nullcontext():
                client.do(end(client, claimed), cut(client, effect))
            assert (client.state("a").state in ENDED, done(client)) == (True, False)
            for fault, owed in ((AWAY, {"b"}), (None, set())):
                assert client.context.pending.batches == {"b"}
                client.do(batch_end.close_pending(client.context), cut(client, fault))
                assert client.context.pending.batches == owed
            assert (done(client), client.work()) == (True, ["then"])
            client.check()
    for name, delete in DELETE.items():
        with subtests.test(deleted=name):
            client = batch_with("a")
            client.do(delete(client), cut(client, AWAY))
            assert client.check() == {}
            collected(client)
            assert done(client)
    client = new_queue()  # and a batch is told as written whose members had ended before its producer was through
    worker, messages = Client(client.zk), [Message(b"x", task_id="a")]
    assert client.do(enqueue.enqueue_batch(client.context, messages, "b"), cut(client, AWAY)) == ["a"]
    assert (worker.work(), done(worker)) == (["a"], True)


def test_two_batches_that_one_transaction_ends_both_end_though_its_caller_is_cut_off() -> None:
    """While the first of them is looked at: the client's next look ends both; asked again, the commit is told."""
    client = batch_with("a")
    batch_with("c", name="d", client=client)
    ending = unit_of(client, 2)
    with pytest.raises(Crash):
        client.do(transaction.commit(ending), cut(client, BROKEN_OFF))
    client.do(due_work.finish_pending(client.context))
    assert (done(client, "b"), done(client, "d"), client.do(transaction.commit(ending))) == (True, True, [])
    client.check()


def test_a_batch_that_a_clean_up_gave_up_is_written_anew_or_deleted() -> None:
    """The clean-up was cut off before it deleted the batch: neither is it taken for written, nor its name for ever."""
    opens = lambda op: isinstance(op, Multi) and any("/open/~writing" in part.path for part in op.ops)
    broken_off = lambda op: BROKEN_OFF if opens(op) else None
    for anew in (True, False):
        client = new_queue()
        with pytest.raises(Crash):
            client.do(enqueue.enqueue_batch(client.context, [Message(b"x", task_id="a")], "b"), broken_off)
        client.zk.advance(3_600)
        with pytest.raises(Crash):
            collected(client, 1, broken_off)
        assert client.zk.names(client.context.paths.at("batches")) == ["b"]
        if anew:
            assert (batch_with("a", client=client).work(), done(client)) == (["a"], True)
        else:
            assert collected(client, 1) == []


def test_a_delayed_follower_is_enqueued_though_its_bucket_was_reaped() -> None:
    """A client remembers a bucket that the server has cleared away since: it makes another, and the batch ends."""
    for close, effect in (
        (None, None),
        (lambda client: client.do(batches.wait_batch(client.context, "b", 1)), AWAY),
        (collected, AWAY),
    ):
        client = batch_with("a", then=Message(b"then", task_id="then", delay=30))
        bucket = f"{(client.zk.ms + 30_000) // 60_000:010d}"
        client.context.segments.buckets.add(client.context.paths.at("scheduled", bucket))  # as an earlier task left it
        client.do(END["complete"](client, client.claimed()), cut(client, effect))
        if close is not None:
            close(client)
        assert (done(client), client.check()["then"].due is None) == (True, False)
        client.zk.advance(40)
        assert client.work() == ["then"]


def test_a_member_that_has_ended_is_not_written_again_by_a_repeated_call() -> None:
    """Cancelled, and dropped or its payload replaced: it stays ended, and the batch ends with the rest."""
    for dropped in (True, False):
        client = batch_with("a", "z")
        if not dropped:
            client.do(interventions.replace_data(client.context, "a", b"other"))
        client.cancel("a")
        if dropped:
            client.do(interventions.drop(client.context, "a"))
        client.zk.multi(0, (Create(path(client, f"open/{new_task.WRITING}")),))  # it was not written to its end
        other = batch_with("a", "z", client=Client(client.zk))
        assert dropped is ("a" not in client.check())
        assert dropped or client.state("a").state is State.CANCELLED
        assert other.work() == ["z"]
        assert (batch_of(client).done, batch_of(client).failed) == (True, ("a",))


#: What somebody did to a batch by hand.
DAMAGE: dict[str, Callable[[Client], list[Any]]] = {
    "lists the member as failed": lambda client: [Create(path(client, "failed/a"))],
    "lacks the member's entry": lambda client: [Delete(path(client, "open/a"))],
    "lacks the list of the failed": lambda client: [Delete(path(client, "failed"))],
    "is gone": lambda client: [
        *(Delete(path(client, part)) for part in ("open/a", "open", "failed")),
        Delete(client.context.paths.batch("b")),
    ],
}


def test_a_damaged_batch_holds_up_no_member(subtests: pytest.Subtests) -> None:
    """Its member is settled or deleted all the same, and the batch ends; where it is gone, that is reported."""
    for (damage, write), name in product(DAMAGE.items(), [*END, *DELETE]):
        with subtests.test(batch=damage, member=name):
            client = batch_with("a")
            claimed = client.claimed() if name in END else None
            client.zk.multi(0, tuple(write(client)))
            client.do(DELETE[name](client) if claimed is None else END[name](client, claimed))
            if claimed is None:
                assert client.check() == {}
            else:
                assert client.state("a").state in ENDED
            if damage == "is gone":
                assert claimed is None or (client.check()["a"].batch, len(client.reports)) == (None, 1)
                continue
            if damage == "lists the member as failed" and claimed is not None:
                assert (client.check()["a"].batch, done(client)) == ("b", True)
            collected(client)
            assert done(client)


# --- members that come back, and members that are deleted


def redrive(client: Client, task_id: str = "a") -> None:
    client.do(interventions.redrive(client.context, task_id))


def fail(client: Client, task_id: str) -> None:
    """End a member as dead, whichever comes first."""
    claimed = client.claimed()
    assert claimed.task_id == task_id
    client.fail(claimed, retry=False)


def test_a_batch_that_was_done_opens_again_for_a_redriven_member(subtests: pytest.Subtests) -> None:
    """Done or not, it waits until the member has ended once more, whichever way; what follows comes once, then.

    It may open more than once: clean-up keeps it while it is open, and for its lifetime after its last end.
    """
    for before, end, was_done in product(("fail", "cancel"), ("complete", "fail", "cancel"), (True, False)):
        with subtests.test(before=before, end=end, was_done=was_done):
            client = batch_with("a", "z", then=THEN)
            client.do(END[before](client, client.claimed()))
            assert not was_done or client.work() == ["z", "then"]
            others = 0 if was_done else 1
            assert batch_of(client) == batches.Batch("b", 2, others, ("a",), done=was_done)
            redrive(client)
            assert batch_of(client) == batches.Batch("b", 2, others + 1, (), done=False)
            client.check()
            waiting = batches.wait_batch(client.context, "b", 1)
            refused(client, WaitTimeout, waiting, rf"{others + 1} task\(s\) open$")
            held = {claimed.task_id: claimed for claimed in many(client, others + 1)}
            client.do(END[end](client, held.pop("a")))
            for claimed in held.values():
                assert (done(client), "then" in client.check()) == (False, False)
                client.complete(claimed)
            failed = () if end == "complete" else ("a",)
            ended = client.do(batches.wait_batch(client.context, "b", 1))
            assert ended == batches.Batch("b", 2, 0, failed, done=True)
            assert client.work() == ([] if was_done else ["then"])
            assert (sorted(client.check()), client.reports) == (["a", "then", "z"], [])
    client = batch_with("a")
    for _ in range(3):
        fail(client, "a")
        client.zk.advance(100)
        redrive(client)
        client.zk.advance(100)
        collected(client, 50)
        assert batch_of(client) == batches.Batch("b", 1, 1, (), done=False)
    client.complete(client.claimed())
    client.zk.advance(100)
    assert (collected(client, 50), client.reports) == ([], [])


def test_what_somebody_did_to_a_batch_holds_up_no_redrive(subtests: pytest.Subtests) -> None:
    """Collected, or its record damaged, which is reported: the member goes on without it. Listed wrongly, with it."""
    for damage in (b"collected", b"{", b"[]", b'{"total": "many"}'):
        with subtests.test(damage=damage):
            client = batch_with("a")
            fail(client, "a")
            base = client.context.paths.batch("b")
            if damage == b"collected":
                client.zk.advance(200)
                assert collected(client, 100) == []
            else:
                client.zk.multi(0, (SetData(base, damage),))
            redrive(client)
            assert (client.check()["a"].batch, client.work()) == (None, ["a"])
            assert [told for told, _ in client.reports] == ([] if damage == b"collected" else [base])
    for part, wrong in (("open/a", Create), ("failed/a", Delete)):
        with subtests.test(wrong=wrong):
            client = batch_with("a", "z")
            fail(client, "a")
            client.zk.multi(0, (wrong(path(client, part)),))
            redrive(client)
            assert batch_of(client) == batches.Batch("b", 2, 2, (), done=False)
            assert sorted(client.work()) == ["a", "z"]
            assert (done(client), client.reports) == (True, [])
            client.check()


def test_a_deleted_member_has_ended_and_failed() -> None:
    """Dropped while it was pending, or cleared, in hand or not: its batch is done, with it among the failed.

    One that had ended stays as it was: finished it did not fail. What comes under its id later is no member.
    """
    for verb, held in (("drop", False), ("clear", False), ("clear", True)):
        client = batch_with("a", then=THEN)
        claimed = client.claimed() if held else None
        client.do(DELETE[verb](client))
        assert batch_of(client) == batches.Batch("b", 1, 0, ("a",), done=True)
        if claimed is not None:
            refused(client, ClaimLost, settle.complete(client.context, claimed))
        client.put(b"anew", task_id="a")
        assert sorted(client.work()) == ["a", "then"]
        assert batch_of(client) == batches.Batch("b", 1, 0, ("a",), done=True)
        client.check()
    for cleared in (False, True):
        client = batch_with("a", "z")
        client.complete(client.claimed())
        fail(client, "z")
        for deleting in (
            [interventions.clear(client.context)]
            if cleared
            else [interventions.drop(client.context, it) for it in "az"]
        ):
            client.do(deleting)
        assert (batch_of(client), client.check()) == (batches.Batch("b", 2, 0, ("z",), done=True), {})


def test_members_are_listed_with_what_became_of_them() -> None:
    """By their own ids, and by those that they get; what was dropped is not there to be listed."""
    client = batch_with("a", "b", "c")
    client.put(task_id="stranger")
    client.complete(client.claimed(), result=b"r")
    fail(client, "b")
    client.do(interventions.drop(client.context, "c"))
    client.do(enqueue.enqueue_batch(client.context, [Message(b"x")] * 2, "n", None))
    own, given = (client.do(inspect.list_tasks(client.context, batch=name)) for name in ("b", "n"))
    assert [(task.id, str(task.state), task.result) for task in own] == [("a", "finished", b"r"), ("b", "dead", None)]
    assert [(task.id, task.state) for task in given] == [(f"n.00000{number}", "inserted") for number in range(2)]


def test_a_batch_and_its_tasks_are_looked_for_again_before_they_are_not_found() -> None:
    """A server that lags behind may not know them yet: it is asked to catch up before the answer is no."""
    client = new_queue()
    members = lambda context, name: inspect.list_tasks(context, batch=name)
    waiting = lambda context, name: watch_tasks.wait(context, [name])
    for call in (batches.read_batch, inspect.read_task, interventions.cancel, members, waiting):
        seen: list[type] = []
        refused(client, TaskNotFound, call(client.context, "b"), None, lambda op, seen=seen: seen.append(type(op)))
        assert {Get, GetMany, Pipeline} & set(seen[seen.index(Sync) :])
