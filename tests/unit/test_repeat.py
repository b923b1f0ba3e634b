"""A call whose outcome its caller was not told, and the same call made again: each task is written once."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.memory import unresolved
from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Get, GetMany, Reconnect
from airflow_provider_zkmq.engine.core.protocol.writes import Delete, Multi
from airflow_provider_zkmq.engine.core.tasks import batches, enqueue, operate, transaction
from airflow_provider_zkmq.engine.errors import ClaimLost, DuplicateTask, OutcomeUnknown, SessionLost, Unavailable
from tests.unit.world import BROKEN_OFF, LOST_REPLY, LOST_REQUEST, Client, Crash, Fault, new_queue

GONE = Unavailable("no server answered")
EFFECTS = (LOST_REPLY, LOST_REQUEST)


def writes(client: Client, op: Any) -> bool:
    """Whether an operation writes a task."""
    return isinstance(op, Multi) and any(item.path.startswith(client.context.paths.at("tasks/")) for item in op.ops)


def outage(client: Client, effect: Any = LOST_REPLY, first: int = 0) -> Fault:
    """The connection is lost at the write number `first`, which was carried out or not, and does not come back."""
    seen: list[Any] = []

    def fault(op: Any) -> Any:
        if writes(client, op):
            seen.append(op)
            return effect if len(seen) > first else None
        return GONE if isinstance(op, Reconnect) else None

    return fault


def put(client: Client, *messages: Message) -> Any:
    return enqueue.enqueue_many(client.context, messages or [Message(b"x")])


def unknown_put(client: Client, *messages: Message, fault: Fault | None = None) -> tuple[str, ...]:
    """A call whose outcome its caller is not told, but that the same call tells; the ids that it is told."""
    with pytest.raises(OutcomeUnknown, match="same call") as unknown:
        client.do(put(client, *messages), fault or outage(client))
    return unknown.value.task_ids


def test_an_unknown_enqueue_made_again_is_one_task(subtests: pytest.Subtests) -> None:
    """First `OutcomeUnknown` with the id, never "nothing was written"; then success with the id of the one task.

    Made once more it is another task. What was lost on the way is simply sent again, if the connection comes back.
    """
    for effect, second in product(EFFECTS, (False, True)):
        with subtests.test(effect=effect, second=second):
            client, sent = new_queue(), list[Any]()

            def looking(op: Any, client: Client = client, sent: list[Any] = sent, effect: str = effect) -> Any:
                """Lost once; the connection comes back, and is lost again while the outcome is looked for."""
                if writes(client, op):
                    sent.append(op)
                    return effect if len(sent) == 1 else None
                return GONE if sent and isinstance(op, Get | GetMany) else None

            if second and effect == LOST_REQUEST:
                assert client.do(put(client), looking) == list(client.check())
                continue
            told = unknown_put(client, fault=looking if second else outage(client, effect))
            ids = client.do(put(client))
            assert (tuple(ids), list(client.check())) == (told, ids)
            third = client.do(put(client))
            assert (len(client.check()), client.work()) == (2, [*ids, *third])


def test_whatever_the_message_holds_it_is_written_once(subtests: pytest.Subtests) -> None:
    options: list[dict[str, Any]] = [{}, {"task_id": "own"}, {"delay": 1}, {"priority": 3, "metadata": {"a": 1}}]
    for order, effect, said in product(("default", "fifo"), EFFECTS, options):
        with subtests.test(order=order, effect=effect, message=said):
            client = new_queue(order=order)
            unknown_put(client, Message(b"x", **said), fault=outage(client, effect))
            (task_id,) = client.do(put(client, Message(b"x", **said)))
            client.zk.advance(5)
            assert (list(client.check()), client.work(timeout=1)) == ([task_id], [task_id])


def test_an_unknown_change_of_a_task_is_made_once(subtests: pytest.Subtests) -> None:
    """Update, requeue and a new run of an id in use: made again they are known, not refused and not made twice."""
    for effect, option in product(EFFECTS, ("update", "requeue", "")):
        with subtests.test(effect=effect, option=option):
            client = new_queue()
            client.put(b"old", task_id="a")
            claimed = None if option == "update" else client.claimed()
            if not option and claimed is not None:
                client.complete(claimed)
            message = Message(b"new", task_id="a", **({option: True} if option else {}))
            assert unknown_put(client, message, fault=outage(client, effect, first=1)) == ("a",)
            assert client.do(put(client, message)) == ["a"]
            client.check()
            if option == "requeue" and claimed is not None:
                client.complete(claimed)
            assert client.claimed().data == b"new"
            assert client.take() is None


def test_an_unknown_call_of_many_made_again_writes_each_once() -> None:
    """Some transactions were carried out, one is unknown, the rest never sent."""
    messages = [Message(str(number)) for number in range(240)]
    for effect in EFFECTS:
        client = new_queue()
        told = unknown_put(client, *messages, fault=outage(client, effect, first=3))
        ids = client.do(put(client, *messages))
        assert 0 < len(told) < len(ids) == 240
        assert set(told) < set(ids)
        assert sorted(client.check()) == sorted(ids)
        data = {client.zk.nodes[client.context.paths.task(task_id, "data")].data for task_id in ids}
        assert len(data) == 240


def test_equal_messages_are_taken_over_one_for_one() -> None:
    """Two equal calls are unknown: two more calls stand for them. Another client's equal call is its own."""
    client = new_queue()
    for _ in range(2):
        unknown_put(client, Message(b"x"), Message(b"x"))
        client.do(put(client, Message(b"x"), Message(b"x")))
    assert len(client.check()) == 4
    unknown_put(client)
    Client(client.zk).put(b"x")
    assert len(client.check()) == 6


def test_a_repeat_that_finds_no_server_is_still_unknown() -> None:
    """It sends nothing itself; what the first call sent may have been carried out, and the third call finds it."""
    client = new_queue()
    first = unknown_put(client)
    second = unknown_put(client, fault=lambda op: GONE if writes(client, op) else None)
    ids = client.do(put(client))
    assert first == second == tuple(ids)
    assert list(client.check()) == ids


def test_what_was_not_sent_is_told_as_not_written() -> None:
    """No server when the first request is to be sent, or a batch to be opened: `Unavailable`; nothing is remembered."""
    client = new_queue()
    batch = lambda: enqueue.enqueue_batch(client.context, [Message(b"x")], "b")
    begins = lambda op: isinstance(op, Multi)
    for call, begun in ((lambda: put(client), lambda op: writes(client, op)), (batch, begins)):
        with pytest.raises(Unavailable):
            client.do(call(), lambda op, begun=begun: GONE if begun(op) else None)
        assert (client.context.unresolved.calls, client.check()) == ([], {})
    assert client.do(batch()) == ["b.000000"]


def test_a_call_that_was_broken_off_or_whose_session_ended_is_taken_over(subtests: pytest.Subtests) -> None:
    """Cancelled or interrupted after the request was sent, say: the same call again finds its task."""
    for effect in (BROKEN_OFF, SessionLost("closed")):
        with subtests.test(effect=repr(effect)):
            client = new_queue()
            fault = lambda op, client=client, effect=effect: effect if writes(client, op) else None
            if effect == BROKEN_OFF:
                with pytest.raises(Crash):
                    client.do(put(client), fault)
            else:
                assert len(unknown_put(client, fault=fault)) == 1
            written = list(client.check())
            ids = client.do(put(client))
            assert ids == list(client.check())
            assert effect != BROKEN_OFF or ids == written


def test_a_task_handled_in_between_is_not_written_again() -> None:
    """The first call was carried out, and its task is finished by the time of the second."""
    client = new_queue()
    told = list(unknown_put(client))
    assert client.work() == client.do(put(client)) == told
    assert [state.state for state in client.check().values()] == [State.FINISHED]


def test_what_is_remembered_ends_with_time_and_number() -> None:
    """A minute later the same call is another task; no more than 64 calls are remembered."""
    client = new_queue()
    for number in range(70):
        unknown_put(client, Message(str(number)))
    assert len(client.context.unresolved.calls) == unresolved.KEPT_CALLS
    client.zk.advance(unresolved.KEPT_SECONDS - 1)
    client.do(put(client, Message("69")))
    assert len(client.check()) == 70
    client.zk.advance(2)
    client.do(put(client, Message("68")))
    assert (len(client.check()), client.context.unresolved.calls) == (71, [])


def test_an_outage_does_not_count_towards_the_minute() -> None:
    """Who goes on asking through an outage of minutes enqueues once: his tries refresh what is remembered."""
    client = new_queue()
    told = unknown_put(client)
    for _ in range(10):
        client.zk.advance(20)
        client.context.configuration.watch = None  # as after each loss of the connection
        with pytest.raises(Unavailable):
            client.do(put(client), lambda _op: GONE)
    assert client.do(put(client)) == list(told)
    assert len(client.check()) == 1


def test_an_unknown_batch_made_again_is_one_batch(subtests: pytest.Subtests) -> None:
    """Unknown at its opening, a member, or its sealing: never "nothing was written"; made again it is complete."""
    messages = [Message(b"1"), Message(b"2", task_id="own")]
    for number, effect in product(range(4), EFFECTS):
        with subtests.test(number=number, effect=effect):
            client, seen = new_queue(), list[Any]()
            call = lambda client=client: enqueue.enqueue_batch(client.context, messages, "b", Message(b"then"))

            def fault(op: Any, seen: list[Any] = seen, number: int = number, effect: str = effect) -> Any:
                if isinstance(op, Multi):
                    seen.append(op)
                    return effect if len(seen) > number else None
                return GONE if isinstance(op, Reconnect) else None

            with pytest.raises(OutcomeUnknown):
                client.do(call(), fault)
            assert client.do(call()) == ["b.000000", "own"]
            assert len(client.work()) == 3
            stands = client.do(batches.read_batch(client.context, "b"))
            assert (stands.done, stands.total, stands.failed) == (True, 2, ())
            with pytest.raises(DuplicateTask):
                client.do(call())


def test_one_refused_id_leaves_the_rest_resolved() -> None:
    """A duplicate beside a lost reply: the lost one is found out about before the refusal is told."""
    client = new_queue()
    client.put(task_id="used")
    messages = [Message(b"x", task_id="used"), Message(b"x", task_id="new")]
    lost = iter([False, True])
    with pytest.raises(DuplicateTask) as refused:
        client.do(put(client, *messages), lambda op: LOST_REPLY if writes(client, op) and next(lost, False) else None)
    assert (refused.value.duplicates, refused.value.enqueued) == (("used",), ("new",))


def test_an_enqueue_that_went_elsewhere_and_lost_its_reply_is_not_told_to_be_unsent() -> None:
    """Its segment was deleted, it was sent into another, and the reply was lost: unknown, and written once."""
    client = new_queue()
    segment = client.context.paths.entry(client.state(client.put(task_id="first")).place).rpartition("/")[0]
    assert client.take() is not None
    message, sent = Message(b"payload"), list[Any]()

    def fault(op: Any) -> Any:
        if isinstance(op, Multi) and any(getattr(part, "data", None) == message.data for part in op.ops):
            sent.append(op)
            if len(sent) == 1:
                client.zk.multi(0, (Delete(segment),))
            return LOST_REPLY if len(sent) == 2 else None
        return Unavailable("no server is connected") if len(sent) > 2 else None

    unknown_put(client, message, fault=fault)
    (task_id,) = client.do(put(client, message))
    assert len(sent) == 3
    assert sorted(client.zk.names(client.context.paths.at("tasks"))) == sorted(["first", task_id])


def test_that_nothing_tells_any_more_what_became_of_a_commit_is_told_once() -> None:
    """What it took was collected since: the outcome stays unknown, and after that there is no claim to settle."""
    client = new_queue()
    client.put(task_id="a")
    unit = transaction.Transaction([(client.context, client.claimed())])
    with pytest.raises(OutcomeUnknown):
        client.do(transaction.commit(unit), outage(client))
    other = Client(client.zk, "other")
    assert other.do(operate.clear(other.context)) == 1
    with pytest.raises(OutcomeUnknown, match="collected"):
        client.do(transaction.commit(unit))
    with pytest.raises(ClaimLost):
        client.do(transaction.commit(unit))
