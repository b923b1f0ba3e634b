"""Calls whose outcome their callers were not told: made again, given back, resolved; nothing happens twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core import client_state
from airflow_provider_zkmq.engine.core.claim import claim
from airflow_provider_zkmq.engine.core.client_state import Caller, Claimed
from airflow_provider_zkmq.engine.core.maintenance.consumer_registry import register
from airflow_provider_zkmq.engine.core.model.new_message import Message
from airflow_provider_zkmq.engine.core.model.settings import RetryPolicy
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.tasks import batches, enqueue, interventions, settle, transaction
from airflow_provider_zkmq.engine.core.write import commit
from airflow_provider_zkmq.engine.core.zk_operations import Delete, Get, GetMany, Multi, Reconnect, Wait
from airflow_provider_zkmq.engine.errors import (
    ClaimLost,
    ConfigError,
    DuplicateTask,
    OutcomeUnknown,
    SessionLost,
    TaskTooLarge,
    Unavailable,
)
from tests.unit.claiming import ANY, LEASED, ORDERS, another, in_doubt, in_hand, many, queue_of, refused, step, unit_of
from tests.unit.world import BROKEN_OFF, LOST_REPLY, LOST_REQUEST, UNKNOWN, Client, Crash, Fault, new_context, new_queue

GONE = Unavailable("no server answered")
EFFECTS = (LOST_REPLY, LOST_REQUEST)
ARRIVED = pytest.mark.parametrize("arrived", [True, False])


def fresh(order: str = "default", attempts: int = 1, names: str = "a") -> Client:
    return queue_of(names, order=order, policy=RetryPolicy(attempts=attempts, factor=0))


def completed(client: Client, claims: list[Claimed]) -> None:
    """No claim is on its way to nobody; these are completed."""
    assert not client.context.claims.handovers
    for each in claims:
        client.complete(each)
    states = client.check()
    assert {states[each.task_id].state for each in claims} == {State.FINISHED}


# --- claims


def test_nothing_is_claimed_for_a_caller_that_has_left() -> None:
    """The client gives back what is owed and claims again; a call that nobody waits for must not claim after that."""
    for order, timeout in product(ORDERS, (0, 60)):
        for number in range(60):
            client, caller = fresh(order), Caller()
            stepper = step(
                client, claim.claim(client.context, ANY, timeout, caller, stopping=lambda it=caller: it.left)
            )  # type: ignore[misc]
            for _ in range(number):
                stepper.step()
            caller.left = True
            if isinstance(stepper.op, Multi) and "tasks/a/claim" in repr(stepper.op):
                break  # sent by now: that is given back
            assert stepper.finish() is None
            assert not client.context.claims.handovers
            assert client.check()["a"].state is State.INSERTED
        else:
            pytest.fail("the claim is not sent by then")


# --- rollbacks and settlements


VERBS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], State]] = {
    "complete": (settle.complete, (b"r",), State.FINISHED),
    "fail": (settle.fail, ("e",), State.INSERTED),
    "release": (settle.release, (), State.INSERTED),
}


@pytest.mark.parametrize("verb", VERBS)
def test_settling_again_after_an_unknown_outcome_tells_what_happened(verb: str) -> None:
    """The same verb succeeds, whether the first try had been carried out or not; another verb is told that it lost."""
    procedure, arguments, ended = VERBS[verb]
    completes = verb == "complete"
    for arrived, same in product((True, False), (True, False)):
        client, claimed = in_hand(policy=RetryPolicy(attempts=3, factor=0))
        stepper = step(client, procedure(client.context, claimed, *arguments))
        if completes:  # the first try finds no bucket for what has finished
            stepper.until(Multi, "finished/")
            stepper.step()
        in_doubt(client, stepper, "finished/" if completes else "tasks/a/state", arrived=arrived)
        other = settle.release if completes else settle.complete
        again = procedure(client.context, claimed, *arguments) if same else other(client.context, claimed)
        if arrived and not same:
            refused(client, ClaimLost, again)
        else:
            client.do(again)
        swapped = State.INSERTED if completes else State.FINISHED
        assert client.check()["a"].state is (ended if same or arrived else swapped)
        assert not claimed.claim or claimed.lost


@ARRIVED
@pytest.mark.parametrize("others", [3, 4])
def test_what_the_record_has_forgotten_is_never_told_as_known(arrived: bool, others: int) -> None:
    """Four settlements later nobody can tell whether an earlier try has settled the claim: both answers say so."""
    client, claimed = in_hand(policy=RetryPolicy(attempts=9, factor=0))
    again = lambda verb=settle.release: verb(client.context, claimed)
    in_doubt(client, step(client, again()), "tasks/a/state", arrived=arrived)
    if not arrived:  # somebody else ends the claim
        client.do(settle.release(new_context(client.zk, client.session), replace(claimed, nonces={}, unsure=False)))
    for _ in range(others if arrived else others - 1):
        client.do(settle.release(client.context, client.claimed()))
    if others == 4:
        for error, verb in (
            (OutcomeUnknown, settle.release),
            (ClaimLost, settle.release),
            (ClaimLost, settle.complete),
        ):
            refused(client, error, again(verb), "cannot be told any more")
    elif arrived:
        client.do(again())
    else:
        refused(client, ClaimLost, again(), "changed nothing")
    completed(client, [client.claimed()])
    assert not client.context.claims.unsettled
    assert [claimed] * (others == 4) == list(client.context.claims.unsure.values()), "what cannot be told is said again"


@pytest.mark.parametrize("others", [3, 4])
def test_a_call_that_outlasts_what_the_record_remembers_is_told_that_nobody_can_tell(others: int) -> None:
    """Its reply was lost; before its connection is back, the task is settled four times by others."""
    for ends in (lambda client, claimed: settle.release(client.context, claimed), None):
        client, claimed = in_hand(policy=RetryPolicy(attempts=9, factor=0))
        unit = transaction.TransactionState([(client.context, claimed)])
        stepper = step(client, ends(client, claimed) if ends else transaction.commit(unit))
        stepper.until(Multi, "tasks/a/state")
        client.zk.multi(client.session, stepper.op.ops)
        stepper.answer(UNKNOWN)
        if not ends:
            client.do(enqueue.enqueue(client.context, Message("a", task_id="a")))
        for _ in range(others if ends else others - 1):
            client.do(settle.release(client.context, client.claimed()))
        with pytest.raises(OutcomeUnknown, match="told any more") if others == 4 else nullcontext():
            stepper.finish()
        completed(client, [client.claimed()])


def result(client: Client) -> bytes:
    return client.zk.nodes[client.context.paths.task("a", "result")].data


def test_of_two_threads_that_settle_the_same_claim_one_does() -> None:
    """They come one after the other: the second is told that the claim is over, and its result is not kept."""
    client, claimed = in_hand()
    one = step(client, settle.complete(client.context, claimed, b"A"))
    one.until(Multi, "tasks/a/state")
    two = step(client, settle.complete(client.context, claimed, b"B"))
    assert isinstance(two.op, Wait)
    one.finish()
    with pytest.raises(ClaimLost):
        two.answer(True)
    assert result(client) == b"A"


def test_a_claim_that_is_learnt_of_late_takes_nothing_from_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease ended while its reply was on its way, and the same client claimed the task again: that claim holds."""
    monkeypatch.setattr(commit, "ON_THEIR_WAY", 2)  # else the later one waits for the reply, too
    client = fresh("fifo", attempts=3)  # whose consumers try what others of the client try
    late = step(client, claim.claim(client.context, LEASED))
    late.until(Multi, "tasks/a/claim")
    reply = client.zk.multi(client.session, late.op.ops)
    client.zk.advance(40)
    claimed = client.claimed()
    late.answer(reply)
    assert (claimed.state.attempt, late.finish().lost, claimed.lost) == (2, True, False)
    client.complete(claimed, result=b"r")
    refused(client, ClaimLost, settle.complete(client.context, late.result, b"late"))
    assert result(client) == b"r"


# --- enqueues


def writes(client: Client, op: Any, about: str = "/tasks/") -> bool:
    """Whether an operation writes a task."""
    return isinstance(op, Multi) and any(item.path.startswith(client.context.paths.base + about) for item in op.ops)


def outage(client: Client, effect: Any = LOST_REPLY, first: int = 0, about: str = "/tasks/") -> Fault:
    """The connection is lost at the write number `first`, which was carried out or not, and does not come back."""
    seen: list[Any] = []

    def fault(op: Any) -> Any:
        if writes(client, op, about):
            seen.append(op)
            return effect if len(seen) > first else None
        return GONE if isinstance(op, Reconnect) else None

    return fault


def put(client: Client, *messages: Message) -> Any:
    return enqueue.enqueue_many(client.context, messages or [Message(b"x")])


def unknown_put(client: Client, *messages: Message, fault: Fault | None = None) -> tuple[str, ...]:
    """A call whose outcome its caller is not told; the ids that it is told, by which the same call tells."""
    call = put(client, *messages)
    return tuple(refused(client, OutcomeUnknown, call, "same call", fault or outage(client)).task_ids)


def again(ids: Sequence[str], *messages: Message) -> list[Message]:
    """The messages of a call, with the ids that it used."""
    return [replace(message, task_id=name) for message, name in zip(messages or [Message(b"x")], ids, strict=True)]


def lost_again(client: Client, effect: str) -> Fault:
    """Lost once; the connection comes back, and is lost again while the outcome is looked for."""
    sent: list[Any] = []

    def fault(op: Any) -> Any:
        if writes(client, op):
            sent.append(op)
            return effect if len(sent) == 1 else None
        return GONE if sent and isinstance(op, Get | GetMany) else None

    return fault


#: How a call is left without an answer, and what its caller is told.
LEFT: dict[str, tuple[type[BaseException], Callable[[Client], Fault]]] = {
    "request lost": (OutcomeUnknown, lambda client: outage(client, LOST_REQUEST)),
    "reply lost": (OutcomeUnknown, outage),
    "lost again": (OutcomeUnknown, lambda client: lost_again(client, LOST_REPLY)),
    "session ended": (OutcomeUnknown, lambda client: outage(client, SessionLost("closed"))),
    "broken off": (Crash, lambda client: outage(client, BROKEN_OFF)),  # cancelled or interrupted, say
}


def test_an_unknown_enqueue_made_again_is_one_task(subtests: pytest.Subtests) -> None:
    """First `OutcomeUnknown` with the id, never "nothing was written"; with this id then success, and one task.

    Made once more it is another enqueue. What was lost on the way is simply sent again, if the connection comes back.
    """
    for way, (error, fault) in LEFT.items():
        with subtests.test(way=way):
            client, first = new_queue(), Message(b"x", task_id="own" if error is Crash else None)
            told = refused(client, error, put(client, first), None, fault(client))
            same = again(getattr(told, "task_ids", ["own"]))
            assert client.do(put(client, *same)) == list(client.check()) == [same[0].task_id]
            refused(client, DuplicateTask, put(client, *same))
            assert client.work() == client.do(put(client, *same)) == client.work() == [same[0].task_id]
    client = new_queue()
    assert client.do(put(client), lost_again(client, LOST_REQUEST)) == list(client.check())


#: What a message may say besides its payload, what was done before, and the write that is lost.
SAID: list[tuple[dict[str, Any], str, int]] = [
    *(({"task_id": "a"} | more, "", 0) for more in ({}, {"delay": 1}, {"priority": 3, "metadata": {"a": 1}})),
    ({"delay": 1}, "", 0),
    ({"task_id": "a", "on_conflict": "replace"}, "waits", 1),
    ({"task_id": "a", "on_conflict": "requeue"}, "is in hand", 1),
    ({"task_id": "a"}, "has ended", 1),
]


def test_whatever_the_message_holds_it_is_written_once(subtests: pytest.Subtests) -> None:
    """Also an update, a requeue and a new run of an id in use: made again they are known, and not made twice."""
    for order, effect, (said, before, first) in product(ORDERS, EFFECTS, SAID):
        with subtests.test(order=order, effect=effect, message=said, task=before):
            client = fresh(order, names="a" if before else "")
            claims = [] if before in {"", "waits"} else many(client, 1)
            if before == "has ended":
                completed(client, claims)
            told = unknown_put(client, Message(b"new", **said), fault=outage(client, effect, first))
            assert told == tuple(client.do(put(client, *again(told, Message(b"new", **said)))))
            client.check()
            if before == "is in hand":
                client.complete(claims[0])
            client.zk.advance(5)
            assert (client.claimed(timeout=1).data, client.take()) == (b"new", None)
            assert list(client.check()) == list(told)


def test_an_unknown_enqueue_is_known_again_in_another_trace(subtests: pytest.Subtests) -> None:
    """Each call of a retried enqueue has a trace of its own: its message is the same, and the first one's stands."""
    for name, other in product(("own", None), ({}, {"order": 7})):
        with subtests.test(task_id=name, metadata=other):
            client = new_queue()
            message = Message(b"x", task_id=name, metadata={"traceparent": f"00-{1:032x}-{1:016x}-01", **other})
            (task_id,) = told = unknown_put(client, message)
            retried = replace(
                message, metadata={"traceparent": f"00-{2:032x}-{2:016x}-01", "tracestate": "a=b", **other}
            )
            assert client.do(put(client, *again(told, retried))) == [task_id] == list(client.check())
            assert client.claimed().metadata == message.metadata
    client, message = new_queue(), Message(b"x", task_id="own", metadata={"traceparent": "a", "order": 7})
    told = unknown_put(client, message)
    refused(
        client, DuplicateTask, put(client, *again(told, replace(message, metadata={"traceparent": "a", "order": 8})))
    )


def test_an_unknown_enqueue_is_known_again_though_its_task_was_redriven() -> None:
    """Its id was made for it: handled, dead and at a new place, with other nonces, the task is still its own."""
    client = queue_of("", policy=RetryPolicy(attempts=1, factor=0))
    (name,) = told = unknown_put(client)
    other = another(client)
    for number in range(4):
        other.do(settle.fail(other.context, other.claimed(), f"no {number}", retry=False))
        other.zk.advance(1)
        other.do(interventions.redrive(other.context, name))
    assert client.do(put(client, *again(told))) == [name] == list(client.check())
    refused(client, DuplicateTask, put(client, *again(told)))
    assert client.work() == [name]


def test_an_unknown_call_of_many_made_again_writes_each_once() -> None:
    """Some transactions were carried out, one is unknown, the rest never sent; all ids are told, in their order.

    Another client's call with these ids is its own.
    """
    messages = [Message(str(number)) for number in range(240)]
    for effect in EFFECTS:
        client = new_queue()
        told = unknown_put(client, *messages, fault=outage(client, effect, first=3))
        assert tuple(client.do(put(client, *again(told, *messages)))) == told
        assert sorted(client.check()) == sorted(told)
        data = [client.zk.nodes[client.context.paths.task(each, "data")].data for each in told]
        assert data == [str(number).encode() for number in range(240)]
        refused(another(client), DuplicateTask, put(another(client), *again(told, *messages)))


@pytest.mark.parametrize("meanwhile", [True, False])
def test_what_was_written_before_the_servers_went_back_is_written_again(*, meanwhile: bool) -> None:
    """A call made again does not take for written what its first try wrote; one that is under way does not tell it."""
    client, messages = new_queue(), [Message(str(number)) for number in range(240)]
    kept, lost = client.zk.back_up(), outage(client, first=3)

    def fault(op: Any) -> Any:
        if meanwhile and lost(op) == LOST_REPLY:
            gone_back()
        return None if meanwhile else lost(op)

    def gone_back() -> None:
        client.zk.go_back(kept)
        client.context.run.restored = lambda: 1

    told = unknown_put(client, *messages, fault=fault)
    if not meanwhile:
        gone_back()
    assert sorted(client.do(put(client, *again(told, *messages)))) == sorted(client.check())
    assert len(client.check()) == 240


@pytest.mark.parametrize("lease", [None, 60])
def test_the_holder_of_a_lost_claim_is_refused_though_another_claim_has_its_token(lease: float | None) -> None:
    """In servers that were restored from an older state the numbers of transactions come again."""
    client = fresh()
    for each in (client, other := another(client)):
        each.do(register(each.context))
    kept = client.zk.back_up()
    stale = client.claimed(lease=lease)
    client.zk.go_back(kept)
    claimed = other.claimed(lease=lease)
    assert (claimed.task_id, claimed.token) == (stale.task_id, stale.token)
    for call in (settle.extend(client.context, stale, 60), settle.complete(client.context, stale)):
        refused(client, ClaimLost, call)
    completed(other, [claimed])


def test_a_repeat_that_finds_no_server_is_still_unknown() -> None:
    """It sends nothing itself; what the first call sent may have been carried out, and the third call finds it.

    Also where that task has been handled in between.
    """
    client = new_queue()
    told = [unknown_put(client)]
    same = again(told[0])
    told.append(unknown_put(client, *same, fault=lambda op: GONE if writes(client, op) else None))
    assert client.work() == list(told[0])
    told.append(tuple(client.do(put(client, *same))))
    assert told == told[:1] * 3
    assert [state.state for state in client.check().values()] == [State.FINISHED]


def test_what_was_not_sent_is_told_as_not_written() -> None:
    """No server when the first request is to be sent, or a batch to be opened: `Unavailable`; nothing is remembered."""
    client = new_queue()
    batch = lambda: enqueue.enqueue_batch(client.context, [Message(b"x")], "b")
    for call, begun in ((put(client), lambda op: writes(client, op)), (batch(), lambda op: isinstance(op, Multi))):
        refused(client, Unavailable, call, None, lambda op, begun=begun: GONE if begun(op) else None)
        assert (client.context.unknown_outcomes.marks, client.check()) == ({}, {})
    assert client.do(batch()) == ["b.000000"]


def test_what_is_remembered_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an hour, where many others follow, and with another message that has the id: then it is another enqueue."""
    monkeypatch.setattr(client_state, "KEPT", 2)
    client = new_queue()
    for name in "abcde":
        unknown_put(client, Message(b"x", task_id=name))
    assert list(client.context.unknown_outcomes.marks) == ["c", "d", "e"]
    client.zk.advance(client_state.KEPT_SECONDS - 1)
    assert client.do(put(client, Message(b"x", task_id="e"))) == ["e"]
    for number in range(2):
        refused(client, DuplicateTask, put(client, Message(b"y" if number == 0 else b"x", task_id="d")))
    client.zk.advance(2)
    refused(client, DuplicateTask, put(client, Message(b"x", task_id="c")))
    assert (len(client.check()), client.context.unknown_outcomes.marks) == (5, {})


def keyed(client: Client, *messages: Message, key: Any = "k", **options: Any) -> Any:
    return enqueue.enqueue_each(client.context, messages, idempotency_key=key, **options)


def test_an_enqueue_with_a_key_is_made_once() -> None:
    """Of unknown outcome, again by another client, after the end, with another payload: the first one stands."""
    client, one, two = new_queue(), Message(b"1"), Message(b"2")
    told = list(refused(client, OutcomeUnknown, keyed(client, one, two), "same call", outage(client)).task_ids)
    other = another(client)
    assert other.do(keyed(other, one, two)) == told == client.do(keyed(client, one, two))
    assert sorted(client.work()) == told
    assert other.do(keyed(other, Message(b"0"), two, Message(b"3"))) == [*told, third := client.work()[0]]
    assert other.do(enqueue.enqueue_one(other.context, b"4", idempotency_key="l")) not in {*told, third}
    assert other.do(keyed(other, one, key="l")) == client.work()


#: What cannot be with a key, and why.
KEYLESS: list[tuple[Any, Message, dict[str, Any], str]] = [
    *((key, Message(b"x"), {}, "idempotency_key .* a text") for key in ("", 5, b"k")),
    ("k", Message(b"x", task_id="own"), {}, "names the tasks itself"),
    ("k", Message(b"x", on_conflict="replace"), {}, "left alone"),
    ("k", Message(b"x", priority=10_000), {}, "priority"),
    *(("k", Message(b"x"), more, "and batch") for more in ({"batch": "b"}, {"then": Message(b"x")})),
]


def test_what_cannot_be_with_a_key_is_refused(subtests: pytest.Subtests) -> None:
    """By a plain `ConfigError`, as without a key, before anything is written."""
    client = new_queue()
    for key, message, options, why in KEYLESS:
        with subtests.test(key=key, message=message, options=options):
            assert type(refused(client, ConfigError, keyed(client, message, key=key, **options), why)) is ConfigError
    refused(client, TaskTooLarge, keyed(client, Message(b"x" * 2_000_000)))
    assert client.check() == {}


def test_an_unknown_batch_made_again_is_one_batch(subtests: pytest.Subtests) -> None:
    """Unknown at its opening, a member, or its sealing: never "nothing was written"; made again it is complete."""
    messages = [Message(b"1"), Message(b"2", task_id="own")]
    for number, effect in product(range(4), EFFECTS):
        with subtests.test(number=number, effect=effect):
            client = new_queue()
            call = lambda client=client: enqueue.enqueue_batch(client.context, messages, "b", Message(b"then"))
            told = refused(client, OutcomeUnknown, call(), None, outage(client, effect, number, "/"))
            assert told.task_ids == ("b.000000", "own")
            assert (client.do(call()), len(client.work())) == (["b.000000", "own"], 3)
            assert client.do(batches.read_batch(client.context, "b")) == batches.Batch("b", 2, 0, (), done=True)
            refused(client, DuplicateTask, call())


def test_an_unknown_member_is_known_again_though_its_payload_was_replaced_and_it_moved_often() -> None:
    """Its record has dropped the mark of the call, and its payload is an operator's: it is a member of that batch."""
    client, messages = new_queue(), [Message(b"x"), Message(b"y")]
    call = enqueue.enqueue_batch(client.context, messages, "b")
    refused(client, OutcomeUnknown, call, "same call", outage(client))
    other = another(client)
    for _ in range(6):
        other.cancel("b.000000")
        other.do(interventions.redrive(other.context, "b.000000"))
    other.do(interventions.replace_data(other.context, "b.000000", b"new"))
    assert client.do(enqueue.enqueue_batch(client.context, messages, "b")) == ["b.000000", "b.000001"]
    assert sorted(other.work()) == ["b.000000", "b.000001"]
    assert client.do(batches.read_batch(client.context, "b")).done


def test_one_refused_id_leaves_the_rest_resolved() -> None:
    """A duplicate beside a lost reply: the lost one is found out about before the refusal is told."""
    client, lost = queue_of(["used"]), iter([False, True])
    call = put(client, Message(b"x", task_id="used"), Message(b"x", task_id="new"))
    loses = lambda op: LOST_REPLY if writes(client, op) and next(lost, False) else None
    told = refused(client, DuplicateTask, call, None, loses)
    assert (told.duplicates, told.enqueued) == (("used",), ("new",))


def test_an_enqueue_that_went_elsewhere_and_lost_its_reply_is_not_told_to_be_unsent() -> None:
    """Its segment was deleted, it was sent into another, and the reply was lost: unknown, and written once."""
    client = queue_of(["first"])
    segment = client.context.paths.entry(client.state("first").place).rpartition("/")[0]
    client.claimed()
    message, sent = Message(b"payload"), list[Any]()

    def fault(op: Any) -> Any:
        if isinstance(op, Multi) and any(getattr(part, "data", None) == message.data for part in op.ops):
            sent.append(op)
            if len(sent) == 1:
                client.zk.multi(0, (Delete(segment),))
            return LOST_REPLY if len(sent) == 2 else None
        return GONE if len(sent) > 2 else None

    told = unknown_put(client, message, fault=fault)
    assert (tuple(client.do(put(client, *again(told, message)))), len(sent)) == (told, 3)
    assert set(client.zk.names(client.context.paths.at("tasks"))) == {"first", *told}


def test_that_nothing_tells_any_more_what_became_of_a_commit_is_told_once() -> None:
    """What it took was collected since: the outcome stays unknown, and after that there is no claim to settle."""
    client = fresh()
    unit = unit_of(client)
    refused(client, OutcomeUnknown, transaction.commit(unit), None, outage(client))
    other = another(client)
    assert other.do(interventions.clear(other.context)) == 1
    refused(client, OutcomeUnknown, transaction.commit(unit), "collected")
    refused(client, ClaimLost, transaction.commit(unit))
