"""Which queues a history holds: looked for before Spark is started, and refused with what to do about it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from airflow_provider_zkmq.engine import ConfigError, check_name
from airflow_provider_zkmq.spark.history.manifest import GOLD, NAME, SILVER, read_manifest

_FIRST = "run the maintenance DAG, or airflow_provider_zkmq.spark.run_pipeline, first"


def need(*packages: str) -> None:
    """Raise `ConfigError` where a package is missing that comes with the extra ``[spark]``."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"this needs {' and '.join(missing)}: pip install 'airflow-provider-zkmq[spark]'")


def known(directory: str | os.PathLike[str], queues: Sequence[str] | None) -> list[str]:
    """The queues of a history that are asked for; None: all. Raises `ConfigError` for those that it does not hold.

    Raises `CorruptRecord` where what says what it holds is damaged.
    """
    root = Path(directory).absolute()
    if not root.is_dir():
        raise ConfigError(f"{root} is no folder: give the directory of the archive; where there is none, {_FIRST}")
    archived = sorted(path.parent.name for path in root.glob(f"*/{NAME}"))
    if not archived:
        raise ConfigError(f"{root} holds no archive of any queue: give the archive's directory, or {_FIRST}")
    asked = archived if queues is None else [check_name("queue", queue) for queue in dict.fromkeys(queues)]
    for queue in asked:
        _check(root, queue, archived)
    return asked


def _check(root: Path, queue: str, archived: Sequence[str]) -> None:
    """Raise `ConfigError` unless the queue is archived, and its tables are made."""
    if queue not in archived:
        near = get_close_matches(queue, archived)
        hint = f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
        raise ConfigError(f"{root} holds no archive of queue {queue!r}{hint}: {_FIRST}")
    rows = read_manifest(root / queue).rows
    if rows and not all((root / queue / table / NAME).is_file() for table in (SILVER, GOLD)):
        raise ConfigError(f"queue {queue!r} is archived in {root}, but its tables were not made yet: {_FIRST}")
