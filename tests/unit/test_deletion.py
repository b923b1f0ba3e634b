"""Deleting a queue: asked once more, refused while it is used, and carried to its end however often it is cut off."""

from __future__ import annotations

import contextlib
import itertools
from functools import partial
from typing import Any

import pytest

from airflow_provider_zkmq.engine import ClaimLost, ConfigError, QueueError, QueueNotFound
from airflow_provider_zkmq.engine.core.claim import claim
from airflow_provider_zkmq.engine.core.claim.take import Wanted
from airflow_provider_zkmq.engine.core.maintenance import collect, due_work
from airflow_provider_zkmq.engine.core.model.filters import EVERYTHING
from airflow_provider_zkmq.engine.core.model.new_message import Message
from airflow_provider_zkmq.engine.core.read import claim_status, queue_existence
from airflow_provider_zkmq.engine.core.tasks import admin, enqueue, interventions, settle, transaction
from airflow_provider_zkmq.engine.core.zk_operations import Children, Create, Delete, Multi, Op
from tests.stepping import Stepper
from tests.unit.world import BROKEN_OFF, LOST_REPLY, LOST_REQUEST, Client, Crash, FakeZooKeeper, new_context, new_queue

ROOT, BASE = "/zkmq", "/zkmq/q"


@pytest.fixture(scope="module")
def used() -> FakeZooKeeper:
    """A queue that has something in every place; each test has a copy."""
    client = new_queue()
    client.put(task_id="pending", priority=3)
    client.put(delay=60)
    for make in (client.complete, lambda held: client.fail(held, retry=False), lambda _held: None):
        client.put()
        make(client.claimed())
    client.put(task_id="gone")
    client.cancel("gone")
    client.do(enqueue.enqueue_each(client.context, [Message(b"m")] * 3, batch="batch", then=Message(b"then")))
    client.do(admin.pause(client.context))
    return client.zk


def delete(client: Client, **options: Any) -> Any:
    return admin.delete(client.context, **({"confirm": True} | options))


def below(client: Client, path: str = BASE) -> set[str]:
    return {each for each in client.zk.nodes if (each + "/").startswith(path + "/")}


def deleted_by_force(client: Client) -> None:
    """It goes whole, and a queue of its name can be made."""
    client.do(delete(client, force=True))
    assert below(client) == set()
    Client(client.zk, "later").put()


def test_a_deleted_queue_is_gone_whole(used: FakeZooKeeper) -> None:
    """Everything of it, and nothing of its neighbours; the number of its tasks is told. A new one can be created."""
    client, neighbour = Client(zk := used.copy()), Client(zk, "neighbour")
    neighbour.context = new_context(zk, neighbour.session, "qq")
    neighbour.put(task_id="stays")
    kept, tasks = below(client, ROOT + "/qq"), len(zk.names(BASE + "/tasks"))
    assert client.do(delete(client, force=True)) == tasks
    assert (below(client), below(client, ROOT + "/qq")) == (set(), kept)
    with pytest.raises(QueueNotFound):
        client.take()
    client.put(task_id="pending")
    assert (client.work(), client.reports) == (["pending"], [])
    client.check()


def test_a_queue_in_use_is_deleted_by_force_only() -> None:
    """Others' consumers and claimed tasks refuse it; a call without `confirm` is told how many tasks would go."""
    client = new_queue()
    client.put(task_id="a")
    before = below(client)
    with pytest.raises(ConfigError, match=r"loses its 1 task\(s\) for good"):
        client.do(admin.delete(client.context))
    assert below(client) == before
    other = Client(client.zk, "other")
    held = other.claimed()
    with pytest.raises(QueueError, match=r"1 other live consumer\(s\), 1 claimed task\(s\)"):
        client.do(delete(client))
    other.complete(held)
    with pytest.raises(QueueError, match=r"1 other live consumer\(s\), 0 claimed"):
        client.do(delete(client))
    other.zk.expire(other.session)
    assert client.take() is None
    client.do(delete(client))
    assert below(client) == set()
    client.put()
    client.claimed(lease=60)  # it outlives its consumer
    with pytest.raises(QueueError, match=r"0 other live consumer\(s\), 1 claimed"):
        client.do(delete(client))
    assert client.do(delete(client, force=True)) == 1


def test_what_is_no_queue_is_not_deleted() -> None:
    """A foreign tree never; by force a queue with foreign znodes, or one that has lost its configuration."""
    client = new_queue()
    client.write(Create("/zkmq/other"), Create("/zkmq/other/precious"))
    foreign = new_context(client.zk, client.session, "other")
    for force in (False, True):
        with pytest.raises(QueueNotFound):
            client.do(admin.delete(foreign, confirm=True, force=force))
    assert "/zkmq/other/precious" in client.zk.nodes
    client.write(Create(BASE + "/notes"), Create(BASE + "/notes/mine"))
    with pytest.raises(QueueError, match="notes"):
        client.do(delete(client))
    client.write(*map(Delete, sorted(below(client, BASE + "/conf"), reverse=True)))
    with pytest.raises(QueueNotFound):
        client.do(delete(client))
    deleted_by_force(client)


def test_a_queue_with_strange_znodes_or_without_a_part_is_deleted_by_force(
    used: FakeZooKeeper, subtests: pytest.Subtests
) -> None:
    """Also below a value and the mark, which never have children; whatever is lost. It can be made anew."""
    for path in ("conf/lock/x", "conf/lock/x/y", "deleting/x", "deleting/x/y", "conf/x/y"):
        with subtests.test(strange=path):
            client = Client(used.copy())
            if path.startswith("deleting"):  # a deletion that was cut off, and then somebody's znodes below its mark
                conf = sorted(below(client, BASE + "/conf"), reverse=True)
                client.write(*map(Delete, conf), Create(BASE + "/deleting"))
            for above in itertools.accumulate(path.split("/"), "{}/{}".format, initial=BASE):
                client.write(Create(above))  # refused where it is there
            deleted_by_force(client)
    for name in ("conf", "queue", "tasks"):
        with subtests.test(lost=name):
            client = Client(used.copy())
            lost = below(client, BASE + "/conf") | below(client, f"{BASE}/{name}")
            client.write(*map(Delete, sorted(lost, reverse=True)))
            with pytest.raises(QueueNotFound):
                client.do(delete(client))
            deleted_by_force(client)


def test_an_archived_queue_is_deleted_without_force() -> None:
    """What it keeps for its archive is its own: dead letters that left it, and how far the archive has come."""
    client = new_queue(archive=True)
    client.put(task_id="letter")
    client.fail(client.claimed(), retry=False)
    client.do(interventions.drop(client.context, "letter"))
    assert client.zk.names(BASE + "/unarchived")
    client.zk.expire(client.session)
    other = Client(client.zk, "other")
    other.do(delete(other))
    assert below(client) == set()


def test_its_transactions_are_of_a_bounded_size_and_it_ends_while_others_write() -> None:
    """However many tasks there are, many share each request; those of a producer that does not know yet go, too."""
    client, multis, seen = new_queue(), list[int](), iter(range(3))
    client.do(enqueue.enqueue_many(client.context, [Message(b"x")] * 600))

    def interfere(op: Op) -> None:
        if isinstance(op, Multi):
            multis.append(len(op.ops))
        if isinstance(op, Children) and op.path.endswith("/tasks") and next(seen, None) is not None:
            client.write(Create(BASE + "/queue/late"), Create(BASE + "/queue/late/0000000001"))

    client.do(delete(client), interfere)
    assert max(multis) <= admin.DELETES_PER_MULTI + 1
    assert len(multis) < 100
    assert below(client) == set()
    with pytest.raises(QueueNotFound):
        Client(client.zk, "consumer").take()


def refused_meanwhile(client: Client) -> None:
    """A queue whose deletion has begun is there for nobody, and nobody can create it before the deletion has ended."""
    late = Client(client.zk, "late")
    assert late.do(queue_existence.queue_names(ROOT)) == []
    for call in (late.take, late.put, lambda: late.do(admin.configure(late.context, lock=5))):
        with pytest.raises(QueueNotFound, match="is being deleted"):
            call()


@pytest.mark.parametrize("fault", [BROKEN_OFF, LOST_REPLY, LOST_REQUEST])
def test_a_deletion_that_is_cut_off_is_ended_by_the_same_call(used: FakeZooKeeper, fault: str) -> None:
    """After any of its operations, by a crash or a lost connection: whoever asks again ends it."""
    for number in itertools.count():
        client, sent = Client(used.copy()), itertools.count()
        cut = lambda op, sent=sent, at=number: fault if isinstance(op, Multi) and next(sent) == at else None
        with contextlib.suppress(Crash):
            client.do(delete(client, force=True), cut)
        if next(sent) <= number:
            break
        if BASE in client.zk.nodes:
            if BASE + "/deleting" in client.zk.nodes:
                refused_meanwhile(client)
            other = Client(client.zk, "other")
            other.do(delete(other, force=True))
        assert below(client) == set()
        Client(client.zk, "new").put()
    assert number > 10


def test_a_late_deletion_spares_a_queue_that_was_created_since(used: FakeZooKeeper) -> None:
    """Overtaken by another one after any of its operations, it deletes nothing of the new queue of the same name."""
    for number in itertools.count():
        client = Client(used.copy())
        late = Stepper(client.zk, client.session, delete(client, force=True))
        go_on(late, number)
        if late.over:
            break
        if BASE + "/deleting" in client.zk.nodes:
            other = Client(client.zk, "other")
            other.do(delete(other))
            other.put(task_id="new")
            late.finish()
            assert other.work() == ["new"]
            other.check()
    assert number > 20


def go_on(stepper: Stepper, steps: int) -> None:
    for _ in range(steps):
        if not stepper.over:
            stepper.step()


def committed(client: Client, held: Any) -> Any:
    unit = transaction.TransactionState([(client.context, held)])
    transaction.put(unit.put, client.context, Message(b"out"))
    return transaction.commit(unit)


def of_claim(client: Client, held: Any, procedure: Any) -> Any:
    """A procedure as a claim's verb is carried out."""
    return claim_status.unless_queue_gone(client.context, held, procedure)


#: What others do with a claim in hand while the queue is deleted; which of it creates the queue anew.
BESIDE: dict[str, tuple[Any, bool]] = {
    "enqueue": (lambda it, _held: enqueue.enqueue(it.context, Message(b"x")), True),
    "batch": (
        lambda it, _held: enqueue.enqueue_each(it.context, [Message(b"x")] * 2, batch="b", then=Message(b"t")),
        True,
    ),
    "commit": (committed, True),
    "claim": (lambda it, _held: claim.claim(it.context, Wanted(EVERYTHING)), False),
    "complete": (lambda it, held: of_claim(it, held, settle.complete(it.context, held, b"r")), False),
    "fail": (lambda it, held: of_claim(it, held, settle.fail(it.context, held, "e")), False),
    "release": (lambda it, held: of_claim(it, held, settle.release(it.context, held)), False),
    "rollback": (lambda it, held: transaction.rollback(transaction.TransactionState([(it.context, held)])), False),
    "pause": (lambda it, _held: admin.pause(it.context), False),
    "collect": (lambda it, _held: collect.collect_garbage(it.context, 0), False),
    "tend": (lambda it, _held: due_work.maintain(it.context), False),
}


#: How far a deletion has come when the other call goes on: it has just begun, all consumers are gone, all lanes are, it
#: is over, or the queue is there anew, with a task.
COME = {"begun": 4, "without consumers": 25, "without lanes": 47, "over": 1_000, "created anew": 1_000}
IN_FULL = partial(pytest.param, marks=pytest.mark.full)


@pytest.mark.parametrize(
    "come", ["begun", "without lanes", "created anew", *map(IN_FULL, ("without consumers", "over"))]
)
def test_whatever_goes_on_beside_a_deletion_ends_and_leaves_nothing_behind(
    subtests: pytest.Subtests, come: str
) -> None:
    """It ends, or is told what is gone; what creates queues makes it anew, whole; what is put there is handled."""
    for name, (make, creates) in BESIDE.items():
        for number in itertools.count():
            with subtests.test(beside=name, after=number):
                client = new_queue()
                client.put(lock=60)
                client.put(delay=3)
                held = client.claimed()
                client.zk.advance(5)
                procedure = queue_existence.unless_missing(client.context, make(client, held))
                beside, other = Stepper(client.zk, client.session, procedure), Client(client.zk, "other")
                deleting = Stepper(client.zk, other.session, delete(other, force=True))
                go_on(beside, number)
                go_on(deleting, COME[come])
                over, deleted = beside.over, deleting.over
                new = {other.put(task_id="anew")} if come == "created anew" else set()
                gone = (ConfigError,) if name == "batch" else ()  # it is not open for new tasks any more
                with contextlib.suppress(QueueNotFound, ClaimLost, *gone):
                    beside.finish()
                deleting.finish()
                assert new or (deleted and creates) or below(client) == set()
                states = client.check()
                assert new <= states.keys()
                new.add(client.put(task_id="new"))
                client.do(admin.resume(client.context))
                client.zk.expire(other.session)
                if name == "claim" and (taken := client.context.claims.held.get("anew")) is not None:
                    client.complete(taken)
                    new.remove("anew")
                assert new <= set(client.work())
            if over:
                break
        assert number > 0
