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
    read_string,
    stat_struct,
    write_buffer,
    write_string,
)
from kazoo.protocol.states import ZnodeStat

_GET_DATA = 4
_ERROR = -1
_CONTAINER = 4
_DATA_WATCH = 2
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
