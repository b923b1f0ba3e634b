"""An in-memory ZooKeeper, a driver with fault injection, and the invariants of a queue's tree."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.memory.runtime import Runtime
from airflow_provider_zkmq.engine.core.model.letters import Letter, parse_letter
from airflow_provider_zkmq.engine.core.model.paths import Paths
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.states import ENDED, State
from airflow_provider_zkmq.engine.core.protocol.ops import (
    Children,
    CreateContainer,
    EnsureRoot,
    Exists,
    Get,
    GetMany,
    Node,
    Pipeline,
    Post,
    Reconnect,
    Stat,
    Sync,
    Tell,
    Wait,
    Within,
)
from airflow_provider_zkmq.engine.core.protocol.writes import Check, Create, Delete, Failure, Multi, Outcome, SetData
from airflow_provider_zkmq.engine.core.tasks.batches import WRITING
from airflow_provider_zkmq.engine.core.writing.pieces import notes_of
from airflow_provider_zkmq.engine.zk.signals import ThreadSignal

UNKNOWN = Outcome(committed=False, unknown=True)
#: The request never arrives; its reply is lost; it arrives late, after whatever was written to find out.
LOST = ("lost before", "lost after", "lost late")
CRASHES = ("crash before", "crash after")


class Crash(BaseException):
    """The process died: nothing of it runs any more."""


@dataclass
class Znode:
    data: bytes
    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    owner: int = 0
    version: int = 0
    children: set[str] = field(default_factory=set)
    pzxid: int = 0

    def stat(self) -> Stat:
        times = (self.czxid, self.mzxid, self.ctime, self.mtime)
        return Stat(*times, self.version, self.owner, len(self.children), pzxid=self.pzxid)


def parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


class Refused(Exception):
    """An operation of a transaction was refused."""


class FakeZooKeeper:
    def __init__(self) -> None:
        self.ms = 1_700_000_000_000
        self.zxid = 0
        self.nodes = {"/": Znode(b"", 0, 0, 0, 0)}
        self.sessions: set[int] = set()
        self.next_session = 1
        self.containers: set[str] = set()
        self.used: set[str] = set()
        self.made: Counter[str] = Counter()
        self.watches: dict[tuple[str, str], set[Any]] = {}

    def connect(self) -> int:
        self.next_session += 1
        self.sessions.add(self.next_session)
        return self.next_session

    def expire(self, session: int) -> None:
        """End a session: its ephemerals go."""
        self.sessions.discard(session)
        gone = tuple(Delete(path) for path, node in self.nodes.items() if node.owner == session)
        if gone:
            self.multi(0, gone)

    def advance(self, seconds: float) -> None:
        self.ms += int(seconds * 1000)
        if seconds > 60:
            self.reap()

    def reap(self) -> None:
        """Delete the containers that have been emptied, as the server does once a minute."""
        for path in [path for path in self.containers if path in self.nodes and path in self.used]:
            if not self.nodes[path].children:
                self.used.discard(path)
                self.multi(0, (Delete(path),))

    def stat(self, path: str) -> Stat | None:
        node = self.nodes.get(path)
        if node is None:
            return None
        return node.stat()._replace(cversion=2 * self.made[path] - len(node.children))

    def node(self, path: str) -> Node | None:
        stat = self.stat(path)
        return None if stat is None else Node(self.nodes[path].data, stat)

    def names(self, path: str) -> list[str]:
        return sorted(self.nodes[path].children) if path in self.nodes else []

    def watch(self, kind: str, path: str, watch: Any) -> None:
        if watch is not None:
            self.watches.setdefault((kind, path), set()).add(watch)

    def read(self, op: Any) -> Any:
        match op:
            case Get(path, watch):
                if path in self.nodes:
                    self.watch("data", path, watch)
                return self.node(path)
            case Exists(path, watch):
                self.watch("data", path, watch)
                return self.stat(path)
            case Children(path, watch):
                if path not in self.nodes:
                    return None
                self.watch("child", path, watch)
                return list(self.nodes[path].children)
            case GetMany(paths):
                return [self.node(path) for path in paths]
        raise AssertionError(op)

    def multi(self, session: int, ops: tuple[Any, ...]) -> Outcome:
        """One transaction: all or nothing."""
        undo: list[tuple[str, Znode | None]] = []
        before = {path: self.nodes[path].pzxid for op in ops if (path := parent(op.path)) in self.nodes}
        events: list[tuple[str, str]] = []
        self.zxid += 1
        outcome = Outcome(committed=True)
        for at, op in enumerate(ops):
            failure = self._judge(op)
            if failure is not None:
                for path, node in reversed(undo):
                    self._put(path, node)
                for path, pzxid in before.items():
                    self.nodes[path].pzxid = pzxid
                return Outcome(committed=False, failed=at, failure=failure, detail=failure.name)
            undo.append((op.path, self._apply(session, op, events)))
            if isinstance(op, SetData) and outcome.time is None:
                outcome = Outcome(committed=True, time=self.ms, zxid=self.zxid)
        for op in ops:
            self._count(op)
        for event in events:
            for watch in self.watches.pop(event, set()):
                watch.fire()
        return outcome

    def _count(self, op: Any) -> None:
        """How many children each znode ever had."""
        if isinstance(op, Delete):
            self.made.pop(op.path, None)
        if isinstance(op, Create):
            self.made[parent(op.path)] += 1

    def _judge(self, op: Any) -> Failure | None:
        node = self.nodes.get(op.path)
        if isinstance(op, Create):
            if parent(op.path) not in self.nodes:
                return Failure.NO_NODE
            return None if node is None else Failure.NODE_EXISTS
        if node is None:
            return Failure.NO_NODE
        if op.version not in (-1, node.version):
            return Failure.BAD_VERSION
        return Failure.NOT_EMPTY if isinstance(op, Delete) and node.children else None

    def _apply(self, session: int, op: Any, events: list[tuple[str, str]]) -> Znode | None:
        before = self.nodes.get(op.path)
        match op:
            case Create(path, data, ephemeral):
                owner = session if ephemeral else 0
                self._put(path, Znode(data, self.zxid, self.zxid, self.ms, self.ms, owner, pzxid=self.zxid))
                self.nodes[parent(path)].pzxid = self.zxid
                events += [("data", path), ("child", parent(path))]
            case SetData(path, data, _):
                old = self.nodes[path]
                new = replace(old, data=data, mzxid=self.zxid, mtime=self.ms, version=old.version + 1)
                self._put(path, new)
                events.append(("data", path))
            case Delete(path, _):
                self._put(path, None)
                self.nodes[parent(path)].pzxid = self.zxid
                events += [("data", path), ("child", path), ("child", parent(path))]
            case Check():
                pass
        return before

    def _put(self, path: str, node: Znode | None) -> None:
        name = path.rpartition("/")[2]
        if node is None:
            self.nodes.pop(path, None)
            self.nodes[parent(path)].children.discard(name)
        else:
            self.nodes[path] = node
            self.nodes[parent(path)].children.add(name)
            self.used.add(parent(path))


@dataclass
class Faults:
    """What happens at the `at`-th Multi (from 0); None: nothing ever. `seen` counts the Multis."""

    at: int | None = None
    kind: str = ""
    seen: int = 0
    late: list[tuple[Any, ...]] = field(default_factory=list)

    def draw(self) -> str:
        self.seen += 1
        return self.kind if self.seen - 1 == self.at else ""


class RandomLoss(Faults):
    """Lose replies at random."""

    def __init__(self, rand: random.Random, share: float) -> None:
        super().__init__()
        self.rand, self.share = rand, share

    def draw(self) -> str:
        return self.rand.choice(LOST) if self.rand.random() < self.share else ""


def execute(zk: FakeZooKeeper, session: int, op: Any, faults: Faults) -> Any:
    match op:
        case Within():
            return None
        case Wait(signal, seen, timeout):
            if signal.count > seen:
                return True
            if timeout is None:
                msg = "waits for ever: nobody else runs"
                raise AssertionError(msg)
            zk.advance(timeout + 0.001)
            return signal.count > seen
        case Pipeline(ops):
            return [execute(zk, session, item, faults) for item in ops]
        case Reconnect() | Sync():
            return None
        case Tell(call):
            return call()
        case EnsureRoot(path):
            parts = path.strip("/").split("/")
            for depth in range(1, len(parts) + 1):
                zk.multi(session, (Create("/" + "/".join(parts[:depth])),))
            return None
        case _:
            return _request(zk, session, op, faults)


def _request(zk: FakeZooKeeper, session: int, op: Any, faults: Faults) -> Any:
    match op:
        case Multi() | CreateContainer():
            return _write(zk, session, op, faults)
        case Post(multi, lost):
            if not _write(zk, session, multi, faults).committed:
                lost()
            return True
        case _:
            return zk.read(op)


def _write(zk: FakeZooKeeper, session: int, op: Multi | CreateContainer, faults: Faults) -> Outcome:
    ops = op.ops if isinstance(op, Multi) else (Create(op.path),)
    if isinstance(op, CreateContainer):
        zk.containers.add(op.path)
    fault = faults.draw()
    if fault == "crash before":
        raise Crash
    delayed, faults.late = faults.late, [ops] if fault == "lost late" else []
    outcome = UNKNOWN if fault in {"lost before", "lost late"} else replace(zk.multi(session, ops), sent=zk.ms / 1000)
    for each in delayed:
        zk.multi(session, each)
    if fault == "crash after":
        raise Crash
    return UNKNOWN if fault else outcome


def drive(zk: FakeZooKeeper, session: int, procedure: Any, faults: Faults | None = None) -> Any:
    """Carry a procedure out; a `Crash` leaves it where it is."""
    faults = faults or Faults()
    try:
        return _drive(zk, session, procedure, faults)
    finally:
        while faults.late:
            zk.multi(session, faults.late.pop())


def _drive(zk: FakeZooKeeper, session: int, procedure: Any, faults: Faults) -> Any:
    try:
        op = next(procedure)
        for _ in range(5000):
            try:
                result = execute(zk, session, op, faults)
            except Exception as error:  # noqa: BLE001
                op = procedure.throw(error)
            else:
                op = procedure.send(result)
    except StopIteration as stop:
        return stop.value
    msg = "the procedure does not end"
    raise AssertionError(msg)


def new_context(zk: FakeZooKeeper, session: int, queue: str = "q", name: str = "consumer") -> Context:
    rand = random.Random(session)
    run = Runtime(
        monotonic=lambda: zk.ms / 1000,
        wall_ms=lambda: zk.ms,
        random=rand.random,
        new_signal=ThreadSignal,
        session=lambda: session,
        report=lambda _path, _why: None,
        zxid=lambda: zk.zxid,
        unwatch=lambda _path: None,
        pay=lambda: None,
    )
    return Context(queue, "/zkmq", Paths.of("/zkmq", queue), run, ThreadSignal(), {"name": name})


def check_tree(zk: FakeZooKeeper, context: Context) -> dict[str, TaskState]:
    """Every task is in exactly the place its record says, and no entry stands for anything else."""
    paths = context.paths
    expected: set[str] = set()
    states: dict[str, TaskState] = {}
    for task in zk.names(paths.at("tasks")):
        path = paths.task(task, "state")
        assert path in zk.nodes, f"{task} has no record"
        state = states[task] = TaskState.decode(path, zk.nodes[path].data)
        claim = paths.task(task, "claim") in zk.nodes
        assert (paths.task(task, "result") in zk.nodes) == state.result, task
        assert state.result or state.state is not State.FINISHED, task
        assert (paths.task(task, "requeue") in zk.nodes) == state.requeue, task
        assert zk.names(paths.task(task, "filters")) == sorted(state.filters), task
        if state.batch and state.state in {State.INSERTED, State.CLAIMED}:
            expected.add(paths.batch(state.batch, "open", task))
        if state.state is State.CLAIMED:
            expected |= set(notes_of(context, task, state))
            assert claim or state.bound or state.lease is None, f"{task}: a leased claim without its znode"
        else:
            assert not claim, f"{task} is {state.state} and has a claim"
            expected.add(paths.entry(state.place) if state.index is None else paths.at(state.index))
            kept = {State.INSERTED: None if state.index is None else "scheduled", State.DEAD: "dlq"}
            if state.requeue:
                kept[State.FINISHED] = "requeued"
            place = kept.get(state.state, str(state.state))
            assert (None if state.index is None else state.index.split("/")[0]) == place, task
    assert expected == entries(zk, paths)
    check_letters(zk, paths, states)
    return states


def check_letters(zk: FakeZooKeeper, paths: Paths, states: dict[str, TaskState]) -> None:
    """Each letter holds the run that its name tells, once; none of them still stands."""
    kept: set[tuple[str, int]] = set()
    for bucket in zk.names(paths.at("unarchived")):
        for entry in zk.names(paths.at("unarchived", bucket)):
            path = paths.at("unarchived", bucket, entry)
            name, letter = parse_letter(entry), Letter.decode(path, zk.nodes[path].data)
            assert name is not None
            assert (letter.task_id, letter.version) == (name.task_id, name.version), path
            assert letter.state.state in ENDED, path
            kept.add((name.task_id, letter.version or zk.nodes[path].czxid))
    ended = {task: state.ended_zxid for task, state in states.items() if state.state in ENDED}
    stand = {(task, zxid or zk.nodes[paths.task(task, "state")].mzxid) for task, zxid in ended.items()}
    assert not kept & stand
    assert len(kept) == sum(len(zk.names(paths.at("unarchived", each))) for each in zk.names(paths.at("unarchived")))


def entries(zk: FakeZooKeeper, paths: Paths) -> set[str]:
    """All that lists a task somewhere."""
    found = set()
    depths = {"queue": 3, "scheduled": 2, "finished": 2, "cancelled": 2, "dlq": 1, "leases": 1, "consumers": 3}
    depths |= {"requeued": 2, "locks": 1}
    for path in zk.nodes:
        if path.startswith(paths.base + "/"):
            top, *rest = path[len(paths.base) + 1 :].split("/")
            member = top == "batches" and len(rest) == 3 and rest[1] == "open" and rest[2] != WRITING
            if member or depths.get(top) == len(rest):
                found.add(path)
    return found
