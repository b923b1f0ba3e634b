"""The transactions of a ZooKeeper server in the order in which they were carried out, as its log on disk has them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_CREATES: Final = frozenset({1, 15, 19, 21})
_DELETES: Final = frozenset({2, 20})
_MULTI: Final = 14
_REFUSED: Final = -1
_FILE_HEADER, _RECORD_HEADER = 16, 12
_TRANSACTION: Final = struct.Struct(">qiqqi")


class Write(NamedTuple):
    """A znode that was created or deleted; ``ms``: the server's time of its transaction."""

    ms: int
    path: str
    created: bool


def writes(folder: Path) -> Iterator[Write]:
    """What was created and deleted, of all log files below a folder; `folder` is a server's with one node."""
    for log in sorted(folder.rglob("log.*"), key=lambda path: int(path.suffix[1:], 16)):
        raw, at = log.read_bytes(), _FILE_HEADER
        while at + _RECORD_HEADER < len(raw):
            (length,) = struct.unpack_from(">i", raw, at + 8)
            if length <= 0:
                break  # the rest of the file is not written yet
            record = raw[at + _RECORD_HEADER : at + _RECORD_HEADER + length]
            _, _, _, ms, kind = _TRANSACTION.unpack_from(record)
            yield from _of(kind, record[_TRANSACTION.size :], ms)
            at += _RECORD_HEADER + length + 1


def _of(kind: int, body: bytes, ms: int) -> Iterator[Write]:
    if kind == _MULTI:
        (count,), at, parts = struct.unpack_from(">i", body), 4, []
        for _ in range(count):
            part, length = struct.unpack_from(">ii", body, at)
            parts.append((part, body[at + 8 : at + 8 + length]))
            at += 8 + length
        if all(part != _REFUSED for part, _ in parts):  # else none of them was carried out
            for part, inside in parts:
                yield from _of(part, inside, ms)
    elif kind in _CREATES | _DELETES:
        (length,) = struct.unpack_from(">i", body)
        yield Write(ms, body[4 : 4 + length].decode(), kind in _CREATES)
