"""Deleting a queue's file, with what stands beside it."""

from __future__ import annotations

from functools import partial

from airflow_provider_zkmq.engine.errors import ConfigError, QueueError
from airflow_provider_zkmq.engine.model import State
from airflow_provider_zkmq.filequeue import results
from airflow_provider_zkmq.filequeue.book import Book
from airflow_provider_zkmq.filequeue.folder import Folder, conf_path


def delete(folder: Folder, queue: str, *, confirm: bool, force: bool) -> int:
    """Delete the file of a queue; returns how many tasks were in it. See `FileQueue.delete`."""
    count = folder.carry_out(queue, partial(_delete, confirm=confirm, force=force))
    folder.forget(queue)
    return count


def _delete(book: Book, *, confirm: bool, force: bool) -> int:
    """The file itself goes last: one whose deletion was cut off is still there, to be deleted once more."""
    path, count = book.file.path, len(book.tasks)
    claimed = sum(book.state(item) is State.CLAIMED for item in book.tasks.values())
    if claimed and not force:
        raise QueueError(f"{path} is in use: {claimed} claimed task(s); stop the workers first, or delete it by force")
    if not confirm:
        msg = f"deleting {path} loses its {count} task(s) for good; nothing was deleted: say confirm=True"
        raise ConfigError(msg)
    results.delete(path)
    conf_path(path).unlink(missing_ok=True)
    path.unlink()
    return count
