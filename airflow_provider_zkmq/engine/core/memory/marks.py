"""Ids, stamps and nonces. Owner: this module; a counter and a mark of the client, for as long as it lives."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from os import getpid
from typing import Final

#: How many bytes of chance a mark takes at the most, and for how many marks the system is asked at once: each time that
#: it is asked, other threads come in between.
_CHANCE: Final = 10
_AT_ONCE: Final = 100


@dataclass(slots=True, eq=False)
class Marks:
    """Makes what is unlike anything that this or another client makes."""

    wall_ms: Callable[[], int]
    counter: int = 0
    client: str = ""
    _chances: list[bytes] = field(default_factory=list)
    _pid: int = 0

    def nonce(self) -> str:
        """A mark by which a write is recognised as ours."""
        return self._chance()[:8].hex()

    def _chance(self) -> bytes:
        """Bytes that nobody else has, a forked process neither. Taking them off a list is safe among threads."""
        if self._pid != getpid():
            self._chances, self._pid = [], getpid()
        try:
            return self._chances.pop()
        except IndexError:
            several = os.urandom(_CHANCE * _AT_ONCE)
            self._chances += [several[at : at + _CHANCE] for at in range(_CHANCE, len(several), _CHANCE)]
            return several[:_CHANCE]

    def stamp(self, now: int) -> str:
        """A time-ordered mark for an entry, rising within this client and like no other client's (22 hex digits).

        `now`: the server's clock in milliseconds. This machine's would set its tasks apart from everybody else's.
        """
        self.counter = max(self.counter + 1, now << 16)
        self.client = self.client or self._chance()[:3].hex()
        return f"{self.counter:016x}{self.client}"

    def task_id(self) -> str:
        """A time-ordered id: a UUID of version 7 (RFC 9562)."""
        tail = int.from_bytes(self._chance(), "big")
        value = (self.wall_ms() & (1 << 48) - 1) << 80 | tail
        value = value & ~(0xF << 76) | 7 << 76
        value = value & ~(0x3 << 62) | 2 << 62
        text = f"{value:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
