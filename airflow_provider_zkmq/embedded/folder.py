"""The data folder: made, locked against a second server, and kept to one size of ensemble."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING

from airflow_provider_zkmq.embedded.errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Java processes of a server that was killed hold the lock until they are gone too, a moment later.
_LOCK_PATIENCE_S = 1.0
_LOCK_POLL_S = 0.02
_FIRST_SAFE_DESCRIPTOR = 10


class Folder:
    """A data folder held by this server.

    ``lock`` is a descriptor to pass on to the Java processes: the lock holds until the last holder closes
    it, so a folder is free only when no server writes to it any more, however its owner died.
    """

    def __init__(self, path: Path, nodes: int) -> None:
        """Make and lock ``path`` for so many nodes. Raises `ServerError`: not writable, in use, another size."""
        self.path = path
        with self.usable():
            self.path.mkdir(0o700, parents=True, exist_ok=True)  # Java writes payloads there for all to read
            self.lock = _open_above_digits(self.path / "lock")
        try:
            self._take_lock()
            with self.usable():
                self._check_size(nodes)
        except BaseException:
            os.close(self.lock)
            raise

    def release(self) -> None:
        """Let the folder go. Unlocks for all holders at once: call it when every node is gone."""
        fcntl.flock(self.lock, fcntl.LOCK_UN)
        os.close(self.lock)

    @contextlib.contextmanager
    def usable(self) -> Iterator[None]:
        """Turn an operating system error inside the block into one that names the folder."""
        try:
            yield
        except OSError as error:
            message = f"cannot keep ZooKeeper's data in {self.path} ({error.strerror}): choose another folder"
            raise ServerError(message) from error

    def _take_lock(self) -> None:
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while not self._try_lock():
            if time.monotonic() > deadline:
                owner = os.pread(self.lock, 32, 0).decode(errors="replace").strip()
                message = (
                    f"{self.path} is in use by the ZooKeeper server of process {owner}: "
                    "stop that one, or choose another folder"
                )
                raise ServerError(message)
            time.sleep(_LOCK_POLL_S)
        os.ftruncate(self.lock, 0)
        os.pwrite(self.lock, f"{os.getpid()}\n".encode(), 0)

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _check_size(self, nodes: int) -> None:
        """Refuse another size: two empty new nodes could outvote the one that holds the data."""
        record = self.path / "ensemble"
        if not record.exists():
            record.write_text(f"{nodes}\n")
        recorded = record.read_text().strip()
        if recorded != str(nodes):
            message = (
                f"{self.path} holds the data of an ensemble of {recorded}, not of {nodes}: "
                f"start it with {recorded}, or choose another folder"
            )
            raise ServerError(message)


def _open_above_digits(path: Path) -> int:
    """Open for reading and writing as descriptor 10 or more: the shell that starts Java uses those below."""
    low = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _FIRST_SAFE_DESCRIPTOR)
    finally:
        os.close(low)
