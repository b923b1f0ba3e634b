"""Following a file: waiting for its next change without polling, where the platform allows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: Without `watchfiles` the file's size and time are looked at this often, in seconds.
POLL_SECONDS: Final = 0.2


def changes(path: Path, stop: threading.Event) -> Iterator[None]:
    """Yield at once, and after each change of the file, until `stop` is set.

    With the package ``watchfiles`` the system tells of changes; without it the file is looked at regularly.
    """
    yield
    try:
        from watchfiles import watch
    except ImportError:
        yield from _poll(path, stop)
        return
    # The folder, since editors replace files; a time-out now and then, since a change may precede the watch.
    for _ in watch(path.parent, stop_event=stop, recursive=False, yield_on_timeout=True, rust_timeout=1_000, step=10):
        yield


def _poll(path: Path, stop: threading.Event) -> Iterator[None]:
    last = _mark(path)
    while not stop.wait(POLL_SECONDS):
        now = _mark(path)
        if now != last:
            last = now
            yield


def _mark(path: Path) -> tuple[int, int]:
    try:
        stats = path.stat()
    except FileNotFoundError:
        return (0, 0)
    return (stats.st_size, stats.st_mtime_ns)
