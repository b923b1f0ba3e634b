"""Our own requests, compared with what kazoo writes and reads for the same."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.exceptions import NoNodeError
from kazoo.protocol import serialization as wire
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from airflow_provider_zkmq.engine.core.protocol.writes import Check, Create, Delete, SetData
from airflow_provider_zkmq.engine.zk.requests import Listing, Read, Refused, Transaction, Written, exception, rights

OPS = (
    Create("/zkmq/ü", b"data"),
    Create("/zkmq/e", b"", ephemeral=True),
    SetData("/zkmq/s", b"", 7),
    SetData("/zkmq/s", b"x" * 1000),
    Delete("/zkmq/d", 3),
    Check("/zkmq/c"),
)
STAT = (11, 12, 13, 14, 1, 2, 3, 4, 5, 6, 15)


def kazoos(op: Any, acl: Any) -> Any:
    if isinstance(op, Create):
        return wire.Create(op.path, op.data, acl, int(op.ephemeral))
    if isinstance(op, SetData):
        return wire.SetData(op.path, op.data, op.version)
    return (wire.Delete if isinstance(op, Delete) else wire.CheckVersion)(op.path, op.version)


@pytest.mark.parametrize("acl", [OPEN_ACL_UNSAFE, CREATOR_ALL_ACL, [*OPEN_ACL_UNSAFE, *CREATOR_ALL_ACL]])
@pytest.mark.parametrize("count", range(len(OPS) + 1))
def test_a_transaction_is_written_as_kazoo_writes_it(acl: Any, count: int) -> None:
    ours = Transaction(OPS[:count], rights(acl)).serialize()
    assert ours == bytes(wire.Transaction([kazoos(op, acl) for op in OPS[:count]]).serialize())


def part(kind: int, body: bytes = b"", error: int = 0) -> bytes:
    return wire.multiheader_struct.pack(kind, 0, error) + body


def refused(*codes: int) -> bytes:
    return b"".join(part(-1, wire.int_struct.pack(code), code) for code in codes)


END = wire.multiheader_struct.pack(-1, 1, -1)
STATS = [wire.stat_struct.pack(*STAT), wire.stat_struct.pack(*(value + 100 for value in STAT))]


@pytest.mark.parametrize(
    ("reply", "result"),
    [
        (b"", Written(None, None)),
        (part(1, wire.write_string("/a")) + part(2) + part(13), Written(None, None)),
        (part(1, wire.write_string("/a")) + part(5, STATS[0]) + part(5, STATS[1]) + part(2), Written(14, 12)),
        (refused(0, 0, -110, -2), Refused(2, -110)),
        (refused(-103, -2), Refused(0, -103)),
        (refused(0, -102, -2), Refused(1, -102)),
        (refused(0, -2), Refused(None, -2)),
        (refused(-4242), Refused(0, -4242)),
    ],
)
def test_of_a_transaction_s_reply_the_outcome_is_read(reply: bytes, result: Any) -> None:
    assert Transaction.deserialize(b"head" + reply + END, 4) == [result]


def test_a_part_that_is_none_of_ours_is_not_guessed_at() -> None:
    with pytest.raises(ValueError, match="kind 15"):
        Transaction.deserialize(part(15) + END, 0)


def test_reads_are_those_of_kazoo() -> None:
    assert Read("/a", None).serialize() == wire.GetData("/a", None).serialize()
    for data in (b"", b"data"):
        reply = wire.write_buffer(data) + STATS[0]
        assert Read.deserialize(reply, 0) == wire.GetData.deserialize(reply, 0) == (data, STAT)
    assert Read.deserialize(wire.write_buffer(None) + STATS[0], 0) == (b"", STAT)
    for names in ([], ["a"], ["ü", "b" * 300, "c"]):
        listed = wire.int_struct.pack(len(names)) + b"".join(map(wire.write_string, names))
        assert Listing.deserialize(b"head" + listed, 4) == wire.GetChildren.deserialize(b"head" + listed, 4) == names
    assert Listing.deserialize(wire.int_struct.pack(-1), 0) == []


def test_errors_are_kazoo_s_also_those_that_it_does_not_know() -> None:
    assert isinstance(exception(-101), NoNodeError)
    assert str(exception(-4242)) == "error -4242"
