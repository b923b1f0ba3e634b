"""Procedures carried out by hand, operation by operation, on the in-memory ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.unit.world import FakeZooKeeper, Faults, execute


class Stepper:
    """One procedure: what it asks for next, and how to go on."""

    def __init__(self, zk: FakeZooKeeper, session: int, procedure: Any) -> None:
        self._zk, self._session, self._procedure = zk, session, procedure
        self.over = False
        self.result: Any = None
        self.op: Any = None
        self.done: list[Any] = []
        self._go(lambda: next(procedure))

    def _go(self, advance: Callable[[], Any]) -> None:
        try:
            self.op = advance()
        except StopIteration as stop:
            self.over, self.result, self.op = True, stop.value, None

    def step(self) -> None:
        """Carry out the operation it asks for."""
        self.done.append(self.op)
        reply = execute(self._zk, self._session, self.op, Faults())
        self._go(lambda: self._procedure.send(reply))

    def answer(self, reply: Any) -> None:
        """Answer the operation without carrying it out."""
        self.done.append(self.op)
        self._go(lambda: self._procedure.send(reply))

    def fail(self, error: Exception) -> None:
        """Have the operation fail."""
        self._go(lambda: self._procedure.throw(error))

    def until(self, kind: type, about: str = "") -> None:
        """Go on until it asks for such an operation, which is not carried out yet."""
        for _ in range(1_000):
            if self.over or (isinstance(self.op, kind) and about in repr(self.op)):
                return
            self.step()
        raise AssertionError("it goes on for ever")

    def finish(self) -> Any:
        """Go on to the end."""
        self.until(type(None))
        return self.result

    def cut(self) -> None:
        """The caller goes away."""
        self._procedure.close()
        self.over = True
