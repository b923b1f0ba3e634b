"""What a scenario sees and does, and the record of it that two servers are compared by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_provider_zkmq.engine.core.zk_operations import (
    Check,
    Create,
    Delete,
    Multi,
    Node,
    Op,
    Outcome,
    Post,
    SetData,
    Stat,
    Sync,
    Watch,
    WriteOp,
)
from tests.conformance.servers import Client, Server

_SHOWN = 120
Scenario = Callable[["World"], None]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    """What both servers are to do alike."""
    SCENARIOS[function.__name__] = function
    return function


@dataclass(frozen=True, slots=True, order=True)
class _Zxid:
    """A transaction's number; what is compared is its rank among those that a scenario met."""

    value: int


class _Named:
    """A watch's signal: its firing is noted with the client that set it."""

    def __init__(self, name: str, events: list[str]) -> None:
        self._name, self._events = name, events
        self.count = 0

    def __repr__(self) -> str:
        return self._name

    def fire(self) -> None:
        self.count += 1
        self._events.append(self._name)

    notify = fire


class Actor:
    """One client of a scenario: each call is one operation, noted with its result and the events that came before it.

    Events are those since the client's last operation: a server sends them before the reply.
    """

    def __init__(self, world: World, name: str, client: Client) -> None:
        self._world, self.name, self._client = world, name, client
        self.session = client.session
        self._events: list[str] = []
        self._watches: list[Watch] = []

    def watch(self, name: str) -> Watch:
        """A watch whose firing shows under `name`."""
        made = Watch(_Named(name, self._events))
        self._watches.append(made)  # nobody is told of a watch that its reader has dropped
        return made

    def __call__(self, op: Op, *, any_order: bool = False) -> Any:
        """Carry an operation out; what it raises is noted as its result, and None is returned."""
        returned = None
        try:
            returned = self._client.perform(op)
            shown = "done" if isinstance(op, Sync) else self._world.comparable(returned)
        except Exception as error:  # noqa: BLE001  whatever it is, both servers must raise it
            shown = f"raises {type(error).__name__}"
        events: list[str] = []
        if not isinstance(op, Post):  # nobody waits for it: what it causes comes before the next reply, whenever
            events = sorted(self._events) if any_order else list(self._events)
            self._events.clear()
        self._world.note(f"{self.name}: {_short(op)}", shown, events)
        return returned

    def do(self, *ops: Any) -> Outcome:
        """One transaction."""
        outcome: Outcome = self(Multi(ops))
        return outcome

    def play(self, *steps: Op | WriteOp | tuple[WriteOp, ...]) -> None:
        """One after the other; a write is a transaction of its own, several in a tuple are one."""
        for step in steps:
            if isinstance(step, tuple):
                self.do(*step)
            elif isinstance(step, Create | Delete | SetData | Check):
                self.do(step)
            else:
                self(step)

    def forget(self) -> None:
        """Drop every watch that was set so far."""
        self._watches.clear()

    def end(self) -> None:
        """End the session."""
        self._client.end()
        self._world.note(f"{self.name}: ends")


def _short(op: object) -> str:
    text = f"Post({op.multi!r})" if isinstance(op, Post) else repr(op)
    return text if len(text) <= _SHOWN * 4 else f"{text[:_SHOWN]}… ({len(text)} characters)"


class World:
    """A server, a scenario's own part of its tree, and the record."""

    def __init__(self, server: Server, base: str) -> None:
        self.server = server
        self.base = base
        self._actors: list[Actor] = []
        self._notes: list[tuple[Any, ...]] = []
        self.a = self.actor("a")
        self.b = self.actor("b")

    def actor(self, name: str) -> Actor:
        """A new session."""
        made = Actor(self, name, self.server.connect())
        self._actors.append(made)
        return made

    def at(self, *parts: str) -> str:
        """A path in the scenario's own part of the tree."""
        return "/".join((self.base, *parts))

    def note(self, *what: Any) -> None:
        """Add to the record."""
        self._notes.append(what)

    def reap(self) -> None:
        """Have the server look for containers to reap."""
        self.server.reap()
        self.note("reaped")

    def comparable(self, result: Any) -> Any:
        """A result without what differs between servers: times, and the numbers of transactions and sessions."""
        match result:
            case Outcome(unknown=True):
                return "unknown"
            case Outcome(committed=True):
                timed = "with a time" if result.time else "without a time"
                return ("committed", timed, None if result.zxid is None else _Zxid(result.zxid))
            case Outcome():
                return ("refused", result.failed, None if result.failure is None else result.failure.name)
            case Node():
                return ("node", _data(result.data), self._stat(result.stat))
            case Stat():
                return self._stat(result)
            case list() if all(isinstance(item, str) for item in result):
                return sorted(result)
            case list():
                return [self.comparable(item) for item in result]
            case _:
                return result

    def _stat(self, stat: Stat) -> tuple[Any, ...]:
        owner = next(
            (it.name for it in self._actors if it.session == stat.owner), "another" if stat.owner else "nobody"
        )
        ages = "mtime = ctime" if stat.version == 0 and stat.mtime == stat.ctime else "mtime >= ctime"
        assert stat.mtime >= stat.ctime > 0
        return (
            f"version {stat.version}, owner {owner}, {stat.children} children, cversion {stat.cversion}, {ages}",
            "created", _Zxid(stat.czxid), "changed", _Zxid(stat.mzxid), "with other children", _Zxid(stat.pzxid),
        )  # fmt: skip

    def record(self) -> list[str]:
        """The record, one line for each operation, transactions numbered by their order."""
        ranks = {zxid: at for at, zxid in enumerate(sorted(set(_zxids(self._notes))))}
        return [" → ".join(str(_ranked(part, ranks)) for part in note) for note in self._notes]


def _data(data: bytes) -> str:
    return repr(data) if len(data) <= _SHOWN else f"{len(data)} bytes"


def _zxids(value: Any) -> list[_Zxid]:
    if isinstance(value, _Zxid):
        return [value]
    return [found for item in value for found in _zxids(item)] if isinstance(value, list | tuple) else []


def _ranked(value: Any, ranks: dict[_Zxid, int]) -> Any:
    if isinstance(value, _Zxid):
        return f"#{ranks[value]}"
    return type(value)(_ranked(item, ranks) for item in value) if isinstance(value, list | tuple) else value
