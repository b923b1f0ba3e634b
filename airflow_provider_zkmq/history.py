"""The history of queues without Spark: its tables, and which queues an archive holds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from .engine import ConfigError, check_name
from .location import Location

if TYPE_CHECKING:
    from deltalake import DeltaTable

_FIRST = "run the maintenance DAG, or airflow_provider_zkmq.spark.run_pipeline, first"


def table(kind: str, directory: str | os.PathLike[str] | Location, queue: str) -> DeltaTable:
    """Return a table of a queue's history, to be read without Spark: by Arrow, pandas, and others.

    `kind`: ``bronze``, ``runs``, ``deliveries``, ``hourly`` or ``consumers``. Raises `ConfigError` for one that is not
    there, otherwise as `Table.open`.
    """
    from .delta_tables import FOLDERS, open_for_reading

    if kind not in FOLDERS:
        raise ConfigError(f"{kind!r} is no table of a history: it has {', '.join(FOLDERS)}")
    home = Location.of(directory) / check_name("queue", queue)
    if (found := open_for_reading(home, kind).delta) is None:
        raise ConfigError(f"{home.parent} holds no {kind} of queue {queue!r}: if some of it has ended, {_FIRST}")
    return found


def archived(directory: str | os.PathLike[str] | Location, queues: Sequence[str] | None) -> list[str]:
    """The queues of a history that are asked for; None: all. Raises `ConfigError` for others."""
    from .delta_tables import FOLDERS

    root = Location.of(directory)
    if root.folder is not None and not root.folder.is_dir():
        raise ConfigError(f"{root} is no folder: give the directory of the archive; where there is none, {_FIRST}")
    there = [name for name in root.folders() if (root / name / FOLDERS["bronze"] / "_delta_log").is_there()]
    if not there:
        raise ConfigError(f"{root} holds no archive of any queue: give the archive's directory, or {_FIRST}")
    requested = there if queues is None else [check_name("queue", queue) for queue in dict.fromkeys(queues)]
    if not requested:
        raise ConfigError("no queue is named: name some, or leave them out for all")
    for queue in requested:
        if queue not in there:
            near = get_close_matches(queue, there)
            hint = f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
            raise ConfigError(f"{root} holds no archive of queue {queue!r}{hint}: {_FIRST}")
    return requested


def known(
    directory: str | os.PathLike[str] | Location,
    queues: Sequence[str] | None,
    needed: Sequence[str] = ("runs", "deliveries", "hourly", "consumers"),
) -> list[str]:
    """Those queues, which have these tables. Raises `ConfigError`, `CorruptRecord`."""
    from .delta_tables import Table

    root, requested = Location.of(directory), archived(directory, queues)
    for queue in requested:
        bronze, *tables = (Table.open(root / queue, kind) for kind in ("bronze", *needed))
        if bronze.mark.rows and not all(each.delta for each in tables):
            raise ConfigError(f"queue {queue!r} is archived in {root}, but its tables were not made yet: {_FIRST}")
    return requested
