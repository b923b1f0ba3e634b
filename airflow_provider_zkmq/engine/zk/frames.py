"""The bytes of a connection as frames: each begins with its length."""

from __future__ import annotations

import struct
from typing import Final

_LENGTH: Final = struct.Struct("!i")
#: So many bytes are asked for at once, and of a frame that is longer at most so many.
_USUAL: Final = 1 << 16
_MOST: Final = 1 << 20


class Frames:
    """Frames as they come, in pieces of any size. What is missing of one is waited for without being copied again."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._have = 0
        self._need = _LENGTH.size

    @property
    def wanted(self) -> int:
        """How many bytes it makes sense to ask for."""
        return min(max(_USUAL, self._need - self._have), _MOST)

    def fed(self, piece: bytes) -> list[bytes]:
        """The frames that are whole with this piece, without their lengths. Raises `ValueError` for what is none."""
        self._pieces.append(piece)
        self._have += len(piece)
        if self._have < self._need:
            return []
        received = b"".join(self._pieces)
        frames, begin = [], 0
        while (end := self._end(received, begin)) <= self._have:
            frames.append(received[begin + _LENGTH.size : end])
            begin = end
        self._pieces = [received[begin:]]
        self._have -= begin
        self._need = end - begin
        return frames

    def _end(self, received: bytes, begin: int) -> int:
        """Where the frame ends that begins here; of one whose length is not there yet, where its length does."""
        data = begin + _LENGTH.size
        if data > self._have:
            return data
        (length,) = _LENGTH.unpack_from(received, begin)
        if length < 0:
            msg = f"a frame of {length} bytes"
            raise ValueError(msg)
        return data + int(length)
