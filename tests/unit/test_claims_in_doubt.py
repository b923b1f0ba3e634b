"""Claims that their callers never got, or left in a transaction, are given back, whatever cut the call off."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_zkmq.engine.core.claiming import claim, take
from airflow_provider_zkmq.engine.core.memory.claims import Caller
from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.model.selectors import EVERYTHING
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Reconnect, Wait
from airflow_provider_zkmq.engine.core.protocol.writes import Create, Multi, Outcome
from airflow_provider_zkmq.engine.core.tasks import configure, enqueue, settle, transaction
from airflow_provider_zkmq.engine.core.writing import combining
from airflow_provider_zkmq.engine.errors import ClaimLost, OutcomeUnknown, Unavailable
from tests.fake_zookeeper import LOST, FakeZooKeeper, Faults, check_tree, drive, new_context
from tests.stepping import Stepper

UNKNOWN = Outcome(committed=False, unknown=True)
KINDS = [take.Wanted(EVERYTHING), take.Wanted(EVERYTHING, 30)]


class World:
    def __init__(self, order, attempts):
        self.zk = FakeZooKeeper()
        self.session = self.zk.connect()
        self.context = new_context(self.zk, self.session)
        policy = RetryPolicy(attempts=attempts, factor=0)
        self.do(configure.configure(self.context, policy=policy, order=order))
        self.do(enqueue.enqueue(self.context, Message(b"x", task_id="a")))

    def do(self, procedure, faults=None):
        return drive(self.zk, self.session, procedure, faults)

    def stepper(self, procedure):
        return Stepper(self.zk, self.session, procedure)


def fresh(order="default", attempts=1):
    return World(order, attempts)


def writes(world, procedure):
    """How many transactions a procedure makes up to and with the claim's."""
    faults = Faults()
    world.do(procedure, faults)
    return faults.seen


@pytest.mark.parametrize("order", ["default", "fifo"])
@pytest.mark.parametrize("kind", LOST)
@pytest.mark.parametrize("wanted", KINDS, ids=["bound", "leased"])
def test_a_claim_whose_reply_is_lost_is_handed_out(order, kind, wanted):
    """The caller gets the task that its first try, or its second, has claimed; nothing stays behind."""
    spy = fresh(order)
    count = writes(spy, claim.claim(spy.context, wanted))
    for at in range(count):
        world = fresh(order)
        claimed = world.do(claim.claim(world.context, wanted), Faults(at, kind))
        assert claimed is not None, f"the caller got nothing when write {at} lost its reply"
        assert (claimed.task_id, claimed.state.attempt) == ("a", 1)
        assert not world.context.claims.handovers
        world.do(settle.complete(world.context, claimed))
        assert check_tree(world.zk, world.context)["a"].state is State.FINISHED


@pytest.mark.parametrize("order", ["default", "fifo"])
@pytest.mark.parametrize("wanted", KINDS, ids=["bound", "leased"])
@pytest.mark.parametrize("carried_out", [True, False])
def test_a_claim_cut_off_at_any_operation_is_given_back(order, wanted, carried_out):
    """Cut off before or after any of its operations, the task is handed out by the client's next claim.

    There is one attempt in all, which shows that the one nobody got was not counted.
    """
    for at in range(60):
        world = fresh(order)
        stepper = world.stepper(claim.claim(world.context, wanted))
        for _ in range(at):
            if not stepper.over:
                stepper.step()
        if stepper.over:
            break
        if carried_out and isinstance(stepper.op, Multi):
            world.zk.multi(world.session, stepper.op.ops)
        stepper.cut()
        claimed = world.do(claim.claim(world.context, wanted))
        assert claimed is not None, f"cut off at operation {at}, the task is in nobody's hand"
        assert claimed.state.attempt == 1
        assert not world.context.claims.handovers
        world.do(settle.complete(world.context, claimed))
        assert check_tree(world.zk, world.context)["a"].state is State.FINISHED
    else:
        pytest.fail("the claim has more operations than this test cuts")


@pytest.mark.parametrize("arrived", [True, False])
def test_a_claim_of_unknown_outcome_is_resolved_before_the_next(arrived):
    """The server is away longer than the caller waits: `OutcomeUnknown`, and the next claim begins with its end."""
    world = fresh()
    stepper = world.stepper(claim.claim(world.context, KINDS[0]))
    stepper.until(Multi, "tasks/a/claim")
    if arrived:
        world.zk.multi(world.session, stepper.op.ops)
    stepper.answer(UNKNOWN)
    assert isinstance(stepper.op, Reconnect)
    with pytest.raises(OutcomeUnknown):
        stepper.fail(Unavailable("no server answered"))
    assert len(world.context.claims.handovers) == 1
    claimed = world.do(claim.claim(world.context, KINDS[0]))
    assert (claimed.task_id, claimed.state.attempt) == ("a", 1)
    check_tree(world.zk, world.context)


def test_a_caller_that_is_interrupted_while_it_gets_its_claim_leaves_it_to_its_client():
    """Nothing is delivered until the caller says so; who went away says so, too."""
    world = fresh()
    caller = Caller()
    claimed = world.do(claim.claim(world.context, KINDS[0], caller=caller))
    assert list(world.context.claims.handovers) == [claimed.state.nonce]
    assert world.do(claim.claim(world.context, KINDS[0])) is None, "it is on its way: not to be taken away"
    caller.left = True
    assert world.do(claim.claim(world.context, KINDS[0])).task_id == "a"


@pytest.mark.parametrize("order", ["default", "fifo"])
@pytest.mark.parametrize("timeout", [0, 60])
def test_nothing_is_claimed_for_a_caller_that_has_left(order, timeout):
    """The client gives back what is owed and claims again; a call that nobody waits for must not claim after that."""
    for at in range(60):
        world = fresh(order)
        caller = Caller()
        stepper = world.stepper(claim.claim(world.context, KINDS[0], timeout, lambda it=caller: it.left, caller))
        for _ in range(at):
            stepper.step()
        caller.left = True
        if isinstance(stepper.op, Multi) and "tasks/a/claim" in repr(stepper.op):
            break  # sent by now: that is given back
        assert stepper.finish() is None
        assert not world.context.claims.handovers
        assert check_tree(world.zk, world.context)["a"].state is State.INSERTED
    else:
        pytest.fail("the claim is not sent by then")


def test_a_delivered_claim_stays_with_its_caller():
    """Once delivered, going away takes nothing back: the task is the caller's to settle."""
    world = fresh()
    caller = Caller()
    claimed = world.do(claim.claim(world.context, KINDS[0], caller=caller))
    world.context.claims.deliver(claimed)
    caller.left = True
    assert world.do(claim.claim(world.context, KINDS[0])) is None
    world.do(settle.complete(world.context, claimed))


def taken(world):
    """A transaction that has taken the task."""
    claimed = world.do(claim.claim(world.context, KINDS[0]))
    return transaction.Transaction(taken=[(world.context, claimed)])


@pytest.mark.parametrize("carried_out", [True, False])
def test_a_rollback_cut_off_at_any_operation_is_made_by_the_next_claim(carried_out):
    """Who left the transaction cannot roll back again; its client does, once: the taking counts as one delivery."""
    for at in range(60):
        world = fresh(attempts=3)
        stepper = world.stepper(transaction.rollback(taken(world)))
        for _ in range(at):
            if not stepper.over:
                stepper.step()
        if stepper.over:
            break
        if carried_out and isinstance(stepper.op, Multi):
            world.zk.multi(world.session, stepper.op.ops)
        stepper.cut()
        claimed = world.do(claim.claim(world.context, KINDS[0]))
        assert claimed is not None, f"cut off at operation {at}, the task is in nobody's hand"
        assert claimed.state.attempt == 2
        assert not world.context.claims.owed
        check_tree(world.zk, world.context)
    else:
        pytest.fail("the rollback has more operations than this test cuts")


@pytest.mark.parametrize("arrived", [True, False])
def test_a_rollback_of_unknown_outcome_can_be_made_again_or_is_made_by_the_next_claim(arrived):
    """Whoever comes first, the caller or the next claim; the other finds nothing left to do."""
    for again in (True, False):
        world = fresh(attempts=3)
        it = taken(world)
        stepper = world.stepper(transaction.rollback(it))
        stepper.until(Multi, "tasks/a/state")
        if arrived:
            world.zk.multi(world.session, stepper.op.ops)
        stepper.answer(UNKNOWN)
        with pytest.raises(OutcomeUnknown):
            stepper.fail(Unavailable("no server answered"))
        if again:
            world.do(transaction.rollback(it))
        claimed = world.do(claim.claim(world.context, KINDS[0]))
        assert (claimed.task_id, claimed.state.attempt) == ("a", 2)
        world.do(transaction.rollback(it))
        world.do(settle.complete(world.context, claimed))
        assert check_tree(world.zk, world.context)["a"].state is State.FINISHED


@pytest.mark.parametrize("verb", ["complete", "fail", "release"])
@pytest.mark.parametrize("arrived", [True, False])
def test_settling_again_after_an_unknown_outcome_tells_what_happened(verb, arrived):
    """The same verb succeeds, whether the first try had been carried out or not; another verb is told that it lost."""
    call = {
        "complete": lambda world, claimed: settle.complete(world.context, claimed, b"r"),
        "fail": lambda world, claimed: settle.fail(world.context, claimed, "e"),
        "release": lambda world, claimed: settle.release(world.context, claimed),
    }[verb]
    for again in (verb, "other"):
        world = fresh(attempts=3)
        claimed = world.do(claim.claim(world.context, KINDS[0]))
        stepper = world.stepper(call(world, claimed))
        stepper.until(Multi, "finished/" if verb == "complete" else "tasks/a/state")
        if verb == "complete":  # the first try found no bucket for what has finished
            stepper.step()
            stepper.until(Multi, "finished/")
        if arrived:
            assert world.zk.multi(world.session, stepper.op.ops).committed
        stepper.answer(UNKNOWN)
        with pytest.raises(OutcomeUnknown):
            stepper.fail(Unavailable("no server answered"))
        expected = {"complete": State.FINISHED, "fail": State.INSERTED, "release": State.INSERTED}[verb]
        if again == verb:
            world.do(call(world, claimed))
        else:
            other = settle.release if verb == "complete" else settle.complete
            if arrived:
                with pytest.raises(ClaimLost):
                    world.do(other(world.context, claimed))
            else:
                world.do(other(world.context, claimed))
                expected = State.INSERTED if verb == "complete" else State.FINISHED
        assert check_tree(world.zk, world.context)["a"].state is expected
        assert not claimed.claim or claimed.lost


@pytest.mark.parametrize("arrived", [True, False])
@pytest.mark.parametrize("others", [3, 4])
def test_what_the_record_has_forgotten_is_never_told_as_known(arrived, others):
    """Four settlements later nobody can tell whether an earlier try has settled the claim: both answers say so."""
    world = fresh(attempts=9)
    claimed = world.do(claim.claim(world.context, KINDS[0]))
    stepper = world.stepper(settle.release(world.context, claimed))
    stepper.until(Multi, "tasks/a/state")
    ops = stepper.op.ops
    if arrived:
        assert world.zk.multi(world.session, ops).committed
    stepper.answer(UNKNOWN)
    with pytest.raises(OutcomeUnknown):
        stepper.fail(Unavailable("no server answered"))
    if not arrived:  # somebody else ends the claim
        world.do(settle.release(new_context(world.zk, world.session), replace(claimed, nonces={}, unsure=False)))
        others -= 1
    for _ in range(others):
        world.do(settle.release(world.context, world.do(claim.claim(world.context, KINDS[0]))))
    again = lambda: world.do(settle.release(world.context, claimed))
    if others + (not arrived) < 4:
        again() if arrived else raises(ClaimLost, "changed nothing", again)
    else:
        raises(OutcomeUnknown, "cannot be told any more", again)
        raises(ClaimLost, "cannot be told any more", again)
        raises(ClaimLost, "cannot be told any more", lambda: world.do(settle.complete(world.context, claimed)))
    last = world.do(claim.claim(world.context, KINDS[0]))
    world.do(settle.complete(world.context, last))
    assert check_tree(world.zk, world.context)["a"].state is State.FINISHED
    assert not any((world.context.claims.owed, world.context.claims.handovers, world.context.claims.unsure))


def raises(kind, text, call):
    with pytest.raises(kind, match=text):
        call()


def test_of_two_threads_that_settle_the_same_claim_one_does():
    """They come one after the other: the second is told that the claim is over, and its result is not kept."""
    world = fresh()
    claimed = world.do(claim.claim(world.context, KINDS[0]))
    one = world.stepper(settle.complete(world.context, claimed, b"A"))
    one.until(Multi, "tasks/a/state")
    two = world.stepper(settle.complete(world.context, claimed, b"B"))
    assert isinstance(two.op, Wait)
    one.finish()
    with pytest.raises(ClaimLost):
        two.answer(True)
    assert world.zk.node(world.context.paths.task("a", "result")).data == b"A"


@pytest.mark.parametrize("order", ["default", "fifo"])
def test_a_foreign_znode_below_an_entry_stops_nobody(order):
    """The entry is reported once and stepped over; who waits sends no request for it again and again."""
    world = fresh(order)
    reports = []
    world.context.run.report = lambda path, _why: reports.append(path)
    states = check_tree(world.zk, world.context)
    entry = world.context.paths.entry(states["a"].place)
    world.zk.multi(world.session, (Create(f"{entry}/foreign"),))
    world.do(enqueue.enqueue(world.context, Message(b"x", task_id="b")))
    assert world.do(claim.claim(world.context, KINDS[0])).task_id == "b"
    stepper = world.stepper(claim.claim(world.context, KINDS[0], 30))
    stepper.finish()
    assert len(stepper.done) < 20
    assert reports == [entry]


def test_a_registration_that_is_cut_off_keeps_nobody_waiting():
    """Whoever was cut off while it registered its client leaves no sign that somebody is at it."""
    for at in range(20):
        world = fresh()
        stepper = world.stepper(claim.claim(world.context, KINDS[0]))
        for _ in range(at):
            if not stepper.over:
                stepper.step()
        if stepper.over:
            return
        stepper.cut()
        assert not world.context.registration.joining
        assert world.do(claim.claim(world.context, KINDS[0])) is not None


def test_a_claim_that_is_learnt_of_late_takes_nothing_from_a_later_one(monkeypatch):
    """Its lease ended while its reply was on its way, and the same client claimed the task again: that claim holds."""
    monkeypatch.setattr(combining, "ON_THEIR_WAY", 2)  # else the later one waits for the reply, too
    world = fresh("fifo", attempts=3)  # whose consumers try what others of the client try
    late = world.stepper(claim.claim(world.context, KINDS[1]))
    late.until(Multi, "tasks/a/claim")
    reply = world.zk.multi(world.session, late.op.ops)
    world.zk.advance(40)
    claimed = world.do(claim.claim(world.context, KINDS[0]))
    assert claimed.state.attempt == 2
    late.answer(reply)
    assert late.finish().lost
    assert not claimed.lost
    world.do(settle.complete(world.context, claimed, b"r"))
    with pytest.raises(ClaimLost):
        world.do(settle.complete(world.context, late.result, b"late"))
    assert world.zk.node(world.context.paths.task("a", "result")).data == b"r"
