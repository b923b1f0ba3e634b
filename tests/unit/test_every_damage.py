"""Each znode of a queue, missing, strange or with anything in it: no loop, and what is healthy beside it goes on."""

from __future__ import annotations

import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby, product
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.claim import claim
from airflow_provider_zkmq.engine.core.claim.take import Wanted
from airflow_provider_zkmq.engine.core.client_state import Context
from airflow_provider_zkmq.engine.core.maintenance import collect, consumer_registry, due_work
from airflow_provider_zkmq.engine.core.model.filters import EVERYTHING
from airflow_provider_zkmq.engine.core.model.handler_outcomes import Error, Retry, Snooze, Success
from airflow_provider_zkmq.engine.core.model.new_message import Message
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.settings import RetryPolicy, load_settings
from airflow_provider_zkmq.engine.core.model.znode_names import Lane
from airflow_provider_zkmq.engine.core.read import completion_log, configuration, inspect, watch_tasks
from airflow_provider_zkmq.engine.core.read.claim_status import current_claim
from airflow_provider_zkmq.engine.core.tasks import admin, batches, enqueue, interventions, settle
from airflow_provider_zkmq.engine.core.tasks.settle_by_outcome import Settlement, settle_outcome
from airflow_provider_zkmq.engine.core.zk_operations import Callback, Create, Pipeline, Procedure, Wait
from airflow_provider_zkmq.engine.errors import ClaimLost, ConfigError, CorruptRecord, TaskNotFound, ZkmqError
from tests.unit.damage import DEEP, Damage, damages, fields, kinds, world
from tests.unit.world import Client, new_queue

#: No call of those below needs more requests, however damaged what it meets.
MOST = 250
#: What an idle consumer may send in a minute: it looks at what was refused again, after ever longer pauses.
IDLE = 400
#: Of the damages every so many are tried: few in `make test`; more otherwise, or all: `ZKMQ_EVERY_DAMAGE=1`.
MANY = 1 if os.environ.get("ZKMQ_EVERY_DAMAGE") else 10
SHARE = pytest.mark.parametrize("share", [24, pytest.param(MANY, marks=pytest.mark.full)])
BASE = world().base
#: Permanent znodes that somebody needs, whatever the queue is used for: one that is missing is made anew.
NEEDED = {
    f"{BASE}/{name}"
    for name in (
        "queue", "tasks", "consumers", "live", "leases", "locks", "scheduled", "finished", "dlq", "batches",
        "batches-done", "clock", "gc",
    )
}  # fmt: skip


class Counting(Client):
    """A client that counts its requests, and takes no call for endless."""

    requests = 0

    def _execute(self, op: Any, fault: Any) -> Any:
        if not isinstance(op, Wait | Callback | Pipeline):
            self.requests += 1
        return super()._execute(op, fault)

    def no_later_than(self, most: int, procedure: Any) -> Any:
        """Carry a procedure out, which may send so many requests."""
        before = self.requests
        try:
            return self.do(procedure)
        finally:
            assert self.requests - before <= most, f"{self.requests - before} requests"


def damaged(damage: Damage, order: str = "default", *, dies: bool = False, knows: bool = False) -> Counting:
    """A client of a queue with this damage, known to it or new; `dies`: consumers with claims are dead."""
    zk = world(order).copy()
    if dies:
        zk.expire(world(order).client.session)
    client = Counting(zk, "witness")
    if knows:
        put(client, "before", priority=99)
        client.complete(client.claimed())
    damage.apply(zk)
    return client


def put(client: Counting, task_id: str, **options: Any) -> None:
    client.no_later_than(MOST, enqueue.enqueue(client.context, Message(b"x", task_id=task_id, **options)))


def names(error: Exception, damage: Damage) -> bool:
    """Whether an error says that something is damaged, and where: at the znode, or at what it stands in."""
    beside = damage.path.rpartition("/")[0]
    return isinstance(error, CorruptRecord) and (damage.path in str(error) or beside in str(error))


def tasks_of(damage: Damage, task_ids: Iterable[str]) -> Iterator[str]:
    """Those of the tasks that a damaged znode belongs to: it stands in its tree, lists it, or holds what lists it."""
    return (each for each in task_ids if f"/tasks/{each}" in damage.path or damage.path.endswith(f"~{each}"))


def tolerated(client: Counting, procedure: Any, damage: Damage, *others: type, most: int = MOST) -> bool:
    """Whether a procedure gives a result; if not, it says what is damaged, or ends with one of the other errors."""
    try:
        client.no_later_than(most, procedure)
    except ZkmqError as error:
        if not (names(error, damage) or isinstance(error, others)):
            raise
        return False
    return True


def each(subtests: pytest.Subtests, cases: Iterable[Damage], check: Callable[[Damage], None]) -> None:
    """Check all cases; which of a znode's fail is told together."""
    for path, damages_of_one in groupby(cases, lambda damage: damage.place):
        with subtests.test(path=path):
            failures = []
            for damage in damages_of_one:
                try:
                    check(damage)
                except BaseException as error:  # noqa: BLE001  the end of a client among them
                    failures.append(f"{damage}: {type(error).__name__} {str(error)[:300]}")
            assert not failures, f"{len(failures)} cases:\n" + "\n".join(failures[:40])


def some(cases: Iterable[Damage], share: int) -> Iterator[Damage]:
    """A share of the cases, the same ones each time; of what is missing more."""
    for damage in cases:
        number = zlib.crc32(str(damage)[len(BASE) + 1 :].encode())
        if number % (share if damage.data is not None else max(1, share // 4)) == 0:
            yield damage


def readable(cases: Iterable[Damage]) -> Iterator[Damage]:
    """Those of a record's damages that are no damage to who reads it; one of the others stands for them all."""
    refused = False
    for damage in cases:
        try:
            if damage.path.endswith("/state"):
                TaskState.decode(damage.path, damage.data or b"")
        except CorruptRecord:
            if refused:
                continue
            refused = True
        yield damage


# --- workers, upkeep and clean-up


def claiming(client: Counting, timeout: float = 0) -> Any:
    return claim.claim(client.context, Wanted(EVERYTHING), timeout)


def work(client: Counting, damage: Damage) -> set[str]:
    """Do what a worker does until nothing is left."""
    done: set[str] = set()
    for _ in range(60):
        claimed = client.no_later_than(MOST, claiming(client))
        if claimed is None:
            return done
        outcome = Error("no") if claimed.task_id == "fails" else Success(b"r")
        if tolerated(client, settle_outcome(client.context, claimed, outcome, None, Settlement()), damage):
            done.add(claimed.task_id)
    msg = "the same tasks come again and again"
    raise AssertionError(msg)


def survive(damage: Damage, order: str = "default", *, dies: bool = True) -> None:
    """Everything that workers, upkeep and clean-up do, with healthy tasks in the queue: nothing of it may raise."""
    client = damaged(damage, order, dies=dies, knows=not dies)
    context = client.context
    put(client, "good")
    if damage.data is None:  # each permanent znode is needed
        put(client, "deadline", lock=50)
        put(client, "later-than-others", delay=1)
        put(client, "fails")
        client.no_later_than(MOST, enqueue.enqueue_batch(context, [Message(b"x")], "another"))
    client.zk.advance(200)
    done = work(client, damage)
    elsewhere = f"{BASE}/tasks", f"{BASE}/queue"
    assert "good" in done, f"handled: {sorted(done)}"
    assert damage.path.startswith(elsewhere) or {"released", "pending"} <= done, f"handled: {sorted(done)}"
    assert damage.data is not None or {"deadline", "later-than-others", "fails"} <= done, f"handled: {sorted(done)}"
    client.no_later_than(IDLE, claiming(client, 60))
    for _ in range(4):
        client.no_later_than(IDLE // 10, due_work.run_maintenance(context))
        client.zk.advance(1)
    for procedure in (inspect.counts(context), inspect.list_tasks(context)):
        client.no_later_than(2 * MOST, procedure)
    for procedure in (
        consumer_registry.consumers(context),
        inspect.explain(context, "good"),
        configuration.conf(context),
    ):
        tolerated(client, procedure, damage)
    for lifetime in (1000, 0):
        client.no_later_than(MOST, collect.collect_garbage(context, lifetime))
    client.no_later_than(MOST, due_work.maintain(context))
    put(client, "later")
    assert "later" in work(client, damage)
    told_once(client, damage)
    assert damage.data is not None or damage.path not in NEEDED or damage.path in client.zk.nodes, "not made anew"
    tolerated(client, interventions.clear(context), damage)
    heir = Counting(client.zk, "heir")
    assert heir.no_later_than(MOST, collect.collect_garbage(heir.context, 0)).ran or "/lock" in damage.path
    put(heir, "last")
    assert "last" in work(heir, damage)
    told_once(heir, damage)


def told_once(client: Counting, damage: Damage) -> None:
    """Nothing is told twice; neither by the path of it nor by the paths of what suffers from it."""
    twice = [path for path, times in Counter(path for path, _ in client.reports).items() if times > 1]
    assert not twice, [report for report in client.reports if report[0] in twice]
    told = [report for report in client.reports if f"{damage.path} does not hold" in report[1]]
    assert len(told) <= 1, told


def readable_queue() -> Iterator[str]:
    """But for what tells workers at all whether they may write to the queue."""
    return (path for path in kinds() if path != f"{BASE}/conf")


@pytest.mark.parametrize(
    ("share", "dies"),
    [(16, True), *(pytest.param(*each, marks=pytest.mark.full) for each in ((MANY // 3 or 1, True), (MANY, False)))],
)
def test_a_missing_or_strange_znode_stops_nobody(subtests: pytest.Subtests, share: int, dies: bool) -> None:
    """Neither who knew the queue nor who comes after consumers have died; what everybody needs is made anew."""
    cases = (damage for path in readable_queue() for damage in damages(path) if damage.of_the_tree)
    each(subtests, some(cases, share), partial(survive, dies=dies))


@SHARE
def test_a_damaged_znode_stops_nobody(subtests: pytest.Subtests, share: int) -> None:
    """Healthy tasks are finished, clean-up runs, requests are bounded, a path is reported once; so in strict order."""
    cases = (damage for path in readable_queue() for damage in damages(path) if not damage.of_the_tree)
    each(subtests, some(cases, share), survive)
    paths = (path for path in kinds("fifo") if "/queue/" in path or "released" in path)
    cases = (damage for path in paths for damage in damages(path, "fifo"))
    each(subtests, some(cases, share), partial(survive, order="fifo"))


@pytest.mark.full
def test_a_damaged_field_stops_nobody(subtests: pytest.Subtests) -> None:
    """Every field of every record, and what is nested in it, with numbers, texts and shapes that it cannot have."""
    each(subtests, (damage for path in readable_queue() for damage in some(readable(fields(path)), MANY)), survive)


# --- verbs


def enqueueing(task_id: str, **options: Any) -> Callable[[Any], Any]:
    return lambda context: enqueue.enqueue(context, Message(b"new", task_id=task_id, **options))


#: What can be asked about a task, and what changes it.
READS: dict[str, Callable[[Any, str], Any]] = {
    "task": inspect.read_task,
    "tasks by id": lambda context, task_id: inspect.list_tasks(context, ids=[task_id]),
    "tree": inspect.read_tree,
    "explain": inspect.explain,
    "wait": lambda context, task_id: watch_tasks.wait(context, [task_id], timeout=0, on_progress=lambda *_: None),
    "follow": lambda context, task_id: watch_tasks.follow(context, task_id, lambda _task: None, 0),
}
WRITES: dict[str, Callable[[Any, str], Any]] = {
    "cancel": interventions.cancel,
    "redrive": interventions.redrive,
    "replace": lambda context, task_id: interventions.replace_data(context, task_id, b"new"),
    "drop": interventions.drop,
    "enqueue": lambda context, task_id: enqueueing(task_id)(context),
    "update": lambda context, task_id: enqueueing(task_id, on_conflict="replace", delay=9)(context),
    "requeue": lambda context, task_id: enqueueing(task_id, on_conflict="requeue")(context),
}


def read_everything_that_ended(context: Context) -> Procedure[object]:
    """Each run of the log, by where it stands now, and as one that stood when it was listed."""
    ended = yield from completion_log.ended_between(context, 0)
    yield from completion_log.read_ended(context, ended)
    return (yield from completion_log.read_ended(context, [each._replace(place=None) for each in ended]))


OF_QUEUES: dict[str, Callable[[Any], Any]] = {
    "tasks": inspect.list_tasks,
    "selected": lambda context: inspect.list_tasks(context, selector="kind==a"),
    "ids": inspect.list_ids,
    "find": lambda context: watch_tasks.find_matching(context, "kind==a", timeout=0),
    "counts": inspect.counts,
    "consumers": consumer_registry.consumers,
    "conf": configuration.conf,
    "archive": configuration.archive,
    "ended_between": lambda context: completion_log.ended_between(context, 0, 1 << 50),
    "read_ended": read_everything_that_ended,
    "latest_end": completion_log.latest_end,
    "truncated_at": completion_log.truncated_at,
    "batch": lambda context: batches.read_batch(context, "open"),
    "wait_batch": lambda context: batches.wait_batch(context, "open", 0),
    "done batch": lambda context: batches.wait_batch(context, "done", 1),
    "ended batch": lambda context: batches.wait_batch(context, "ended", 1),
    "clear": interventions.clear,
}


def ask(client: Counting, name: str, procedure: Any, damage: Damage) -> None:
    """A call ends with a result, with one of the errors that its description names, or says what is damaged."""
    try:
        client.no_later_than(2 * MOST, procedure)
    except ZkmqError as error:
        clear = names(error, damage) or type(error) not in {ZkmqError, CorruptRecord, ConfigError}
        missing = "not declared" in str(error) and damage.path.endswith("/filters")
        if not (clear or missing):
            raise AssertionError(f"{name}: {type(error).__name__} {error}") from error


def answer(damage: Damage) -> None:
    """Each verb, pointed at what is damaged."""
    client = damaged(damage)
    client.zk.advance(3)
    for name, verb in OF_QUEUES.items():
        ask(client, name, verb(client.context), damage)
    for task_id in tasks_of(damage, world().zk.names(f"{BASE}/tasks")):
        client = damaged(damage)
        for name, read in READS.items():
            ask(client, name, read(client.context, task_id), damage)
        for name, write in WRITES.items():
            client = damaged(damage)
            ask(client, name, write(client.context, task_id), damage)


@SHARE
def test_each_verb_that_meets_a_damaged_znode_answers(subtests: pytest.Subtests, share: int) -> None:
    """With a result or with one clear error that names the path, after a bounded number of requests."""
    each(subtests, some((damage for path in readable_queue() for damage in damages(path)), share), answer)


# --- holders of claims

OUTCOMES = (Success(b"r"), Retry("again"), Error("no"), Snooze(1))


def settle_in_hand(damage: Damage) -> None:
    """A worker has the task in hand when the znode is damaged: it settles it, loses it, or says what is damaged."""
    for task_id, outcome in product(tasks_of(damage, world().tokens), OUTCOMES):
        client = Counting(world().copy(), "witness")
        client.session = world().client.session
        claimed = client.do(current_claim(client.context, task_id, world().tokens[task_id]))
        damage.apply(client.zk)
        for procedure in (
            settle.extend(client.context, claimed, 50),
            settle.progress(client.context, claimed, 0.5),
            settle_outcome(client.context, claimed, outcome, None, Settlement()),
        ):
            tolerated(client, procedure, damage, ClaimLost, TaskNotFound)
        told_once(client, damage)
        put(client, "good")
        assert "good" in work(client, damage)


@SHARE
def test_a_holder_of_a_claim_settles_it_or_is_told_what_is_damaged(subtests: pytest.Subtests, share: int) -> None:
    """Whatever is damaged while the task is in hand, and however it is settled."""
    each(subtests, some((damage for path in kinds() for damage in damages(path)), share), settle_in_hand)


def test_a_queue_that_has_lost_its_configuration_is_left_alone_until_it_is_put_right() -> None:
    """Nobody writes to it, whatever the call; the same clients go on as soon as it is there again."""
    path = f"{BASE}/conf"
    zk = world().copy()
    client = Counting(zk, "witness")
    Damage(path, "missing", None).apply(zk)
    before = zk.nodes.copy()
    for procedure in (claiming(client), collect.collect_garbage(client.context), inspect.counts(client.context)):
        with pytest.raises(CorruptRecord, match=path):
            client.no_later_than(MOST, procedure)
    assert zk.nodes == before
    assert zk.multi(0, (Create(path),)).committed
    client.do(admin.configure(client.context, filters={}, policy=RetryPolicy()))
    put(client, "good")
    assert "good" in client.work()


# --- records, as they are decoded

GOOD = {"state": "inserted", "place": "l/s/e", "nonce": "n"}
WRONG_FIELDS: tuple[dict[str, Any], ...] = (
    {"policy": 3}, {"policy": {"attempts": "x"}}, {"policy": {"attempts": 0}}, {"due": "x"}, {"index": 3}, {"lease": 5},
    {"attempt": True}, {"settled": [1]}, {"filters": {"a": 3}}, {"filters": []}, {"state": "odd"},
    {"history": [{"x": 1}]}, {"history": 3}, {"settled": 3}, {"lock": "x"}, {"requeue": 1}, {"dedupe": "x"},
    {"rank": "x"}, {"batch": 3}, {"bound": 1}, {"result": "x"}, {"requeue": None}, {"metadata": 1},
)  # fmt: skip
LANES = (b'{"filters":3}', b'{"priority":"x"}', b'{"filters":["a"]}', b'{"filters":{"a":1}}', DEEP)


def test_a_record_with_a_wrong_field_is_corrupt(subtests: pytest.Subtests) -> None:
    """The error names the path, however deep it is; no text becomes a part of a path that would end a connection."""
    odd: list[dict[str, Any]] = []
    for text in ("a\ud800", "..", "a/../b", "a\x00", "\ufffe", "", "\ue000"):
        odd += [{"place": f"p09999/00000001/{text}"}, {"index": f"dlq/{text}"}, {"filters": {text: "x"}}]
        odd += [{name: text} for name in ("consumer", "lease", "batch")]
    TaskState.decode("/path", json.dumps(GOOD).encode())
    cases = [(TaskState.decode, json.dumps(GOOD | field).encode()) for field in (*WRONG_FIELDS, *odd)]
    cases += [(Lane.decode, record) for record in LANES]
    cases += [(decode, DEEP) for decode in (TaskState.decode, load_settings)]
    for decode, record in cases:
        with subtests.test(record=record[:99]), pytest.raises(CorruptRecord, match="/path"):
            decode("/path", record)


def test_metadata_that_could_not_be_read_again_are_refused() -> None:
    """What an enqueue accepts is read by everybody: nesting has the same bound for both."""
    nested: list[dict[str, Any]] = [{}]
    while len(nested) <= 5_000:
        nested.append({"a": nested[-1]})
    client = new_queue()
    for depth in (100, 5_000):
        with pytest.raises(ConfigError, match="metadata"):
            client.put(metadata=nested[depth])
    assert client.check() == {}
    client.put(task_id="a", metadata=nested[98])
    assert client.claimed().metadata == nested[98]
