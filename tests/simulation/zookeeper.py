"""An in-memory ZooKeeper of one or several servers, as strict as the real one (`tests/conformance` compares them).

The leader orders transactions; each server has applied a prefix of them, and answers reads from that. A client's own
write is applied by its server before the reply. Watches stand at the client's server and are fired in the order in
which it applies transactions, before any later reply.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias
from weakref import ref

from airflow_provider_zkmq.engine.core.zk_operations import (
    MAX_REQUEST,
    Check,
    Children,
    Create,
    CreateContainer,
    Delete,
    Exists,
    Failure,
    Get,
    GetMany,
    Multi,
    Node,
    Outcome,
    SetData,
    Stat,
    Watch,
    WriteOp,
    request_size,
)
from airflow_provider_zkmq.engine.errors import SessionLost, TaskTooLarge, ZkmqError

START_MS: Final = 1_700_000_000_000
#: What the server does not take for a znode's path.
_BAD_PATH: Final = re.compile(
    r"[^/]|/.*//|//|.+/$|.*/\.{1,2}(/|$)|.*[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]",
    re.DOTALL,
)
REFUSED: Final = "ZooKeeper refused a request"
ENDED: Final = "the session has ended"
Event: TypeAlias = tuple[str, str]
Deliver: TypeAlias = Callable[[int, Watch], None]


@dataclass(slots=True, eq=False)
class Znode:
    """A znode as one server has it."""

    data: bytes
    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    owner: int = 0
    version: int = 0
    children: set[str] = field(default_factory=set)
    container: bool = False
    used: bool = False
    """Whether it has had a child: only then a container may be reaped."""
    made: int = 0
    """How many children were ever made."""
    pzxid: int = 0

    def stat(self) -> Stat:
        """Its Stat."""
        times = (self.czxid, self.mzxid, self.ctime, self.mtime)
        children = len(self.children)
        return Stat(*times, self.version, self.owner, children, 2 * self.made - children, self.pzxid)


@dataclass(frozen=True, slots=True)
class _Txn:
    """A committed transaction, as every server applies it."""

    zxid: int
    ms: int
    session: int
    ops: tuple[WriteOp | CreateContainer, ...]


def parent(path: str) -> str:
    """The path of the parent."""
    return path.rpartition("/")[0] or "/"


def bad_path(path: str) -> bool:
    """Whether the server refuses the path itself."""
    return path != "/" and _BAD_PATH.match(path) is not None


def _unheard_of(path: str) -> bool:
    """Whether the server refuses to delete there; any other bad path is to it one where nothing stands."""
    return "/" not in path or "\0" in path or path == "/"


class Server:
    """One server: the tree as of the transactions it has applied, and the watches of the sessions connected to it."""

    def __init__(self) -> None:
        self.nodes: dict[str, Znode] = {"/": Znode(b"", 0, 0, 0, 0)}
        self.applied = 0
        self.zxid = 0
        self.watches: dict[Event, list[tuple[int, ref[Watch]]]] = {}
        """Held weakly, as a session holds them: nobody is told of a watch that its reader has dropped."""

    def node(self, path: str) -> Node | None:
        """A znode's data and Stat."""
        found = self.nodes.get(path)
        return None if found is None else Node(found.data, found.stat())

    def names(self, path: str) -> list[str]:
        """A znode's children; none without the znode."""
        return sorted(self.nodes[path].children) if path in self.nodes else []

    def read(self, session: int, op: Any) -> Any:
        """Carry out a read."""
        match op:
            case Get(path, watch):
                found = self.nodes.get(path)
                if found is None:
                    return None
                self._watch("data", path, session, watch)
                return Node(found.data, found.stat())
            case Exists(path, watch):
                if "\0" in path:
                    raise ZkmqError(REFUSED)
                self._watch("data", path, session, watch)
                found = self.nodes.get(path)
                return None if found is None else found.stat()
            case Children(path, watch):
                found = self.nodes.get(path)
                if found is None:
                    return None
                self._watch("child", path, session, watch)
                return sorted(found.children)
            case GetMany(paths):
                return [self.node(path) for path in paths]
        raise AssertionError(op)

    def _watch(self, kind: str, path: str, session: int, watch: Watch | None) -> None:
        if watch is not None:
            self.watches.setdefault((kind, path), []).append((session, ref(watch)))

    def judge(self, op: WriteOp | CreateContainer) -> Failure | None:
        """Why the server refuses an operation; None: it does not. In the server's order: a create looks above first."""
        path = op.path
        node = self.nodes.get(path)
        if isinstance(op, Create | CreateContainer):
            return self._judge_create(path)
        if _unheard_of(path) if isinstance(op, Delete) else bad_path(path):
            return Failure.OTHER
        if node is None:
            return Failure.NO_NODE
        if op.version not in {-1, node.version}:
            return Failure.BAD_VERSION
        return Failure.NOT_EMPTY if isinstance(op, Delete) and node.children else None

    def _judge_create(self, path: str) -> Failure | None:
        if "/" not in path or "\0" in path:
            return Failure.OTHER
        above = self.nodes.get(parent(path))
        if above is None:
            return Failure.NO_NODE
        if bad_path(path):
            return Failure.OTHER
        if path in self.nodes:
            return Failure.NODE_EXISTS
        return Failure.OTHER if above.owner else None

    def change(self, txn: _Txn, op: WriteOp | CreateContainer, events: list[Event]) -> Znode | None:
        """Carry one operation out; returns what stood there, for an undo."""
        path = op.path
        before = self.nodes.get(path)
        if isinstance(op, Check):
            return before
        if isinstance(op, SetData):
            old = self.nodes[path]
            self.nodes[path] = Znode(
                op.data, old.czxid, txn.zxid, old.ctime, txn.ms, old.owner, old.version + 1, old.children,
                old.container, old.used, old.made, old.pzxid,
            )  # fmt: skip
            events.append(("data", path))
            return before
        above = self.nodes[parent(path)]
        if isinstance(op, Delete):
            del self.nodes[path]
            above.children.discard(path.rpartition("/")[2])
            above.pzxid = txn.zxid
            events += [("data", path), ("child", path), ("child", parent(path))]
            return before
        ephemeral = isinstance(op, Create) and op.ephemeral
        data = op.data if isinstance(op, Create) else b""
        node = Znode(data, txn.zxid, txn.zxid, txn.ms, txn.ms, txn.session if ephemeral else 0, pzxid=txn.zxid)
        node.container = isinstance(op, CreateContainer)
        self.nodes[path] = node
        above.children.add(path.rpartition("/")[2])
        above.used, above.pzxid = True, txn.zxid
        above.made += 1
        events += [("data", path), ("child", parent(path))]
        return before

    def restore(self, path: str, before: Znode | None) -> None:
        """Undo a change."""
        name = path.rpartition("/")[2]
        if before is None:
            self.nodes.pop(path, None)
            self.nodes[parent(path)].children.discard(name)
            self.nodes[parent(path)].made -= 1
        else:
            self.nodes[path] = before
            self.nodes[parent(path)].children.add(name)

    def fire(self, events: list[Event], deliver: Deliver) -> None:
        """Tell the watchers of what happened; each is told once."""
        for event in events:
            for session, weak in self.watches.pop(event, ()):
                if (watch := weak()) is not None:
                    deliver(session, watch)

    def drop(self, session: int) -> None:
        """Forget a session's watches: its connection is gone."""
        for event, found in list(self.watches.items()):
            left = [pair for pair in found if pair[0] != session]
            if left:
                self.watches[event] = left
            else:
                del self.watches[event]

    def unwatch(self, session: int, path: str) -> None:
        """Forget a session's watch on a znode's data."""
        found = self.watches.pop(("data", path), [])
        if left := [pair for pair in found if pair[0] != session]:
            self.watches["data", path] = left


def _alone(outcome: Outcome) -> Outcome:
    """What the one who asked for a container gets: it was no transaction, so that no operation of it was refused."""
    if outcome.failure is Failure.OTHER:
        raise ZkmqError(REFUSED)
    return outcome if outcome.committed else replace(outcome, failed=None)


class Ensemble:
    """The servers and the sessions. `deliver` is told of each watch that fires; by default it fires at once."""

    def __init__(self, servers: int = 1, deliver: Deliver | None = None) -> None:
        self.ms = START_MS
        self.zxid = 0
        self.servers = [Server() for _ in range(servers)]
        self.log: list[_Txn] = []
        self.at: dict[int, int] = {}
        """Each living session's server."""
        self.ephemerals: dict[int, set[str]] = {}
        self.deliver: Deliver = deliver or (lambda _session, watch: watch.fire())
        self.committed: Callable[[_Txn], None] = lambda _txn: None
        self._sessions = 1

    @property
    def leader(self) -> Server:
        """The server that has applied everything."""
        return self.servers[0]

    def connect(self, server: int = 0) -> int:
        """A new session at a server."""
        self._sessions += 1
        self.at[self._sessions] = server
        self.ephemerals[self._sessions] = set()
        return self._sessions

    def move(self, session: int, server: int) -> None:
        """The session's connection is made anew, to a server that has seen as much as it has."""
        self.server(session).drop(session)
        self.catch_up(server, self.server(session).applied)
        self.at[session] = server

    def server(self, session: int) -> Server:
        """The server that a living session is connected to."""
        try:
            return self.servers[self.at[session]]
        except KeyError:
            raise SessionLost(ENDED) from None

    def end(self, session: int) -> None:
        """End a session: its ephemerals go, in one transaction."""
        server = self.at.get(session)
        if server is None:
            return
        nodes = self.leader.nodes
        owned = [path for path in sorted(self.ephemerals.pop(session)) if path in nodes]
        gone = tuple(Delete(path) for path in owned if nodes[path].owner == session)
        self.servers[server].drop(session)
        del self.at[session]
        if gone:
            self._commit(0, gone)

    def advance(self, seconds: float) -> None:
        """Time passes; about once a minute emptied containers are reaped."""
        self.ms += max(0, round(seconds * 1000))
        if seconds > 60:
            self.reap()

    def reap(self) -> None:
        """Delete the containers that had children and have none."""
        nodes = self.leader.nodes
        for path in [path for path, node in nodes.items() if node.container and node.used and not node.children]:
            self._commit(0, (Delete(path),))

    def perform(self, session: int, op: Any) -> Any:
        """Carry out a request of a living session."""
        if isinstance(op, Multi):
            return self.multi(session, op.ops)
        if isinstance(op, CreateContainer):
            return _alone(self.multi(session, (op,)))
        return self.server(session).read(session, op)

    def sync(self, session: int) -> None:
        """Have the session's server catch up."""
        self.server(session)
        self.catch_up(self.at[session], len(self.log))

    def multi(self, session: int, ops: tuple[WriteOp | CreateContainer, ...]) -> Outcome:
        """One transaction: all or nothing. Session 0 is somebody's whose session does not matter."""
        if session and session not in self.at:
            raise SessionLost(ENDED)
        if (size := request_size([op for op in ops if not isinstance(op, CreateContainer)])) > MAX_REQUEST:
            msg = f"a transaction of {size:,} bytes was not sent"
            raise TaskTooLarge(msg)
        outcome = self._commit(session, ops)
        if session in self.at:
            self.catch_up(self.at[session], len(self.log))
            self.server(session).zxid = self.zxid
        return outcome

    def _commit(self, session: int, ops: tuple[WriteOp | CreateContainer, ...]) -> Outcome:
        self.zxid += 1
        txn = _Txn(self.zxid, self.ms, session, ops)
        leader, events = self.leader, []  # type: ignore[var-annotated]
        undo: list[tuple[str, Znode | None]] = []
        pzxids = {path: leader.nodes[path].pzxid for op in ops if (path := parent(op.path)) in leader.nodes}
        for at, op in enumerate(ops):
            failure = leader.judge(op)
            if failure is not None:
                for path, before in reversed(undo):
                    leader.restore(path, before)
                for path, pzxid in pzxids.items():
                    leader.nodes[path].pzxid = pzxid
                return Outcome(committed=False, failed=at, failure=failure, detail=failure.name)
            undo.append((op.path, leader.change(txn, op, events)))
        self._note_ephemerals(session, ops)
        self.log.append(txn)
        leader.applied, leader.zxid = len(self.log), self.zxid
        self.committed(txn)
        leader.fire(events, self.deliver)
        changed = any(isinstance(op, SetData | Create) for op in ops)
        return Outcome(committed=True, time=txn.ms, zxid=txn.zxid) if changed else Outcome(committed=True)

    def _note_ephemerals(self, session: int, ops: tuple[WriteOp | CreateContainer, ...]) -> None:
        for op in ops:
            if isinstance(op, Create) and op.ephemeral and session in self.ephemerals:
                self.ephemerals[session].add(op.path)

    def back_up(self) -> tuple[Any, ...]:
        """A copy of the tree, and of the sessions with what is theirs."""
        return deepcopy((self.leader.nodes, self.zxid, len(self.log), self.at, self.ephemerals))

    def go_back(self, kept: tuple[Any, ...]) -> None:
        """All servers begin anew with what was kept; their numbers come again, and what came after it is gone."""
        nodes, self.zxid, applied, self.at, self.ephemerals = deepcopy(kept)
        del self.log[applied:]
        for one in self.servers:
            one.nodes, one.zxid, one.applied, one.watches = deepcopy(nodes), self.zxid, applied, {}

    def catch_up(self, server: int, last_zxid: int) -> None:
        """Have a server apply the transactions up to a place in the log, firing watches as it goes."""
        one = self.servers[server]
        while one.applied < last_zxid:
            txn = self.log[one.applied]
            events: list[Event] = []
            for op in txn.ops:
                one.change(txn, op, events)
            one.applied += 1
            one.zxid = txn.zxid
            one.fire(events, self.deliver)
