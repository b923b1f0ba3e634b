"""Ids, stamps and nonces: unlike any other, among threads and in a forked process too."""

from __future__ import annotations

import os
import threading
import uuid

from airflow_provider_zkmq.engine.core.memory.marks import Marks

MANY = 1_000


def made(marks: Marks) -> list[str]:
    return [make() for _ in range(MANY) for make in (marks.nonce, marks.task_id)]


def test_threads_get_different_marks() -> None:
    marks, found = Marks(lambda: 5), []
    threads = [threading.Thread(target=lambda: found.extend(made(marks))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == len(found) == 4 * 2 * MANY


def test_a_forked_process_makes_others() -> None:
    """It has inherited what its parent was given by the system."""
    marks = Marks(lambda: 5)
    marks.nonce()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, marks.nonce().encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(read, 100).decode()
    os.close(read)
    os.close(write)
    assert len(theirs) == 16
    assert theirs not in [marks.nonce() for _ in range(200)]


def test_an_id_is_a_uuid_of_version_7() -> None:
    marks = Marks(lambda: (1 << 48) - 1)
    found = uuid.UUID(marks.task_id())
    assert (found.version, found.variant, found.int >> 80) == (7, uuid.RFC_4122, (1 << 48) - 1)
    assert str(found) == str(uuid.UUID(str(found)))
