"""Results that do not fit into a queue's file: ``<queue>.results/<task id>``, with the mode of the queue's file."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from airflow_provider_zkmq.engine.model import MAX_PAYLOAD
from airflow_provider_zkmq.textqueue import HostileFile
from airflow_provider_zkmq.textqueue.plain import read_plain, replace_plain

_NO_FOLDER: Final = {errno.ELOOP, errno.EMLINK, errno.ENOTDIR}


def keep(queue: Path, task_id: str, data: bytes, mode: int) -> None:
    """Write a task's result. Raises `HostileFile` where the folder of the results leads elsewhere, and `OSError`."""
    folder = _path(queue)
    made = False
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
        made = True
    with _opened(folder) as descriptor:
        if made:  # by its descriptor: meanwhile a symbolic link may have taken its place
            os.fchmod(descriptor, mode | (mode & 0o444) >> 2)  # who may read a file of it may look it up
        replace_plain(Path(task_id), data, mode, folder=descriptor)


def read(queue: Path, task_id: str) -> bytes | None:
    """A task's result; None without one. Raises `HostileFile` for what is no plain file in its folder, `OSError`."""
    try:
        with _opened(_path(queue)) as descriptor:
            return read_plain(task_id, MAX_PAYLOAD, folder=descriptor)
    except FileNotFoundError:
        return None


def delete(queue: Path) -> None:
    """Delete the results of a queue; a symbolic link in their place is taken away, and not followed."""
    folder = _path(queue)
    if folder.is_symlink():
        folder.unlink()
    elif folder.is_dir():
        shutil.rmtree(folder)


def _path(queue: Path) -> Path:
    return queue.with_name(f"{queue.stem}.results")


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """A folder by its descriptor, so that what is opened in it cannot be led elsewhere meanwhile."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in _NO_FOLDER:
            raise
        msg = f"{folder} is no folder, or a symbolic link, which is not followed"
        raise HostileFile(msg) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)
