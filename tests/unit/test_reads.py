"""What is read of a queue without changing it: ids, many tasks, columns of them, its configuration and consumers."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zkmq.engine import Zkmq
from airflow_provider_zkmq.engine.core.maintenance import consumer_registry
from airflow_provider_zkmq.engine.core.maintenance.due_work import promote_due
from airflow_provider_zkmq.engine.core.model.filters import OrderedEnum, String
from airflow_provider_zkmq.engine.core.model.settings import RetryPolicy
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.model.values import moment_of
from airflow_provider_zkmq.engine.core.read import bulk_read, columnar_read, configuration, inspect
from airflow_provider_zkmq.engine.core.read.configuration import Archive
from airflow_provider_zkmq.engine.core.read.inspect import COLUMNS, Task, list_tasks, read_task
from airflow_provider_zkmq.engine.core.read.queue_existence import queue_names
from airflow_provider_zkmq.engine.core.read.server_clock import now_below
from airflow_provider_zkmq.engine.core.tasks import admin, settle
from airflow_provider_zkmq.engine.core.zk_operations import Delete, Exists, GetMany, Op, Pipeline, SetData, Sync
from airflow_provider_zkmq.engine.errors import ConfigError, CorruptRecord
from tests.stepping import Stepper
from tests.unit.damage import world
from tests.unit.world import Client, new_queue

BEYOND_A_CHUNK = bulk_read.AT_ONCE + 22
ALL = tuple(COLUMNS)
NAMES = ["finished", "dead", "claimed", "queued", "delayed", "cancelled"]


class Log:
    """A fault that does no harm: it notes the operations."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def __call__(self, op: Op) -> None:
        self.ops.append(op)

    def of(self, kind: Any) -> list[Any]:
        return [op for op in self.ops if isinstance(op, kind)]

    def read(self) -> set[str]:
        """The last parts of all paths that were read with their data."""
        return {path.rpartition("/")[2] for op in self.of(GetMany) for path in op.paths}


def one_in_each_state() -> Client:
    """A queue with a task in each state; that which died has a history, that which finished a dedupe window."""
    client = new_queue(filters={"size": OrderedEnum("small", "large")})
    for name in ("finished", "dead", "claimed"):
        client.put(b"data of " + name.encode(), task_id=name, metadata={"of": name}, filters={"size": "small"})
    client.complete(client.claimed(), result=b"done", dedupe=60)
    client.fail(client.claimed(), error="broken", retry=False)
    client.claimed()
    client.put(task_id="queued", filters={"size": "large"})
    client.put(task_id="delayed", delay=60)
    client.put(task_id="cancelled")
    client.cancel("cancelled")
    return client


def one(client: Client, task_id: str) -> Task:
    return client.do(read_task(client.context, task_id))


def damage(client: Client, task_id: str, znode: str = "state", data: bytes = b"\xff no record") -> str:
    path = client.context.paths.task(task_id, znode)
    client.write(SetData(path, data, -1))
    return path


def scan(
    client: Client, names: list[str], columns: Any = ALL, fault: Any = None, **options: Any
) -> columnar_read.Scanned:
    return client.do(columnar_read.scan(client.context, names, columns, **options), fault or Log())


# --- ids


def test_ids_are_those_of_a_state_or_of_all() -> None:
    """Each state has its tasks, whichever way they are listed; without one all are told; the unknown is refused."""
    client = one_in_each_state()
    listed = lambda *state: client.do(inspect.list_ids(client.context, *state))
    expected = {state: [str(state)] for state in State} | {State.INSERTED: ["delayed", "queued"]}
    assert {state: sorted(listed(state)) for state in State} == expected
    assert sorted(listed()) == sorted(NAMES)
    with pytest.raises(ConfigError, match="state 'lost' is unknown"):
        listed("lost")


def test_a_task_in_each_state_is_understood_by_every_look(subtests: pytest.Subtests) -> None:
    """Where it stands, and by its record: ids, tasks, counts, and why it is where it is. The damaged tree has each."""
    reader = Client(world().copy(), "reader")
    counted = reader.do(inspect.counts(reader.context))
    for state in State:
        with subtests.test(state=str(state)):
            ids = reader.do(inspect.list_ids(reader.context, state))
            assert ids, "tests/unit/damage.py makes no such task"
            assert counted[str(state)]
            assert {task.id for task in reader.do(list_tasks(reader.context, state=state))} == set(ids)
            assert all(reader.do(inspect.explain(reader.context, each)).reasons for each in ids[:1])


def test_a_task_whose_time_comes_while_tasks_are_listed_is_listed_once() -> None:
    """It goes from one list of those that wait to the other, at whichever moment."""
    for steps in range(4):
        client = new_queue()
        client.put(task_id="late", delay=10)
        client.zk.advance(20)
        listing = Stepper(client.zk, client.session, inspect.list_ids(client.context, State.INSERTED))
        for _ in range(steps):
            listing.step()
        assert client.do(promote_due(client.context, client.context.schedule())) == 1
        assert listing.finish() == ["late"]


def test_a_limit_is_a_whole_number_of_nought_or_more(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """A negative limit would leave out the last tasks: refused, in ZooKeeper and in files; 0 gives none."""
    client = one_in_each_state()
    with Zkmq.connect(f"textqueue://{tmp_path}") as zk:
        zk.queue("q").enqueue("x")
        for read in (
            lambda most: client.do(list_tasks(client.context, limit=most)),
            lambda most: zk.queue("q").tasks(limit=most),
        ):
            for wrong in (-1, -(10**6), 1.5, True, "1"):
                with (
                    subtests.test(limit=wrong),
                    pytest.raises(ConfigError, match="limit .* is not allowed: a whole number, 0 or more"),
                ):
                    read(wrong)
            assert [len(read(most)) for most in (0, 1)] == [0, 1]


# --- many tasks


def test_many_tasks_come_each_once_in_the_order_of_their_ids() -> None:
    """What does not exist is left out, after the server was asked to catch up; what is corrupt is reported."""
    client, log, few = new_queue(), Log(), Log()
    names = [client.put(data=f"{number}".encode()) for number in range(BEYOND_A_CHUNK)]
    damage(client, names[7])
    tasks = client.do(list_tasks(client.context, ids=[*reversed(names), names[0], "never"]), log)
    assert [task.id for task in tasks] == [name for name in reversed(names) if name != names[7]]
    assert (tasks[-1], len(client.reports), len(log.of(Sync))) == (one(client, names[0]), 1, 1)
    client.do(list_tasks(client.context, ids=names[8:108], parts=("metadata",)), few)
    # All are there: nothing needs to catch up. One request, and what tells the payloads' times in flight together.
    assert (len(few.of(GetMany)), len(few.of(Exists)), few.of(Sync)) == (1, 100, [])


def test_tasks_are_those_that_every_argument_accepts() -> None:
    """Ids, a state, a status, a selector and a limit, alone and together; by ids alone, no configuration is read."""
    client = one_in_each_state()
    listed = lambda **options: [task.id for task in client.do(list_tasks(client.context, **options))]
    assert sorted(listed(state="inserted")) == ["delayed", "queued"]
    assert (listed(status="queued"), listed(status="queued-with-backoff")) == (["queued"], ["delayed"])
    assert listed(ids=["queued", "dead", "never"], state="dead") == ["dead"]
    assert listed(ids=["queued", "delayed"], status="queued-with-backoff", state="inserted") == ["delayed"]
    assert listed(status="queued", state="dead") == []
    assert listed(ids=["dead", "queued", "finished"], limit=2) == ["dead", "queued"]
    assert listed(ids=["dead", "queued"], selector="size==large") == ["queued"]
    assert listed(ids=["dead"], batch="none") == []
    with pytest.raises(ConfigError, match="status 'waiting' is unknown: use one of queued, "):
        listed(status="waiting")
    other, log = Client(client.zk), Log()
    other.do(list_tasks(other.context, ids=["dead"], parts=()), log)
    assert log.read() == {"state"}


def test_parts_that_are_left_out_are_empty_and_not_read(subtests: pytest.Subtests) -> None:
    """Without any part there is the record still; each part comes by itself; unknown parts are refused."""
    client = new_queue()
    client.put(data=b"payload", metadata={"owner": "me"}, task_id="t")
    client.do(settle.progress(client.context, client.claimed(), 0.5, "half"))
    whole = one(client, "t")
    bare = replace(whole, data=b"", metadata={}, progress=None, note=None)
    expected = {
        (): (bare, {"state"}),
        ("data",): (replace(bare, data=whole.data), {"state", "data"}),
        ("metadata",): (replace(bare, metadata=whole.metadata), {"state", "metadata"}),
        ("progress",): (replace(bare, progress=0.5, note="half"), {"state", "claim"}),
        ("data", "metadata", "result", "progress"): (whole, {"state", "data", "metadata", "result", "claim"}),
    }
    for parts, (task, wanted) in expected.items():
        with subtests.test(parts=parts):
            log = Log()
            assert client.do(list_tasks(client.context, ids=["t"], parts=parts), log) == [task]
            assert log.read() == wanted
    for wrong in ("data", ["payload"], ["data", "state"]):
        with pytest.raises(ConfigError, match="data, metadata, progress, result"):
            client.do(list_tasks(client.context, ids=["t"], parts=wrong))
    for names in ("t", ["a/b"], [None]):
        with pytest.raises(ConfigError):
            client.do(list_tasks(client.context, ids=names))


def test_a_run_of_an_id_that_ran_before_has_its_own_time() -> None:
    """Where its metadata were written again, the payload is asked when it came, but for its bytes; others are not."""
    client, log = new_queue(), Log()
    names = ["again", "thin", "once"]
    for name in names:
        client.put(task_id=name, metadata={"run": 1} if name == "again" else {})
    client.work()
    client.zk.advance(10)
    for name in ("again", "thin"):
        client.put(task_id=name)
    came = [one(client, name).enqueued_ms for name in names]
    assert (came[0], came[1]) == (client.zk.ms, client.zk.ms) > (came[2], came[2])
    assert scan(client, names, ["enqueued_ms"], log).columns["enqueued_ms"] == came
    assert [op.path for op in log.of(Exists)] == ["/zkmq/q/tasks/again/data"]
    (bare,) = client.do(list_tasks(client.context, ids=["again"], parts=()))
    assert bare.enqueued_ms == came[0]


# --- scans: columns of many tasks


def test_the_columns_are_what_the_tasks_say() -> None:
    """Every field of a task but what its claim tells, by the same name and with the same value."""
    client = one_in_each_state()
    assert set(ALL) == {each.name for each in fields(Task)} - {"progress", "note"}
    scanned = scan(client, NAMES)
    assert scanned.columns == {name: [getattr(one(client, task), name) for task in NAMES] for name in ALL}
    assert (scanned.vanished, scanned.corrupt) == ((), ())
    # A payload that is gone leaves a row: it is empty, and the record tells the time.
    client.write(Delete("/zkmq/q/tasks/dead/data"), Delete("/zkmq/q/tasks/dead/metadata"))
    assert scan(client, ["dead"]).columns == {name: [getattr(one(client, "dead"), name)] for name in ALL}


def test_only_what_is_asked_for_is_read(subtests: pytest.Subtests) -> None:
    """No payload is read for a column that does not tell of it; of no tasks nothing is read at all."""
    client = one_in_each_state()
    for columns, wanted in {
        ("id", "state", "error", "history", "version"): {"state"},
        ("enqueued_ms",): {"state", "metadata"},
        ("enqueued_ms", "data"): {"state", "data"},
        ("result",): {"state", "result"},
        ("metadata",): {"state", "metadata"},
    }.items():
        with subtests.test(columns=columns):
            log, nothing = Log(), Log()
            scan(client, NAMES, columns, log)
            assert (log.read(), log.of(Exists)) == (wanted, [])
            assert scan(client, [], columns, nothing) == columnar_read.Scanned({name: [] for name in columns}, (), ())
            assert nothing.of(GetMany) == []


def test_what_cannot_be_decoded_is_told() -> None:
    """A record with a damaged history is corrupt; of metadata that cannot be read nothing is known."""
    client = one_in_each_state()
    record = client.zk.nodes["/zkmq/q/tasks/dead/state"].data
    damage(client, "dead", "state", record.replace(b'"outcome"', b'"outcame"').replace(b'"number":1', b'"number":"x"'))
    scanned = scan(client, NAMES, ["id"])
    assert (scanned.columns["id"], scanned.corrupt) == ([name for name in NAMES if name != "dead"], ("dead",))
    path = damage(client, "finished", "metadata", b"[")
    assert scan(client, ["finished"], ["metadata"]).columns == {"metadata": [{}]}
    assert path in client.reported


def test_what_vanished_is_told_and_what_is_corrupt_is_told_and_reported() -> None:
    """Neither ends the scan; before something counts as vanished, the server is asked to catch up, as one may lag."""
    client, log = one_in_each_state(), Log()
    path = damage(client, "queued", data=b"{")
    scanned = scan(client, ["never", *NAMES, "finished"], ["id"], log)
    assert scanned.columns["id"] == [name for name in NAMES if name != "queued"]
    assert (scanned.vanished, scanned.corrupt, client.reported) == (("never",), ("queued",), [path])
    assert len(log.of(Sync)) == 1
    path, late = client.context.paths.task("dead", "state"), list[Any]()

    def lagging(op: Op) -> None:
        if isinstance(op, GetMany) and not late:
            late.append(client.zk.nodes.pop(path))
        elif isinstance(op, Sync):
            client.zk.nodes[path] = late[0]

    scanned = scan(client, ["dead"], ["id"], lagging)
    assert (scanned.columns, scanned.vanished) == ({"id": ["dead"]}, ())


def test_tasks_are_left_out_by_what_is_read(subtests: pytest.Subtests) -> None:
    """States, a selector, and a moment; all of them together; none of it is counted as vanished."""
    client = one_in_each_state()
    later = datetime.fromtimestamp(client.zk.ms / 1000 + 1, UTC)
    client.zk.advance(5)
    client.put(task_id="late", filters={"size": "large"})
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"states": ["dead", State.CLAIMED]}, ["dead", "claimed"]),
        ({"selector": "size>=large"}, ["queued", "late"]),
        ({"since": later}, ["late"]),
        ({"states": ["inserted"], "selector": "size==large", "since": later}, ["late"]),
    ]
    for options, left in cases:
        with subtests.test(**options):
            scanned = scan(client, [*NAMES, "late"], ["id"], **options)
            assert (scanned.columns["id"], scanned.vanished) == (left, ())


def test_requests_are_bounded_and_so_is_what_is_in_flight() -> None:
    """Small znodes go together; of payloads few are asked for at first, and few at a time as long as they are large."""
    client, small, payloads, large = new_queue(), Log(), Log(), Log()
    names = [client.put(task_id=f"t{number}") for number in range(700)]
    scan(client, names, ["id"], small)
    scan(client, names, ["data"], payloads)
    assert [len(op.paths) for op in small.of(GetMany)] == [256, 256, 188]
    assert [len(op.paths) // 2 for op in payloads.of(GetMany)] == [32, 128, 128, 128, 128, 128, 28]
    stepper = Stepper(client.zk, client.session, columnar_read.scan(client.context, names, ["data"], in_flight=3))
    stepper.finish()
    assert max(len(op.ops) for op in stepper.done if isinstance(op, Pipeline)) == 3
    names = [client.put(b"x" * (1_000_000 if number else 1), task_id=f"l{number}") for number in range(80)]
    scanned = scan(client, names, ["data"], large)
    assert [len(each) for each in scanned.columns["data"]] == [1] + [1_000_000] * 79
    assert [len(op.paths) // 2 for op in large.of(GetMany)] == [32, 17, 16, 15]


def test_a_scan_that_is_not_understood_is_refused(subtests: pytest.Subtests) -> None:
    """Before anything is read."""
    client, log = new_queue(), Log()
    refused: dict[str, tuple[Any, dict[str, Any]]] = {
        "columns": ([], {}),
        "columns.*id": ("id", {}),
        "columns .* are not understood: .*enqueued_ms": (["id", "payload"], {}),
        "in_flight": (["id"], {"in_flight": 0}),
        "state 'done' is unknown": (["id"], {"states": ["done"]}),
        "'color' is not declared": (["id"], {"selector": "color==red"}),
        "zone": (["id"], {"since": datetime(2026, 1, 1)}),  # noqa: DTZ001  that it has none is the point
    }
    for match, (columns, options) in refused.items():
        with subtests.test(match), pytest.raises(ConfigError, match=match):
            scan(client, ["a"], columns, log, **options)
    assert log.of(GetMany) == []


# --- configuration and consumers


def test_a_configuration_has_the_names_of_configure() -> None:
    """What was configured can be read; defaults are told, too."""
    chosen: dict[str, Any] = {"task_gc_lifetime": 7, "lock": 9, "order": "fifo", "policy": RetryPolicy(attempts=3)}
    client = new_queue(filters={"k": String()}, **chosen)
    client.do(admin.pause(client.context))
    assert client.do(configuration.conf(client.context)) == configuration.QueueConf(
        filters={"k": String()}, task_gc_interval=300, paused=True, archived=None, **chosen
    )


def test_consumers_tell_who_they_are_and_what_they_have_in_hand() -> None:
    """Live and dead ones; a leased claim is in nobody's hand."""
    client = new_queue()
    client.context.describe = {"name": "first", "host": "here", "pid": 7}
    dead, third = Client(client.zk, "second"), Client(client.zk, "third")
    for name in ("a", "b", "c"):
        client.put(task_id=name)
    mine, theirs = client.claimed().task_id, dead.claimed().task_id
    third.claimed(lease=60)
    client.zk.expire(dead.session)
    told = client.do(consumer_registry.consumers(client.context))
    assert (told[0].id.startswith("first-"), told[0].accepts) == (True, ("all()",))
    assert [(each.name, each.host, each.pid, each.in_hand, each.alive) for each in told] == [
        ("first", "here", 7, (mine,), True),
        ("second", None, None, (theirs,), False),
        ("third", None, None, (), True),
    ]
    # However many there are, a request names a bounded number of them.
    log = Log()
    for number in range(BEYOND_A_CHUNK):
        client.put()
        Client(client.zk, f"c{number:03}").claimed()
    assert len(client.do(consumer_registry.consumers(client.context), log)) == 2 + BEYOND_A_CHUNK, (
        "the dead one is buried"
    )
    assert max(len(op.paths) for op in log.of(GetMany)) <= bulk_read.AT_ONCE


def test_a_consumer_s_damaged_record_is_reported_and_its_tasks_are_told() -> None:
    """What a record cannot tell is None; the znode says that it is there, and one that has gone is left out."""
    client = new_queue()
    client.put(task_id="a")
    consumer = str(client.claimed().state.consumer)
    path = client.context.paths.consumer(consumer)
    for data in (b"\xff", b'{"name": 3, "pid": "x", "accepts": 5}'):
        client.zk.nodes[path].data = data
        (found,) = client.do(consumer_registry.consumers(client.context))
        assert (found.name, found.host, found.pid, found.accepts) == (None, None, None, ())
        assert (found.id, found.in_hand, found.alive) == (consumer, ("a",), True)
    assert client.reported == [path]
    leaves = lambda op: client.zk.nodes.pop(path) and None if isinstance(op, GetMany) and op.paths == (path,) else None
    assert client.do(consumer_registry.consumers(client.context), leaves) == []


def test_queue_names_leave_out_what_is_no_queue() -> None:
    """A root's foreign children are no queues, whatever they are called; no root, no queues."""
    client = new_queue()
    client.zk.nodes["/zkmq"].children.add("foreign ..")
    assert client.do(queue_names("/zkmq")) == ["q"]
    assert client.do(queue_names("/elsewhere")) == []
    assert {client.do(now_below(root)) for root in ("/zkmq", "/elsewhere")} == {moment_of(client.zk.ms)}
    assert "~now" not in (*client.zk.names("/zkmq"), *client.zk.names("/elsewhere"))


def test_who_publishes_the_archive_must_have_read_it() -> None:
    """The first writes version 0; of two that read the same, the second is refused; so is one that is damaged."""
    client = new_queue()
    read = lambda: client.do(configuration.archive(client.context))
    publish = lambda archive: client.do(admin.publish_archive(client.context, archive))
    nothing = read()
    assert nothing == Archive(born=nothing.born)
    first = replace(nothing, watermark=7, directory="/somewhere", run="a")
    publish(first)
    second = read()
    assert second == replace(first, version=0)
    assert client.do(configuration.conf(client.context)).archived == 7
    publish(replace(second, watermark=8))
    with pytest.raises(ConfigError, match="another archive run"):
        publish(replace(second, watermark=9))
    assert read().watermark == 8
    path = client.context.paths.at("archive")
    for data in (b"\xff", b"[]", b'{"watermark": "x"}', b'{"directory": 3}'):
        client.zk.nodes[path].data = data
        with pytest.raises(CorruptRecord, match=path):
            read()
