"""Deleting a queue: asked once more, refused while it is used, and carried to its end however often it is cut off."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from airflow_provider_zkmq.engine import ClaimLost, ConfigError, QueueError, QueueNotFound
from airflow_provider_zkmq.engine.core.claiming import claim
from airflow_provider_zkmq.engine.core.claiming.take import Wanted
from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.model.selectors import EVERYTHING
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Op, Pipeline
from airflow_provider_zkmq.engine.core.protocol.writes import Create, Delete, Multi, SetData
from airflow_provider_zkmq.engine.core.reading import claims, existence, roots
from airflow_provider_zkmq.engine.core.tasks import configure, enqueue, operate, putting, settle, transaction
from airflow_provider_zkmq.engine.core.upkeep import collect, deletion, rescue
from tests.fake_zookeeper import Crash, new_context
from tests.stepping import Stepper
from tests.unit.world import BROKEN_OFF, LOST_REPLY, LOST_REQUEST, Client, new_queue

ROOT = "/zkmq"


def used_queue() -> Client:
    """A queue that has something in every place, and its client."""
    client = new_queue()
    client.put(task_id="pending", priority=3)
    client.put(delay=60)
    for make in (client.complete, lambda held: client.fail(held, retry=False), lambda _held: None):
        client.put()
        make(client.claimed())
    client.put(task_id="gone")
    client.cancel("gone")
    client.do(enqueue.enqueue_all(client.context, [Message(b"m")] * 3, "batch", Message(b"then")))
    client.do(configure.pause(client.context))
    return client


def delete(client: Client, **options: Any) -> Any:
    return deletion.delete(client.context, **({"confirm": True} | options))


def below(client: Client, path: str = ROOT + "/q") -> set[str]:
    return {each for each in client.zk.nodes if (each + "/").startswith(path + "/")}


def test_a_deleted_queue_is_gone_whole() -> None:
    """Everything of it, and nothing of its neighbours; the number of its tasks is told. A new one can be created."""
    client = used_queue()
    tasks = len(client.zk.names(ROOT + "/q/tasks"))
    neighbour = Client(client.zk, "neighbour")
    neighbour.context = _memory_of(neighbour, "qq")
    neighbour.put(task_id="stays")
    kept = below(client, ROOT + "/qq")
    assert client.do(delete(client, force=True)) == tasks
    assert (below(client), below(client, ROOT + "/qq")) == (set(), kept)
    with pytest.raises(QueueNotFound):
        client.take()
    client.put(task_id="pending")
    assert (client.work(), client.reports) == (["pending"], [])
    client.check()


def _memory_of(client: Client, queue: str) -> Any:
    return new_context(client.zk, client.session, queue)


def test_it_is_asked_once_more() -> None:
    """Without `confirm` nothing is deleted; the refusal says how many tasks there are."""
    client = new_queue()
    client.put()
    before = below(client)
    with pytest.raises(ConfigError, match=r"loses its 1 task\(s\) for good"):
        client.do(deletion.delete(client.context))
    assert below(client) == before


def test_a_queue_in_use_is_deleted_by_force_only() -> None:
    """Another live consumer, or a claimed task, refuses it; a consumer of the same client's alone does not."""
    client = new_queue()
    client.put(task_id="a")
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


def test_leased_claims_are_claimed_tasks() -> None:
    """They outlive their consumers, and refuse a deletion like others."""
    client = new_queue()
    client.put()
    client.claimed(lease=60)
    with pytest.raises(QueueError, match=r"0 other live consumer\(s\), 1 claimed"):
        client.do(delete(client))
    assert client.do(delete(client, force=True)) == 1


def test_what_is_no_queue_is_not_deleted() -> None:
    """A foreign tree, also by force; foreign znodes in a queue take force; so does a queue that has lost its layout."""
    client = new_queue()
    client.zk.multi(0, (Create("/zkmq/other"), Create("/zkmq/other/precious")))
    for force in (False, True):
        with pytest.raises(QueueNotFound):
            client.do(deletion.delete(_memory_of(client, "other"), confirm=True, force=force))
    assert "/zkmq/other/precious" in client.zk.nodes
    client.zk.multi(0, (Create("/zkmq/q/notes"), Create("/zkmq/q/notes/mine")))
    with pytest.raises(QueueError, match="notes"):
        client.do(delete(client))
    client.zk.multi(0, (Delete("/zkmq/q/conf/layout"),))
    with pytest.raises(QueueNotFound):
        client.do(delete(client))
    client.do(delete(client, force=True))
    assert below(client) == set()


@pytest.mark.parametrize("path", ["conf/layout/x", "conf/layout/x/y", "deleting/x", "deleting/x/y", "conf/x/y"])
def test_whatever_stands_below_a_queue_s_znodes_is_deleted_with_it(path: str) -> None:
    """Also below those that never have children, the layout and the mark; afterwards the queue can be made anew."""
    client = used_queue()
    if path.startswith("deleting"):  # a deletion that was cut off, and then somebody's znodes below its mark
        client.zk.multi(0, (Delete("/zkmq/q/conf/layout"), Create("/zkmq/q/deleting")))
    above = "/zkmq/q"
    for name in path.split("/"):
        above = f"{above}/{name}"
        if above not in client.zk.nodes:
            client.zk.multi(0, (Create(above),))
    client.do(delete(client, force=True))
    assert below(client) == set()
    Client(client.zk, "later").put()


@pytest.mark.parametrize("name", ["conf", "queue", "tasks"])
def test_a_queue_that_has_lost_a_part_is_deleted_by_force(name: str) -> None:
    """Whatever part that is: nobody could use the queue, or make one of its name."""
    client = used_queue()
    if name != "conf":
        client.zk.multi(0, (Delete("/zkmq/q/conf/layout"),))
    lost = sorted(below(client, f"/zkmq/q/{name}"), reverse=True)
    client.zk.multi(0, tuple(map(Delete, lost)))
    with pytest.raises(QueueNotFound):
        client.do(delete(client))
    client.do(delete(client, force=True))
    assert below(client) == set()
    Client(client.zk, "later").put()


def test_an_archived_queue_is_deleted_without_force() -> None:
    """What it keeps for its archive is its own: dead letters that left it, and how far the archive has come."""
    client = new_queue()
    client.do(configure.configure(client.context, archive=True))
    client.put(task_id="letter")
    client.fail(client.claimed(), retry=False)
    client.do(operate.drop(client.context, "letter"))
    assert client.zk.names(ROOT + "/q/unarchived")
    client.zk.expire(client.session)
    other = Client(client.zk, "other")
    other.do(delete(other))
    assert below(client) == set()


def test_another_version_s_queue_is_not_deleted() -> None:
    """Whoever knows its layout may do that."""
    client = new_queue()
    client.zk.multi(0, (SetData("/zkmq/q/conf/layout", b"2", -1),))
    with pytest.raises(ConfigError, match="upgrade"):
        client.do(delete(client, force=True))
    assert "/zkmq/q/tasks" in client.zk.nodes


def test_its_transactions_are_of_a_bounded_size() -> None:
    """However many tasks there are; and many tasks share each of its requests."""
    client = new_queue()
    client.do(enqueue.enqueue_many(client.context, [Message(b"x")] * 600))
    sizes: list[int] = []
    rounds: list[Op] = []

    def note(op: Op) -> None:
        rounds.append(op)
        if isinstance(op, Multi):
            sizes.append(len(op.ops))

    stepper = Stepper(client.zk, client.session, delete(client))
    while not stepper.over:
        for op in stepper.op.ops if isinstance(stepper.op, Pipeline) else (stepper.op,):
            note(op)
        stepper.step()
    assert max(sizes) <= deletion.DELETES_PER_MULTI + 1
    assert len(stepper.done) < 150
    assert below(client) == set()


def refused_meanwhile(client: Client) -> None:
    """A queue whose deletion has begun is there for nobody, and nobody can create it before the deletion has ended."""
    late = Client(client.zk, "late")
    assert late.do(roots.queue_names(ROOT)) == []
    for call in (late.take, late.put, lambda: late.do(configure.configure(late.context, lock=5))):
        with pytest.raises(QueueNotFound, match="is being deleted"):
            call()


@pytest.mark.parametrize("fault", [BROKEN_OFF, LOST_REPLY, LOST_REQUEST])
def test_a_deletion_that_is_cut_off_is_ended_by_the_same_call(fault: str) -> None:
    """After any of its operations, by a crash or a lost connection: whoever asks again ends it."""
    number, over = 0, False
    while not over:
        client, seen = used_queue(), iter(range(10_000))
        over = True

        def cut(op: Op, at: int = number, seen: Any = seen) -> Any:
            nonlocal over
            if not isinstance(op, Multi) or next(seen) != at:
                return None
            over = False
            return fault

        with contextlib.suppress(Crash):
            client.do(delete(client, force=True), cut)
        if ROOT + "/q" in client.zk.nodes:
            if ROOT + "/q/deleting" in client.zk.nodes:
                refused_meanwhile(client)
            other = Client(client.zk, "other")
            other.do(delete(other, force=True))
        assert below(client) == set()
        Client(client.zk, "new").put()
        number += 1
    assert number > 10


def test_a_late_deletion_spares_a_queue_that_was_created_since() -> None:
    """Overtaken by another one after any of its operations, it deletes nothing of the new queue of the same name."""
    number, over = 0, False
    while not over:
        client = used_queue()
        late = Stepper(client.zk, client.session, delete(client, force=True))
        for _ in range(number):
            if not late.over:
                late.step()
        over = late.over
        if not over and ROOT + "/q/deleting" in client.zk.nodes:
            other = Client(client.zk, "other")
            other.do(delete(other))
            other.put(task_id="new")
            late.finish()
            assert other.work() == ["new"]
            other.check()
        number += 1
    assert number > 20


def test_what_is_written_while_it_goes_on_is_deleted_too() -> None:
    """A producer that does not know yet: its tasks go as well, and the deletion comes to its end."""
    client, seen = new_queue(), iter(range(3))
    producer = Client(client.zk, "producer")
    producer.put()

    def interfere(op: Op) -> None:
        if isinstance(op, Children) and op.path.endswith("/tasks") and next(seen, None) is not None:
            with contextlib.suppress(QueueNotFound):
                client.zk.multi(0, (Create("/zkmq/q/queue/late"), Create("/zkmq/q/queue/late/0000000001")))

    client.do(delete(client), interfere)
    assert below(client) == set()
    with pytest.raises(QueueNotFound):
        producer.take()


def rolled_back(client: Client, held: Any) -> Any:
    return transaction.rollback(transaction.Transaction([(client.context, held)]))


def committed(client: Client, held: Any) -> Any:
    unit = transaction.Transaction([(client.context, held)])
    putting.put(unit.put, client.context, Message(b"out"))
    return transaction.commit(unit)


def of_claim(client: Client, held: Any, procedure: Any) -> Any:
    """A procedure as a claim's verb is carried out."""
    return claims.unless_queue_gone(client.context, held, procedure)


#: What others do with a claim in hand while the queue is deleted; which of it creates the queue anew.
BESIDE: dict[str, tuple[Any, bool]] = {
    "enqueue": (lambda it, _held: enqueue.enqueue(it.context, Message(b"x")), True),
    "batch": (lambda it, _held: enqueue.enqueue_all(it.context, [Message(b"x")] * 2, "b", Message(b"t")), True),
    "commit": (committed, True),
    "claim": (lambda it, _held: claim.claim(it.context, Wanted(EVERYTHING)), False),
    "complete": (lambda it, held: of_claim(it, held, settle.complete(it.context, held, b"r")), False),
    "fail": (lambda it, held: of_claim(it, held, settle.fail(it.context, held, "e")), False),
    "release": (lambda it, held: of_claim(it, held, settle.release(it.context, held)), False),
    "rollback": (rolled_back, False),
    "pause": (lambda it, _held: configure.pause(it.context), False),
    "collect": (lambda it, _held: collect.collect_garbage(it.context, 0), False),
    "tend": (lambda it, _held: rescue.tend(it.context), False),
}


@pytest.mark.parametrize("name", BESIDE)
def test_whatever_goes_on_beside_a_deletion_ends_and_leaves_nothing_behind(name: str) -> None:
    """Deleted after any of its operations: it is told that the queue or its claim is gone, or had come to its end.

    What creates queues may create it anew, whole; nothing else does. Afterwards the client goes on in a new queue.
    """
    make, creates = BESIDE[name]
    number, over = 0, False
    while not over:
        client = new_queue()
        client.put(lock=60)
        client.put(delay=3)
        held = client.claimed()
        client.zk.advance(5)
        procedure = existence.unless_missing(client.context, make(client, held))
        beside = Stepper(client.zk, client.session, procedure)
        for _ in range(number):
            if not beside.over:
                beside.step()
        over, other = beside.over, Client(client.zk, "other")
        other.do(delete(other, force=True))
        with contextlib.suppress(QueueNotFound, ClaimLost):
            beside.finish()
        assert creates or below(client) == set()
        client.check()
        client.put(task_id="new")
        assert "new" in client.work()
        number += 1
    assert number > 1


class Actor:
    """A client that makes one call after the other, a step at a time; what came of its calls that ended."""

    def __init__(self, zk: Any, name: str, make: Any) -> None:
        self.client, self.make = Client(zk, name), make
        self.calls: list[tuple[str, Any]] = []
        self.call: Stepper | None = None
        self.what = ""

    def step(self, rand: random.Random) -> None:
        """Go on with the call under way, or begin the next one. Raises what no caller expects."""
        try:
            if self.call is None:
                self.what, procedure = self.make(self.client, rand)
                procedure = existence.unless_missing(self.client.context, procedure)
                self.call = Stepper(self.client.zk, self.client.session, procedure)
            else:
                self.call.step()
        except (QueueNotFound, ClaimLost, QueueError) as error:
            self._end(error)
        else:
            if self.call.over:
                self._end(self.call.result)

    def _end(self, result: Any) -> None:
        self.calls.append((self.what, result))
        self.call = None


def produces(client: Client, rand: random.Random) -> Any:
    return "enqueue", enqueue.enqueue(client.context, Message(b"x", lock=rand.choice([None, 60])))


def consumes(client: Client, _rand: random.Random) -> Any:
    for held in list(client.context.claims.in_hand.values()):
        return "complete", of_claim(client, held, settle.complete(client.context, held, b"r"))
    return "claim", kept(client, claim.claim(client.context, Wanted(EVERYTHING)))


def kept(client: Client, claiming: Any) -> Any:
    """A claim whose caller keeps it in hand."""
    claimed = yield from claiming
    client.hand = claimed  # type: ignore[attr-defined]
    return claimed


def deletes(client: Client, rand: random.Random) -> Any:
    return "delete", deletion.delete(client.context, confirm=True, force=rand.random() < 0.7)


@pytest.mark.parametrize("seed", range(30))
def test_deletions_among_producers_and_consumers_keep_what_comes_after_them(seed: int) -> None:
    """In any order of their operations each call ends; what was enqueued after the last deletion is handled."""
    rand, zk = random.Random(seed), new_queue().zk
    deleter = Actor(zk, "deleter", deletes)
    others = [Actor(zk, f"{make.__name__}{n}", make) for make in (produces, consumes) for n in range(2)]
    for _ in range(1_500):
        rand.choice([*others, *others, deleter]).step(rand)
    while deleter.call is not None:
        deleter.step(rand)
    for actor in others:
        while actor.call is not None:
            actor.step(rand)
    last = Client(zk, "last")
    before = {last.put() for _ in range(3)}
    states = last.check()
    assert before <= states.keys()
    assert any(what == "delete" and isinstance(result, int) for what, result in deleter.calls)
    assert sum(what == "complete" and result is None for each in others for what, result in each.calls)
    for actor in others:
        actor.client.zk.expire(actor.client.session)
    assert before <= set(last.work())
    assert all(state.state is State.FINISHED for state in last.check().values())
