"""Claims taken ahead, for oneself or for others: only what had begun counts an attempt, whatever ends the claim."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.claiming.take import Wanted
from airflow_provider_zkmq.engine.core.memory.claims import Claimed
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.model.selectors import EVERYTHING
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Post, Procedure
from airflow_provider_zkmq.engine.core.protocol.writes import Multi
from airflow_provider_zkmq.engine.core.reading.claims import current_claim
from airflow_provider_zkmq.engine.core.tasks import beginning, holding, operate, settle
from airflow_provider_zkmq.engine.core.upkeep import debts, rescue
from airflow_provider_zkmq.engine.core.writing.pieces import lease_path, mark_path
from airflow_provider_zkmq.engine.errors import ClaimLost, Unavailable
from tests.unit.claiming import after_rescue, another, many, queue_of, step
from tests.unit.world import LOST_REPLY, LOST_REQUEST, NOT_SENT, Client, at, new_queue

#: How a claim is bound: to its session, to its session and a lock, to a lease.
BOUND: dict[str, dict[str, Any]] = {"bound": {}, "locked": {"lock": 5}, "leased": {"lease": 5}}
HOWEVER_BOUND = pytest.mark.parametrize("options", BOUND.values(), ids=BOUND)
WITH_AN_END = pytest.mark.parametrize("options", [BOUND["locked"], BOUND["leased"]], ids=["locked", "leased"])


def take_ahead(client: Client, options: dict[str, Any], count: int = 1) -> list[Claimed]:
    """So many claims taken ahead; the one that came with them and began at once is settled."""
    names = ["lead", *(f"t{number}" for number in range(count))]
    for name in names:
        client.put(task_id=name, lock=options.get("lock"))
    claims = many(client, count + 1, Wanted(EVERYTHING, options.get("lease"), ahead=True))
    assert [(each.task_id, each.ahead) for each in claims] == [(name, name != "lead") for name in names]
    client.complete(claims[0])
    client.do(operate.drop(client.context, "lead"))
    return claims[1:]


def one_ahead(options: dict[str, Any], **conf: Any) -> tuple[Client, Claimed]:
    client = new_queue(**conf)
    return client, take_ahead(client, options)[0]


def begin(client: Client, claimed: Claimed, fault: Any = lambda _op: None) -> list[str]:
    """Have it begin; which writes that took."""
    seen: list[str] = []

    def noted(op: Any) -> Any:
        seen.extend([type(op).__name__] if isinstance(op, Multi | Post) else [])
        return fault(op)

    client.do(beginning.begin(client.context, claimed), noted)
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


@WITH_AN_END
def test_the_end_of_a_lock_counts_only_what_had_begun(options: dict[str, Any]) -> None:
    """The client lives, but nobody extends what it has: begun or not decides; the client hears that it lost both."""
    client = new_queue(policy=RetryPolicy(attempts=1))
    idle, begun = take_ahead(client, options, 2)
    begin(client, begun)
    client.zk.ms += 60_000
    other = after_rescue(client, 2)
    assert [other.state(each.task_id).attempt for each in (idle, begun)] == [0, 1]
    for each in (idle, begun):
        with pytest.raises(ClaimLost):
            client.complete(each)
    assert other.work() == ["t0"]  # a last attempt that never began is none


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
        client.do(holding.extend(client.context, claimed, 5))
        assert mark_of(client, claimed) == before
        deadline = claimed.state.lease and client.zk.nodes[lease_path(client.context, claimed.state)].mzxid
        client.zk.ms += held
        begin(client, claimed, at(0, LOST_REPLY))
        assert (claimed.ahead, mark_of(client, claimed) == before) == (False, False)
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
    assert (seen, claimed.ahead) == (["Post", "Multi"] if why == "not sent" else ["Multi"], False)
    die(client)
    assert after_rescue(client).state("t0").attempt == 1


@HOWEVER_BOUND
@pytest.mark.parametrize("fault", [LOST_REQUEST, LOST_REPLY])
def test_a_mark_that_was_lost_is_written_again(options: dict[str, Any], fault: str) -> None:
    """The handler goes on meanwhile; it is owed until the connection is back; then the consumer's death counts."""
    client, claimed = one_ahead(options)
    before = mark_of(client, claimed)
    begin(client, claimed, at(0, fault, Post))
    assert (claimed.ahead, mark_of(client, claimed) == before) == (False, fault == LOST_REQUEST)
    with pytest.raises(Unavailable):
        client.do(debts.pay_debts(client.context), at(0, Unavailable("away")))
    assert debts.in_debt(client.context)
    client.do(debts.pay_debts(client.context))
    assert not debts.in_debt(client.context)
    assert mark_of(client, claimed) != before
    die(client, leased="lease" in options)
    other = after_rescue(client)
    assert other.check()["t0"].attempt == 1
    assert other.work() == ["t0"]


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
            client.context.claims.end_session(client.session + 1)
    tree = dict(client.zk.nodes)
    client.do(debts.pay_debts(client.context))
    assert not debts.in_debt(client.context)
    assert client.zk.nodes == tree
    assert client.reports == []
    if end != "settled":
        with pytest.raises(ClaimLost):
            client.complete(claimed)


def test_a_late_mark_touches_no_later_claim_of_the_same_id() -> None:
    """The lease ended, the task was dropped, and an id of the same name is claimed by another, at the same version."""
    client, claimed = one_ahead({"lease": 5})
    stepper = step(client, beginning.begin(client.context, claimed))
    stepper.until(Post)
    late: Multi = stepper.op.multi
    stepper.cut()
    client.zk.ms += 60_000
    other = after_rescue(client)
    other.do(operate.drop(other.context, "t0"))
    other.put(task_id="t0")
    theirs = other.claimed(lease=5)
    assert theirs.version == claimed.version
    tree = dict(client.zk.nodes)
    assert not client.zk.multi(client.session, late.ops).committed
    assert client.zk.nodes == tree
    other.complete(theirs)


# --- for others, who begin by id and token


def for_others(count: int = 1, lease: float | None = 5, **conf: Any) -> tuple[Client, Client, list[Claimed]]:
    """Who claimed so many tasks for others, all ahead; the other process; the claims."""
    client = queue_of([f"t{number}" for number in range(count)], **conf)
    return client, another(client, "run"), many(client, count, Wanted(EVERYTHING, lease, "all"))


def by_token(client: Client, claimed: Claimed, procedure: Any, *args: Any) -> Any:
    """What another process does that knows the task's id and the token."""

    def carried_out() -> Procedure[Any]:
        held = yield from current_claim(client.context, claimed.task_id, claimed.token)
        return (yield from procedure(client.context, held, *args))

    return client.do(carried_out())


@pytest.mark.parametrize("lease", [None, 5], ids=["bound", "leased"])
def test_another_process_begins_a_claim_by_its_token(lease: float | None) -> None:
    """From then on the delivery counts; begun twice it counts once, and what was not begun counts nothing."""
    client, run, claims = for_others(3, lease)
    assert [(each.ahead, each.state.attempt) for each in claims] == [(True, 1)] * 3
    for _ in range(2):
        by_token(run, claims[1], beginning.begin_for)
    assert b"ahead" not in mark_of(client, claims[1])
    die(client)
    assert run.do(rescue.tend(run.context)) == 3
    none, one = (State.INSERTED, 0, 0), (State.INSERTED, 1, 1)
    assert attempts(run) == {"t0": none, "t1": one, "t2": none}
    for each in claims:
        with pytest.raises(ClaimLost):
            by_token(run, each, beginning.begin_for)
    assert sorted(run.work()) == ["t0", "t1", "t2"]


@pytest.mark.parametrize(("said", "counted"), [("extended", 0), ("progress", 1)])
def test_extending_by_token_begins_nothing_and_progress_does(said: str, counted: int) -> None:
    """What is extended comes back at its new end, not at its old one; who reports progress is at it."""
    client, run, [claimed] = for_others()
    by_token(run, claimed, holding.extend, 100)
    if said == "progress":
        by_token(run, claimed, holding.progress, 0.5)
    client.zk.ms += 60_000
    assert run.do(rescue.tend(run.context)) == 0
    client.zk.ms += 60_000
    assert run.do(rescue.tend(run.context)) == 1
    assert attempts(run) == {"t0": (State.INSERTED, counted, counted)}


@pytest.mark.parametrize("begun", [False, True])
def test_release_by_token_counts_nothing(begun: bool) -> None:
    """Given back at once, begun or not; the next claimer has the first attempt. Who fails it says it was tried."""
    client, run, [claimed] = for_others(policy=RetryPolicy(attempts=1))
    if begun:
        by_token(run, claimed, beginning.begin_for)
    by_token(run, claimed, settle.release)
    assert attempts(run)["t0"][:2] == (State.INSERTED, 0)
    assert client.zk.names(client.context.paths.at("leases")) == []
    [again] = many(run, 1, Wanted(EVERYTHING, 5, "all"))
    assert again.state.attempt == 1
    by_token(client, again, settle.fail, "broken")
    state = client.check()["t0"]
    assert (state.state, state.attempt, state.error) == (State.DEAD, 1, "broken")
