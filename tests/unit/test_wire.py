"""What goes over the wire: frames are whole, whatever pieces they come in; requests are what kazoo writes and reads."""

from __future__ import annotations

import struct
from itertools import product
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError
from kazoo.protocol import serialization as wire
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from airflow_provider_zkmq.engine.core.zk_operations import Check, Create, Delete, SetData
from airflow_provider_zkmq.engine.zk.connection import (
    FrameReader,
    Listing,
    MultiRequest,
    Read,
    Refused,
    Written,
    exception,
    rights,
)

# --- frames


def framed(body: bytes) -> bytes:
    return struct.pack("!i", len(body)) + body


def test_frames_are_whole_whatever_pieces_they_come_in() -> None:
    """Split anywhere, or in pieces of one size; what has a negative length is no frame."""
    bodies = [b"", b"a", b"reply and event", b"x" * 300]
    stream = b"".join(map(framed, bodies))
    for at in range(len(stream) + 1):
        frames = FrameReader()
        assert frames.fed(stream[:at]) + frames.fed(stream[at:]) == bodies, f"split at {at}"
    for size in (1, 2, 3, 4, 5, 7, 64):
        frames = FrameReader()
        pieces = (stream[begin : begin + size] for begin in range(0, len(stream), size))
        assert [frame for piece in pieces for frame in frames.fed(piece)] == bodies, f"pieces of {size}"
    with pytest.raises(ValueError, match="a frame of -1 bytes"):
        FrameReader().fed(struct.pack("!i", -1))


def test_a_frame_larger_than_what_is_asked_for_at_once() -> None:
    """Asked for in pieces of at most a megabyte; what comes after it is not lost."""
    body = bytes(range(256)) * 12_000
    stream, frames, got, sizes = framed(body) + framed(b"after"), FrameReader(), list[bytes](), set[int]()
    while stream:
        size = frames.wanted
        sizes.add(size)
        got += frames.fed(stream[:size])
        stream = stream[size:]
    assert got == [body, b"after"]
    assert max(sizes) == 1 << 20


# --- requests

OPS = (
    Create("/zkmq/ü", b"data"),
    Create("/zkmq/e", b"", ephemeral=True),
    SetData("/zkmq/s", b"", 7),
    SetData("/zkmq/s", b"x" * 1000),
    Delete("/zkmq/d", 3),
    Check("/zkmq/c"),
)
STAT = (11, 12, 13, 14, 1, 2, 3, 4, 5, 6, 15)
STATS = [wire.stat_struct.pack(*STAT), wire.stat_struct.pack(*(value + 100 for value in STAT))]
END = wire.multiheader_struct.pack(-1, 1, -1)


def kazoos(op: Any, acl: Any) -> Any:
    if isinstance(op, Create):
        return wire.Create(op.path, op.data, acl, int(op.ephemeral))
    if isinstance(op, SetData):
        return wire.SetData(op.path, op.data, op.version)
    return (wire.Delete if isinstance(op, Delete) else wire.CheckVersion)(op.path, op.version)


def part(kind: int, body: bytes = b"", error: int = 0) -> bytes:
    return wire.multiheader_struct.pack(kind, 0, error) + body


def refused(*codes: int) -> bytes:
    return b"".join(part(-1, wire.int_struct.pack(code), code) for code in codes)


def test_a_transaction_is_written_as_kazoo_writes_it(subtests: pytest.Subtests) -> None:
    """However many operations it has, and whoever may do what; where none sets data, a create asks for its Stat."""
    acls = OPEN_ACL_UNSAFE, CREATOR_ALL_ACL, [*OPEN_ACL_UNSAFE, *CREATOR_ALL_ACL]
    for acl, count in product(acls, range(len(OPS) + 1)):
        with subtests.test(acl=str(acl), count=count):
            theirs = wire.Transaction([kazoos(op, acl) for op in OPS[:count]]).serialize()
            theirs[3] = 15 if count in {1, 2} else theirs[3]
            assert MultiRequest(OPS[:count], rights(acl)).serialize() == bytes(theirs)


def test_of_a_transaction_s_reply_the_outcome_is_read(subtests: pytest.Subtests) -> None:
    """The first error that is one, or the last record written; a part that is none of ours is not guessed at."""
    created = part(1, wire.write_string("/a"))
    replies = {
        b"": Written(None, None),
        created + part(2) + part(13): Written(None, None),
        part(15, wire.write_string("/a") + STATS[0]) + created: Written(14, 12),
        created + part(5, STATS[0]) + part(5, STATS[1]) + part(2): Written(14, 12),
        refused(0, 0, -110, -2): Refused(2, -110),
        refused(-103, -2): Refused(0, -103),
        refused(0, -102, -2): Refused(1, -102),
        refused(0, -2): Refused(None, -2),
        refused(-4242): Refused(0, -4242),
    }
    for reply, result in replies.items():
        with subtests.test(result=result):
            assert MultiRequest.deserialize(b"head" + reply + END, 4) == [result]
    with pytest.raises(ValueError, match="kind 16"):
        MultiRequest.deserialize(part(16) + END, 0)


def test_reads_and_errors_are_those_of_kazoo() -> None:
    """Errors that it does not know are told by their number."""
    assert Read("/a", None).serialize() == wire.GetData("/a", None).serialize()
    for data in (b"", b"data"):
        reply = wire.write_buffer(data) + STATS[0]
        assert Read.deserialize(reply, 0) == wire.GetData.deserialize(reply, 0) == (data, STAT)
    assert Read.deserialize(wire.write_buffer(None) + STATS[0], 0) == (b"", STAT)
    for names in ([], ["a"], ["ü", "b" * 300, "c"]):
        listed = wire.int_struct.pack(len(names)) + b"".join(map(wire.write_string, names))
        assert Listing.deserialize(b"head" + listed, 4) == wire.GetChildren.deserialize(b"head" + listed, 4) == names
    assert Listing.deserialize(wire.int_struct.pack(-1), 0) == []
    assert isinstance(exception(-101), NoNodeError)
    assert str(exception(-4242)) == "error -4242"
