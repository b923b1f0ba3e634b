"""Clients on the in-memory ZooKeeper of the simulator, faults at chosen operations, and the invariants of a tree."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_zkmq.engine.core import zk_operations
from airflow_provider_zkmq.engine.core.claim import claim
from airflow_provider_zkmq.engine.core.claim.take import Wanted
from airflow_provider_zkmq.engine.core.client_state import Claimed, Context, Runtime
from airflow_provider_zkmq.engine.core.model.filters import EVERYTHING, Selector, parse_selector
from airflow_provider_zkmq.engine.core.model.new_message import Message
from airflow_provider_zkmq.engine.core.model.records import HistoryEntry, TaskState, parse_history_name
from airflow_provider_zkmq.engine.core.model.settings import RetryPolicy
from airflow_provider_zkmq.engine.core.model.states import ENDED, State
from airflow_provider_zkmq.engine.core.model.znode_names import Paths
from airflow_provider_zkmq.engine.core.tasks import admin, enqueue, interventions, settle
from airflow_provider_zkmq.engine.core.zk_operations import Multi, Node, Op, Outcome
from airflow_provider_zkmq.engine.zk.procedure_drivers import ensure_root
from airflow_provider_zkmq.engine.zk.session import ThreadSignal
from tests.simulation.history import listed_task, places_of
from tests.simulation.zookeeper import Ensemble, Znode

#: Says what becomes of an operation: None for nothing, an error to throw instead of it, or one of the words below.
Fault = Callable[[Op], Any]
LOST_REQUEST, LOST_REPLY, LOST_LATE, BROKEN_OFF, NOT_SENT = (
    "lost before", "lost after", "lost late", "broken off", "not sent",
)  # fmt: skip
#: The request never arrives; its reply is lost; it arrives late, after whatever was written to find out.
LOST = (LOST_REQUEST, LOST_REPLY, LOST_LATE)
CRASHES = ("crash before", "crash after")
UNKNOWN = Outcome(committed=False, unknown=True)
NO_TRIES = 5_000

#: What kazoo cannot send, and what ZooKeeper takes in no path.
_NO_PATH = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


class Crash(BaseException):
    """The process died: nothing of it runs any more."""


class Fatal(BaseException):
    """The end of a client, or of all that runs on its connection."""


class FakeZooKeeper(Ensemble):
    """The simulator's server, alone. It takes no request with a path that none of our clients may ever send."""

    @property
    def nodes(self) -> dict[str, Znode]:
        return self.leader.nodes

    @property
    def watches(self) -> dict[Any, Any]:
        return self.leader.watches

    def node(self, path: str) -> Node | None:
        return self.leader.node(path)

    def names(self, path: str) -> list[str]:
        return self.leader.names(path)

    def expire(self, session: int) -> None:
        self.end(session)

    def perform(self, session: int, op: Any) -> Any:
        whole = op.ops if isinstance(op, Multi) else (op,)
        for path in [path for each in whole for path in getattr(each, "paths", None) or (each.path,)]:
            if _NO_PATH.search(path):
                raise Fatal(f"{path!a} would end the thread of the connection")
        return super().perform(session, op)

    def copy(self) -> FakeZooKeeper:
        """The same tree and sessions on a server of its own, which nobody watches."""
        made = FakeZooKeeper()
        made.leader.nodes = {
            path: Znode(
                node.data, node.czxid, node.mzxid, node.ctime, node.mtime, node.owner, node.version,
                set(node.children), node.container, node.used, node.made, node.pzxid,
            )
            for path, node in self.nodes.items()
        }  # fmt: skip
        made.ms, made.zxid, made._sessions = self.ms, self.zxid, self._sessions
        made.at, made.ephemerals = dict(self.at), {session: set(mine) for session, mine in self.ephemerals.items()}
        return made


# --- carrying out


@dataclass
class Faults:
    """What happens at the `at`-th Multi (from 0); None: nothing ever. `seen` counts the Multis."""

    at: int | None = None
    kind: str = ""
    seen: int = 0
    late: list[Any] = field(default_factory=list)

    def draw(self) -> str:
        self.seen += 1
        return self.kind if self.seen - 1 == self.at else ""


def execute(zk: FakeZooKeeper, session: int, op: Any, faults: Faults) -> Any:
    match op:
        case zk_operations.SetTimeout() | zk_operations.Reconnect() | zk_operations.Sync():
            return None
        case zk_operations.Wait(signal, seen, timeout):
            if signal.count <= seen:
                assert timeout is not None, "waits for ever: nobody else runs"
                zk.advance(timeout + 0.001)
            return signal.count > seen
        case zk_operations.Pipeline(parts):
            return [execute(zk, session, item, faults) for item in parts]
        case zk_operations.Callback(call):
            return call()
        case zk_operations.EnsureRoot(path):
            steps, result = ensure_root(path), None
            with contextlib.suppress(StopIteration):
                while True:
                    result = zk.perform(session, steps.send(result))
            return None
        case Multi() | zk_operations.CreateContainer():
            return _write(zk, session, op, faults)
        case zk_operations.Post(multi, lost):
            if not _write(zk, session, multi, faults).committed:
                lost()
            return True
    return zk.perform(session, op)


def _write(zk: FakeZooKeeper, session: int, op: Multi | zk_operations.CreateContainer, faults: Faults) -> Outcome:
    fault = faults.draw()
    if fault == "crash before":
        raise Crash
    delayed, faults.late = faults.late, [op] if fault == LOST_LATE else []
    outcome = UNKNOWN
    if fault not in {LOST_REQUEST, LOST_LATE}:
        outcome = replace(zk.perform(session, op), sent=zk.ms / 1000)
    for each in delayed:
        zk.perform(session, each)
    if fault == "crash after":
        raise Crash
    return UNKNOWN if fault else outcome


def carry_out(procedure: Any, each: Callable[[Any], Any]) -> Any:
    """What a procedure returns; what an operation raises is thrown into it."""
    result: Any = None
    error: Exception | None = None
    try:
        for _ in range(NO_TRIES):
            op = procedure.send(result) if error is None else procedure.throw(error)
            result, error = None, None
            try:
                result = each(op)
            except Exception as raised:  # noqa: BLE001  it belongs to the procedure
                error = raised
    except StopIteration as stop:
        return stop.value
    finally:
        procedure.close()
    raise AssertionError("the procedure does not end")


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
        restored=lambda: 0,
        unwatch=lambda path: zk.leader.unwatch(session, path),
        finish_later=lambda: None,
    )
    return Context(queue, "/zkmq", Paths.of("/zkmq", queue), run, ThreadSignal(), {"name": name})


class Client:
    """One client of the queue: its session, its memory, what it reported."""

    def __init__(self, zk: FakeZooKeeper, name: str = "consumer") -> None:
        self.zk, self.name = zk, name
        self.reports: list[tuple[str, str]] = []
        self.session = zk.connect()
        self.context = self._context()

    def _context(self) -> Context:
        context = new_context(self.zk, self.session, name=self.name)
        context.run.session = lambda: self.session
        context.run.report = lambda path, why: self.reports.append((path, why))
        return context

    def do(self, procedure: Any, fault: Fault | Faults = lambda _op: None) -> Any:
        """Carry a procedure out; a `Crash` leaves it where it is."""
        if not isinstance(fault, Faults):
            return carry_out(procedure, lambda op: self._execute(op, fault))
        try:
            return carry_out(procedure, lambda op: execute(self.zk, self.session, op, fault))
        finally:
            while fault.late:
                self.zk.perform(self.session, fault.late.pop())

    def _execute(self, op: Any, fault: Fault) -> Any:
        if isinstance(op, zk_operations.Pipeline):
            return [self._execute(item, fault) for item in op.ops]
        effect = fault(op)
        if isinstance(effect, Exception):
            raise effect
        if effect == NOT_SENT and isinstance(op, zk_operations.Post):
            return False
        result = execute(self.zk, self.session, op, Faults(0, effect or ""))
        if effect == BROKEN_OFF:
            raise Crash
        return result

    @property
    def reported(self) -> list[str]:
        return [path for path, _ in self.reports]

    def write(self, *ops: Any) -> Outcome:
        """What somebody does by hand."""
        return self.zk.multi(0, ops)

    def put(self, data: bytes = b"x", **options: Any) -> str:
        return self.do(enqueue.enqueue(self.context, Message(data, **options)))

    def take(
        self, selector: Selector | str = EVERYTHING, timeout: float = 0, lease: float | None = None
    ) -> Claimed | None:
        chosen = selector if isinstance(selector, Selector) else parse_selector(selector)
        return self.do(claim.claim(self.context, Wanted(chosen, lease), timeout))

    def claimed(self, **options: Any) -> Claimed:
        claimed = self.take(**options)
        assert claimed is not None
        return claimed

    def complete(self, claimed: Claimed, **options: Any) -> None:
        self.do(settle.complete(self.context, claimed, **options))

    def fail(self, claimed: Claimed, error: str = "e", **options: Any) -> Any:
        return self.do(settle.fail(self.context, claimed, error, **options))

    def cancel(self, task_id: str) -> None:
        self.do(interventions.cancel(self.context, task_id))

    def state(self, task_id: str) -> TaskState:
        path = self.context.paths.task(task_id, "state")
        return TaskState.decode(path, self.zk.nodes[path].data)

    def work(self, timeout: float = 0) -> list[str]:
        """Handle what there is; the ids in order."""
        done = []
        while (claimed := self.take(timeout=timeout)) is not None:
            self.complete(claimed)
            done.append(claimed.task_id)
        return done

    def check(self) -> dict[str, TaskState]:
        return check_tree(self.zk, self.context)


def new_queue(**conf: Any) -> Client:
    """A queue with its first client."""
    client = Client(FakeZooKeeper())
    client.do(admin.configure(client.context, **({"policy": RetryPolicy(attempts=20, factor=0)} | conf)))
    return client


def at(number: int, effect: Any, kind: type = Multi) -> Fault:
    """The fault of the `number`-th operation of a kind (from 0)."""
    seen = iter(range(NO_TRIES))
    return lambda op: effect if isinstance(op, kind) and next(seen) == number else None


# --- what holds of every tree


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
        assert (paths.task(task, "metadata") in zk.nodes) == state.metadata, task
        assert (paths.task(task, "filters") in zk.nodes) == bool(state.filters), task
        assert zk.names(paths.task(task, "filters")) == sorted(state.filters), task
        expected |= places_of(context, task, state)
        if state.state is State.CLAIMED:
            assert claim or state.bound or state.lease is None, f"{task}: a leased claim without its znode"
        else:
            assert not claim, f"{task} is {state.state} and has a claim"
            kept = {State.INSERTED: None if state.index is None else "scheduled", State.DEAD: "dlq"}
            if state.requeue:
                kept[State.FINISHED] = "requeued"
            place = kept.get(state.state, str(state.state))
            assert (None if state.index is None else state.index.split("/")[0]) == place, task
    below = ((path, path[len(paths.base) + 1 :].split("/")) for path in zk.nodes if path.startswith(paths.base + "/"))
    assert expected == {path for path, (top, *rest) in below if top != "tasks" and listed_task(top, rest) is not None}
    check_letters(zk, paths, states)
    return states


def check_letters(zk: FakeZooKeeper, paths: Paths, states: dict[str, TaskState]) -> None:
    """Each letter holds the run that its name tells, once; none of them still stands."""
    kept: set[tuple[str, int]] = set()
    for bucket in zk.names(paths.at("unarchived")):
        for entry in zk.names(paths.at("unarchived", bucket)):
            path = paths.at("unarchived", bucket, entry)
            name, letter = parse_history_name(entry), HistoryEntry.decode(path, zk.nodes[path].data)
            assert name is not None
            assert (letter.task_id, letter.version) == (name.task_id, name.version), path
            assert letter.state.state in ENDED, path
            kept.add((name.task_id, letter.version or zk.nodes[path].czxid))
    ended = {task: state.ended_zxid for task, state in states.items() if state.state in ENDED}
    stand = {(task, zxid or zk.nodes[paths.task(task, "state")].mzxid) for task, zxid in ended.items()}
    assert not kept & stand
    assert len(kept) == sum(len(zk.names(paths.at("unarchived", each))) for each in zk.names(paths.at("unarchived")))
