"""What is mended without asking anybody, what is given up and reported, and what is stepped over: all else goes on."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.claim import claim
from airflow_provider_zkmq.engine.core.claim.take import RankedEntry, Wanted, step_over_if_there
from airflow_provider_zkmq.engine.core.client_state import Claimed
from airflow_provider_zkmq.engine.core.maintenance import collect, due_work
from airflow_provider_zkmq.engine.core.model.filters import EVERYTHING, String
from airflow_provider_zkmq.engine.core.model.new_message import Message
from airflow_provider_zkmq.engine.core.model.settings import RetryPolicy
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.read import configuration
from airflow_provider_zkmq.engine.core.read.watch_cache import listing
from airflow_provider_zkmq.engine.core.tasks import admin, batches, enqueue, interventions, settle
from airflow_provider_zkmq.engine.core.write import batch_end, next_run
from airflow_provider_zkmq.engine.core.write.commit import Change, Plan, Refusal, commit
from airflow_provider_zkmq.engine.core.write.transitions import notes_of
from airflow_provider_zkmq.engine.core.zk_operations import (
    Children,
    Create,
    Delete,
    Exists,
    Get,
    Multi,
    Pipeline,
    Procedure,
    SetData,
    Sync,
)
from airflow_provider_zkmq.engine.errors import ClaimLost, CorruptRecord
from airflow_provider_zkmq.engine.working import worker_base
from airflow_provider_zkmq.engine.working.worker import Worker
from tests.stepping import Stepper
from tests.unit.damage import delete
from tests.unit.world import Client, new_queue


def damage(client: Client, path: str, data: bytes | None) -> None:
    """Put something else there, or nothing."""
    assert client.write(Delete(path) if data is None else SetData(path, data)).committed


def claimed_one(client: Client, **options: Any) -> Claimed:
    client.put(task_id="a", **options)
    return client.claimed()


# --- mended


def test_a_claim_whose_note_is_missing_is_settled_all_the_same(subtests: pytest.Subtests) -> None:
    """Its record, its znode and its session say that it is ours: the note is made anew, and told of once at most."""
    verbs = {settle.complete: (), settle.release: (), settle.extend: (50,), settle.progress: (0.5, "half")}
    for (verb, arguments), lock, lease in product(verbs.items(), (None, 100), (None, 100)):
        with subtests.test(verb=verb.__name__, lock=lock, lease=lease):
            client = new_queue()
            client.put(task_id="a", lock=lock)
            claimed = client.claimed(lease=lease)
            notes = notes_of(client.context, "a", claimed.state)
            for note in notes:
                delete(client.zk, note)
            client.do(verb(client.context, claimed, *arguments))
            if claimed.lost:
                assert client.state("a").state in {State.FINISHED, State.INSERTED}
            else:
                client.complete(claimed)
            client.check()
            assert sorted(client.reported) in (sorted(notes), sorted(notes)[:1], [])
            client.put(task_id="b")
            assert "b" in client.work()


@pytest.mark.parametrize("there", [True, False])
def test_a_result_is_kept_whether_one_stands_there_or_not(there: bool) -> None:
    """The record tells otherwise: the task is finished with its result, and the damage is reported."""
    client = new_queue()
    claimed = claimed_one(client)
    path = client.context.paths.task("a", "result")
    if there:
        assert client.write(Create(path, b"strange")).committed
    else:
        client.put(task_id="a", on_conflict="requeue")
        client.complete(claimed, result=b"first")
        claimed = client.claimed()
        delete(client.zk, path)
    client.complete(claimed, result=b"mine")
    assert (client.check()["a"].result, client.zk.nodes[path].data, client.reported) == (True, b"mine", [path])


def test_three_refusals_alike_are_no_race() -> None:
    """The same operation refused for the same reason: after the second the server catches up, the third is the last."""
    client = new_queue()
    path = client.context.paths.at("queue", "none", "nothing")
    plan = Plan([Change(client.context, "a", [Delete(path)])])

    def again(_refusal: Refusal) -> Procedure[Plan | None]:
        return plan
        yield

    ops: list[Any] = []
    with pytest.raises(CorruptRecord, match=path):
        client.do(commit(plan, again), lambda op: ops.append(op))
    assert [type(op) for op in ops] == [Multi, Multi, Sync, Multi]


def test_a_claim_that_has_lost_its_deadline_or_its_znode_is_given_back() -> None:
    """By its consumer's death alone; or, its holder being told of the loss, by the same client's next look, counted."""
    owner = new_queue()
    lock = notes_of(owner.context, "a", claimed_one(owner, lock=100).state)[1]
    assert owner.write(Delete(lock)).committed
    owner.zk.expire(owner.session)
    client = Client(owner.zk, "other")
    assert (client.work(), client.reported) == (["a"], [lock])
    client.check()
    for lock, verb in ((None, settle.complete), (100, settle.extend)):  # with a deadline, that has to pass
        client = new_queue()
        claimed = claimed_one(client, lock=lock)
        delete(client.zk, client.context.paths.task("a", "claim"))
        with pytest.raises(ClaimLost):
            client.do(verb(client.context, claimed, *([50] if lock else [])))
        client.zk.advance((lock and lock + 1) or 0)
        again = client.claimed()
        assert (again.task_id, again.state.attempt, again.state.history[0].outcome) == ("a", 2, "rescued")
        client.complete(again)
        client.check()
        assert (client.context.pending.lost_claims, client.take()) == ({}, None)


@pytest.mark.parametrize("content", [b"", b"{", b'{"policy":{"attempts":1e999}}', b'{"filters":{"a":{"type":"X"}}}'])
def test_who_has_read_the_settings_goes_on_with_them_while_they_are_damaged(content: bytes) -> None:
    """It tells of it once. Who has not is refused, and changes nothing; `configure` writes them anew, for everybody."""
    policy = RetryPolicy(attempts=2, factor=0)
    known = new_queue(policy=policy, filters={"k": String()})
    known.put(task_id="a", filters={"k": "v"})
    path, late = known.context.paths.at("conf"), Client(known.zk, "late")
    good = known.zk.nodes[path].data
    damage(known, path, content)
    before = known.zk.zxid
    for refused in (
        claim.claim(late.context, Wanted(EVERYTHING)),
        enqueue.enqueue(late.context, Message(b"x")),
        admin.pause(late.context),
        configuration.conf(late.context),
    ):
        with pytest.raises(CorruptRecord, match=rf"{path} .*configure\(\) writes them anew"):
            late.do(refused)
    assert late.zk.zxid == before
    for _ in range(2):
        known.fail(known.take("k==v"))
    assert (known.check()["a"].state, known.reported) == (State.DEAD, [path])
    late.do(admin.configure(late.context, lock=7))
    assert late.do(configuration.conf(late.context)).lock == known.do(configuration.conf(known.context)).lock == 7
    assert late.do(configuration.conf(late.context)).filters == {}, "what configure() was not given has its default"
    damage(known, path, good)
    assert (
        known.do(configuration.conf(known.context)).policy == late.do(configuration.conf(late.context)).policy == policy
    )
    late.put(task_id="b", filters={"k": "v"})
    assert sorted(known.work()) == ["b"]


def test_a_worker_tells_of_the_same_damage_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on claiming, and meets it again until somebody puts it right; other errors are told each time."""

    class Queue:
        name, closed = "q", False

        def __internals__(self) -> Any:
            return self

    working = Worker(Queue(), print)  # type: ignore[arg-type]
    told: list[str] = []
    monkeypatch.setattr(worker_base.log, "warning", lambda *arguments, **_: told.append(str(arguments[-1])))
    for error in (CorruptRecord("/q/conf/filters"), CorruptRecord("/q/conf/filters"), OSError("odd"), OSError("odd")):
        assert not working._ended_by(error)
    assert told == ["/q/conf/filters", "odd", "odd"]


def test_a_promotion_leaves_another_task_of_the_same_id_alone() -> None:
    """Dropped and enqueued anew while it is promoted: the new one's record has the old version, and is left alone."""
    client = new_queue()
    client.put(task_id="t", delay=1)
    client.zk.ms += 60_000
    other = Client(client.zk, "other")
    stepper = Stepper(client.zk, client.session, due_work.maintain(client.context))
    stepper.until(Pipeline, "t/state")
    assert not stepper.over
    other.do(interventions.drop(other.context, "t"))
    other.put(task_id="t", filters=None, priority=3)
    stepper.finish()
    assert [(state.state, state.priority) for state in other.check().values()] == [(State.INSERTED, 3)]
    assert not client.reports
    assert other.work() == ["t"]


def test_a_consumer_that_came_and_died_while_consumers_were_read_is_rescued() -> None:
    """It is on the register and in no list of the living, whose watch began when it was gone: its task comes back."""
    client = new_queue()
    client.put(task_id="t")
    other = Client(client.zk, "other")
    looking = Stepper(client.zk, client.session, due_work.maintain(client.context))
    looking.until(Children)
    assert looking.op.path in {client.context.paths.at(name) for name in ("consumers", "live")}
    looking.step()  # one of the two is read; the other is read when the consumer has come and gone
    taken = other.take()
    client.zk.expire(other.session)
    looking.finish()
    client.do(due_work.maintain(client.context))
    assert [(name, state.state) for name, state in client.check().items()] == [(taken.task_id, State.INSERTED)]
    assert client.work() == ["t"]


# --- given up and reported

OTHER_RUN = (
    b'{"task_id":"b","metadata":"{}","filters":{},"priority":0,"delay":0,"policy":null,"lock":null,"stamp":"0"}\n'
)
BAD_PRIORITY = OTHER_RUN.replace(b'"b"', b'"a"').replace(b'"priority":0', b'"priority":"x"')


def escrowed(data: bytes | None, *, window: float | None = None) -> tuple[Client, Claimed]:
    """A claim whose task has a damaged run in escrow."""
    client = new_queue()
    claimed = claimed_one(client)
    client.put(b"again", task_id="a", on_conflict="requeue")
    if window:
        client.complete(claimed, dedupe=window)
    damage(client, client.context.paths.task("a", "requeue"), data)
    return client, claimed


@pytest.mark.parametrize("data", [b"", b"not json", b"[]", b"{}", OTHER_RUN, BAD_PRIORITY, None])
def test_a_task_with_a_damaged_run_in_escrow_ends_as_it_would_without(data: bytes | None) -> None:
    """Completed, failed for good, or when its window ends: the damage is reported once, the id can be used again."""
    client, claimed = escrowed(data)
    client.complete(claimed, result=b"r")
    state = client.check()["a"]
    assert (state.state, state.requeue, state.result) == (State.FINISHED, False, True)
    assert client.reported == [client.context.paths.task("a", "requeue")]
    client.put(task_id="a")
    assert client.work() == ["a"]

    client, claimed = escrowed(data)
    assert client.fail(claimed, "boom", retry=False) is State.DEAD
    state = client.check()["a"]
    assert (state.state, state.error, state.requeue) == (State.DEAD, "boom", False)
    client.do(interventions.redrive(client.context, "a"))
    assert client.work() == ["a"]

    client, _ = escrowed(data, window=5)
    client.zk.advance(6)
    client.put(task_id="b")
    assert (client.work(), client.check()["a"].state) == (["b"], State.FINISHED)
    client.zk.advance(10)
    assert client.do(collect.collect_garbage(client.context, 0)).collected == 2
    assert client.check() == {}


def test_a_run_that_cannot_be_inserted_is_given_up() -> None:
    """A stranger under the task's data leaves no room for the next run: the present one is finished all the same."""
    [run] = (maker := new_queue()).do(enqueue.prepare_many(maker.context, [Message(b"x", task_id="a")]))
    client, claimed = escrowed(next_run.pack(run))
    assert client.write(Create(client.context.paths.task("a", "data") + "/foreign")).committed
    client.complete(claimed)
    assert client.check()["a"].state is State.FINISHED
    assert "given up" in client.reports[0][1]


def batch(client: Client, name: str, then: Message | None = None) -> str:
    """A batch with one member; its path."""
    client.do(enqueue.enqueue_batch(client.context, [Message(b"x", task_id=f"{name}1")], name, then))
    return client.context.paths.batch(name)


@pytest.mark.parametrize("data", [b"", b"not json", b'{"total":"x"}', b'{"then":5}'])
def test_a_damaged_batch_is_named_by_who_waits_for_it_and_by_nobody_else(data: bytes) -> None:
    """Claims and clean-up go on beside it, the next batch is closed, and `wait_batch` names the path."""
    client = new_queue()
    base = batch(client, "b")
    claimed = client.claimed()
    damage(client, base, data)
    client.complete(claimed)
    client.put(task_id="c")
    assert client.work() == ["c"]
    assert client.do(collect.collect_garbage(client.context)).ran
    assert client.reported == [base]
    assert client.write(Delete(f"{batch(client, 'next')}/open/next1")).committed
    client.do(batch_end.close_batches(client.context))
    assert client.do(batches.read_batch(client.context, "next")).done
    with pytest.raises(CorruptRecord, match=base):
        client.do(batches.wait_batch(client.context, "b", 1))


@pytest.mark.parametrize("data", [b"", b"[]", BAD_PRIORITY, None])
def test_a_batch_whose_follower_is_damaged_ends_without_it(data: bytes | None) -> None:
    """The batch ends, says why nothing followed, and clean-up deletes it."""
    client = new_queue()
    path = batch(client, "b", Message(b"x", task_id="then")) + "/then"
    damage(client, path, data)
    assert client.work() == ["b1"]
    ended = client.do(batches.wait_batch(client.context, "b", 1))
    assert (ended.done, path in str(ended.refused)) == (True, True)
    assert client.reported == [path]
    client.zk.advance(200)
    client.do(collect.collect_garbage(client.context, 0))
    assert client.zk.names(client.context.paths.at("batches")) == []


def test_what_lacks_a_part_is_reported_by_clean_up_and_kept() -> None:
    """A finished task without its data is not tried in silence for ever, and keeps nobody from being collected."""
    client = new_queue()
    for task_id in ("a", "b"):
        client.put(task_id=task_id)
    client.work()
    missing = client.context.paths.task("a", "data")
    assert client.write(Delete(missing)).committed
    client.zk.advance(10)
    for _ in range(2):
        assert client.do(collect.collect_garbage(client.context, 0)).kept_changed == 1
    assert client.reported == [missing]
    assert client.zk.names(client.context.paths.at("tasks")) == ["a"]


# --- stepped over


def test_a_stranger_among_the_segments_takes_no_entries() -> None:
    """A foreign name that sorts last is not taken for the newest segment, and its lane is not deleted under it."""
    client = new_queue()
    lane = client.context.paths.at("queue", "p09999")
    client.write(Create(lane), Create(f"{lane}/zzz"))
    client.put(task_id="a")
    assert (client.zk.names(f"{lane}/zzz"), client.work()) == ([], ["a"])
    client.zk.advance(8000)
    client.do(collect.collect_garbage(client.context))
    assert "zzz" in client.zk.names(lane)


def picked(client: Client) -> RankedEntry:
    """The entry of the only pending task, listed now."""
    [lane] = client.do(listing(client.context, client.context.paths.at("queue")))
    lane = client.context.paths.at("queue", lane)
    [segment] = client.do(listing(client.context, lane))
    [entry] = client.do(listing(client.context, f"{lane}/{segment}"))
    return RankedEntry(entry, f"{lane}/{segment}")


def test_a_task_that_came_back_is_not_stepped_over() -> None:
    """Nor one that comes and goes meanwhile; an entry of a finished task, left by a hand, is reported once."""
    client, hands = new_queue(), list[Claimed]()
    client.put(task_id="a")
    pick, other = picked(client), Client(client.zk, "other")
    client.do(step_over_if_there(client.context, pick))
    assert (client.reports, pick.path in client.context.ignored_paths) == ([], False)

    def meanwhile(op: Any) -> None:
        """In hand when the record is read, and back, as another entry of the same name, before the second look."""
        if isinstance(op, Get) and not hands:
            hands.append(other.claimed())
        elif isinstance(op, Exists) and hands and not hands[0].lost:
            other.do(settle.release(other.context, hands[0]))
            picked(client)  # another thread of this client lists it again

    client.do(step_over_if_there(client.context, pick), meanwhile)
    assert ([claimed.lost for claimed in hands], client.reports) == ([True], [])
    pick = picked(client)
    assert client.work() == ["a"]
    assert client.write(Create(pick.path)).committed
    picked(client)
    for _ in range(2):
        client.do(step_over_if_there(client.context, pick))
    assert client.reported == [pick.path]
    assert pick.path in client.context.ignored_paths
