"""What is enqueued: messages, what becomes of an id that exists, and idempotency keys."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias, get_args

from ...errors import ConfigError
from . import values
from .settings import RetryPolicy

#: What an enqueue does where a task has its id; see `Message`.
OnConflict: TypeAlias = Literal["raise", "skip", "replace", "requeue", "replace-or-requeue"]


def check_on_conflict(word: object) -> OnConflict:
    """One of the words of `OnConflict`. Raises `ConfigError`."""
    if word in get_args(OnConflict):
        return word  # type: ignore[return-value]  # it is one of its words
    raise ConfigError(f"on_conflict {word!r} is unknown: use one of {', '.join(get_args(OnConflict))}")


@dataclass(frozen=True, slots=True)
class Message:
    """What to enqueue.

    ``data``: bytes, or text stored as UTF-8. ``filters``: values of declared filters. ``priority``: higher comes
    first, -9999 to 9999. ``delay``: how long it is not to be handled yet, or ``not_before``: until when, a moment with
    a zone, by ZooKeeper's clock. ``task_id``: the caller's own id, else one is generated. ``metadata``: a JSON object
    of the caller's. ``policy``: overrides the queue's. ``lock``: how long a claim of it holds without being extended;
    overrides the queue's.

    ``on_conflict``: what to do where a task has the id. The id of one that finished or was cancelled is free again.

    - ``"raise"``: refuse the message with `DuplicateTask`.
    - ``"skip"``: leave the task as it is, in whatever state, also one that has ended; its id is returned.
    - ``"replace"``: replace a task that is still queued. It keeps its place, and its time unless ``delay`` or
      ``not_before`` is given: a delay of 0 brings it forward, None leaves it. A change of filters or priority gives it
      a place in its new lane; in a queue of strict order at the end. Any other task refuses the message.
    - ``"requeue"``: run this message once more when the run under way, or the dedupe window of one that is done, has
      ended. A task that is still queued, or has such a run waiting already, refuses it.
    - ``"replace-or-requeue"``: whichever of the two fits; it also replaces a run that waits for the end of another.
    """

    data: bytes | str
    filters: Mapping[str, object] | None = None
    priority: int = 0
    delay: values.Duration | None = None
    task_id: str | None = None
    metadata: Mapping[str, Any] | None = None
    policy: RetryPolicy | None = None
    lock: values.Duration | None = None
    on_conflict: OnConflict = "raise"
    not_before: values.Moment | None = None

    @property
    def replaces(self) -> bool:
        """Whether it may replace a queued task that has its id."""
        return self.on_conflict in {"replace", "replace-or-requeue"}

    @property
    def requeues(self) -> bool:
        """Whether it may wait for the end of the task that has its id."""
        return self.on_conflict in {"requeue", "replace-or-requeue"}

    def times(self) -> tuple[float | None, int | None]:
        """Its delay in seconds, or its moment in milliseconds since 1970. Raises `ConfigError`, also for both."""
        delay, moment = (
            values.optional_seconds("delay", self.delay),
            values.optional_milliseconds("not_before", self.not_before),
        )
        if delay is not None and moment is not None:
            raise ConfigError(f"a message has a delay ({self.delay}) or not_before ({self.not_before}), not both")
        return delay, moment


def idempotency_series(queue: str, key: object) -> str:
    """What the ids of the tasks that are enqueued with this ``idempotency_key`` begin with. Raises `ConfigError`.

    A dot and the message's position, from 0, in six digits follow. Another queue's ids differ.
    """
    if not isinstance(key, str) or not key:
        raise ConfigError(f"idempotency_key {key!r} is not allowed: a text that is not empty")
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


def skips_existing(messages: Sequence[Message]) -> bool:
    """Whether these messages leave existing tasks alone. Raises `ConfigError` where only some of them do."""
    skips = {each.on_conflict == "skip" for each in messages if isinstance(each, Message)}
    if len(skips) > 1:
        raise ConfigError("on_conflict='skip' is for all messages of a call, or for none: make two calls")
    return True in skips


def with_on_conflict(messages: Sequence[Message], on_conflict: OnConflict | None) -> Sequence[Message]:
    """The messages, each with this `on_conflict` unless that is None."""
    if on_conflict is None:
        return messages
    word = check_on_conflict(on_conflict)
    return [replace(each, on_conflict=word) if isinstance(each, Message) else each for each in messages]


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
        data = json.dumps(dict(metadata), separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode()
        values.refuse_deep(data, dict(metadata))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"metadata must be a JSON object: {error}") from error
    return data


#: The names under which metadata carry the trace of the enqueue, as W3C spells it.
TRACE_CONTEXT: Final = ("traceparent", "tracestate")


def without_trace(metadata: bytes) -> bytes:
    """Stored metadata without what they carry of a trace: each call of the same enqueue has another."""
    if TRACE_CONTEXT[0].encode() not in metadata:
        return metadata
    kept = {name: value for name, value in json.loads(metadata).items() if name not in TRACE_CONTEXT}
    return encode_metadata(kept)


def encode_data(what: str, data: object) -> bytes:
    """Payload bytes of bytes-like data or text. Raises `ConfigError`."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"{what} is no valid text: {error}") from error
    raise ConfigError(f"{what} must be bytes or text, not {type(data).__name__}")
