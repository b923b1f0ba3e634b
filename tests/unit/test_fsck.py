"""`fsck`: each damage of a queue is found and repaired, and nothing else is: what can be saved goes on."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.client_state import Claimed
from airflow_provider_zkmq.engine.core.maintenance import collect
from airflow_provider_zkmq.engine.core.maintenance.due_work import bring_back
from airflow_provider_zkmq.engine.core.maintenance.fsck import FsckReport, fsck
from airflow_provider_zkmq.engine.core.model.new_message import Message
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.model.znode_names import parse_lane
from airflow_provider_zkmq.engine.core.tasks import admin, enqueue, interventions, settle
from airflow_provider_zkmq.engine.core.zk_operations import Create, Delete, SetData
from airflow_provider_zkmq.engine.errors import QueueNotFound, ZkmqError
from tests.unit.damage import Damage, damages, kinds, world
from tests.unit.world import Client, FakeZooKeeper, check_tree, new_queue

BASE = world().base
ORDERS = pytest.mark.parametrize("order", ["default", "fifo"])
#: Of the damages every so many are tried: few in `make test`; more otherwise, or all: `ZKMQ_EVERY_DAMAGE=1`.
MANY = 1 if os.environ.get("ZKMQ_EVERY_DAMAGE") else 4
SHARE = pytest.mark.parametrize("share", [20, pytest.param(MANY, marks=pytest.mark.full)])


def look(zk: FakeZooKeeper, *, repair: bool = False) -> FsckReport:
    client = Client(zk, "operator")
    report: FsckReport = client.do(fsck(client.context, repair=repair))
    return report


def is_no_damage(damage: Damage) -> bool:
    """Whether a queue may look like this by itself: what is gone may have been collected, what stands was set by hand.

    A session that has ended, a batch that is over, a run that the archive has, a lane without tasks; a mark that says
    that the queue is archived or followed; settings and times that can be read, as whoever edits them likes; a rank
    outside of a lane, which the record has, too.
    """
    top, *rest = damage.path.removeprefix(f"{BASE}/").split("/")
    if damage.data is None:
        lane = f"{BASE}/queue/{rest[0]}/" if top == "queue" and rest else "/"
        tasks = any(path.startswith(lane) and path.count("/") == BASE.count("/") + 4 for path in world().zk.nodes)
        over = {"archive", "followed", "unarchived", "unarchived/0028333333", "batches/ended", "batches/done/failed/d1"}
        left = top in {"live", "unarchived"} and bool(rest)
        return left or "/".join((top, *rest)) in over or (top == "queue" and bool(rest) and not tasks)
    if top == "conf" and rest:
        return damage.what == "a number"
    if damage.what == "empty" and top in {"scheduled", "requeued", "finished", "cancelled", "dlq"}:
        return True
    objects = damage.what in {"an empty object", "a strange object"}
    return objects and (top == "conf" or (top == "queue" and bool(rest) and rest[-1].endswith(";*")))


def cases(order: str, share: int) -> Iterator[Damage]:
    for path in kinds(order):
        for damage in damages(path, order):
            if zlib.crc32(str(damage).encode()) % share == 0:
                yield damage


def concerns(report: FsckReport, damage: Damage) -> bool:
    """Whether something was found at a damaged znode, below it, or at the task that it belongs to."""
    task = damage.path.removeprefix(f"{BASE}/tasks/").partition("/")[0] if "/tasks/" in damage.path else None
    near = (damage.path, f"{BASE}/tasks/{task}/" if task else damage.path)
    batch = f"~{damage.path.rpartition('/')[2]}" if "/batches/" in damage.path else "no batch"
    named = [each for each in report.findings if each.path.endswith(batch) or (task and repr(task) in each.what)]
    return bool(named) or any(each.path.startswith(near) for each in report.findings)


def payloads(zk: FakeZooKeeper) -> dict[str, bytes]:
    """What is to be handled, or was: the payload of each task."""
    tasks = zk.names(f"{BASE}/tasks")
    paths = {task: f"{BASE}/tasks/{task}/data" for task in tasks}
    return {task: zk.nodes[path].data for task, path in paths.items() if path in zk.nodes}


def check(damage: Damage, order: str) -> None:
    """One damage: found without a write, named, repaired for good, and no payload is lost that was there."""
    zk = world(order).copy()
    damage.apply(zk)
    before, zxid = payloads(zk), zk.zxid
    dry = look(zk)
    assert zk.zxid == zxid, "a look without repair writes nothing"
    assert bool(dry.findings) is not is_no_damage(damage), dry.findings
    assert not dry.findings or concerns(dry, damage), dry.findings
    assert not any(each.repaired for each in dry.findings)
    repaired = look(zk, repair=True)
    assert {each.path for each in repaired.findings} >= {each.path for each in dry.findings}
    assert all(each.repaired for each in repaired.findings), repaired.findings
    assert not look(zk).findings
    after = payloads(zk)
    for task, data in before.items():
        saved = after.get(task) == data or damage.path.startswith(f"{BASE}/tasks/{task}/")
        assert saved, f"the payload of {task} is lost"
    go_on(zk, order)


def go_on(zk: FakeZooKeeper, order: str) -> None:
    """Whoever comes handles all that can be handled; what is left is a dead letter, or has ended."""
    client = Client(zk, "next")
    for session in {node.owner for node in zk.nodes.values() if node.owner}:
        zk.expire(session)
    zk.advance(600)
    check_tree(zk, client.context)
    for _ in range(3):  # rescued, due, or what follows a batch
        client.do(bring_back(client.context))
        while (claimed := client.take()) is not None:
            client.complete(claimed)
        zk.advance(10)
    states = check_tree(zk, client.context)
    left = {task: state for task, state in states.items() if state.state in {State.INSERTED, State.CLAIMED}}
    assert not left, f"{order}: nobody can handle {left}"


@SHARE
@ORDERS
def test_each_damage_is_found_and_repaired_and_nothing_is_lost(order: str, share: int, subtests: Any) -> None:
    """Any znode of the tree deleted, emptied, overwritten, or with a strange one below it."""
    for damage in cases(order, share):
        with subtests.test(damage=str(damage)):
            check(damage, order)


@ORDERS
def test_a_queue_in_use_is_whole(order: str) -> None:
    """Tasks in each state and place, batches on their way, a run in escrow: nothing is found and nothing written."""
    zk = world(order).copy()
    zxid = zk.zxid
    assert look(zk).findings == ()
    assert zk.zxid == zxid
    for session in {node.owner for node in zk.nodes.values() if node.owner}:
        zk.expire(session)
    assert look(zk).findings == ()  # the death of consumers is no damage


def test_what_is_no_queue_is_refused() -> None:
    """Neither a queue that is not there, nor one that is being deleted."""
    client = new_queue()
    missing = Client(client.zk)
    missing.context.paths = type(missing.context.paths)("/zkmq/other")
    with pytest.raises(QueueNotFound):
        missing.do(fsck(missing.context))


def queue_with_a_task(**options: Any) -> tuple[Client, str]:
    client = new_queue()
    client.put(b"payload", task_id="t", **options)
    return client, client.context.paths.task("t")


def test_a_task_that_has_lost_its_record_becomes_a_dead_letter_with_its_payload() -> None:
    """It says why, keeps filters and place, can be redriven, and is handled then."""
    client, base = queue_with_a_task(metadata={"a": 1})
    client.write(SetData(f"{base}/state", b"garbage"))
    report = client.do(fsck(client.context, repair=True))
    assert [each.path for each in report.findings] == [f"{base}/state"]
    state = TaskState.decode("", client.zk.nodes[f"{base}/state"].data)
    assert (state.state, state.metadata) == (State.DEAD, True)
    assert "its record was lost" in (state.error or "")
    client.do(interventions.redrive(client.context, "t"))
    claimed = client.claimed()
    assert (claimed.data, claimed.metadata) == (b"payload", {"a": 1})


def test_a_task_that_was_done_stays_done_without_its_record() -> None:
    """It is listed among what is finished: nobody runs it again."""
    client, base = queue_with_a_task()
    client.complete(client.claimed(), result=b"yes")
    client.write(Delete(f"{base}/state"))
    client.do(fsck(client.context, repair=True))
    state = TaskState.decode("", client.zk.nodes[f"{base}/state"].data)
    assert (state.state, state.result) == (State.FINISHED, True)
    assert client.zk.nodes[f"{base}/result"].data == b"yes"


def test_a_run_in_escrow_takes_the_place_of_one_whose_payload_is_lost() -> None:
    """As a rescue would have it: what was to come is run, with the payload it was asked with."""
    client, base = queue_with_a_task()
    client.claimed()
    client.put(b"next", task_id="t", on_conflict="requeue", priority=7)
    client.write(Delete(f"{base}/data"))
    client.do(fsck(client.context, repair=True))
    client.zk.advance(1)
    claimed = client.claimed()
    assert (claimed.data, claimed.state.attempt, claimed.state.priority) == (b"next", 1, 7)


def test_a_claim_that_could_never_end_is_given_back_and_its_holder_learns_it() -> None:
    """Its znode is gone though its consumer lives: the attempt counts, the holder's settlement is refused."""
    client, base = queue_with_a_task()
    holder: Claimed = client.claimed()
    client.write(Delete(f"{base}/claim"))
    other = Client(client.zk, "other")
    other.do(fsck(other.context, repair=True))
    client.zk.advance(1)
    claimed = other.claimed()
    assert claimed.state.attempt == 2
    with pytest.raises(Exception, match="is not the current one"):
        client.complete(holder)


def test_a_task_that_changes_all_the_while_is_left_to_whoever_changes_it() -> None:
    """Between its two readings somebody writes the record, again and again: nothing is said of it, nothing is done."""
    client, base = queue_with_a_task()
    client.write(Create(f"{base}/strange"))
    other = Client(client.zk, "other")

    def touch(op: Any) -> None:
        if getattr(op, "path", "") == f"{base}/state":
            client.write(SetData(f"{base}/state", client.zk.nodes[f"{base}/state"].data))

    assert other.do(fsck(other.context, repair=True), touch).findings == ()
    assert f"{base}/strange" in client.zk.nodes
    assert [each.path for each in other.do(fsck(other.context)).findings] == [f"{base}/strange"]


@pytest.mark.parametrize("lease", [None, 50])
def test_a_claim_between_two_reads_of_each_look_is_no_damage(lease: float | None) -> None:
    """Each look lists the task's parts, then somebody claims it, then its record is read: the claim is left alone."""
    client, base = queue_with_a_task()
    other, held = Client(client.zk, "other"), list[Claimed]()

    def flicker(op: Any) -> None:
        paths = getattr(op, "paths", ())
        if f"{base}/state" in paths and not held:
            held.append(client.claimed(lease=lease))
        elif base in paths and held:
            client.do(settle.release(client.context, held.pop()))

    assert other.do(fsck(other.context, repair=True), flicker).findings == ()
    client.complete(held.pop())


def test_what_comes_and_goes_while_the_layout_is_read_is_no_damage() -> None:
    """A consumer registers between the reading of its record and that of its session."""
    client, _ = queue_with_a_task()
    joined: list[Client] = []

    def join(op: Any) -> None:
        if not joined and type(op).__name__ == "GetMany":
            joined.append(Client(client.zk, "late"))
            joined[0].claimed()

    other = Client(client.zk, "other")
    assert other.do(fsck(other.context, repair=True), join).findings == ()
    assert joined


def test_a_lane_of_long_filters_is_known_by_the_records_of_its_tasks() -> None:
    """Its name is a digest: its data, overwritten, are written anew."""
    zk = world().copy()
    lane = next(
        path for path in zk.nodes if path.startswith(f"{BASE}/queue/") and ";#" in path and path.count("/") == 4
    )
    assert parse_lane(lane.rpartition("/")[2]) is None
    good = zk.nodes[lane].data
    zk.multi(0, (SetData(lane, b"garbage"),))
    look(zk, repair=True)
    assert zk.nodes[lane].data == good


def step(client: Client, name: str) -> None:
    """What another client does to the world's queue in one call."""
    context = client.context
    if name == "claim":
        client.take()
    elif name == "claim under a lease":
        client.take(lease=50)
    elif name == "claim and complete":
        client.complete(client.claimed())
    elif name == "redrive":
        client.do(interventions.redrive(context, "dead"))
    elif name == "redrive a member":
        client.do(interventions.redrive(context, "d1"))
    elif name == "cancel":
        client.do(interventions.cancel(context, "m1"))
    elif name == "drop":
        client.do(interventions.drop(context, "finished"))
    elif name == "collect":
        client.zk.advance(100)
        client.do(collect.collect_garbage(context, 0))
    elif name == "batch":
        client.do(enqueue.enqueue_batch(context, [Message(b"x"), Message(b"y")], "new", Message(b"z")))
    else:
        client.put(b"new")


STEPS = (
    "claim", "claim under a lease", "claim and complete", "redrive", "redrive a member", "cancel", "drop", "collect",
    "batch", "enqueue",
)  # fmt: skip


@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_whatever_happens_at_any_moment_of_a_look_is_no_damage(name: str, repair: bool) -> None:
    """Between any two of its reads somebody claims, settles, redrives, cleans up: nothing is found, nothing is lost."""
    moment = 0
    while True:
        zk, seen = world().copy(), 0
        client, other = Client(zk, "operator"), Client(zk, "other")

        def happen(_: Any) -> None:
            nonlocal seen
            if seen == moment:  # noqa: B023
                step(other, name)  # noqa: B023
            seen += 1

        report = client.do(fsck(client.context, repair=repair), happen)
        assert report.findings == (), f"at moment {moment}"
        if seen <= moment:
            break
        check_tree(zk, client.context)
        moment += 1
    assert moment > 20


def test_a_run_in_escrow_of_another_task_is_not_taken_for_its_own() -> None:
    """Its payload is lost, and what stands in its escrow is another task's message: it is a dead letter."""
    client, base = queue_with_a_task()
    client.claimed()
    client.put(b"next", task_id="t", on_conflict="requeue")
    client.put(b"other", task_id="u")
    client.claimed()
    client.put(b"of another", task_id="u", on_conflict="requeue")
    wrong = client.zk.nodes[client.context.paths.task("u", "requeue")].data
    client.write(SetData(f"{base}/requeue", wrong), Delete(f"{base}/data"))
    client.do(fsck(client.context, repair=True))
    assert TaskState.decode("", client.zk.nodes[f"{base}/state"].data).state is State.DEAD
    assert client.do(fsck(client.context)).findings == ()


def test_a_claim_without_its_znode_keeps_its_run_in_escrow() -> None:
    """As after a rescue: the run under way is delivered again, and the one in escrow follows."""
    client, base = queue_with_a_task()
    client.claimed()
    client.put(b"next", task_id="t", on_conflict="requeue")
    client.write(Delete(f"{base}/claim"))
    client.do(fsck(client.context, repair=True))
    client.zk.advance(1)
    runs = []
    while (claimed := client.take()) is not None:
        runs.append(claimed.data)
        client.complete(claimed)
    assert runs == [b"payload", b"next"]


def test_a_queue_that_is_deleted_meanwhile_stays_deleted() -> None:
    """Deleted at any moment of a repair: the caller is told, or what it found is refused; nothing comes back."""
    moment = 0
    while True:
        zk, seen = world().copy(), 0
        zk.multi(0, (Delete(f"{BASE}/gc"), Create(f"{BASE}/foreign")))
        client, other = Client(zk, "operator"), Client(zk, "other")

        def happen(_: Any) -> None:
            nonlocal seen
            if seen == moment:  # noqa: B023
                other.do(admin.delete(other.context, confirm=True, force=True))  # noqa: B023
            seen += 1

        with suppress(ZkmqError):
            client.do(fsck(client.context, repair=True), happen)
        if seen <= moment:
            break
        assert [path for path in zk.nodes if path.startswith(BASE)] == [], f"at moment {moment}"
        moment += 1


def test_names_that_no_task_can_have_are_foreign() -> None:
    """A tree below such a name is deleted, with its payload: nobody could ever name that task."""
    client, _ = queue_with_a_task()
    for name in ("~x", "x y"):
        path = client.context.paths.at("tasks", name)
        client.write(Create(path), Create(f"{path}/data", b"x"))
    report = client.do(fsck(client.context, repair=True))
    assert len(report.findings) == 2
    assert client.do(fsck(client.context)).findings == ()
