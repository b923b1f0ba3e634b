"""Dead letters, their export, and how a person edits it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zkmq.editing import Imported, export_queue
from airflow_provider_zkmq.engine import ConsumeOnce, Message, Queue, String, Zkmq
from tests.support import fresh_root

numbers = itertools.count()


@pytest.fixture
def zk(zookeeper: str) -> Iterator[Zkmq]:
    with Zkmq.connect(zookeeper, root=fresh_root(), session_timeout=4, gc=False) as client:
        yield client


def new_queue(zk: Zkmq) -> Queue:
    made = zk.queue(f"q{next(numbers)}")
    made.configure(filters={"region": String()}, policy=ConsumeOnce())
    return made


@pytest.fixture
def queue(zk: Zkmq) -> Queue:
    return new_queue(zk)


def die(_task: Any) -> None:
    raise ValueError("no\nway")


def letters(queue: Queue, folder: Path, *payloads: bytes, signs: str = "!") -> Path:
    """An export of dead tasks with these payloads, called t0, t1 and so on; with other signs for their `!`."""
    messages = [Message(data, {"region": "eu"}, task_id=f"t{n}") for n, data in enumerate(payloads)]
    queue.enqueue_many(messages)
    queue.worker(die, threads=min(8, len(payloads))).run(until_empty=True)
    path = folder / f"{queue.name}.tq"
    assert export_queue(queue, path) == len(payloads)
    path.write_bytes(re.sub(rb"(?m)^!", signs.encode(), path.read_bytes()))
    return path


def blocks(path: Path) -> list[bytes]:
    """The messages and comments of a file, each with its lines."""
    return re.split(rb"(?m)^(?=[-=!#])", path.read_bytes())[1:]


def edit(path: Path, task_id: str, change: Callable[[bytes], bytes]) -> None:
    """Change the lines of one task's message, as in an editor."""
    said = b"\\id=%s\n" % task_id.encode()
    path.write_bytes(b"".join(change(it) if said in it else it for it in blocks(path)))


def mark(sign: str, text: bytes | None = None) -> Callable[[bytes], bytes]:
    """Give a message another sign, and other text."""

    def change(block: bytes) -> bytes:
        body, variables = re.split(rb"(?m)^(?=\\)", block, maxsplit=1)
        if text is None:
            return sign.encode() + body[1:] + variables
        plain = re.sub(rb"(?m)^\\(encoding|blank)=.*\n", b"", variables)
        return sign.encode() + text.replace(b"\n", b"\n ") + b"\n" + plain

    return change


def sub(pattern: bytes, to: bytes) -> Callable[[bytes], bytes]:
    """Replace something in a message, and mark it to be redriven."""

    def change(block: bytes) -> bytes:
        changed = re.sub(pattern, lambda _: to, b"-" + block[1:])
        assert changed != b"-" + block[1:]
        return changed

    return change


def told(done: Imported) -> dict[str, str]:
    return {it.id: f"{it.action}{' new' if it.new_data else ''}" for it in done.applied}
