"""What is enqueued: messages, and their parts as they are stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from airflow_provider_zkmq.engine.core.model.codec import refuse_deep
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.model.time import Duration, Moment, optional_milliseconds, optional_seconds
from airflow_provider_zkmq.engine.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Message:
    """What to enqueue.

    ``data``: bytes, or text stored as UTF-8. ``filters``: values of declared filters. ``priority``: higher comes
    first, -9999 to 9999. ``delay``: how long it is not to be handled yet, or ``not_before``: until when, a moment with
    a zone, by ZooKeeper's clock. ``task_id``: the caller's own id, else one is generated. ``metadata``: a JSON object
    of the caller's. ``policy``: overrides the queue's. ``lock``: how long a claim of it holds without being extended;
    overrides the queue's.

    With a task id that is in use: ``update`` replaces a task that is still queued. It keeps its place, and its time
    unless ``delay`` or ``not_before`` is given: a delay of 0 brings it forward, None leaves it. A change of filters or
    priority gives it a place in its new lane; in a queue of strict order at the end. ``requeue`` has this message run
    once more when the run under way, or the dedupe window of one that is done, has ended.
    """

    data: bytes | str
    filters: Mapping[str, object] | None = None
    priority: int = 0
    delay: Duration | None = None
    task_id: str | None = None
    metadata: Mapping[str, Any] | None = None
    policy: RetryPolicy | None = None
    lock: Duration | None = None
    update: bool = False
    requeue: bool = False
    not_before: Moment | None = None

    def times(self) -> tuple[float | None, int | None]:
        """Its delay in seconds, or its moment in milliseconds since 1970; None for what is not given.

        Raises `ConfigError`, also for both of them.
        """
        delay, moment = optional_seconds("delay", self.delay), optional_milliseconds("not_before", self.not_before)
        if delay is not None and moment is not None:
            msg = f"a message has a delay ({self.delay}) or not_before ({self.not_before}), not both"
            raise ConfigError(msg)
        return delay, moment


def idempotency_series(queue: str, key: object) -> str:
    """What the ids of the tasks that are enqueued with this ``idempotency_key`` begin with. Raises `ConfigError`.

    A dot and the message's position, from 0, in six digits follow. Another queue's ids differ.
    """
    if not isinstance(key, str) or not key:
        msg = f"idempotency_key {key!r} is not allowed: a text that is not empty"
        raise ConfigError(msg)
    return hashlib.blake2b(json.dumps([queue, key]).encode(), digest_size=16).hexdigest()


def keyed(queue: str, key: object, messages: Sequence[Message]) -> list[Message]:
    """The messages, each with the id that the key and its position give it. Raises `ConfigError`."""
    series = idempotency_series(queue, key)
    if any(isinstance(each, Message) and each.task_id is not None for each in messages):
        msg = f"idempotency_key {key!r} names the tasks itself: give it, or messages with a task_id of their own"
        raise ConfigError(msg)
    return [
        replace(each, task_id=f"{series}.{position:06d}") if isinstance(each, Message) else each
        for position, each in enumerate(messages)
    ]


@dataclass(frozen=True, slots=True)
class NewTasks:
    """What an enqueue of what is not there yet found: the ids that it wrote, and those that were there already."""

    written: tuple[str, ...]
    existing: tuple[str, ...]


#: How no metadata are stored, where they are at all: a new task without has no znode for them.
NO_METADATA: Final = b"{}"


def encode_metadata(metadata: Mapping[str, Any] | None) -> bytes:
    """The caller's metadata as stored. Raises `ConfigError` for what JSON cannot hold."""
    if metadata is None:
        return NO_METADATA
    try:
        data = json.dumps(dict(metadata), separators=(",", ":"), allow_nan=False).encode()
        refuse_deep(data, dict(metadata))
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"metadata must be a JSON object: {error}"
        raise ConfigError(msg) from error
    return data


def encode_data(what: str, data: object) -> bytes:
    """Payload bytes of bytes-like data or text. Raises `ConfigError`."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError as error:
            msg = f"{what} is no valid text: {error}"
            raise ConfigError(msg) from error
    msg = f"{what} must be bytes or text, not {type(data).__name__}"
    raise ConfigError(msg)
