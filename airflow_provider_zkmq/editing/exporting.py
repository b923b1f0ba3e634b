"""Tasks to a file."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from ..engine import AllOf, AnyQueue, ConfigError, FilterTypes, Selector, State, Task
from ..engine.queue_internals import internals
from ..textqueue import TextQueue
from . import file_format

#: So many tasks are in memory together.
AT_ONCE: Final = 32
#: Half of what an import reads, so that there is room for what people add.
_MOST_BYTES: Final = file_format.LIMITS.file // 2
_MOST_LINES: Final = file_format.MOST_LINES // 2
_MOST_TASKS: Final = file_format.MOST_MESSAGES // 2


def export_queue(
    queue: AnyQueue,
    path: str | os.PathLike[str],
    state: State | str = State.DEAD,
    *,
    selector: Selector | str | None = None,
    ids: Sequence[str] | None = None,
    limit: int | None = None,
    force: bool = False,
) -> int:
    """Write the tasks in `state` (dead, cancelled or inserted) that `selector` accepts to a file; returns how many.

    `ids`: only these.

    The file appears whole or not at all, readable for its owner alone. Tasks are read a few at a time.

    Raises `ConfigError` for a state, a selector or a limit that is refused, and where the queue does not exist;
    `BadFile` for a file that would be larger than an import reads; `FileExistsError` for one that is there already,
    and not `force`; `OSError` where it cannot be written.
    """
    if state not in file_format.MARKS:
        raise ConfigError(f"{state} tasks are not exported: dead, cancelled or inserted ones are")
    if limit is not None and limit < 0:
        raise ConfigError(f"limit {limit} is not allowed: 0 or more")
    wanted, target = State(state), Path(path)
    if target.exists() and not force:
        raise FileExistsError(_exists(target))
    here, types = file_format.origin_of_queue(queue), queue.conf().filters
    chosen = AllOf(*([] if selector is None else [selector])).bind(types)
    with (
        _temporary(target, force=force) as temporary,
        TextQueue.open(temporary, create=False, limits=file_format.LIMITS) as file,
    ):
        file_format.write_header(file, here, wanted, selector)
        count = 0
        for count, task in enumerate(islice(_tasks(queue, wanted, ids, chosen, types), limit), 1):
            file_format.append_task(file, task)
            if file.path.stat().st_size > _MOST_BYTES or count > _MOST_TASKS:
                what = f"a file of {count:,} of these tasks would be too large"
                raise file_format.BadFile(f"{what}: export fewer, by a limit or a selector")
        file_format.note_count(file, count)
        file_format.survey(file, _MOST_LINES)
    return count


def _tasks(
    queue: AnyQueue, state: State, named: Sequence[str] | None, chosen: Selector, types: FilterTypes
) -> Iterator[Task]:
    ids = internals(queue).ids(state) if named is None else named
    for start in range(0, len(ids), AT_ONCE):
        for task in queue.tasks(ids=ids[start : start + AT_ONCE], parts=["data"]):
            if task.state is state and chosen.matches(task.filters, types):
                yield task


@contextlib.contextmanager
def _temporary(target: Path, *, force: bool) -> Iterator[Path]:
    """A file beside the target, which takes the target's place when the block has ended well."""
    descriptor, name = tempfile.mkstemp(prefix=".zkmq-export-", dir=target.parent)  # mode 0600: payloads may be secret
    temporary = Path(name)
    try:
        yield temporary
        os.fsync(descriptor)
        if force:
            temporary.replace(target)
            return
        try:
            os.link(temporary, target)  # unlike a rename it never takes another's place
        except FileExistsError:
            raise FileExistsError(_exists(target)) from None
        except OSError:  # a file system without links
            if target.exists():
                raise FileExistsError(_exists(target)) from None
            temporary.replace(target)
    finally:
        os.close(descriptor)
        temporary.unlink(missing_ok=True)


def _exists(target: Path) -> str:
    return f"{target} exists already, and may hold somebody's edits; nothing was written"
