"""A queue that is not there: nothing creates it but what is to; the rest says so, with the names that come close."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_zkmq.engine import ClaimLost, QueueNotFound, TaskNotFound, WaitTimeout
from airflow_provider_zkmq.engine.api.internal_methods import QueueInternals
from airflow_provider_zkmq.engine.api.queue_methods import QueueMethods
from airflow_provider_zkmq.engine.core.claim import claim, claim_iterator
from airflow_provider_zkmq.engine.core.client_state import Caller
from airflow_provider_zkmq.engine.core.model.new_message import Message
from airflow_provider_zkmq.engine.core.read import inspect, queue_existence, watch_tasks
from airflow_provider_zkmq.engine.core.read.configuration import Archive
from airflow_provider_zkmq.engine.core.tasks import admin, enqueue, settle
from airflow_provider_zkmq.engine.core.zk_operations import Delete, Exists, Sync, Wait
from tests.unit.claiming import ANY, another, in_hand, refused, step
from tests.unit.world import Client, new_context, new_queue

CREATE = {"configure", "enqueue", "enqueue_many", "enqueue_new", "open_batch"}
LOOK_AT_NOTHING = {"exists", "run_maintenance", "wait_for_change"}
WAIT_FOR_IT = {"find"}
#: All other verbs of a queue, a new one too: those that take a task's id, ...
OF_A_TASK = {"task", "tree", "explain", "redrive", "cancel", "drop", "claim_task", "revoke"}
#: ... and what else they take, which may be nothing.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(OF_A_TASK, ("a",)),
    "claim_handle": ("a", 1),
    "ended_between": (0, 1),
    "read_ended": ([],),
    **dict.fromkeys(("redrive_many", "wait"), (["a"],)),
    **dict.fromkeys(("wait_batch", "batch", "seal_batch"), ("b",)),
    "publish_archive": (Archive(),),
    "scan": (["a"], ["id"]),
    "follow": ("a", print),
    "replace": ("a", b"x"),
    "claim_many": (3,),
    "page": ("dead",),
}
VERBS = {**vars(QueueMethods), **vars(QueueInternals)}
CALLS = sorted({name for name in VERBS if not name.startswith("_")} - CREATE - LOOK_AT_NOTHING - WAIT_FOR_IT)


class Api:
    """Carries out nothing: the procedure is what it returns."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def _used(self, context: Any) -> None: ...

    def _carry_out(self, procedure: Any) -> Any:
        return procedure

    def _take(self, procedure: Any, _choose: Any) -> Any:
        return procedure


def asked(request: Any) -> Any:
    return (yield from (yield from request).claiming(Caller()))


def called(name: str, context: Any) -> Any:
    if name == "claims":
        return claim_iterator.go_on(claim_iterator.request_loop(context, timeout=0), Caller())
    if name == "claim_handle":
        return asked(claim.request_handle(context, "a", 1))
    options = {"confirm": True} if name == "delete" else {}
    return VERBS[name](Api(context), *ARGUMENTS.get(name, ()), **options)


def elsewhere(client: Client, queue: str) -> Any:
    """The same client's memory of another queue."""
    return new_context(client.zk, client.session, queue)


@pytest.mark.parametrize("name", CALLS)
def test_a_verb_on_a_missing_queue_creates_nothing_and_names_those_that_come_close(name: str) -> None:
    """As the fronts carry it out; the error says which names come close."""
    client = Client(new_queue().zk)
    for queue in ("census", "consensus", "orders"):
        client.do(admin.configure(elsewhere(client, queue)))
    context, before = elsewhere(client, "cencus"), set(client.zk.nodes)
    why = r"'cencus' does not exist under '/zkmq' \(did you mean 'census'"
    told = refused(client, QueueNotFound, queue_existence.unless_missing(context, called(name, context)), why)
    assert set(client.zk.nodes) == before
    assert (told.similar[0], "orders" in told.similar) == ("census", False)


def test_what_creates_a_queue_goes_on_creating_it() -> None:
    """Enqueues and `configure`. Where the queue is there, the error of a missing task stays what it was."""
    client = new_queue()
    client.do(enqueue.enqueue(elsewhere(client, "a"), Message(b"x")))
    client.do(admin.configure(elsewhere(client, "b"), lock=5))
    assert {"/zkmq/a/conf", "/zkmq/b/conf"} <= client.zk.nodes.keys()
    reading = queue_existence.unless_missing(client.context, inspect.read_task(client.context, "a"))
    refused(client, TaskNotFound, reading, "never enqueued")


def test_whether_a_queue_is_there_is_asked_without_creating_it() -> None:
    """A server that lags behind is asked to catch up first."""
    client = new_queue()
    stepper = step(client, queue_existence.exists(elsewhere(client, "later")))
    assert stepper.finish() is False
    assert [type(op) for op in stepper.done] == [Exists, Sync, Exists]
    assert client.do(queue_existence.exists(client.context)) is True


@pytest.mark.parametrize("comes", [True, False])
def test_who_waits_for_a_queue_is_woken_by_a_watch(comes: bool) -> None:
    """Nothing is asked between the look that set the watch and the creation, which ends the wait at once.

    So does a wake, as of a worker that is told to stop.
    """
    client, stop = new_queue(), []
    context = elsewhere(client, "later")
    stepper = step(client, queue_existence.exists(context, None, stopping=lambda: bool(stop)))
    stepper.until(Wait)
    signal = stepper.op.signal
    if comes:
        client.do(admin.configure(elsewhere(client, "later")))
    else:
        stop.append(True)
        context.signal.fire()
    assert signal.count > stepper.op.seen
    stepper.answer(True)
    assert stepper.finish() is comes


def test_a_search_waits_for_the_queue() -> None:
    """It says so once, with the names that come close; then it waits for tasks. A time-out tells of the queue, too.

    A queue that is deleted meanwhile is waited for again.
    """
    client = new_queue()
    context, told = elsewhere(client, "latter"), []
    client.do(admin.configure(elsewhere(client, "later")))
    context.run.report = lambda _path, why: told.append(why)
    search = lambda seconds: watch_tasks.find_matching(context, "all()", 1, seconds)
    assert refused(client, WaitTimeout, search(5), r"'latter' did not come within timeout \(5 s\)").left == ("all()",)
    stepper = step(client, search(60))
    stepper.until(Wait)
    client.do(enqueue.enqueue(elsewhere(client, "latter"), Message(b"x", task_id="a")))
    stepper.answer(True)
    assert stepper.finish() == ["a"]
    assert len(told) == 2
    assert "did you mean 'later'" in told[0]
    stepper = step(client, watch_tasks.find_matching(context, "all()", 2, 60))
    for act in (
        lambda: remove(client, "/zkmq/latter"),
        lambda: client.do(
            enqueue.enqueue_many(elsewhere(client, "latter"), [Message(b"x", task_id=each) for each in "bc"])
        ),
    ):
        stepper.until(Wait)
        act()
        assert stepper.op.signal.count > stepper.op.seen
        stepper.answer(True)
    assert stepper.finish() == ["b", "c"]
    assert len(told) == 3


# --- a queue that goes while it is used


def remove(client: Client, base: str = "/zkmq/q") -> None:
    for path in sorted((path for path in client.zk.nodes if (path + "/").startswith(base + "/")), reverse=True):
        client.zk.multi(0, (Delete(path),))


def test_a_claim_that_waits_is_told_when_its_queue_goes() -> None:
    """By the watch on its configuration; it is not created again."""
    client = new_queue()
    stepper = step(client, client.do(claim.request_claim(client.context, timeout=60)).claiming(Caller()))
    stepper.until(Wait)
    seen = stepper.op.seen
    remove(client)
    assert stepper.op.signal.count > seen
    stepper.answer(True)
    with pytest.raises(QueueNotFound):
        stepper.finish()
    assert "/zkmq/q" not in client.zk.nodes


def test_a_queue_of_the_same_name_is_another_queue() -> None:
    """Whoever used the first one goes on with the second: enqueue, claim, settle, with nothing left of the memory.

    But for who is told of changes: clean-up hears of those of the new queue.
    """
    client, held = in_hand()
    other, hears = another(client), lambda: None
    client.put(delay=5)
    client.context.configuration.changed = hears
    assert other.take() is None
    remove(client)
    for call in (settle.fail(client.context, held, "e"), settle.complete(client.context, held)):
        refused(client, ClaimLost, call)
    for each in (other, client):
        refused(each, QueueNotFound, claim.claim(each.context, ANY))
        context = each.context
        assert (context.configuration.conf, context.registration.consumer, context.known_consumers.live) == (
            None,
            None,
            [],
        )
        assert (context.segments.open, context.segments.buckets, context.listings.readings) == ({}, set(), {})
    assert client.context.configuration.changed is hears
    client.put(task_id="a", data=b"new")
    assert [client.work(), other.work()] == [["a"], []]
    other.put(task_id="b")
    assert other.work() == ["b"]
    client.check()
    assert (client.reports, other.reports) == ([], [])
