"""What had begun counts an attempt, and nothing else does: judged by the marks of claims prefetched."""

from __future__ import annotations

from typing import Any, TypeAlias

from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.znode_names import is_prefetched
from airflow_provider_zkmq.engine.core.zk_operations import Create, Multi, SetData
from tests.simulation.parts import Client, Violation

Key: TypeAlias = tuple[str, str]


class Marks:
    """Which claims say, as the tree stands, that no handler has begun; and how those end that said otherwise."""

    def __init__(self) -> None:
        self.prefetched: set[Key] = set()
        self.tokens: dict[Key, int] = {}
        self.sent: set[tuple[str, int]] = set()
        """Claims whose marks were sent by somebody who did not wait, by task and token."""

    def posted(self, _client: Client, multi: Multi) -> None:
        """A transaction is sent that nobody waits for: one that says that a handler begins."""
        for op in multi.ops:
            if isinstance(op, SetData):
                queue, top, *rest = op.path.split("/")[2:]
                key = (queue, rest[0] if top == "tasks" else rest[2])
                self.sent.add((key[1], self.tokens.get(key, 0)))

    def noted(self, parts: list[str], op: Any, zxid: int) -> None:
        """One operation of a transaction, and where it is."""
        queue, top, rest = parts[2], parts[3], parts[4:]
        claim = top == "tasks" and rest[1:] == ["claim"]
        if not isinstance(op, Create | SetData) or not (claim or (top == "consumers" and len(rest) == 3)):
            return
        key = (queue, rest[0] if claim else rest[2])
        (self.prefetched.add if is_prefetched(op.path, op.data) else self.prefetched.discard)(key)
        if claim and isinstance(op, Create):
            self.tokens[key] = zxid

    def ended(self, key: Key, before: TaskState, after: TaskState, clients: list[Client]) -> None:
        """A claim has ended: what no handler had begun is not counted by a rescue, and what one has is, unless revoked.

        A mark that was sent and not waited for may not stand yet, or be lost with the connection. Where its client is
        killed, all that it has sent arrives: see `faults.kill`.
        """
        outcome = after.history[-1].outcome if after.history != before.history else None
        if key in self.prefetched and outcome == "rescued":
            raise Violation("only what had begun counts an attempt", f"{key[1]}: {after.history[-1]}")
        claim = (key[1], self.tokens.get(key, 0))
        anew = before.requeue and not after.requeue  # another run, whose attempts begin at 0
        begun = any(claim in client.begun for client in clients)
        on_its_way = key in self.prefetched and claim in self.sent
        if begun and outcome != "revoked" and not anew and after.attempt < before.attempt and not on_its_way:
            raise Violation("what had begun counts an attempt", f"{key[1]}: {before.attempt} -> {after.attempt}")
        self.prefetched.discard(key)
