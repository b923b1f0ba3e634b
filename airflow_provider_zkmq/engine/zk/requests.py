"""ZooKeeper requests that kazoo does not have, or takes long for."""

from __future__ import annotations

import struct
from collections import namedtuple
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from kazoo.exceptions import EXCEPTIONS, ZookeeperError
from kazoo.protocol.serialization import (
    GetChildren,
    GetData,
    int_struct,
    multiheader_struct,
    read_string,
    stat_struct,
    write_buffer,
    write_string,
)
from kazoo.security import ACL

from airflow_provider_zkmq.engine.core.protocol.ops import Create, Delete, SetData, WriteOp

_CREATE, _DELETE, _GET_DATA, _SET_DATA, _CHECK = 1, 2, 4, 5, 13
#: A create whose reply has the Stat of what was created (ZooKeeper 3.5).
_CREATE_2 = 15
_ERROR = -1
_EPHEMERAL = 1
_CONTAINER = 4
#: Errors of the parts of a transaction that were not refused themselves.
_ROLLED_BACK: Final = frozenset({0, -2})
_DATA_WATCH = 2
_NO_WATCH = struct.pack("B", 0)
#: What stands before each part of a request or a reply of several: its kind, whether it is the last, an error's code.
_ITEM = struct.Struct("!i?4x")
_READ = multiheader_struct.pack(_GET_DATA, False, -1)
_END = multiheader_struct.pack(-1, True, -1)
#: What a part of a transaction begins with: its kind, that it is not the last, no error, the length of its path.
_PART = struct.Struct("!iBii")
#: Of a Stat, the number of the transaction that wrote last, and when that was.
_LAST_WRITE = struct.Struct("!8xq8xq")


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


class Read(GetData):  # type: ignore[misc]  # kazoo is untyped
    """``getData``, whose reply is not made more of than is used."""

    __slots__ = ()

    @classmethod
    def deserialize(cls, reply: bytes, offset: int) -> tuple[bytes, tuple[int, ...]]:
        """The data and the values of its Stat."""
        (length,) = int_struct.unpack_from(reply, offset)
        begin = offset + int_struct.size
        end = begin + max(length, 0)  # -1 stands for no data
        return reply[begin:end], stat_struct.unpack_from(reply, end)


class Listing(GetChildren):  # type: ignore[misc]  # kazoo is untyped
    """``getChildren``, whose reply may be a hundred thousand names."""

    __slots__ = ()

    @classmethod
    def deserialize(cls, reply: bytes, offset: int) -> list[str]:
        """The names."""
        unpack, size = int_struct.unpack_from, int_struct.size
        (count,) = unpack(reply, offset)
        names: list[str] = []
        begin = offset + size
        for _ in range(count):
            end = begin + size + unpack(reply, begin)[0]
            names.append(reply[begin + size : end].decode())
            begin = end
        return names


class Written(NamedTuple):
    """A transaction was committed: when, and under which number, where it created something or set data."""

    time: int | None
    zxid: int | None


class Refused(NamedTuple):
    """A transaction was not committed: which part was refused, with which error; None: no part of its own account."""

    at: int | None
    code: int


class Rights(NamedTuple):
    """How the access control list of what is created is written, once for all creates: lasting and ephemeral."""

    lasting: bytes
    ephemeral: bytes


def exception(code: int) -> Exception:
    """kazoo's error for a code of ZooKeeper's, also for one that kazoo does not know."""
    known: type[Exception] | None = EXCEPTIONS.get(code)
    return ZookeeperError(f"error {code}") if known is None else known()


def rights(acl: Iterable[ACL]) -> Rights:
    """An access control list as it is written, with what follows it in a create."""
    entries = [int_struct.pack(one.perms) + write_string(one.id.scheme) + write_string(one.id.id) for one in acl]
    spelt = int_struct.pack(len(entries)) + b"".join(entries)
    return Rights(spelt + int_struct.pack(0), spelt + int_struct.pack(_EPHEMERAL))


class MultiRequest(namedtuple("MultiRequest", "ops rights")):  # noqa: PYI024  kazoo's requests are namedtuples
    """``multi`` (opcode 14) of our own operations, encoded in one go; of the reply only what is used is decoded.

    What is set tells when it was written; where nothing is set, the first create asks for that.
    """

    __slots__ = ()
    type = 14

    def serialize(self) -> bytes:
        """The request's body."""
        parts: list[bytes] = []
        asks = None if any(isinstance(op, SetData) for op in self.ops) else _first_create(self.ops)
        for op in self.ops:
            parts += _encoded(op, self.rights, _CREATE_2 if op is asks else _CREATE)
        parts.append(_END)
        return b"".join(parts)

    @classmethod
    def deserialize(cls, reply: bytes, offset: int) -> list[Written | Refused]:
        """One result for the whole; kazoo wants a list. A refused transaction, too, comes without an error of its own.

        Raises `ValueError` for parts that are none of ours.
        """
        at, written, refused = 0, Written(None, None), None
        kind, done = _ITEM.unpack_from(reply, offset)
        while not done:
            offset += _ITEM.size
            if kind in {_CREATE, _CREATE_2}:
                offset += int_struct.size + max(int_struct.unpack_from(reply, offset)[0], 0)
            if kind in {_SET_DATA, _CREATE_2}:
                if written.zxid is None:
                    zxid, time = _LAST_WRITE.unpack_from(reply, offset)
                    written = Written(time, zxid)
                offset += stat_struct.size
            elif kind == _ERROR:
                refused = _worse(refused, at, int_struct.unpack_from(reply, offset)[0])
                offset += int_struct.size
            elif kind not in {_CREATE, _DELETE, _CHECK}:
                msg = f"a transaction's part of kind {kind} is not known"
                raise ValueError(msg)
            at += 1
            kind, done = _ITEM.unpack_from(reply, offset)
        return [refused or written]


def _worse(refused: Refused | None, at: int, code: int) -> Refused:
    """The first part that was refused itself, rather than rolled back with the others."""
    if refused is not None and refused.at is not None:
        return refused
    return Refused(None, code) if code in _ROLLED_BACK else Refused(at, code)


def _first_create(ops: Iterable[WriteOp]) -> Create | None:
    return next((op for op in ops if isinstance(op, Create)), None)


def _encoded(op: WriteOp, acl: Rights, create: int) -> tuple[bytes, ...]:
    path = op.path.encode()
    size = len(path)
    if isinstance(op, Create):
        tail = acl.ephemeral if op.ephemeral else acl.lasting
        return _PART.pack(create, 0, -1, size), path, int_struct.pack(len(op.data)), op.data, tail
    if isinstance(op, SetData):
        head = _PART.pack(_SET_DATA, 0, -1, size)
        return head, path, int_struct.pack(len(op.data)), op.data, int_struct.pack(op.version)
    kind = _DELETE if isinstance(op, Delete) else _CHECK
    return _PART.pack(kind, 0, -1, size), path, int_struct.pack(op.version)


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
