"""Enqueue of what is not there yet: whatever is tried again, by whom and when, no id runs twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.model.messages import Message, NewTasks
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Exists, GetMany
from airflow_provider_zkmq.engine.core.protocol.writes import Create, Multi
from airflow_provider_zkmq.engine.core.reading import clock
from airflow_provider_zkmq.engine.core.tasks import batches, configure, operate, settle, several_writers
from airflow_provider_zkmq.engine.core.tasks.enqueue_new import enqueue_new
from airflow_provider_zkmq.engine.core.upkeep import collect
from airflow_provider_zkmq.engine.errors import (
    BadMessage,
    ConfigError,
    CorruptRecord,
    DuplicateTask,
    OutcomeUnknown,
    TaskNotFound,
    Unavailable,
)
from tests.fake_zookeeper import Crash
from tests.stepping import Stepper
from tests.unit.world import BROKEN_OFF, LOST_REPLY, LOST_REQUEST, Client, new_queue

IDS = [f"t{n:02}" for n in range(50)]


def load(client: Client, *ids: str, data: bytes = b"x", fault: Any = lambda _op: None, **options: Any) -> NewTasks:
    messages = [Message(data, task_id=task_id) for task_id in ids]
    new: NewTasks = client.do(enqueue_new(client.context, messages, **options), fault)
    return new


def writes(op: Any, path: str) -> bool:
    return isinstance(op, Multi) and any(isinstance(part, Create) and part.path == path for part in op.ops)


def neighbour(client: Client) -> Client:
    return Client(client.zk, "neighbour")


def ends(client: Client) -> dict[str, Any]:
    """A task in each state, by the name of the state."""
    client.put(task_id="finished")
    client.complete(client.claimed())
    client.put(task_id="dead")
    client.fail(client.claimed(), retry=False)
    client.put(task_id="window")
    client.complete(client.claimed(), dedupe=60)
    client.put(task_id="cancelled")
    client.cancel("cancelled")
    client.put(task_id="scheduled", delay=60)
    client.put(task_id="claimed")
    client.claimed()
    client.put(task_id="queued")
    return client.check()


def test_what_is_there_in_whatever_state_stays_as_it_is() -> None:
    """Also what is finished or cancelled, which an ordinary enqueue would run again; what is new is written."""
    client = new_queue()
    before = ends(client)
    told = load(client, *before, "new", data=b"other")
    assert told == NewTasks(("new",), tuple(before))
    after = client.check()
    assert ({name: after[name] for name in before}, after["new"].state) == (before, State.INSERTED)
    assert client.work() == ["queued", "new"]
    assert load(client, "queued", "new") == NewTasks((), ("queued", "new"))
    assert client.work() == []


def test_several_tasks_are_one_transaction_and_ids_in_use_cost_no_other() -> None:
    """Of 50 tasks 20 make a transaction; where 10 of them are there, those that are missing make two."""
    client, seen = new_queue(), []
    count = lambda op: seen.append(sum(writes(op, client.context.paths.task(name)) for name in IDS))
    load(client, *IDS[:10])
    told = load(client, *IDS, fault=count)
    assert told == NewTasks(tuple(IDS[10:]), tuple(IDS[:10]))
    assert [many for many in seen if many] == [20, 20]
    assert client.work() == IDS


def test_two_that_write_the_same_side_by_side_write_each_task_once() -> None:
    """What comes between the look and the transaction refuses that, and what is missing then is written anew."""
    client = new_queue()
    other = neighbour(client)
    done: list[NewTasks] = []

    def meanwhile(op: Any) -> None:
        if not done and writes(op, client.context.paths.task(IDS[0])):
            done.append(load(other, *IDS[5:10], *IDS[30:35]))
            assert other.work() == [*IDS[5:10], *IDS[30:35]]

    told = load(client, *IDS, fault=meanwhile)
    assert (done[0].written, told.existing) == ((*IDS[5:10], *IDS[30:35]), (*IDS[5:10], *IDS[30:35]))
    assert sorted([*told.written, *told.existing]) == IDS
    assert sorted(client.work()) == sorted(told.written)
    client.check()


@pytest.mark.parametrize("effect", [LOST_REPLY, LOST_REQUEST])
@pytest.mark.parametrize("alone", [True, False])
def test_a_lost_reply_tells_what_was_written(effect: str, alone: bool) -> None:
    """Also where a neighbour has written some of the same tasks meanwhile."""
    client, lost = new_queue(), []

    def cut(op: Any) -> str | None:
        if lost or not writes(op, client.context.paths.task(IDS[0])):
            return None
        lost.append(op)
        if not alone and effect == LOST_REQUEST:
            load(neighbour(client), *IDS[3:6])
        return effect

    told = load(client, *IDS, fault=cut)
    theirs = tuple(IDS[3:6]) if not alone and effect == LOST_REQUEST else ()
    assert told == NewTasks(tuple(name for name in IDS if name not in theirs), theirs)
    assert sorted(client.work()) == IDS
    client.check()


def test_a_call_of_unknown_outcome_made_again_tells_what_it_wrote() -> None:
    """It was cut off with its transaction under way: the same call finds its own tasks, and says that it wrote them."""
    client = new_queue()
    cut = lambda op: BROKEN_OFF if writes(op, client.context.paths.task(IDS[20])) else None
    with pytest.raises(Crash):
        load(client, *IDS, fault=cut)
    assert load(client, *IDS) == NewTasks(tuple(IDS), ())
    assert load(neighbour(client), *IDS) == NewTasks((), tuple(IDS))
    assert sorted(client.work()) == IDS


def test_an_outage_is_told_as_what_it_is() -> None:
    """Nothing sent: `Unavailable`; something sent: `OutcomeUnknown`, with ids. The call made again writes the rest."""
    client = new_queue()
    gone = lambda op: Unavailable("no server") if isinstance(op, Multi) else None
    with pytest.raises(Unavailable):
        load(client, *IDS, fault=gone)
    seen: list[Any] = []

    def later(op: Any) -> Any:
        seen.extend([op] if isinstance(op, Multi) else [])
        return Unavailable("no server") if len(seen) > 8 else None

    many = [f"m{n:03}" for n in range(400)]
    with pytest.raises(OutcomeUnknown) as unknown:
        load(client, *many, fault=later)
    assert set(unknown.value.task_ids) <= set(many)
    assert set(load(client, *many).written) >= set(many) - set(unknown.value.task_ids)
    assert sorted(client.work()) == many


def test_an_id_that_goes_while_it_is_looked_at_is_not_written_again() -> None:
    """It was there when the transaction was refused: whoever deleted it has not asked for another run."""
    client = new_queue()
    other = neighbour(client)
    steps: list[str] = []

    def meanwhile(op: Any) -> None:
        if not steps and writes(op, client.context.paths.task("a")):
            steps.append("written")
            other.put(task_id="a")
        elif steps == ["written"] and isinstance(op, GetMany):
            steps.append("dropped")
            other.do(operate.drop(other.context, "a"))

    assert load(client, "a", "b", fault=meanwhile) == NewTasks(("b",), ("a",))
    assert (client.work(), steps) == (["b"], ["written", "dropped"])
    client.check()


def test_a_znode_that_is_no_task_is_told_by_its_path() -> None:
    """It has the id and no record: the id would never be free, and nobody waits for it. The neighbours are written."""
    client = new_queue()
    client.zk.multi(client.session, (Create(client.context.paths.task("torso")),))
    with pytest.raises(CorruptRecord, match="tasks/torso has no state"):
        load(client, "a", "torso", "b")
    load(client, "a", "b")
    assert client.work() == ["a", "b"]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "task_id": ({"task_id": "a b"}, "task id 'a b'"),
    "no task_id": ({"task_id": None}, "an id of its own"),
    "data": ({"data": None}, "data must be bytes or text"),
    "filters": ({"filters": {"size": "huge"}}, "size"),
    "metadata": ({"metadata": {"a": {1}}}, "metadata"),
    "priority": ({"priority": 10_000}, "priority"),
    "delay": ({"delay": -1}, "delay"),
}


@pytest.mark.parametrize("part", BAD)
def test_a_message_that_is_refused_is_told_by_its_position_and_part(part: str) -> None:
    """And nothing is written."""
    client = new_queue()
    options, why = BAD[part]
    messages = [Message(b"x", task_id="good"), Message(**({"data": b"x", "task_id": "bad"} | options))]
    with pytest.raises(BadMessage, match=why) as refused:
        client.do(enqueue_new(client.context, messages))
    assert (refused.value.position, refused.value.part) == (1, part.removeprefix("no "))
    assert client.check() == {}


def test_what_is_no_new_task_is_refused() -> None:
    """An update, a requeue, an id twice in one call: nothing is written."""
    client = new_queue()
    for options in ({"update": True}, {"requeue": True}):
        with pytest.raises(BadMessage, match="leaves those alone"):
            client.do(enqueue_new(client.context, [Message(b"x", task_id="a", **options)]))
    with pytest.raises(BadMessage, match="takes Message objects"):
        client.do(enqueue_new(client.context, ["x"]))  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="'a' stands twice"):
        load(client, "a", "a")
    assert client.check() == {}
    assert client.do(enqueue_new(client.context, [])) == NewTasks((), ())


# --- clean-up


def test_a_load_is_refused_before_clean_up_could_have_made_its_ids_free() -> None:
    """What a first try wrote may be done and deleted `task_gc_lifetime` later; then a second try would run it again."""
    client = new_queue(task_gc_lifetime=100)
    began = client.do(clock.now(client.context))
    load(client, "a", since=began)
    client.work()
    client.zk.advance(80)
    assert load(client, "a", since=began) == NewTasks((), ("a",))
    client.zk.advance(15)
    with pytest.raises(ConfigError, match=r"95 s ago, and finished tasks are kept for 100 s \(task_gc_lifetime"):
        load(client, "b", since=began)
    assert client.check().keys() == {"a"}
    client.do(configure.configure(client.context, task_gc_lifetime=1_000))
    assert load(client, "b", since=began).written == ("b",)
    with pytest.raises(ConfigError, match="since"):
        load(client, "c", since=datetime(2026, 1, 1))  # noqa: DTZ001  that is what is refused


def test_clean_up_keeps_the_members_of_a_batch_that_is_being_written() -> None:
    """However long that takes: a second try finds them. Once it is sealed they go as others do."""
    client = new_queue(task_gc_lifetime=100)
    client.do(several_writers.open_for_several(client.context, "b"))
    load(client, "a", batch="b")
    client.work()
    load(client, "open", batch="b")
    client.zk.advance(10_000)
    report = client.do(collect.collect_garbage(client.context))
    assert (report.collected, report.kept_for_batches) == (0, 1)
    assert load(client, "a", batch="b") == NewTasks((), ("a",))
    client.do(several_writers.seal(client.context, "b"))
    assert client.do(collect.collect_garbage(client.context)).collected == 1
    assert client.work() == ["open"]
    client.check()


def test_a_batch_that_clean_up_gave_up_takes_no_members() -> None:
    """Nobody has written it for `task_gc_lifetime`, and all has ended: a second try is refused, and nothing runs."""
    client = new_queue(task_gc_lifetime=100)
    client.do(several_writers.open_for_several(client.context, "b"))
    load(client, "a", batch="b")
    client.work()
    client.zk.advance(90)
    load(client, "late", batch="b")
    client.work()
    client.zk.advance(90)  # since the last of them was written it is not as long yet
    client.do(collect.collect_garbage(client.context))
    assert load(client, "a", batch="b") == NewTasks((), ("a",))
    client.zk.advance(200)
    for _ in range(2):
        client.do(collect.collect_garbage(client.context))
    with pytest.raises(ConfigError, match="not open for new tasks"):
        load(client, "a", batch="b")
    assert client.check() == {}
    client.do(several_writers.open_for_several(client.context, "b"))
    assert load(client, "a", batch="b").written == ("a",)


# --- batches of several writers


def test_a_batch_is_written_by_several_and_done_when_it_is_sealed_and_all_have_ended() -> None:
    """One opens, others add, one seals; before that it is not done although all of its members have ended."""
    client = new_queue()
    others = [neighbour(client), neighbour(client)]
    opened = client.do(several_writers.open_for_several(client.context, "b", then=Message(b"then", task_id="then")))
    assert (opened.written, opened.done, opened.total) == (False, False, 0)
    for other, part in zip(others, (IDS[:30], IDS[20:]), strict=True):
        load(other, *part, batch="b")
        other.work()
    assert not client.do(batches.read_batch(client.context, "b")).done
    sealed = client.do(several_writers.seal(client.context, "b"))
    assert (sealed.total, sealed.done, sealed.written, sealed.failed) == (50, True, True, ())
    assert client.work() == ["then"]
    assert client.do(several_writers.seal(client.context, "b")) == sealed
    client.check()


def test_nothing_joins_a_batch_that_is_sealed_or_not_there() -> None:
    """What is in it already is found all the same: who loads the same once more is told so."""
    client = new_queue()
    client.do(several_writers.open_for_several(client.context, "b"))
    load(client, "a", batch="b")
    client.do(several_writers.seal(client.context, "b"))
    assert client.do(several_writers.open_for_several(client.context, "b")).written
    assert load(client, "a", batch="b") == NewTasks((), ("a",))
    for name in ("b", "never opened"):
        with pytest.raises(ConfigError, match="not open for new tasks"):
            load(client, "late", batch=name.replace(" ", "-"))
    assert client.check().keys() == {"a"}
    with pytest.raises(TaskNotFound):
        client.do(several_writers.seal(client.context, "never"))


def test_an_empty_batch_is_done_when_it_is_sealed() -> None:
    """A load without rows."""
    client = new_queue()
    client.do(several_writers.open_for_several(client.context, "b"))
    sealed = client.do(several_writers.seal(client.context, "b"))
    assert (sealed.total, sealed.done) == (0, True)


def test_a_task_of_another_batch_is_no_member() -> None:
    """The batch would not wait for it: the call is refused, and can be made again without it."""
    client = new_queue()
    client.put(task_id="theirs")
    client.do(several_writers.open_for_several(client.context, "b"))
    with pytest.raises(DuplicateTask, match="'theirs' is in use by a task that is no member of batch 'b'") as error:
        load(client, "a", "theirs", batch="b")
    assert error.value.duplicates == ("theirs",)
    load(client, "a", batch="b")
    assert sorted(client.work()) == ["a", "theirs"]
    assert client.do(several_writers.seal(client.context, "b")).total == 1


def test_a_member_that_an_operator_dropped_is_not_written_again() -> None:
    """It counts as ended and failed: a second try leaves it so."""
    client = new_queue()
    client.do(several_writers.open_for_several(client.context, "b"))
    load(client, "a", "b", batch="b")
    client.do(operate.drop(client.context, "a"))
    assert load(client, "a", "b", batch="b") == NewTasks((), ("a", "b"))
    assert client.work() == ["b"]
    sealed = client.do(several_writers.seal(client.context, "b"))
    assert (sealed.total, sealed.done, sealed.failed) == (2, True, ("a",))


def test_the_end_of_the_last_member_waits_for_the_seal() -> None:
    """The writers are slower than the workers: nothing follows the batch before it is written to its end."""
    client = new_queue()
    client.do(several_writers.open_for_several(client.context, "b", then=Message(b"then", task_id="then")))
    for name in ("a", "b"):
        load(client, name, batch="b")
        claimed = client.claimed()
        client.do(settle.complete(client.context, claimed))
    assert client.work() == []
    client.do(several_writers.seal(client.context, "b"))
    assert client.work() == ["then"]


def test_now_is_the_server_s_time() -> None:
    """Whatever this machine's clock says."""
    client = new_queue()
    client.zk.advance(86_400)
    assert client.do(clock.now(client.context)) == datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=client.zk.ms)
    assert not isinstance(client.do(clock.now(client.context)), Exists)


def test_a_member_that_comes_while_the_batch_is_sealed_is_counted_or_refused() -> None:
    """Whoever seals has counted the members, when another writer adds one; the next one is refused."""
    client = new_queue()
    client.do(several_writers.open_for_several(client.context, "b"))
    load(client, "a", batch="b")
    sealing = Stepper(client.zk, client.session, several_writers.seal(client.context, "b"))
    sealing.until(Multi)
    load(neighbour(client), "c", batch="b")
    sealed = sealing.finish()
    assert (sealed.total, sealed.open, sealed.written) == (2, 2, True)
    with pytest.raises(ConfigError, match="not open for new tasks"):
        load(client, "late", batch="b")


def test_a_batch_is_sealed_though_others_add_members_all_the_time() -> None:
    """The count is then as good as it can be."""
    client = new_queue()
    client.do(several_writers.open_for_several(client.context, "b"))
    sealing = Stepper(client.zk, client.session, several_writers.seal(client.context, "b"))
    for number in range(several_writers.COUNTS + 1):
        sealing.until(Multi)
        load(neighbour(client), f"n{number}", batch="b")
        sealing.step()
    assert sealing.finish().written
