"""No call tries for ever what cannot be: it is refused with the path that is not as it should be."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.model.new_message import Message
from airflow_provider_zkmq.engine.core.read import configuration
from airflow_provider_zkmq.engine.core.tasks import enqueue, interventions, settle, transaction
from airflow_provider_zkmq.engine.core.write import transitions
from airflow_provider_zkmq.engine.core.zk_operations import (
    Create,
    Delete,
    Exists,
    Get,
    Multi,
    Pipeline,
    Reconnect,
    SetData,
)
from airflow_provider_zkmq.engine.errors import ConfigError, CorruptRecord, OutcomeUnknown, QueueNotFound
from tests.stepping import Stepper
from tests.unit.damage import delete
from tests.unit.world import UNKNOWN, Client, new_queue


def again(client: Client, **options: Any) -> Any:
    return enqueue.enqueue(client.context, Message(b"new", task_id="a", **options))


CALLS: dict[str, Callable[[Client], Any]] = {
    "cancel": lambda it: interventions.cancel(it.context, "a"),
    "drop": lambda it: interventions.drop(it.context, "a"),
    "redrive": lambda it: interventions.redrive(it.context, "a", data=b"new"),
    "replace": lambda it: interventions.replace_data(it.context, "a", b"new"),
    "update": lambda it: again(it, on_conflict="replace", delay=7),
    "enqueue again": again,
    "requeue": lambda it: again(it, on_conflict="requeue"),
}


def in_state(name: str, **conf: Any) -> Client:
    """A queue whose task "a" is in such a state."""
    client = new_queue(**conf)
    client.put(task_id="a", delay=5 if name == "scheduled" else None)
    match name:
        case "cancelled":
            client.cancel("a")
        case "dead":
            client.fail(client.claimed(), retry=False)
        case "finished":
            client.work()
        case "claimed":
            client.claimed()
    return client


def entry(client: Client) -> str:
    return transitions.place_of(client.context, client.state("a"))


def note(client: Client) -> str:
    return client.context.paths.current(client.state("a").consumer or "", "a")


def data(client: Client) -> str:
    return client.context.paths.task("a", "data")


MISSING = {
    "cancel": [("pending", entry), ("scheduled", entry), ("claimed", note)],
    "drop": [("pending", entry), ("cancelled", entry), ("dead", entry), ("finished", data)],
    "redrive": [("cancelled", entry), ("dead", entry), ("dead", data)],
    "replace": [("pending", data)],
    "update": [("pending", entry), ("scheduled", entry), ("pending", data)],
    "enqueue again": [("finished", entry), ("finished", data), ("cancelled", entry)],
}


def test_a_missing_znode_ends_the_call_and_is_named(subtests: pytest.Subtests) -> None:
    """The call is refused with the path, nothing is changed, and the queue goes on; so if something is in the way."""
    cases: list[tuple[str, str, Any]] = [(call, *case) for call, some in MISSING.items() for case in some]
    for call, setup, missing in [*cases, ("requeue", "claimed", None)]:
        with subtests.test(call=call, setup=setup, missing=missing and missing.__name__):
            client = in_state(setup)
            path = missing(client) if missing else client.context.paths.task("a", "requeue")
            client.zk.multi(0, (Delete(path) if missing else Create(path),))
            before = client.state("a")
            ops: list[Any] = []
            with pytest.raises(CorruptRecord, match=path):
                client.do(CALLS[call](client), lambda op, ops=ops: ops.append(op))
            assert (client.state("a"), len([op for op in ops if isinstance(op, Multi)]) <= 6) == (before, True)
            client.put(task_id="b")
            assert client.work() == ["b"]


def test_a_race_is_tried_again(subtests: pytest.Subtests) -> None:
    """The record changes under each of the first tries: the call goes on until it is written."""
    for call in ("cancel", "redrive", "replace", "update", "enqueue again"):
        with subtests.test(call=call):
            client = in_state({"redrive": "dead", "enqueue again": "finished"}.get(call, "pending"))
            path = client.context.paths.task("a", "state")
            left = iter(range(5))

            def busy(op: Any, client: Client = client, path: str = path, left: Any = left) -> None:
                if isinstance(op, Multi) and any(item.path == path for item in op.ops) and next(left, None) is not None:
                    client.zk.multi(0, (SetData(path, client.zk.nodes[path].data, -1),))

            client.do(CALLS[call](client), busy)
            assert next(left, None) is None
            client.check()


def test_a_task_goes_back_to_its_place_however_often_others_delete_the_empty_segment() -> None:
    """Strict order: the segment is made by the transaction that needs it; who finds it made goes on without."""
    client = in_state("pending", order="fifo")
    client.put(task_id="b")
    segment, taken = entry(client).rpartition("/")[0], [client.claimed(), client.claimed()]
    for claimed in taken:
        pruned = lambda op: client.zk.multi(0, (Delete(segment),)) and None if isinstance(op, Multi) else None
        client.do(settle.release(client.context, claimed), pruned)
    assert (client.check().keys(), client.work()) == ({"a", "b"}, ["a", "b"])


def test_what_is_written_in_place_leaves_another_task_of_the_same_id_alone(subtests: pytest.Subtests) -> None:
    """Dropped and enqueued anew, it has the version that was read: what is asked for is done to the new one."""
    for call in ("replace", "update"):
        with subtests.test(call=call):
            client = in_state("pending")
            requested, other = (
                CALLS[call](client) if call == "replace" else again(client, on_conflict="replace"),
                Client(client.zk),
            )
            stepper = Stepper(client.zk, client.session, requested)
            stepper.until(Multi, "data=b'new', version")
            other.do(interventions.drop(other.context, "a"))
            other.put(task_id="a", priority=3)
            place = other.state("a").place
            stepper.finish()
            assert (client.state("a").place == place, client.zk.nodes[data(client)].data) == (call == "replace", b"new")
            client.check()


def knows_a_deleted_queue(known: bool, **options: Any) -> Client:
    """A client that has read the configuration of a queue which was deleted since, and has not been told yet."""
    client = new_queue(**options)
    if known:
        client.put(task_id="a")
    conf = client.do(configuration.read_conf(client.context))
    client.zk.watches.clear()
    delete(client.zk, client.context.paths.base)
    assert client.context.configuration.conf is conf
    return client


def test_an_enqueue_into_a_queue_that_was_just_deleted_is_refused(subtests: pytest.Subtests) -> None:
    """Deleted between the read of its configuration and the write: `ConfigError`; the next enqueue makes it anew."""
    for order, known, delay in product(("default", "fifo"), (False, True), (None, 5)):
        with subtests.test(order=order, known=known, delay=delay):
            client = knows_a_deleted_queue(known, order=order)
            with pytest.raises(ConfigError, match="was deleted"):
                client.put(task_id="b", delay=delay)
            client.put(task_id="c")
            assert (client.work(), client.reports) == (["c"], [])


def test_a_commit_into_a_queue_that_was_just_deleted_is_refused() -> None:
    """Deleted after its configuration was read: the commit names the queue; committed again, it creates the queue."""
    client, unit = knows_a_deleted_queue(known=False), transaction.TransactionState()
    transaction.put(unit.put, client.context, Message(b"x", task_id="a"))
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


def test_a_connection_that_is_lost_at_each_try_ends_the_call_as_unknown() -> None:
    """The server answers, and drops the connection whenever a task is written."""
    one = Message(b"x")
    for messages in ([one], [Message(b"x", delay=5)], [Message(b"x", task_id="a", on_conflict="replace")], [one] * 50):
        client = in_state("pending")
        stepper = Stepper(client.zk, client.session, enqueue.enqueue_many(client.context, messages))
        with pytest.raises(OutcomeUnknown):
            _lose_each_write(stepper)
        assert sum(isinstance(op, Reconnect) for op in stepper.done) < 50
