"""Enqueues as callers ask for them: one task told by its parts, or many messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.durations import Duration
from airflow_provider_zkmq.engine.core.model.messages import Message, keyed
from airflow_provider_zkmq.engine.core.model.moments import Moment
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.core.tasks import enqueue
from airflow_provider_zkmq.engine.core.tasks.enqueue_new import enqueue_new
from airflow_provider_zkmq.engine.errors import BadMessage, ConfigError


def enqueue_one(
    context: Context,
    data: bytes | str,
    filters: Mapping[str, object] | None = None,
    *,
    priority: int = 0,
    delay: Duration | None = None,
    task_id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    policy: RetryPolicy | None = None,
    lock: Duration | None = None,
    update: bool = False,
    requeue: bool = False,
    not_before: Moment | None = None,
    idempotency_key: str | None = None,
) -> Procedure[str]:
    """Write one task, all or nothing; returns its id when it is durable. The arguments are `Message`'s.

    `idempotency_key`: as in `enqueue_several`. Raises `ConfigError`, `TaskTooLarge`, `DuplicateTask`; then nothing was
    written. `OutcomeUnknown`: it was or was not; the same call with its ``task_ids[0]`` as `task_id` is the same task.
    """
    message = Message(data, filters, priority, delay, task_id, metadata, policy, lock, update, requeue, not_before)
    ids = yield from enqueue_several(context, [message], idempotency_key=idempotency_key)
    return ids[0]


def enqueue_several(
    context: Context,
    messages: Sequence[Message],
    *,
    batch: str | None = None,
    then: Message | None = None,
    idempotency_key: str | None = None,
) -> Procedure[list[str]]:
    """Write many tasks, each all or nothing; returns their ids in order. See `enqueue.enqueue_many`.

    `batch`: a name by which they can be waited for together (`wait_batch`); `then`: a task to enqueue at the
    moment when the last of the batch has ended. See `enqueue.enqueue_batch`.

    `idempotency_key`: the ids come from the queue's name, this text and each message's position. The same call by
    whomever then returns the same ids and writes each task once, for as long as it is kept: what is there, in whatever
    state and with whatever payload, stays as it is. Messages with ids of their own, ``update``, ``requeue`` and `batch`
    are refused with it.
    """
    if idempotency_key is None:
        return (yield from enqueue.enqueue_all(context, messages, batch, then))
    if batch is not None or then is not None:
        msg = "idempotency_key and batch: give one of them; a batch is known by its name when it is enqueued again"
        raise ConfigError(msg)
    named = keyed(context.queue, idempotency_key, messages)
    try:
        yield from enqueue_new(context, named)
    except BadMessage as error:
        raise error.__cause__ or error from None
    return [message.task_id or "" for message in named]
