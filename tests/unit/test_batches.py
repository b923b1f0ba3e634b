"""A batch ends, whatever happens between the end of its last member and its own; and nobody is told of a failure."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.memory.claims import Claimed
from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Exists, Get, GetMany, Sync
from airflow_provider_zkmq.engine.core.protocol.writes import Create, Delete, Multi, SetData
from airflow_provider_zkmq.engine.core.reading import inspect
from airflow_provider_zkmq.engine.core.tasks import batches, enqueue, operate, settle, transaction
from airflow_provider_zkmq.engine.core.upkeep import collect, debts
from airflow_provider_zkmq.engine.core.writing import closing
from airflow_provider_zkmq.engine.errors import ClaimLost, IllegalTransition, SessionLost, Unavailable, WaitTimeout
from tests.fake_zookeeper import Crash
from tests.unit.world import BROKEN_OFF, Client, new_queue


def write(client: Client, *ids: str, name: str = "b", then: Message | None = None) -> list[str]:
    messages = [Message(b"x", task_id=task_id) for task_id in ids]
    return client.do(enqueue.enqueue_batch(client.context, messages, name, then))


def done(client: Client, name: str = "b") -> bool:
    return client.do(batches.read_batch(client.context, name)).done


def cut(client: Client, effect: Any) -> Callable[[Any], Any]:
    """The connection is lost when the batch is looked at, which follows the settlement."""
    path = client.context.paths.batch("b", "open")
    return lambda op: effect if isinstance(op, Exists) and op.path == path else None


END: dict[str, Callable[[Client, Claimed], Any]] = {
    "complete": lambda client, claimed: settle.complete(client.context, claimed, b"r"),
    "fail": lambda client, claimed: settle.fail(client.context, claimed, "e", retry=False),
    "cancel": lambda client, _: operate.cancel(client.context, "a"),
    "commit": lambda client, claimed: transaction.commit(transaction.Transaction([(client.context, claimed)])),
}


@pytest.mark.parametrize("error", [Unavailable("no server"), SessionLost("closed")])
@pytest.mark.parametrize("name", END)
def test_a_settlement_is_told_as_it_happened_though_its_batch_cannot_be_ended(name: str, error: Exception) -> None:
    """Connection lost after the last commit: its caller hears success; the client ends the batch at its next look."""
    client = new_queue()
    write(client, "a", then=Message(b"then", task_id="then"))
    claimed = client.claimed()
    client.do(END[name](client, claimed), cut(client, error))
    assert (client.state("a").state in {State.FINISHED, State.DEAD, State.CANCELLED}, done(client)) == (True, False)
    assert client.context.debts.batches == {"b"}
    client.do(closing.close_pending(client.context), cut(client, Unavailable("still none")))
    assert client.context.debts.batches == {"b"}
    client.do(closing.close_pending(client.context))
    assert (done(client), client.context.debts.batches, client.work()) == (True, set(), ["then"])
    client.check()


@pytest.mark.parametrize("state", ["pending", "clear"])
def test_what_an_operator_deletes_is_told_as_deleted(state: str) -> None:
    """The same of a drop and of a clear."""
    client = new_queue()
    write(client, "a")
    procedure = operate.drop(client.context, "a") if state == "pending" else operate.clear(client.context)
    client.do(procedure, cut(client, Unavailable("no server")))
    assert client.check() == {}
    client.do(collect.collect_garbage(client.context))
    assert done(client)


def test_a_settlement_that_is_broken_off_leaves_its_batch_to_the_client_s_next_look() -> None:
    """Cancelled between the commit and the batch's end: the name is remembered."""
    client = new_queue()
    write(client, "a")
    claimed = client.claimed()
    with pytest.raises(Crash):
        client.do(END["complete"](client, claimed), cut(client, BROKEN_OFF))
    assert client.context.debts.batches == {"b"}
    client.do(closing.close_pending(client.context))
    assert done(client)


def cut_at_the_write(op: Any) -> str | None:
    """Broken off as the transaction that ends the member is carried out: its reply reaches nobody."""
    ends = isinstance(op, Multi) and any(isinstance(part, Delete) and "/open/" in part.path for part in op.ops)
    return BROKEN_OFF if ends else None


@pytest.mark.parametrize("goes_on", ["asks again", "never asks again"])
@pytest.mark.parametrize("name", END)
def test_a_member_s_end_that_nobody_heard_of_ends_its_batch(name: str, goes_on: str) -> None:
    """The caller is cut off with the write under way; the batch ends with its second call, or without one."""
    client = new_queue()
    client.put(task_id="x")
    client.do(
        settle.complete(client.context, client.claimed())
    )  # the indexes have buckets: the first try is carried out
    client.put(task_id="y")
    client.do(operate.cancel(client.context, "y"))
    write(client, "a", then=Message(b"then", task_id="then"))
    claimed = client.claimed()
    unit = transaction.Transaction([(client.context, claimed)])
    end = (lambda: transaction.commit(unit)) if name == "commit" else (lambda: END[name](client, claimed))
    with pytest.raises(Crash):
        client.do(end(), cut_at_the_write)
    if goes_on == "asks again":
        client.context.debts.batches.clear()  # another process would not have it
        with suppress(IllegalTransition):  # so does the second cancel tell of the first
            client.do(end())
    client.do(debts.pay_debts(client.context))
    if not (name == "cancel" and goes_on == "asks again"):
        assert (done(client), client.work()) == (True, ["then"])
    client.check()


def test_a_commit_that_is_cut_off_at_one_batch_ends_the_other_too() -> None:
    """Two members of two batches end in one transaction; its caller is cut off while the first batch is looked at."""
    client = new_queue()
    write(client, "a", name="b")
    write(client, "c", name="d")
    ending = transaction.Transaction([(client.context, client.claimed()) for _ in range(2)])
    with pytest.raises(Crash):
        client.do(transaction.commit(ending), cut(client, BROKEN_OFF))
    client.do(debts.pay_debts(client.context))
    assert (done(client, "b"), done(client, "d")) == (True, True)
    assert client.do(transaction.commit(ending)) == []
    client.check()


def given_up(client: Client) -> None:
    """A batch that was begun, and that a clean-up gave up, which was cut off before the batch itself was deleted."""
    started = enqueue.enqueue_batch(client.context, [Message(b"x", task_id="a")], "b")
    opens = lambda op: isinstance(op, Multi) and any("/open/~writing" in part.path for part in op.ops)
    with pytest.raises(Crash):
        client.do(started, lambda op: BROKEN_OFF if opens(op) else None)
    client.zk.advance(3_600)
    with pytest.raises(Crash):
        client.do(collect.collect_garbage(client.context, 1), lambda op: BROKEN_OFF if opens(op) else None)
    assert client.zk.names(client.context.paths.at("batches")) == ["b"]


def test_a_batch_that_a_clean_up_gave_up_is_written_anew() -> None:
    """The call made again finds a batch without members and without an end: it does not take it for written."""
    client = new_queue()
    given_up(client)
    assert write(client, "a") == ["a"]
    assert client.work() == ["a"]
    assert done(client)


def test_what_a_clean_up_left_of_a_batch_the_next_one_deletes() -> None:
    """Else its name would be taken for ever."""
    client = new_queue()
    given_up(client)
    client.do(collect.collect_garbage(client.context, 1))
    assert client.zk.names(client.context.paths.at("batches")) == []


def test_a_sealed_batch_is_told_as_written_though_it_cannot_be_ended() -> None:
    """All members had ended before the producer was through; the connection is lost right after it was."""
    client = new_queue()
    worker = Client(client.zk)
    procedure = enqueue.enqueue_batch(client.context, [Message(b"x", task_id="a")], "b")
    assert client.do(procedure, cut(client, Unavailable("no server"))) == ["a"]
    assert worker.work() == ["a"]
    assert done(worker)


@pytest.mark.parametrize("closer", ["waiter", "clean-up", "completion"])
def test_a_delayed_follower_is_enqueued_though_its_bucket_was_reaped(closer: str) -> None:
    """A client remembers a bucket that the server has cleared away since: it makes another, and the batch ends."""
    client = new_queue()
    write(client, "a", then=Message(b"then", task_id="then", delay=30))
    claimed = client.claimed()
    bucket = f"{(client.zk.ms + 30_000) // 60_000:010d}"
    path = client.context.paths.at("scheduled", bucket)
    client.context.slots.buckets.add(path)  # as an earlier delayed task left it
    fault = cut(client, Unavailable("no server")) if closer != "completion" else lambda _op: None
    client.do(END["complete"](client, claimed), fault)
    if closer == "waiter":
        client.do(batches.wait_batch(client.context, "b", 1))
    elif closer == "clean-up":
        client.do(collect.collect_garbage(client.context))
    assert done(client)
    assert client.check()["then"].due is not None
    client.zk.advance(40)
    assert client.work() == ["then"]


def ended_badly(client: Client) -> None:
    """A member ended dead, and its tree is gone; the batch was not written to its end."""
    write(client, "a", "z")
    client.cancel("a")
    client.do(operate.drop(client.context, "a"))
    marker = client.context.paths.batch("b", "open", batches.WRITING)
    client.zk.multi(0, (Create(marker),))


def test_a_member_that_has_ended_is_not_written_again_by_a_repeated_call() -> None:
    """Cancelled and dropped: the repeated call leaves it ended, writes the rest, and the batch ends with the rest."""
    client = new_queue()
    ended_badly(client)
    other = Client(client.zk)
    assert write(other, "a", "z") == ["a", "z"]
    assert (list(client.check()), other.work()) == (["z"], ["z"])
    stands = client.do(batches.read_batch(client.context, "b"))
    assert (stands.done, stands.failed) == (True, ("a",))


@pytest.mark.parametrize("end", ["fail", "cancel"])
def test_a_member_may_end_as_failed_twice(end: str) -> None:
    """It is listed among the failed from an earlier run: its second end is carried out, and the batch ends."""
    client = new_queue()
    write(client, "a")
    failed = client.context.paths.batch("b", "failed", "a")
    client.zk.multi(0, (Create(failed),))
    client.do(END[end](client, client.claimed()))
    assert client.state("a").batch == "b"
    assert done(client)
    client.check()


def test_a_replaced_member_that_has_ended_is_not_run_again() -> None:
    """Its payload was replaced before it ended: a repeated call knows it by its batch, not by its payload."""
    client = new_queue()
    write(client, "a", "z")
    client.zk.multi(0, (Create(client.context.paths.batch("b", "open", batches.WRITING)),))
    client.do(operate.replace_data(client.context, "a", b"other"))
    client.cancel("a")
    assert write(Client(client.zk), "a", "z") == ["a", "z"]
    assert (client.state("a").state, client.work(), done(client)) == (State.CANCELLED, ["z"], True)


@pytest.mark.parametrize("name", END)
def test_a_member_whose_batch_is_gone_goes_on_without_it(name: str) -> None:
    """Somebody deleted the batch: its members are settled all the same, and it is reported."""
    client = new_queue()
    write(client, "a")
    claimed = client.claimed()
    base = client.context.paths.batch("b")
    client.zk.multi(0, tuple(Delete(f"{base}{part}") for part in ("/open/a", "/open", "/failed", "")))
    client.do(END[name](client, claimed))
    assert client.check()["a"].batch is None
    assert len(client.reports) == 1


@pytest.mark.parametrize("part", ["open/a", "failed"])
@pytest.mark.parametrize("name", [*END, "drop", "clear"])
def test_a_batch_that_lacks_a_part_holds_up_no_member(name: str, part: str) -> None:
    """The member's entry is missing, or the list of the failed: it is settled or deleted, and the batch ends."""
    client = new_queue()
    write(client, "a")
    claimed = client.claimed() if name in END else None
    client.zk.multi(0, (Delete(context_path(client, part)),))
    procedures = {"drop": lambda: operate.drop(client.context, "a"), "clear": lambda: operate.clear(client.context)}
    client.do(END[name](client, claimed) if claimed is not None else procedures[name]())
    if claimed is None:
        assert client.zk.names(client.context.paths.at("tasks")) == []
    else:
        assert client.state("a").state in {State.FINISHED, State.DEAD, State.CANCELLED}
    client.do(collect.collect_garbage(client.context))
    assert done(client)


# --- members that come back, and members that are deleted


def batch_of(client: Client, name: str = "b") -> batches.Batch:
    return client.do(batches.read_batch(client.context, name))


def redrive(client: Client, task_id: str, **options: Any) -> None:
    client.do(operate.redrive(client.context, task_id, **options))


def fail(client: Client, task_id: str) -> None:
    """End a member as dead, whichever comes first."""
    claimed = client.claimed()
    assert claimed.task_id == task_id
    client.fail(claimed, retry=False)


def test_a_batch_that_is_open_waits_for_a_redriven_member() -> None:
    """Dead, redriven while another member is open: it counts as open again, and what follows waits for it."""
    client = new_queue()
    write(client, "a", "z", then=Message(b"then", task_id="then"))
    fail(client, "a")
    assert batch_of(client) == batches.Batch("b", 2, 1, ("a",), done=False)
    redrive(client, "a")
    assert batch_of(client) == batches.Batch("b", 2, 2, (), done=False)
    client.check()
    first = client.claimed()
    client.complete(first)
    assert (done(client), "then" in client.check()) == (False, False)
    client.complete(client.claimed())
    assert batch_of(client) == batches.Batch("b", 2, 0, (), done=True)
    assert client.work() == ["then"]
    client.check()


@pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
@pytest.mark.parametrize("before", ["fail", "cancel"])
def test_a_batch_that_was_done_opens_again_for_a_redriven_member(before: str, end: str) -> None:
    """Its waiters wait again, until the member has ended once more, whichever way; what follows comes once."""
    client = new_queue()
    write(client, "a", "z", then=Message(b"then", task_id="then"))
    claimed = client.claimed()
    client.do(END[before](client, claimed))
    assert client.work() == ["z", "then"]
    assert batch_of(client) == batches.Batch("b", 2, 0, ("a",), done=True)
    redrive(client, "a")
    assert batch_of(client) == batches.Batch("b", 2, 1, (), done=False)
    with pytest.raises(WaitTimeout, match=r"1 task\(s\) open"):
        client.do(batches.wait_batch(client.context, "b", 1))
    client.do(END[end](client, client.claimed()))
    failed = () if end == "complete" else ("a",)
    assert client.do(batches.wait_batch(client.context, "b", 1)) == batches.Batch("b", 2, 0, failed, done=True)
    assert (client.take(), sorted(client.check())) == (None, ["a", "then", "z"])
    assert client.reports == []


def test_a_batch_may_open_again_more_than_once_and_is_collected_after_its_last_end() -> None:
    """Clean-up keeps it while it is open, and for its lifetime after it has ended for the last time."""
    client = new_queue()
    write(client, "a")
    for _ in range(3):
        fail(client, "a")
        client.zk.advance(100)
        redrive(client, "a")
        client.zk.advance(100)
        client.do(collect.collect_garbage(client.context, 50))
        assert batch_of(client) == batches.Batch("b", 1, 1, (), done=False)
    client.complete(client.claimed())
    client.zk.advance(100)
    client.do(collect.collect_garbage(client.context, 50))
    assert client.zk.names(client.context.paths.at("batches")) == []
    assert client.reports == []


def test_a_member_whose_batch_was_collected_is_redriven_without_it() -> None:
    """A dead letter outlives its batch; redriven, it is a member of none, and nothing is reported."""
    client = new_queue()
    write(client, "a")
    fail(client, "a")
    client.zk.advance(200)
    client.do(collect.collect_garbage(client.context, 100))
    redrive(client, "a")
    assert client.check()["a"].batch is None
    assert (client.work(), client.reports) == (["a"], [])


@pytest.mark.parametrize("damage", [b"{", b"[]", b'{"total": "many"}'])
def test_a_damaged_batch_holds_up_no_redrive(damage: bytes) -> None:
    """Its record cannot be read: that is reported once, and the task goes on without the batch."""
    client = new_queue()
    write(client, "a")
    fail(client, "a")
    path = client.context.paths.batch("b")
    client.zk.multi(0, (SetData(path, damage),))
    redrive(client, "a")
    assert client.check()["a"].batch is None
    assert (client.work(), [path for path, _ in client.reports]) == (["a"], [path])


@pytest.mark.parametrize("wrong", ["listed as open", "not listed as failed"])
def test_a_batch_that_lists_a_member_wrongly_holds_up_no_redrive(wrong: str) -> None:
    """Somebody changed its lists: the member is redriven, counts as open once, and the batch ends with it."""
    client = new_queue()
    write(client, "a", "z")
    fail(client, "a")
    listed, failed = (client.context.paths.batch("b", part, "a") for part in ("open", "failed"))
    client.zk.multi(0, (Create(listed) if wrong == "listed as open" else Delete(failed),))
    redrive(client, "a")
    assert batch_of(client) == batches.Batch("b", 2, 2, (), done=False)
    assert sorted(client.work()) == ["a", "z"]
    assert (done(client), client.reports) == (True, [])
    client.check()


def test_a_redrive_while_the_batch_ends_opens_it_again() -> None:
    """The last member ends between the look at the batch and the write: refused, read again, and opened."""
    client = new_queue()
    write(client, "a", "z")
    fail(client, "a")
    other = Client(client.zk)
    path, first = client.context.paths.task("a", "state"), iter([True])

    def ends(op: Any) -> None:
        writes = isinstance(op, Multi) and any(part.path == path for part in op.ops)
        if writes and next(first, False):
            assert other.work() == ["z"]

    client.do(operate.redrive(client.context, "a"), ends)
    assert batch_of(client) == batches.Batch("b", 2, 1, (), done=False)
    assert client.work() == ["a"]
    assert batch_of(client) == batches.Batch("b", 2, 0, (), done=True)
    client.check()


def test_a_clean_up_keeps_a_batch_that_opens_again_under_its_eyes() -> None:
    """Redriven while clean-up has begun to delete the batch: it is kept with its members, and ends once more."""
    client = new_queue()
    write(client, "a", "z")
    fail(client, "a")
    fail(client, "z")
    client.zk.advance(200)
    other, first = Client(client.zk), iter([True])
    failed = client.context.paths.batch("b", "failed")

    def redriven(op: Any) -> None:
        if isinstance(op, Children) and op.path == failed and next(first, False):
            redrive(other, "a")

    client.do(collect.collect_garbage(client.context, 100), redriven)
    assert batch_of(client) == batches.Batch("b", 2, 1, ("z",), done=False)
    assert client.work() == ["a"]
    assert (done(client), client.reports) == (True, [])


@pytest.mark.parametrize(("verb", "held"), [("drop", False), ("clear", False), ("clear", True)])
def test_a_deleted_member_has_ended_and_failed(verb: str, *, held: bool) -> None:
    """Dropped while it was pending, or cleared, in hand or not: its batch is done, with it among the failed."""
    client = new_queue()
    write(client, "a", then=Message(b"then", task_id="then"))
    claimed = client.claimed() if held else None
    client.do(operate.drop(client.context, "a") if verb == "drop" else operate.clear(client.context))
    assert batch_of(client) == batches.Batch("b", 1, 0, ("a",), done=True)
    if claimed is not None:
        with pytest.raises(ClaimLost):
            client.complete(claimed)
    assert client.work() == ["then"]
    client.check()


@pytest.mark.parametrize("verb", ["drop", "clear"])
def test_what_had_ended_before_it_was_deleted_is_told_as_it_ended(verb: str) -> None:
    """A finished member did not fail, a dead one did: deleting their trees changes nothing of that."""
    client = new_queue()
    write(client, "a", "z")
    client.complete(client.claimed())
    fail(client, "z")
    for task_id in ("a", "z"):
        if verb == "drop":
            client.do(operate.drop(client.context, task_id))
    if verb == "clear":
        assert client.do(operate.clear(client.context)) == 2
    assert batch_of(client) == batches.Batch("b", 2, 0, ("z",), done=True)


def test_an_id_that_is_enqueued_again_is_no_member() -> None:
    """A cancelled member's id is free: what comes under it later is another's, and the batch stays done."""
    client = new_queue()
    write(client, "a")
    client.cancel("a")
    client.put(b"anew", task_id="a")
    assert batch_of(client) == batches.Batch("b", 1, 0, ("a",), done=True)
    assert client.work() == ["a"]
    assert batch_of(client) == batches.Batch("b", 1, 0, ("a",), done=True)


def context_path(client: Client, part: str) -> str:
    return client.context.paths.batch("b", *part.split("/"))


def test_a_batch_and_its_tasks_are_looked_for_again_before_they_are_not_found() -> None:
    """A server that lags behind does not know them yet: it is asked to catch up before the answer is no."""
    client = new_queue()
    write(client, "a")
    for procedure in (
        batches.read_batch(client.context, "b"),
        inspect.read_task(client.context, "a"),
        operate.cancel(client.context, "a"),
    ):
        behind(client, procedure)
    assert client.state("a").state is State.CANCELLED


def behind(client: Client, procedure: Any) -> None:
    """Carry a procedure out whose reads find nothing until the server is told to catch up."""
    result, caught_up = None, False
    with suppress(StopIteration):
        while True:
            op = procedure.send(result)
            caught_up = caught_up or isinstance(op, Sync)
            blind = not caught_up and isinstance(op, Get | GetMany)
            missing = [None] * len(op.paths) if isinstance(op, GetMany) else None
            result = missing if blind else client._execute(op, lambda _op: None)
    assert caught_up
