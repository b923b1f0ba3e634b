"""Enqueues as callers ask for them: one task told by its parts, or many messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.durations import Duration
from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.model.moments import Moment
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.core.tasks import enqueue


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
) -> Procedure[str]:
    """Write one task, all or nothing; returns its id when it is durable. The arguments are `Message`'s.

    Raises `ConfigError`, `TaskTooLarge`, `DuplicateTask`; then nothing was written.
    """
    message = Message(data, filters, priority, delay, task_id, metadata, policy, lock, update, requeue, not_before)
    return enqueue.enqueue(context, message)


def enqueue_several(
    context: Context, messages: Sequence[Message], *, batch: str | None = None, then: Message | None = None
) -> Procedure[list[str]]:
    """Write many tasks, each all or nothing; returns their ids in order. See `enqueue.enqueue_many`.

    `batch`: a name by which they can be waited for together (`wait_batch`); `then`: a task to enqueue at the
    moment when the last of the batch has ended. See `enqueue.enqueue_batch`.
    """
    return enqueue.enqueue_all(context, messages, batch, then)
