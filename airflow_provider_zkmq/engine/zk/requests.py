"""ZooKeeper requests that kazoo does not have."""

from __future__ import annotations

import struct
from collections import namedtuple
from typing import Any

from kazoo.protocol.serialization import (
    MultiHeader,
    int_struct,
    multiheader_struct,
    read_buffer,
    stat_struct,
    write_string,
)
from kazoo.protocol.states import ZnodeStat

_GET_DATA = 4
_ERROR = -1
_NO_WATCH = struct.pack("B", 0)


class MultiRead(namedtuple("MultiRead", "paths")):  # noqa: PYI024  kazoo's requests are namedtuples
    """``multiRead`` (opcode 22, ZooKeeper 3.6): several getData in one request; a missing znode fails alone."""

    __slots__ = ()
    type = 22

    def serialize(self) -> bytearray:
        """The request's body."""
        body = bytearray()
        for path in self.paths:
            body += MultiHeader(_GET_DATA, False, -1).serialize()
            body += write_string(path) + _NO_WATCH
        body += multiheader_struct.pack(-1, True, -1)
        return body

    @classmethod
    def deserialize(cls, reply: bytes, offset: int) -> list[Any]:
        """For each path (data, ZnodeStat), or the error's code."""
        results: list[Any] = []
        header, offset = MultiHeader.deserialize(reply, offset)
        while not header.done:
            if header.type == _ERROR:
                results.append(int_struct.unpack_from(reply, offset)[0])
                offset += int_struct.size
            else:
                data, offset = read_buffer(reply, offset)
                results.append((data, ZnodeStat._make(stat_struct.unpack_from(reply, offset))))
                offset += stat_struct.size
            header, offset = MultiHeader.deserialize(reply, offset)
        return results
