"""What is measured: each row does one kind of work in several ways, ours and those of peers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from airflow_provider_zkmq.bench.crew import Command, python_agent

Unit = Literal["rate", "requests", "client_us"]


@dataclass(frozen=True)
class Way:
    """One way to do a row's work.

    `verb` is what `agent` is asked for, with `number`; `processes` do it together; `share` of the row's tasks is enough
    to measure a slow one. `ours`: it is no peer. `elsewhere`: it
    asks another kind of server, of whose requests nothing is known.
    """

    name: str
    verb: str
    number: int = 0
    processes: int = 1
    share: float = 1.0
    agent: Command = python_agent
    ours: bool = False
    elsewhere: bool = False


@dataclass(frozen=True)
class Goal:
    """What a way should reach: `bound` times what another way reaches, or `bound` itself where none is named.

    A rate is a goal from below; requests and microseconds of the client's processor time, for each task, from above.
    """

    way: str
    bound: float
    against: str | None = None
    unit: Unit = "rate"


@dataclass(frozen=True)
class Row:
    """Ways that take turns, and the goals that are read off their figures.

    `heavy`: it is only measured where it is asked for by name.
    """

    key: str
    title: str
    ways: tuple[Way, ...]
    goals: tuple[Goal, ...] = ()
    heavy: bool = False
