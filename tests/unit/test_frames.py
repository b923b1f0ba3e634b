"""Frames: whole, whatever the pieces in which they come."""

from __future__ import annotations

import struct

import pytest

from airflow_provider_zkmq.engine.zk.frames import Frames

BODIES = [b"", b"a", b"reply and event", b"x" * 300]


def framed(body: bytes) -> bytes:
    return struct.pack("!i", len(body)) + body


STREAM = b"".join(map(framed, BODIES))


@pytest.mark.parametrize("at", range(len(STREAM) + 1))
def test_a_stream_that_is_split_anywhere_has_the_same_frames(at: int) -> None:
    frames = Frames()
    assert frames.fed(STREAM[:at]) + frames.fed(STREAM[at:]) == BODIES


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 64])
def test_pieces_of_one_size(size: int) -> None:
    frames, got = Frames(), []
    for begin in range(0, len(STREAM), size):
        got += frames.fed(STREAM[begin : begin + size])
    assert got == BODIES


def test_a_frame_larger_than_what_is_asked_for_at_once() -> None:
    """Asked for in pieces of at most a megabyte; what comes after it is not lost."""
    body = bytes(range(256)) * 12_000
    stream, frames, got, at = framed(body) + framed(b"after"), Frames(), [], 0
    sizes = set()
    while at < len(stream):
        size = frames.wanted
        sizes.add(size)
        got += frames.fed(stream[at : at + size])
        at += size
    assert got == [body, b"after"]
    assert max(sizes) == 1 << 20


def test_a_negative_length_is_no_frame() -> None:
    with pytest.raises(ValueError, match="a frame of -1 bytes"):
        Frames().fed(struct.pack("!i", -1))
