"""ZooKeeper requests that kazoo does not have."""

from __future__ import annotations

import struct
from collections import namedtuple
from typing import Any

from kazoo.protocol.serialization import (
    int_struct,
    multiheader_struct,
    read_string,
    stat_struct,
    write_buffer,
    write_string,
)

_GET_DATA = 4
_ERROR = -1
_CONTAINER = 4
_DATA_WATCH = 2
_NO_WATCH = struct.pack("B", 0)
#: What stands before each part of a request or a reply of several: its kind, whether it is the last, an error's code.
_ITEM = struct.Struct("!i?4x")
_READ = multiheader_struct.pack(_GET_DATA, False, -1)
_END = multiheader_struct.pack(-1, True, -1)


class MultiRead(namedtuple("MultiRead", "paths")):  # noqa: PYI024  kazoo's requests are namedtuples
    """``multiRead`` (opcode 22, ZooKeeper 3.6): several getData in one request; a missing znode fails alone."""

    __slots__ = ()
    type = 22

    def serialize(self) -> bytes:
        """The request's body."""
        parts: list[bytes] = []
        for path in self.paths:
            spelt = path.encode()
            parts += (_READ, int_struct.pack(len(spelt)), spelt, _NO_WATCH)
        return b"".join((*parts, _END))

    @classmethod
    def deserialize(cls, reply: bytes, offset: int) -> list[Any]:
        """For each path (data, the values of its Stat), or the error's code.

        A scan has a hundred thousand of these: nothing is made of a reply that nobody asks for.
        """
        results: list[Any] = []
        kind, done = _ITEM.unpack_from(reply, offset)
        while not done:
            offset += _ITEM.size
            (number,) = int_struct.unpack_from(reply, offset)
            offset += int_struct.size
            if kind == _ERROR:
                results.append(number)
            else:
                end = offset + max(number, 0)  # -1 stands for no data
                results.append((reply[offset:end], stat_struct.unpack_from(reply, end)))
                offset = end + stat_struct.size
            kind, done = _ITEM.unpack_from(reply, offset)
        return results


class ContainerCreation(namedtuple("ContainerCreation", "path acl")):  # noqa: PYI024  kazoo's requests are namedtuples
    """``createContainer`` (opcode 19, ZooKeeper 3.5.3)."""

    __slots__ = ()
    type = 19

    def serialize(self) -> bytearray:
        """The request's body."""
        body = bytearray(write_string(self.path) + write_buffer(b"") + int_struct.pack(len(self.acl)))
        for entry in self.acl:
            body += int_struct.pack(entry.perms) + write_string(entry.id.scheme) + write_string(entry.id.id)
        body += int_struct.pack(_CONTAINER)
        return body

    @classmethod
    def deserialize(cls, reply: bytes, offset: int) -> str:
        """The path that was created; its Stat, which follows, is not used."""
        return str(read_string(reply, offset)[0])


class RemoveWatches(namedtuple("RemoveWatches", "path")):  # noqa: PYI024  kazoo's requests are namedtuples
    """``removeWatches`` (opcode 18, ZooKeeper 3.5) of the watch on a znode's data."""

    __slots__ = ()
    type = 18

    def serialize(self) -> bytearray:
        """The request's body."""
        return bytearray(write_string(self.path) + int_struct.pack(_DATA_WATCH))

    @classmethod
    def deserialize(cls, _reply: bytes, _offset: int) -> bool:
        """The reply has no body."""
        return True
