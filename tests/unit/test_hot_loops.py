"""No call tries for ever what cannot be: it is refused with the path that is not as it should be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Exists, Get, Pipeline, Reconnect, Sync
from airflow_provider_zkmq.engine.core.protocol.writes import Create, Delete, Multi, Outcome, SetData
from airflow_provider_zkmq.engine.core.reading import configuration
from airflow_provider_zkmq.engine.core.tasks import enqueue, operate, putting, transaction
from airflow_provider_zkmq.engine.core.upkeep import rescue
from airflow_provider_zkmq.engine.core.writing import commit, pieces, transitions
from airflow_provider_zkmq.engine.core.writing.plan import Why
from airflow_provider_zkmq.engine.core.writing.record import Current
from airflow_provider_zkmq.engine.errors import ConfigError, CorruptRecord, OutcomeUnknown, QueueNotFound
from tests.stepping import Stepper
from tests.unit.world import Client, new_queue

UNKNOWN = Outcome(committed=False, unknown=True)


def again(client: Client, **options: Any) -> Any:
    return enqueue.enqueue(client.context, Message(b"new", task_id="a", **options))


CALLS: dict[str, Callable[[Client], Any]] = {
    "cancel": lambda it: operate.cancel(it.context, "a"),
    "drop": lambda it: operate.drop(it.context, "a"),
    "redrive": lambda it: operate.redrive(it.context, "a", data=b"new"),
    "replace": lambda it: operate.replace_data(it.context, "a", b"new"),
    "update": lambda it: again(it, update=True, delay=7),
    "enqueue again": again,
    "requeue": lambda it: again(it, requeue=True),
}


def pending(client: Client) -> None:
    client.put(task_id="a")


def scheduled(client: Client) -> None:
    client.put(task_id="a", delay=5)


def cancelled(client: Client) -> None:
    client.put(task_id="a")
    client.cancel("a")


def dead(client: Client) -> None:
    client.put(task_id="a")
    client.fail(client.claimed(), retry=False)


def finished(client: Client) -> None:
    client.put(task_id="a")
    client.work()


def claimed(client: Client) -> None:
    client.put(task_id="a")
    client.claimed()


def entry(client: Client) -> str:
    return pieces.place_of(client.context, client.state("a"))


def note(client: Client) -> str:
    return client.context.paths.current(client.state("a").consumer or "", "a")


def data(client: Client) -> str:
    return client.context.paths.task("a", "data")


@pytest.mark.parametrize(
    ("call", "setup", "missing"),
    [
        ("cancel", pending, entry), ("cancel", scheduled, entry), ("cancel", claimed, note),
        ("drop", pending, entry), ("drop", cancelled, entry), ("drop", dead, entry), ("drop", finished, data),
        ("redrive", cancelled, entry), ("redrive", dead, entry), ("redrive", dead, data),
        ("replace", pending, data), ("update", pending, entry), ("update", scheduled, entry), ("update", pending, data),
        ("enqueue again", finished, entry), ("enqueue again", finished, data), ("enqueue again", cancelled, entry),
    ],
)  # fmt: skip
def test_a_missing_znode_ends_the_call_and_is_named(call: str, setup: Any, missing: Any) -> None:
    """The call is refused with the path, nothing is changed, and the queue goes on."""
    client = new_queue()
    setup(client)
    path = missing(client)
    client.zk.multi(0, (Delete(path),))
    before = client.state("a")
    ops: list[Any] = []
    with pytest.raises(CorruptRecord, match=path):
        client.do(CALLS[call](client), lambda op: ops.append(op))
    assert (client.state("a"), len([op for op in ops if isinstance(op, Multi)]) <= 6) == (before, True)
    client.put(task_id="b")
    assert client.work() == ["b"]


def test_what_stands_in_the_way_is_named() -> None:
    """A requeue meets a znode where its run should stand, which the record does not know."""
    client = new_queue()
    claimed(client)
    path = client.context.paths.task("a", "requeue")
    client.zk.multi(0, (Create(path),))
    with pytest.raises(CorruptRecord, match=path):
        client.do(CALLS["requeue"](client))


@pytest.mark.parametrize("call", ["cancel", "redrive", "replace", "update", "enqueue again"])
def test_a_race_is_tried_again(call: str) -> None:
    """The record changes under each of the first tries: the call goes on until it is written."""
    client = new_queue()
    {"redrive": dead, "enqueue again": finished}.get(call, pending)(client)
    path = client.context.paths.task("a", "state")
    left = iter(range(5))

    def busy(op: Any) -> None:
        if isinstance(op, Multi) and any(item.path == path for item in op.ops) and next(left, None) is not None:
            client.zk.multi(0, (SetData(path, client.zk.nodes[path].data, -1),))

    client.do(CALLS[call](client), busy)
    assert next(left, None) is None
    client.check()


def test_a_server_that_lags_behind_is_asked_to_catch_up() -> None:
    """The same stale record is read twice: no damage, the call is carried out once the server has caught up."""
    client = new_queue()
    pending(client)
    path = client.context.paths.task("a", "state")
    stale = client.zk.node(path)
    client.zk.multi(0, (SetData(path, client.zk.nodes[path].data, -1),))
    caught_up: list[Any] = []
    procedure, result = operate.cancel(client.context, "a"), None
    for _ in range(100):
        try:
            op = procedure.send(result)
        except StopIteration:
            break
        caught_up += [op] if isinstance(op, Sync) else []
        old = isinstance(op, Get) and op.path == path and not caught_up
        result = stale if old else client._execute(op, lambda _op: None)
    assert (len(caught_up), client.state("a").state) == (1, State.CANCELLED)


@pytest.mark.parametrize("call", ["cancel", "clear"])
def test_a_claim_that_vanishes_with_its_session_meanwhile_is_no_damage(call: str) -> None:
    """The ephemeral goes between the read and the write: tried again, and done."""
    owner = new_queue()
    claimed(owner)
    client = Client(owner.zk)
    path, looks = client.context.paths.task("a", "claim"), []

    def dies(op: Any) -> None:
        if isinstance(op, Multi) and any(item.path == path for item in op.ops) and not looks:
            looks.append(op)
            owner.zk.expire(owner.session)

    procedure = operate.cancel(client.context, "a") if call == "cancel" else operate.clear(client.context)
    result = client.do(procedure, dies)
    assert len(looks) == 1
    states = {task: state.state for task, state in client.check().items()}
    assert (result, states) == ((None, {"a": State.CANCELLED}) if call == "cancel" else (1, {}))


@pytest.mark.parametrize(
    ("change", "raced"),
    [
        (lambda it: SetData(it.context.paths.task("a", "state"), it.state("a").encode(), -1), True),
        (lambda it: Delete(it.context.paths.task("a", "claim")), True),
        (lambda it: Delete(note(it)), False),
    ],
)
def test_a_move_s_caller_can_tell_a_race_from_damage(change: Any, raced: bool) -> None:
    """The record or the claim's ephemeral changed since they were read: worth another try. Anything else is not."""
    client = new_queue()
    claimed(client)
    node = client.zk.node(client.context.paths.task("a", "state"))
    assert node is not None
    current = Current("a", node.stat.version, client.state("a"))
    client.zk.multi(0, (change(client),))
    plan = client.do(transitions.rescue(client.context, current, "nonce", "why", []))
    refusal = client.do(commit.commit(plan)).refusal
    assert refusal is not None
    assert (refusal.why is Why.CHANGED) == raced


def delete_queue(client: Client) -> None:
    base = client.context.paths.base
    for path in sorted((path for path in client.zk.nodes if (path + "/").startswith(base + "/")), reverse=True):
        client.zk.multi(0, (Delete(path),))


@pytest.mark.parametrize("order", ["default", "fifo"])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("delay", [None, 5])
def test_an_enqueue_into_a_queue_that_was_just_deleted_is_refused(order: str, known: bool, delay: Any) -> None:
    """Deleted between the read of its configuration and the write: `ConfigError`; the next enqueue makes it anew."""
    client = new_queue(order=order)
    if known:
        client.put(task_id="a", delay=delay)
    conf = client.do(configuration.read_conf(client.context))
    client.zk.watches.clear()
    delete_queue(client)
    assert client.context.configuration.conf is conf
    with pytest.raises(ConfigError, match="was deleted"):
        client.put(task_id="b", delay=delay)
    client.put(task_id="c")
    assert (client.work(), client.reports) == (["c"], [])


def test_a_commit_into_a_queue_that_was_just_deleted_is_refused() -> None:
    """Deleted after its configuration was read: the commit names the queue; committed again, it creates the queue."""
    client, unit = new_queue(), transaction.Transaction()
    client.do(configuration.read_conf(client.context))
    putting.put(unit.put, client.context, Message(b"x", task_id="a"))
    client.zk.watches.clear()
    delete_queue(client)
    with pytest.raises(QueueNotFound, match="was deleted"):
        client.do(transaction.commit(unit))
    assert client.do(transaction.commit(unit)) == ["a"]
    assert client.work() == ["a"]


def test_an_id_that_comes_and_goes_ends_in_an_error() -> None:
    """The id is taken whenever it is written and free whenever it is read: no loop for ever."""
    client = new_queue()
    path = client.context.paths.task("a")

    def flicker(op: Any) -> None:
        if isinstance(op, Multi) and any(item.path == path for item in op.ops):
            client.zk.multi(0, (Create(path),))
        elif isinstance(op, Get | Exists):
            client.zk.multi(0, (Delete(path),))

    with pytest.raises(CorruptRecord, match=path):
        client.do(again(client), flicker)


def _lose_each_write(stepper: Stepper) -> None:
    for _ in range(200):
        match stepper.op:
            case Multi():
                stepper.answer(UNKNOWN)
            case Pipeline(ops) if any(isinstance(op, Multi) for op in ops):
                stepper.answer([UNKNOWN] * len(ops))
            case Reconnect():
                stepper.answer(None)
            case _:
                stepper.step()


@pytest.mark.parametrize(
    "messages",
    [
        [Message(b"x")],
        [Message(b"x", delay=5)],
        [Message(b"x", task_id="a", update=True)],
        [Message(b"x")] * 50,
    ],
    ids=["one", "delayed", "update", "many"],
)
def test_a_connection_that_is_lost_at_each_try_ends_the_call_as_unknown(messages: list[Message]) -> None:
    """The server answers, and drops the connection whenever a task is written."""
    client = new_queue()
    client.put(task_id="a")
    stepper = Stepper(client.zk, client.session, enqueue.enqueue_many(client.context, messages))
    with pytest.raises(OutcomeUnknown):
        _lose_each_write(stepper)
    assert sum(isinstance(op, Reconnect) for op in stepper.done) < 50


def test_a_tree_whose_entry_is_missing_holds_up_no_tending() -> None:
    """Scheduled, and its entry is gone: nobody promotes it, and claims go on."""
    client = new_queue()
    scheduled(client)
    client.zk.multi(0, (Delete(entry(client)),))
    client.zk.advance(10)
    assert client.do(rescue.tend(client.context)) == 0
    client.put(task_id="b")
    assert client.work() == ["b"]
