"""Which transactions can be sent as one: no two may change what another one touches, or one would refuse the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from airflow_provider_zkmq.engine.core.protocol.writes import Check, Multi, request_size

#: What is worth putting together, in bytes: a larger request keeps everybody's from being carried out meanwhile.
MOST_BYTES: Final = 256_000


class Fitting:
    """Transactions that go together, as they are added; the first ones are in it whatever they are."""

    def __init__(self, first: Sequence[Multi]) -> None:
        self._changed: set[str] = set()
        self._checked: set[str] = set()
        self._room = MOST_BYTES
        self._empty = True
        for multi in first:
            self._add(multi, request_size(multi.ops), *_paths(multi))

    @property
    def full(self) -> bool:
        """Whether there is room for nothing more."""
        return self._room <= 0

    def takes(self, multi: Multi) -> bool:
        """Whether it can go with the others: then it does. The first one can, however large it is."""
        size, (changed, checked) = request_size(multi.ops), _paths(multi)
        if not self._empty and size > self._room:
            return False
        if changed & (self._changed | self._checked) or checked & self._changed:
            return False
        self._add(multi, size, changed, checked)
        return True

    def _add(self, multi: Multi, size: int, changed: set[str], checked: set[str]) -> None:
        self._empty = self._empty and not multi.ops
        self._room -= size
        self._changed |= changed
        self._checked |= checked


def joined(multis: Sequence[Multi]) -> Multi:
    """Several transactions as one."""
    return multis[0] if len(multis) == 1 else Multi(tuple(op for multi in multis for op in multi.ops))


def _paths(multi: Multi) -> tuple[set[str], set[str]]:
    """What a transaction changes, and what it only checks."""
    changed = {op.path for op in multi.ops if not isinstance(op, Check)}
    return changed, {op.path for op in multi.ops if isinstance(op, Check)}
