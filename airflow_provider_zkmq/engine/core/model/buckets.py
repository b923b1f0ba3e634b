"""Time-ordered indexes: what is due when, what ended when.

An index is ``<index>/<bucket>/<milliseconds>~<task>``; a bucket is one minute of the server's clock. Looking for
what is due reads the buckets' names and the entries of those whose time has come, however much lies ahead.
"""

from __future__ import annotations

from typing import Final

from airflow_provider_zkmq.engine.core.model.paths import entry_name, entry_task

BUCKET_MS: Final = 60_000


def bucket_of(when_ms: int) -> str:
    """The bucket that holds a time; names sort by time."""
    return f"{max(0, when_ms) // BUCKET_MS:010d}"


def bucket_start(name: str) -> int | None:
    """When a bucket begins, in milliseconds; None for a foreign name."""
    return int(name) * BUCKET_MS if name.isascii() and name.isdigit() and len(name) == 10 else None


def index_path(index: str, when_ms: int, task_id: str) -> str:
    """The entry, relative to the queue."""
    return f"{index}/{bucket_of(when_ms)}/{entry_name(f'{max(0, when_ms):015d}', task_id)}"


def entry_time(name: str) -> int | None:
    """The time an entry stands for, in milliseconds; None for a foreign name."""
    stamp = name[:15]
    good = stamp.isascii() and stamp.isdigit() and name[15:16] == "~" and entry_task(name) is not None
    return int(stamp) if good else None
