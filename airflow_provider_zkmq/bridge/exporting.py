"""Tasks to a file."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from airflow_provider_zkmq.bridge.entries import append_task
from airflow_provider_zkmq.bridge.header import MARKS, Origin, note_count, write_header
from airflow_provider_zkmq.bridge.reading import LIMITS, MOST_LINES, MOST_MESSAGES, BadFile, survey
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.filters import FilterTypes
from airflow_provider_zkmq.engine.core.model.selectors import EVERYTHING, Selector, as_selector
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.core.reading.configure import read_conf
from airflow_provider_zkmq.engine.core.reading.inspect import CHUNK, Task, as_state, read_many, task_ids
from airflow_provider_zkmq.engine.errors import ConfigError
from airflow_provider_zkmq.engine.fronts.methods import blocking
from airflow_provider_zkmq.engine.fronts.queue import Queue
from airflow_provider_zkmq.textqueue import TextQueue

#: Half of what an import reads, so that there is room for what people add.
_MOST_BYTES: Final = LIMITS.file // 2
_MOST_LINES: Final = MOST_LINES // 2
_MOST_TASKS: Final = MOST_MESSAGES // 2


def export_queue(
    queue: Queue,
    path: str | os.PathLike[str],
    state: State | str = State.DEAD,
    *,
    selector: Selector | str | None = None,
    limit: int | None = None,
    force: bool = False,
) -> int:
    """Write the tasks in `state` (dead, cancelled or inserted) that `selector` accepts to a file; returns how many.

    The file appears whole or not at all, readable for its owner alone. Tasks are read a few at a time.

    Raises:
        ConfigError: the state, the selector or the limit is refused, the queue does not exist, or (`BadFile`) the
            file would be larger than an import reads.
        FileExistsError: the file is there already, and not `force`.
        OSError: it cannot be written.

    """
    wanted, target = _wanted(state, limit), Path(path)
    if target.exists() and not force:
        raise FileExistsError(_exists(target))
    here, types = blocking(origin)(queue)
    chosen = EVERYTHING if selector is None else as_selector(selector).bind(types)
    with _draft(target, force=force) as draft, TextQueue.open(draft, create=False, limits=LIMITS) as file:
        write_header(file, here, wanted, selector)
        count = 0
        for task in _tasks(queue, wanted, chosen, types):
            if count == limit:
                break
            append_task(file, task)
            count += 1
            _check_size(file, count)
        note_count(file, count)
        survey(file, _MOST_LINES)
    return count


def _wanted(state: State | str, limit: int | None) -> State:
    wanted = as_state(state)
    if wanted not in MARKS:
        raise ConfigError(f"{wanted} tasks are not exported: dead, cancelled or inserted ones are")
    if limit is not None and limit < 0:
        raise ConfigError(f"limit {limit} is not allowed: 0 or more")
    return State(wanted)


def origin(context: Context) -> Procedure[tuple[Origin, FilterTypes]]:
    """Where a queue is, and its filters. Raises `ConfigError` where it does not exist."""
    conf = yield from read_conf(context)
    return Origin(context.queue, context.root), conf.types


def _tasks(queue: Queue, state: State, chosen: Selector, types: FilterTypes) -> Iterator[Task]:
    ids = blocking(task_ids)(queue, state)
    for start in range(0, len(ids), CHUNK):
        for task in blocking(read_many)(queue, ids[start : start + CHUNK]):
            if task.state is state and chosen.matches(task.filters, types):
                yield task


def _check_size(file: TextQueue, count: int) -> None:
    if file.path.stat().st_size > _MOST_BYTES or count > _MOST_TASKS:
        raise BadFile(f"a file of {count:,} of these tasks would be too large: export fewer, by a limit or a selector")


@contextlib.contextmanager
def _draft(target: Path, *, force: bool) -> Iterator[Path]:
    """A file beside the target, which takes the target's place when the block has ended well."""
    descriptor, name = tempfile.mkstemp(prefix=".zkmq-export-", dir=target.parent)  # mode 0600: payloads may be secret
    draft = Path(name)
    try:
        yield draft
        os.fsync(descriptor)
        _publish(draft, target, force=force)
    finally:
        os.close(descriptor)
        draft.unlink(missing_ok=True)


def _publish(draft: Path, target: Path, *, force: bool) -> None:
    if force:
        draft.replace(target)
        return
    try:
        os.link(draft, target)  # unlike a rename it never takes another's place
    except FileExistsError:
        raise FileExistsError(_exists(target)) from None
    except OSError:  # a file system without links
        if target.exists():
            raise FileExistsError(_exists(target)) from None
        draft.replace(target)


def _exists(target: Path) -> str:
    return f"{target} exists already, and may hold somebody's edits; nothing was written"
