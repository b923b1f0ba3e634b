"""Clients on an in-memory ZooKeeper that is as strict about paths as the real one, and faults at chosen operations."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

from airflow_provider_zkmq.engine.core.claiming import claim
from airflow_provider_zkmq.engine.core.claiming.take import Wanted
from airflow_provider_zkmq.engine.core.memory.claims import Claimed
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.selectors import EVERYTHING, Selector, parse_selector
from airflow_provider_zkmq.engine.core.protocol.ops import Op, Pipeline, Post
from airflow_provider_zkmq.engine.core.protocol.writes import Multi
from airflow_provider_zkmq.engine.core.tasks import configure, enqueue, operate, settle
from airflow_provider_zkmq.engine.errors import ZkmqError
from tests.fake_zookeeper import (
    CRASHES,
    LOST,
    UNKNOWN,
    Crash,
    FakeZooKeeper,
    Faults,
    RandomLoss,
    Znode,
    check_tree,
    drive,
    entries,
    execute,
    new_context,
    parent,
)

__all__ = [
    "BROKEN_OFF", "CRASHES", "LOST", "LOST_REPLY", "LOST_REQUEST", "NOT_SENT", "Client", "Crash", "FakeZooKeeper",
    "Fatal", "Fault", "Faults", "RandomLoss", "StrictZooKeeper", "Znode", "at", "check_tree", "copy_of", "drive",
    "entries", "execute", "new_context", "new_queue", "parent",
]  # fmt: skip

#: Says what becomes of an operation: None for nothing, an error to throw instead of it, or one of the words below.
Fault = Callable[[Op], Any]
LOST_REPLY, LOST_REQUEST, BROKEN_OFF, NOT_SENT = "lost reply", "lost request", "broken off", "not sent"
NO_TRIES = 2_000


#: What kazoo cannot send, and what ZooKeeper takes in no path.
_NO_PATH = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


class Fatal(BaseException):
    """The end of a client, or of all that runs on its connection."""


class StrictZooKeeper(FakeZooKeeper):
    """Refuses what is no path, as the server does: not as a failure of the transaction but as a bad request."""

    def multi(self, session: int, ops: tuple[Any, ...]) -> Any:
        for op in ops:
            self._strict(op.path)
        return super().multi(session, ops)

    def read(self, op: Any) -> Any:
        for path in getattr(op, "paths", None) or (op.path,):
            self._strict(path)
        return super().read(op)

    def _strict(self, path: str) -> None:
        if _NO_PATH.search(path):
            msg = f"{path!a} would end the thread of the connection, or is refused by the server with the connection"
            raise Fatal(msg)
        if "//" in path or path.endswith("/") or "/../" in path + "/" or "/./" in path + "/":
            msg = f"ZooKeeper refused a request: BadArgumentsError {path}"
            raise ZkmqError(msg)


class Client:
    """One client of the queue: its session, its memory, what it reported."""

    def __init__(self, zk: FakeZooKeeper, name: str = "consumer") -> None:
        self.zk, self.name = zk, name
        self.reports: list[tuple[str, str]] = []
        self.session = zk.connect()
        self.context = self._context()

    def _context(self) -> Context:
        context = new_context(self.zk, self.session, name=self.name)
        context.run.report = lambda path, why: self.reports.append((path, why))
        return context

    def do(self, procedure: Any, fault: Fault = lambda _op: None) -> Any:
        """Carry a procedure out."""
        result: Any = None
        error: Exception | None = None
        try:
            for _ in range(NO_TRIES):
                op = procedure.send(result) if error is None else procedure.throw(error)
                result, error = None, None
                try:
                    result = self._execute(op, fault)
                except Exception as raised:  # noqa: BLE001  it belongs to the procedure
                    error = raised
        except StopIteration as stop:
            return stop.value
        finally:
            procedure.close()
        msg = "the procedure does not end"
        raise AssertionError(msg)

    def _execute(self, op: Any, fault: Fault) -> Any:
        if isinstance(op, Pipeline):
            return [self._execute(item, fault) for item in op.ops]
        effect = fault(op)
        if isinstance(effect, Exception):
            raise effect
        if effect == LOST_REQUEST:
            return _unanswered(op)
        if effect == NOT_SENT and isinstance(op, Post):
            return False
        result = execute(self.zk, self.session, op, Faults())
        if effect == BROKEN_OFF:
            raise Crash
        return _unanswered(op) if effect == LOST_REPLY else result

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
        self.do(operate.cancel(self.context, task_id))

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


def _unanswered(op: Any) -> Any:
    """What a procedure gets for a write whose reply does not come."""
    if isinstance(op, Post):
        op.lost()
        return True
    return UNKNOWN


def new_queue(**conf: Any) -> Client:
    """A queue with its first client."""
    client = Client(StrictZooKeeper())
    client.do(configure.configure(client.context, **({"policy": RetryPolicy(attempts=20, factor=0)} | conf)))
    return client


def copy_of(zk: FakeZooKeeper) -> FakeZooKeeper:
    """The same tree on a server of its own, which nobody watches."""
    watches, zk.watches = zk.watches, {}
    made = copy.deepcopy(zk)
    zk.watches = watches
    return made


def at(number: int, effect: Any, kind: type = Multi) -> Fault:
    """The fault of the `number`-th operation of a kind (from 0)."""
    seen = iter(range(NO_TRIES))
    return lambda op: effect if isinstance(op, kind) and next(seen) == number else None
