"""An enqueue whose outcome its caller was not told, and the same call made again: each task is written once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.memory import unresolved
from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Get, GetMany, Reconnect
from airflow_provider_zkmq.engine.core.protocol.writes import Multi
from airflow_provider_zkmq.engine.core.tasks import batches, enqueue
from airflow_provider_zkmq.engine.errors import DuplicateTask, OutcomeUnknown, SessionLost, Unavailable
from tests.fake_zookeeper import Crash
from tests.unit.world import BROKEN_OFF, LOST_REPLY, LOST_REQUEST, Client, Fault, new_queue

GONE = Unavailable("no server answered")


def writes(client: Client, op: Any) -> bool:
    """Whether an operation writes a task."""
    return isinstance(op, Multi) and any(item.path.startswith(client.context.paths.at("tasks/")) for item in op.ops)


def outage(client: Client, effect: str, first: int = 0) -> Fault:
    """The connection is lost at the write number `first`, which was carried out or not, and does not come back."""
    seen: list[Any] = []

    def fault(op: Any) -> Any:
        if writes(client, op):
            seen.append(op)
            return effect if len(seen) > first else None
        return GONE if isinstance(op, Reconnect) else None

    return fault


def second_outage(client: Client, effect: str) -> Fault:
    """The reply is lost, the connection comes back, and is lost again while the outcome is looked for."""
    sent: list[Any] = []

    def fault(op: Any) -> Any:
        if writes(client, op):
            sent.append(op)
            return effect if len(sent) == 1 else None
        return GONE if sent and isinstance(op, Get | GetMany) else None

    return fault


def put(client: Client, *messages: Message) -> Any:
    return enqueue.enqueue_many(client.context, messages)


EFFECTS = (LOST_REPLY, LOST_REQUEST)


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("fails", [outage, second_outage])
def test_an_unknown_enqueue_made_again_is_one_task(effect: str, fails: Callable[..., Fault]) -> None:
    """First `OutcomeUnknown` with the id, never "nothing was written"; then success with the id of the one task."""
    client = new_queue()
    if fails is second_outage and effect == LOST_REQUEST:
        assert client.do(put(client, Message(b"x")), fails(client, effect)) == list(client.check())
        return  # the same request sent again was the first to be carried out
    with pytest.raises(OutcomeUnknown, match="same call") as unknown:
        client.do(put(client, Message(b"x")), fails(client, effect))
    ids = client.do(put(client, Message(b"x")))
    assert tuple(ids) == unknown.value.task_ids
    assert (list(client.check()), client.context.unresolved.calls) == (ids, client.context.unresolved.calls)
    third = client.do(put(client, Message(b"x")))
    assert (len(client.check()), client.work()) == (2, [*ids, *third])


@pytest.mark.parametrize("options", [{}, {"task_id": "own"}, {"delay": 1}, {"priority": 3, "metadata": {"a": 1}}])
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("order", ["default", "fifo"])
def test_whatever_the_message_holds_it_is_written_once(options: dict[str, Any], effect: str, order: str) -> None:
    client = new_queue(order=order)
    with pytest.raises(OutcomeUnknown):
        client.do(put(client, Message(b"x", **options)), outage(client, effect))
    (task_id,) = client.do(put(client, Message(b"x", **options)))
    client.zk.advance(5)
    assert (list(client.check()), client.work(timeout=1)) == ([task_id], [task_id])


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("options", [{"update": True}, {"requeue": True}, {}])
def test_an_unknown_change_of_a_task_is_made_once(effect: str, options: dict[str, bool]) -> None:
    """Update, requeue and a new run of an id in use: made again they are known, not refused and not made twice."""
    client = new_queue()
    client.put(b"old", task_id="a")
    claimed = None if "update" in options else client.claimed()
    if not options and claimed is not None:
        client.complete(claimed)
    message = Message(b"new", task_id="a", **options)
    with pytest.raises(OutcomeUnknown) as unknown:
        client.do(put(client, message), outage(client, effect, first=1))
    assert unknown.value.task_ids == ("a",)
    assert client.do(put(client, message)) == ["a"]
    client.check()
    if options.get("requeue") and claimed is not None:
        client.complete(claimed)
    assert client.claimed().data == b"new"
    assert client.take() is None


@pytest.mark.parametrize("effect", EFFECTS)
def test_an_unknown_call_of_many_made_again_writes_each_once(effect: str) -> None:
    """Some transactions were carried out, one is unknown, the rest never sent."""
    client = new_queue()
    messages = [Message(str(number)) for number in range(400)]
    with pytest.raises(OutcomeUnknown) as unknown:
        client.do(put(client, *messages), outage(client, effect, first=3))
    assert 0 < len(unknown.value.task_ids) < 400
    ids = client.do(put(client, *messages))
    assert set(unknown.value.task_ids) < set(ids)
    assert sorted(client.check()) == sorted(ids)
    data = {client.zk.nodes[client.context.paths.task(task_id, "data")].data for task_id in ids}
    assert len(data) == 400


def test_equal_messages_are_taken_over_one_for_one() -> None:
    """Two equal calls are unknown: two more calls stand for them, a third is a task of its own."""
    client = new_queue()
    for _ in range(2):
        procedure = put(client, Message(b"x"), Message(b"x"))
        client.do(repeat_after(client, procedure))
    assert len(client.check()) == 4


def repeat_after(client: Client, procedure: Any) -> Any:
    with pytest.raises(OutcomeUnknown):
        client.do(procedure, outage(client, LOST_REPLY))
    return put(client, Message(b"x"), Message(b"x"))


def test_a_repeat_that_finds_no_server_is_still_unknown() -> None:
    """It sends nothing itself; what the first call sent may have been carried out, and the third call finds it."""
    client = new_queue()
    with pytest.raises(OutcomeUnknown) as first:
        client.do(put(client, Message(b"x")), outage(client, LOST_REPLY))
    with pytest.raises(OutcomeUnknown) as second:
        client.do(put(client, Message(b"x")), lambda op: GONE if writes(client, op) else None)
    ids = client.do(put(client, Message(b"x")))
    assert first.value.task_ids == second.value.task_ids == tuple(ids)
    assert list(client.check()) == ids


def test_what_was_not_sent_is_told_as_not_written() -> None:
    """No server when the first request is to be sent: `Unavailable`, and nothing is remembered."""
    client = new_queue()
    with pytest.raises(Unavailable):
        client.do(put(client, Message(b"x")), lambda op: GONE if writes(client, op) else None)
    assert (client.context.unresolved.calls, client.check()) == ([], {})


def test_a_batch_that_was_not_begun_is_told_as_not_written() -> None:
    """No server when the batch is to be opened: `Unavailable`, nothing is remembered, the call can be made again."""
    client = new_queue()
    call = lambda: enqueue.enqueue_batch(client.context, [Message(b"x")], "b")
    with pytest.raises(Unavailable):
        client.do(call(), lambda op: GONE if isinstance(op, Multi) else None)
    assert (client.context.unresolved.calls, client.check()) == ([], {})
    assert client.do(call()) == ["b.000000"]


def test_a_session_that_ends_after_the_sending_is_unknown() -> None:
    client = new_queue()
    with pytest.raises(OutcomeUnknown) as unknown:
        client.do(put(client, Message(b"x")), lambda op: SessionLost("closed") if writes(client, op) else None)
    assert len(unknown.value.task_ids) == 1


def test_a_call_that_was_broken_off_is_taken_over() -> None:
    """Cancelled or interrupted after the request was sent: the same call again finds its task."""
    client = new_queue()
    with pytest.raises(Crash):
        client.do(put(client, Message(b"x")), lambda op: BROKEN_OFF if writes(client, op) else None)
    written = list(client.check())
    assert client.do(put(client, Message(b"x"))) == written
    assert list(client.check()) == written


def test_a_task_handled_in_between_is_not_written_again() -> None:
    """The first call was carried out, and its task is finished by the time of the second."""
    client = new_queue()
    with pytest.raises(OutcomeUnknown) as unknown:
        client.do(put(client, Message(b"x")), outage(client, LOST_REPLY))
    assert client.work() == list(unknown.value.task_ids)
    assert client.do(put(client, Message(b"x"))) == list(unknown.value.task_ids)
    assert [state.state for state in client.check().values()] == [State.FINISHED]


def test_what_is_remembered_ends_with_time_and_number() -> None:
    """A minute later the same call is another task; no more than 64 calls are remembered."""
    client = new_queue()
    for number in range(70):
        with pytest.raises(OutcomeUnknown):
            client.do(put(client, Message(str(number))), outage(client, LOST_REPLY))
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
    with pytest.raises(OutcomeUnknown) as unknown:
        client.do(put(client, Message(b"x")), outage(client, LOST_REPLY))
    for _ in range(10):
        client.zk.advance(20)
        client.context.configuration.watch = None  # as after each loss of the connection
        with pytest.raises(Unavailable):
            client.do(put(client, Message(b"x")), lambda _op: GONE)
    assert client.do(put(client, Message(b"x"))) == list(unknown.value.task_ids)
    assert len(client.check()) == 1


def test_another_client_s_equal_call_is_its_own() -> None:
    client = new_queue()
    with pytest.raises(OutcomeUnknown):
        client.do(put(client, Message(b"x")), outage(client, LOST_REPLY))
    other = Client(client.zk)
    other.put(b"x")
    assert len(client.check()) == 2


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("effect", EFFECTS)
def test_an_unknown_batch_made_again_is_one_batch(number: int, effect: str) -> None:
    """Unknown at its opening, a member, or its sealing: never "nothing was written"; made again it is complete."""
    client = new_queue()
    messages = [Message(b"1"), Message(b"2", task_id="own")]
    call = lambda: enqueue.enqueue_batch(client.context, messages, "b", Message(b"then"))
    seen: list[Any] = []

    def fault(op: Any) -> Any:
        if isinstance(op, Multi):
            seen.append(op)
            return effect if len(seen) - 1 >= number else None
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
    fault = lambda op: LOST_REPLY if writes(client, op) and next(lost, False) else None
    with pytest.raises(DuplicateTask) as refused:
        client.do(put(client, *messages), fault)
    assert (refused.value.duplicates, refused.value.enqueued) == (("used",), ("new",))
