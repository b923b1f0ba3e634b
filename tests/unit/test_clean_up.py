"""When clean-up is due and whose lock it has; the thread that puts right what calls left ends and is not hot."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_zkmq.engine.api import background_maintenance
from airflow_provider_zkmq.engine.core.client_state import ServerTime
from airflow_provider_zkmq.engine.core.maintenance import collect as turns
from airflow_provider_zkmq.engine.core.maintenance import due_work
from airflow_provider_zkmq.engine.core.maintenance.collect import Collected, collect_garbage
from airflow_provider_zkmq.engine.core.maintenance.due_work import has_pending
from airflow_provider_zkmq.engine.core.model.settings import ConsumeTimes
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.read import columnar_read, inspect
from airflow_provider_zkmq.engine.core.read.bulk_read import AT_ONCE
from airflow_provider_zkmq.engine.core.read.inspect import list_ids
from airflow_provider_zkmq.engine.core.tasks import admin, interventions
from airflow_provider_zkmq.engine.core.zk_operations import Children, Create, Delete, Failure, GetMany, Multi, SetData
from airflow_provider_zkmq.engine.errors import ClaimLost, ConfigError, SessionLost, Unavailable, ZkmqError
from tests.unit.claiming import another, many, queue_of, step
from tests.unit.looping import filled
from tests.unit.test_deferred_completions import put_down
from tests.unit.world import BROKEN_OFF, LOST_REPLY, Client, Crash, Fault, new_queue


def look(client: Client, fault: Any = lambda _op: None) -> turns.Turn:
    return client.do(turns.collect_if_due(client.context), fault)


def due(client: Client) -> bool:
    """Whether a look makes a run."""
    return look(client).report.ran


def configured(client: Client, **options: Any) -> None:
    client.do(admin.configure(client.context, **options))


def finished(count: int = 1, **conf: Any) -> Client:
    """The client of a queue with so many tasks that have ended."""
    client = queue_of(map(str, range(count)), **conf)
    client.work()
    client.zk.advance(1)
    return client


def test_a_run_is_due_an_interval_after_the_last() -> None:
    """The first look makes the first run, another's says when the next is due; to find nothing due costs one read."""
    client, ops = finished(task_gc_interval=20, task_gc_lifetime=0), list[Any]()
    assert look(client) == turns.Turn(Collected(collected=1), 20)
    client.zk.advance(15)
    for other in (client, another(client)):
        turn = look(other)
        assert (turn.report.ran, round(turn.due_in)) == (False, 5)
    client.put()
    assert not look(client, lambda op: ops.append(op)).report.ran
    assert len(ops) == 1
    client.zk.advance(6)
    assert due(another(client))
    assert not due(client)


def test_lifetime_0_takes_what_has_just_ended_by_a_clock_that_is_ahead() -> None:
    """A client's clock is rather late than early: an end may be stamped after the server's time of the clean-up."""
    client = queue_of(["a"])
    claimed = client.claimed()
    now = client.context.run.monotonic()
    client.context.clock.last = client.context.clock.best = ServerTime(client.zk.ms + 900, now, 0.9)
    client.complete(claimed)
    assert (client.state("a").ended or 0) > client.zk.ms
    assert client.do(collect_garbage(another(client).context, 0)).collected == 1
    assert client.check() == {}
    client.put(task_id="a")
    assert client.work() == ["a"]


def shown(client: Client) -> tuple[dict[str, int], dict[str, str]]:
    """The counts, and each task's status; whoever asks for a state, for tasks or for columns is shown the same."""
    context = client.context
    tasks = client.do(inspect.list_tasks(context))
    for state in State:
        assert sorted(client.do(inspect.task_ids(context, state))) == [task.id for task in tasks if task.state is state]
    columns = ["state", "status", "error", "consumer", "claimed_ms"]
    scanned = client.do(columnar_read.scan(context, [task.id for task in tasks], columns)).columns
    assert scanned == {name: [getattr(task, name) for task in tasks] for name in columns}
    counted, ops = client.do(inspect.counts(context)), list[Any]()
    for fault in (lambda _op: None, lambda op: ops.append(op)):
        assert client.do(inspect.pending(context), fault) == counted["inserted"]
    assert all(isinstance(op, GetMany) for op in ops), "what is not changed is not listed again"
    return counted, {task.id: str(task.status) for task in tasks}


def test_what_has_lapsed_is_shown_as_what_it_is_now_and_clean_up_makes_it_so() -> None:
    """A backoff that is over is none; a lease or a lock that has ended leaves a pending task, or a dead one."""
    client = queue_of("ab")
    client.put(task_id="c", lock=5, priority=1)
    client.put(task_id="d", policy=ConsumeTimes(1), priority=1)
    client.put(task_id="e", delay=5)
    client.put(task_id="f", delay=3_600)
    assert [client.claimed().task_id, *(client.claimed(lease=5).task_id for _ in range(2))] == ["c", "d", "a"]
    assert [shown(another(client))[0][name] for name in ("inserted", "scheduled", "claimed")] == [3, 2, 3]
    client.zk.advance(70)
    now, status = shown(reader := another(client, "reader"))
    assert (now["inserted"], now["scheduled"], now["claimed"], now["dead"]) == (5, 1, 0, 1)
    assert status == dict.fromkeys("abce", "queued") | {"d": "dead", "f": "queued-with-backoff"}
    assert reader.do(collect_garbage(reader.context)).rescued == 4
    assert shown(client) == (now, status)
    assert [task for task, state in client.check().items() if state.index] == ["d", "f"]


def test_who_acts_on_what_has_lapsed_finds_what_is_shown() -> None:
    """It is given back first, whichever verb; its holder is told, and all go on. Until then it may be completed."""
    client = queue_of("abc")
    for name in "defg":
        client.put(task_id=name, policy=ConsumeTimes(1))
    held = {claimed.task_id: claimed for claimed in (client.claimed(lease=5) for _ in range(7))}
    client.zk.advance(70)
    reader = another(client, "reader")
    assert reader.do(list_ids(reader.context, "dead")) == list("defg")
    assert reader.do(columnar_read.scan(reader.context, ["d"], ["ended_ms"])).columns["ended_ms"] == [None]
    reader.do(interventions.drop(reader.context, "a"))
    reader.do(interventions.replace_data(reader.context, "b", b"new"))
    reader.put(b"new", task_id="c", on_conflict="replace")
    reader.do(interventions.redrive(reader.context, "d"))
    assert reader.do(interventions.redrive_many(reader.context, ["e"])) == {}
    client.complete(held["g"])
    assert reader.do(interventions.clear(reader.context, "dead")) == 1
    for name in "abcdef":
        with pytest.raises(ClaimLost):
            client.complete(held[name])
    assert sorted(reader.work()) == list("bcde")


def test_another_interval_counts_from_the_last_run() -> None:
    """A shorter one is due as soon as it has passed since then; a longer one is waited for."""
    for before, after in ((20, 1), (3600, 1), (1e9, 1)):
        client = new_queue(task_gc_interval=before)
        assert look(client).due_in == before
        client.zk.advance(0.4)
        configured(another(client), task_gc_interval=after)
        assert look(client).due_in <= 1
        client.zk.advance(0.8)
        assert due(client)
    with pytest.raises(ConfigError, match="1 second or more"):
        configured(client, task_gc_interval=0)
    client = new_queue(task_gc_interval=10)
    look(client)
    configured(client, task_gc_interval=100)
    client.zk.advance(60)
    turn = look(client)
    assert (turn.report.ran, round(turn.due_in)) == (False, 40)


def test_a_shorter_lifetime_makes_a_run_due_at_once_and_once() -> None:
    """The first look deletes what may go now; not where an operator's run for less has deleted all that had ended."""
    client = finished(task_gc_interval=3600, task_gc_lifetime=3600)
    other = another(client)
    client.zk.advance(100)
    assert (look(other).report.collected, due(client)) == (0, False)
    configured(client, task_gc_lifetime=50)
    assert look(other).report == Collected(collected=1)
    assert not due(client)
    for lifetime in (50, 500):
        configured(client, task_gc_lifetime=lifetime)
        assert not due(other)
    for lifetime, again in ((0, False), (100, True)):
        client.do(collect_garbage(client.context, lifetime))
        configured(client, task_gc_lifetime=50)
        assert due(client) is again


def test_two_that_look_at_the_same_time_make_one_run() -> None:
    """Who comes second sees that the first has been there; a run under way elsewhere is looked at again soon."""
    client = new_queue(task_gc_interval=3600)
    path = client.context.paths.at("lock")
    client.write(Create(path, b"another's"))
    assert look(client) == turns.Turn(Collected(ran=False), turns.BUSY_SECONDS)
    client.write(Delete(path))
    other, first = another(client), iter([True])

    def overtaken(op: Any) -> None:
        if isinstance(op, Multi) and op.ops[0].path == path and next(first, False):
            assert due(other)

    assert not look(client, overtaken).report.ran
    assert client.zk.nodes[client.context.paths.at("gc")].version == 1


def test_clean_up_goes_on_where_a_hard_quota_lets_it_make_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no znode to delete; the refusal is told by its name, and no run of somebody else's is waited for."""
    client = finished(3, task_gc_lifetime=0)
    judge = client.zk.leader.judge
    monkeypatch.setattr(client.zk.leader, "judge", lambda op: Failure.OTHER if isinstance(op, Create) else judge(op))
    report = client.do(collect_garbage(client.context))
    assert (report.ran, report.collected, client.reports[0][1].split(": ")[1]) == (True, 3, "OTHER")


@pytest.mark.parametrize("ends", [False, True])
def test_a_task_that_runs_anew_after_it_was_judged_is_kept(*, ends: bool) -> None:
    """Its record has another version than clean-up has read, also where its new run has ended; its neighbours go."""
    client = queue_of("abc", task_gc_lifetime=60)
    client.work()
    client.zk.advance(100)
    other, first = another(client), iter([True])

    def overtaken(op: Any) -> None:
        deletes = isinstance(op, Multi) and isinstance(op.ops[0], Delete) and "/tasks/" in op.ops[0].path
        if deletes and next(first, False):
            other.put(task_id="b", on_conflict="requeue")
            assert not ends or other.work() == ["b"]

    report = client.do(collect_garbage(client.context), overtaken)
    assert client.state("b").state is (State.FINISHED if ends else State.INSERTED)
    assert (report.collected, report.kept_changed, list(client.check())) == (2, 1, ["b"])
    assert client.work() == ([] if ends else ["b"])


def test_a_damaged_note_of_the_last_run_leaves_it_to_the_interval() -> None:
    """Nobody cleans up without end, and nobody stops doing so."""
    for data in (b"", b"{", b"[1]", b'{"lifetime":"long"}', b'{"lifetime":true}', b"[" * 100_000):
        client = new_queue(task_gc_interval=20)
        look(client)
        client.write(SetData(client.context.paths.at("gc"), data))
        assert not due(client), data[:20]
        client.zk.advance(21)
        assert due(client), data[:20]


def test_a_run_that_does_not_come_to_its_end_is_due_for_the_next() -> None:
    """Cut off, or ended after a chunk as its client is closed, its lock given back: somebody else goes on there."""
    client = finished(task_gc_interval=3600, task_gc_lifetime=0)
    gc = client.context.paths.at("gc")
    with pytest.raises(Unavailable):
        look(client, lambda op: Unavailable("closed") if isinstance(op, Multi) and op.ops[0].path == gc else None)
    assert client.check() == {}
    client.zk.expire(client.session)
    assert look(another(client)).report == Collected()
    count = 3 * AT_ONCE
    client = finished(count, task_gc_interval=3600, task_gc_lifetime=0)

    def leaves(op: Any) -> None:
        deletes = isinstance(op, Multi) and isinstance(op.ops[0], Delete) and "/tasks/" in op.ops[0].path
        client.context.maintenance.closing = client.context.maintenance.closing or deletes

    report = look(client, leaves).report
    assert 0 < report.collected < count
    assert not locked(client)
    assert look(another(client)).report.collected == count - report.collected


# --- the lock of a clean-up that was cut short


def locked(client: Client) -> bool:
    return client.context.paths.at("lock") in client.zk.nodes


def collect(client: Client, fault: Fault = lambda _op: None) -> bool:
    return client.do(collect_garbage(client.context), fault).ran


def release(client: Client) -> bool:
    """Give an abandoned lock back; whether one stands afterwards."""
    client.do(due_work.release_abandoned_lock(client.context))
    return locked(client)


def on_lock(client: Client, effect: Any) -> Fault:
    """A fault at each write of the lock."""
    path = client.context.paths.at("lock")
    return lambda op: effect if isinstance(op, Multi) and any(item.path == path for item in op.ops) else None


def broken_off(client: Client, where: str = "within") -> Client:
    """A client whose clean-up was cancelled or interrupted at its lock, or within."""
    path = client.context.paths.at("finished")
    no_later_than = lambda op: BROKEN_OFF if isinstance(op, Children) and op.path == path else None
    with pytest.raises(Crash):
        collect(client, on_lock(client, BROKEN_OFF) if where == "lock" else no_later_than)
    return client


@pytest.mark.parametrize("where", ["lock", "within"])
def test_a_broken_off_clean_up_is_followed_by_another_of_the_same_client(where: str) -> None:
    """It takes its lock over, or gives it back with whatever it does, at no cost afterwards; never another's."""
    client = broken_off(new_queue(), where)
    other = another(client)
    assert (locked(client), collect(other)) == (True, False)
    assert (collect(client), locked(client), collect(other)) == (True, False, True)
    client = broken_off(new_queue(), where)
    assert (release(client), collect(another(client))) == (False, True)
    assert list(due_work.release_abandoned_lock(client.context)) == []
    broken_off(client)
    client.zk.expire(client.session)
    client.session = client.zk.connect()
    broken_off(another(client))
    assert release(client)


def test_a_clean_up_under_way_in_another_thread_is_not_taken_for_abandoned() -> None:
    """The same client's second clean-up does not run, and nobody gives the first one's lock back."""
    client = new_queue()
    first = step(client, collect_garbage(client.context))
    while not locked(client):
        first.step()
    assert not collect(client)
    assert release(client)
    first.cut()
    assert collect(client)


def test_lost_replies_leave_no_lock() -> None:
    """A clean-up whose last reply is lost for good is told as done; the lock's end is made sure of later."""
    client, seen = new_queue(), []

    def once(op: Any) -> Any:
        effect = on_lock(client, LOST_REPLY)(op)
        seen.append(effect)
        return effect if seen.count(LOST_REPLY) in {1, 3} else None

    def without_end(op: Any) -> Any:
        ends = on_lock(client, True)(op) and not any(hasattr(item, "data") for item in op.ops)
        return Unavailable("no server") if ends else None

    assert (collect(client, once), locked(client)) == (True, False)
    assert (collect(client, without_end), locked(client), release(client)) == (True, True, False)


# --- the thread that puts right what calls left


def finishing(
    client: Client, monkeypatch: pytest.MonkeyPatch, fault: Fault = lambda _op: None, *, closed: bool = False
) -> list[float]:
    """Pay in this thread, with faults; the pauses that were made, in which so much time has passed."""
    pauses: list[float] = []

    def wait(_seen: int, seconds: float) -> None:
        pauses.append(seconds)
        client.zk.ms += max(1, round(seconds * 1000))

    changed, connected = SimpleNamespace(count=0, wait=wait), SimpleNamespace(is_set=lambda: True)
    monkeypatch.setattr(background_maintenance, "run", lambda _session, procedure: client.do(procedure, fault))
    session = SimpleNamespace(memory=contextlib.nullcontext(), changed=changed, closed=closed, connected=connected)
    background_maintenance._finish_pending(session, client.context)
    assert not client.context.pending.finishing
    return pauses


def test_what_was_put_down_is_waited_for_until_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a server it pauses before each try; of a closed client it is told to be lost, whatever else is owed."""
    for away in (0, 3):
        client = filled()
        told = put_down(client, many(client, 2))
        errors = iter([Unavailable("away")] * away)
        pauses = finishing(client, monkeypatch, lambda _op, errors=errors: next(errors, None))
        assert pauses == pytest.approx([0.05, *[0.5] * away])
        assert told == {"a": [None], "b": [None]}
        assert not has_pending(client.context)
    client, lost = filled(), SessionLost("the connection was closed")
    claims = many(client, 3)
    told = put_down(client, claims[:2])
    client.context.pending.unmarked_starts[claims[2].task_id, claims[2].token] = claims[2]
    assert finishing(client, monkeypatch, lambda _op: lost, closed=True) == []
    assert told == {"a": [lost], "b": [lost]}


@pytest.mark.parametrize("error", [Unavailable("away"), ZkmqError("refused")])
def test_other_debts_that_cannot_be_paid_hold_nothing_back(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where they meet no server, nor where they are refused for good."""
    client = filled()
    told = put_down(client, many(client, 2))
    client.context.pending.batches.add("batch")
    tries = iter(range(3))

    def refused(context: Any) -> Any:
        if next(tries, None) is None:
            context.pending.batches.clear()
            return
        raise error
        yield

    monkeypatch.setattr("airflow_provider_zkmq.engine.core.maintenance.due_work.close_pending", refused)
    assert all(pause >= background_maintenance.RETRY_SECONDS for pause in finishing(client, monkeypatch))
    assert told == {"a": [None], "b": [None]}
