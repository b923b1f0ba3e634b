"""Claims prefetched, for oneself or for others: only what had begun counts an attempt, whatever ends the claim."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.claim.take import Wanted
from airflow_provider_zkmq.engine.core.client_state import Claimed
from airflow_provider_zkmq.engine.core.maintenance import due_work
from airflow_provider_zkmq.engine.core.model.filters import EVERYTHING
from airflow_provider_zkmq.engine.core.model.settings import RetryPolicy
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.read.claim_status import current_claim, lease_path, mark_path
from airflow_provider_zkmq.engine.core.tasks import interventions, settle
from airflow_provider_zkmq.engine.core.zk_operations import Multi, Post, Procedure
from airflow_provider_zkmq.engine.errors import ClaimLost
from tests.unit.claiming import after_rescue, another, many, queue_of, step
from tests.unit.world import LOST_REPLY, LOST_REQUEST, NOT_SENT, Client, at, new_queue

#: How a claim is bound: to its session, to its session and a lock, to a lease.
BOUND: dict[str, dict[str, Any]] = {"bound": {}, "locked": {"lock": 5}, "leased": {"lease": 5}}
HOWEVER_BOUND = pytest.mark.parametrize("options", BOUND.values(), ids=BOUND)


def one_ahead(options: dict[str, Any]) -> tuple[Client, Claimed]:
    """A claim prefetched; the one that came with it and began at once is settled."""
    client = new_queue()
    for name in ("lead", "t0"):
        client.put(task_id=name, lock=options.get("lock"))
    lead, claimed = many(client, 2, Wanted(EVERYTHING, options.get("lease"), prefetch=True))
    assert [(each.task_id, each.prefetched) for each in (lead, claimed)] == [("lead", False), ("t0", True)]
    client.complete(lead)
    client.do(interventions.drop(client.context, "lead"))
    return client, claimed


def begin(client: Client, claimed: Claimed, fault: Any = lambda _op: None) -> list[str]:
    """Have it begin; which writes that took."""
    seen: list[str] = []

    def noted(op: Any) -> Any:
        seen.extend([type(op).__name__] if isinstance(op, Multi | Post) else [])
        return fault(op)

    client.do(settle.begin(client.context, claimed), noted)
    return seen


def die(client: Client, *, leased: bool = True) -> None:
    """The client ends without a word, and its lease, where it has one."""
    client.zk.expire(client.session)
    client.zk.ms += 60_000 if leased else 0


def mark_of(client: Client, claimed: Claimed) -> bytes:
    return client.zk.nodes[mark_path(client.context, claimed.task_id, claimed.state)].data


def attempts(client: Client) -> dict[str, tuple[State, int, int]]:
    """Of each task its state, its attempts, and how many of them its history tells of."""
    states = client.check().items()
    return {name: (state.state, state.attempt, len(state.history)) for name, state in states}


def test_a_mark_that_cannot_be_read_counts(subtests: pytest.Subtests) -> None:
    """What does not say that no handler had begun makes the delivery count, and the rescue goes on."""
    for how, options in BOUND.items():
        for junk in (b"", b"\xff", b"[]", b'{"ahead":1}', b'{"ahead":false}'):
            with subtests.test(how, junk=junk):
                client, claimed = one_ahead(options)
                client.zk.nodes[mark_path(client.context, "t0", claimed.state)].data = junk
                die(client, leased="lease" in options)
                other = after_rescue(client)
                assert other.state("t0").attempt == 1
                assert other.work() == ["t0"]


@HOWEVER_BOUND
def test_extending_what_was_taken_ahead_does_not_begin_it(options: dict[str, Any]) -> None:
    """A heartbeat leaves the mark, and a beginning leaves the deadline; one whose reply is lost has begun."""
    for held in (0, 2_000):  # the reply is not waited for, or is
        client, claimed = one_ahead(options)
        before = mark_of(client, claimed)
        client.do(settle.extend(client.context, claimed, 5))
        assert mark_of(client, claimed) == before
        deadline = claimed.state.lease and client.zk.nodes[lease_path(client.context, claimed.state)].mzxid
        client.zk.ms += held
        begin(client, claimed, at(0, LOST_REPLY))
        assert (claimed.prefetched, mark_of(client, claimed) == before) == (False, False)
        if deadline:
            assert client.zk.nodes[lease_path(client.context, claimed.state)].mzxid == deadline
        client.complete(claimed)
        assert client.check()["t0"].state is State.FINISHED


def test_what_was_not_taken_ahead_begins_without_a_word() -> None:
    """Nothing is written for a claim that counts from the first; one that is lost does not begin."""
    client = queue_of("a")
    claimed, version = client.claimed(), client.zk.zxid
    begin(client, claimed)
    assert client.zk.zxid == version
    client.complete(claimed)
    with pytest.raises(ClaimLost):
        begin(client, claimed)


# --- said without waiting for the reply


@pytest.mark.parametrize("why", ["held", "another session", "cancelled", "short lease", "unknown", "not sent"])
def test_what_may_be_over_begins_only_when_the_server_says_so(why: str) -> None:
    """Also what could not be sent without waiting: it has begun by the time the call returns."""
    client, claimed = one_ahead({"lease": 0.5} if why == "short lease" else {})
    match why:
        case "held":
            client.zk.ms += 1_001
        case "short lease":
            client.zk.ms += 300
        case "another session":
            claimed.session += 1
        case "cancelled":
            claimed.cancelled = True
        case "unknown":
            claimed.sent = None
    seen = begin(client, claimed, at(0, NOT_SENT, Post) if why == "not sent" else at(0, None))
    assert (seen, claimed.prefetched) == (["Post", "Multi"] if why == "not sent" else ["Multi"], False)
    die(client)
    assert after_rescue(client).state("t0").attempt == 1


@pytest.mark.parametrize("end", ["settled", "taken away", "session over"])
def test_a_lost_mark_of_a_claim_that_is_over_is_nobody_s(end: str) -> None:
    """Nothing is written for it, and nobody hears of it but who settles it."""
    client, claimed = one_ahead({"lock": 5})
    begin(client, claimed, at(0, LOST_REQUEST, Post))
    match end:
        case "settled":
            client.complete(claimed)
        case "taken away":
            client.zk.ms += 60_000
            after_rescue(client)
        case "session over":
            client.context.claims.end_session(client.session + 1, client.zk.zxid)
    tree = dict(client.zk.nodes)
    client.do(due_work.finish_pending(client.context))
    assert not due_work.has_pending(client.context)
    assert client.zk.nodes == tree
    assert client.reports == []
    if end != "settled":
        with pytest.raises(ClaimLost):
            client.complete(claimed)


def test_a_late_mark_touches_no_later_claim_of_the_same_id() -> None:
    """The lease ended, the task was dropped, and an id of the same name is claimed by another, at the same version."""
    client, claimed = one_ahead({"lease": 5})
    stepper = step(client, settle.begin(client.context, claimed))
    stepper.until(Post)
    late: Multi = stepper.op.multi
    stepper.cut()
    client.zk.ms += 60_000
    other = after_rescue(client)
    other.do(interventions.drop(other.context, "t0"))
    other.put(task_id="t0")
    theirs = other.claimed(lease=5)
    assert theirs.version == claimed.version
    tree = dict(client.zk.nodes)
    assert not client.zk.multi(client.session, late.ops).committed
    assert client.zk.nodes == tree
    other.complete(theirs)


# --- for others, who begin by id and token


def for_others(**conf: Any) -> tuple[Client, Client, Claimed]:
    """Who claimed a task for others, ahead; the other process; the claim."""
    client = queue_of(["t0"], **conf)
    [claimed] = many(client, 1, Wanted(EVERYTHING, 5, "all"))
    return client, another(client, "run"), claimed


def by_token(client: Client, claimed: Claimed, procedure: Any, *args: Any) -> Any:
    """What another process does that knows the task's id and the token."""

    def carried_out() -> Procedure[Any]:
        held = yield from current_claim(client.context, claimed.task_id, claimed.token)
        return (yield from procedure(client.context, held, *args))

    return client.do(carried_out())


@pytest.mark.parametrize(("said", "counted"), [("extended", 0), ("progress", 1)])
def test_extending_by_token_begins_nothing_and_progress_does(said: str, counted: int) -> None:
    """What is extended comes back at its new end, not at its old one; who reports progress is at it."""
    client, run, claimed = for_others()
    by_token(run, claimed, settle.extend, 100)
    if said == "progress":
        by_token(run, claimed, settle.progress, 0.5)
    client.zk.ms += 60_000
    assert run.do(due_work.maintain(run.context)) == 0
    client.zk.ms += 60_000
    assert run.do(due_work.maintain(run.context)) == 1
    assert attempts(run) == {"t0": (State.INSERTED, counted, counted)}


@pytest.mark.parametrize("begun", [False, True])
def test_release_by_token_counts_nothing(begun: bool) -> None:
    """Given back at once, begun or not; the next claimer has the first attempt. Who fails it says it was tried."""
    client, run, claimed = for_others(policy=RetryPolicy(attempts=1))
    if begun:
        by_token(run, claimed, settle.begin)
    by_token(run, claimed, settle.release)
    assert attempts(run)["t0"][:2] == (State.INSERTED, 0)
    assert client.zk.names(client.context.paths.at("leases")) == []
    [again] = many(run, 1, Wanted(EVERYTHING, 5, "all"))
    client.zk.ms += 2_000
    by_token(client, again, settle.begin)
    client.zk.ms += 3_000
    by_token(run, again, settle.fail, "broken")
    state = client.check()["t0"]
    assert (again.state.attempt, state.state, state.attempt, state.error) == (1, State.DEAD, 1, "broken")
    assert state.history[0].started >= state.history[0].claimed + 2_000  # a third process told when it had begun
