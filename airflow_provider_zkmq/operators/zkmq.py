"""`ZkmqEnqueueOperator`: enqueue tasks from a DAG."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator, conf
from airflow.sdk.exceptions import AirflowException

from airflow_provider_zkmq.engine.core.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.records import Message
from airflow_provider_zkmq.engine.errors import ConfigError, WaitTimeout
from airflow_provider_zkmq.hooks.zkmq import DEFAULT_CONN_ID, ZkmqHook, check_outcomes, items_of
from airflow_provider_zkmq.triggers.zkmq import ZkmqTaskTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

_KEYS = ("data", "filters", "priority", "delay", "task_id", "metadata", "policy")


class ZkmqEnqueueOperator(BaseOperator):
    """Enqueues one task (`data`) or many (`messages`); its XCom is the id, or the list of ids.

    Each try of this operator enqueues again, unless the tasks have ids of their own (`zkmq_task_id`): then a second
    try fails with `DuplicateTask` and enqueues nothing.

    Args:
        data: the payload of one task, bytes or text.
        messages: many tasks: bytes, texts, `Message` objects, or mappings with the keys of `Message` (``data``,
            ``filters``, ``priority``, ``delay``, ``task_id``, ``metadata``, ``policy``). What a mapping leaves out
            is taken from the operator's arguments.
        zkmq_queue: the queue's name; None: the connection's. (``queue`` is the executor's queue, as in every operator.)
        filters: values of the queue's declared filters.
        priority: higher comes first, -9999 to 9999.
        delay: seconds (or a duration) before the task may be handled.
        zkmq_task_id: the queue's id for the one task of `data`; None: one is generated.
        metadata: a JSON object kept with the task.
        policy: when a failed task runs again, as a mapping or `RetryPolicy`; None: the queue's.
        add_origin: note under ``metadata["airflow"]`` which task instance enqueued.
        wait_for_completion: succeed only when all the tasks are finished; fail when one is dead or cancelled.
        deferrable: wait in the triggerer rather than on a worker.
        timeout: seconds (or a duration) to wait at the most; None: ``execution_timeout``, else without bound.
        zkmq_conn_id: the Airflow connection.

    """

    template_fields: Sequence[str] = (
        "data",
        "messages",
        "zkmq_queue",
        "filters",
        "priority",
        "delay",
        "zkmq_task_id",
        "metadata",
        "policy",
        "zkmq_conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"filters": "json", "metadata": "json"}
    ui_color = "#e8f0e4"

    def __init__(
        self,
        *,
        data: Any = None,
        messages: Any = None,
        zkmq_queue: str | None = None,
        filters: Mapping[str, object] | None = None,
        priority: int | str = 0,
        delay: Any = None,
        zkmq_task_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        policy: Any = None,
        add_origin: bool = True,
        wait_for_completion: bool = False,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        timeout: float | timedelta | None = None,
        zkmq_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (data is None) == (messages is None):
            raise ValueError("ZkmqEnqueueOperator: give either data (one task) or messages (many)")
        if messages is not None and zkmq_task_id is not None:
            raise ValueError("ZkmqEnqueueOperator: with messages, give each its own task_id rather than zkmq_task_id")
        self.data = data
        self.messages = messages
        self.zkmq_queue = zkmq_queue
        self.filters = filters
        self.priority = priority
        self.delay = delay
        self.zkmq_task_id = zkmq_task_id
        self.metadata = metadata
        self.policy = policy
        self.add_origin = add_origin
        self.wait_for_completion = wait_for_completion
        self.deferrable = deferrable
        self.timeout = timeout
        self.zkmq_conn_id = zkmq_conn_id

    def execute(self, context: Context) -> str | list[str]:
        """Enqueue; wait if asked to; return the id (`data`) or the ids (`messages`).

        Raises:
            AirflowException: a task is dead or cancelled, or was not finished in time.
            ZkmqError: nothing could be enqueued; the message says why.

        """
        messages = self._messages(context)
        with ZkmqHook(self.zkmq_conn_id, self.zkmq_queue) as hook:
            queue = hook.queue()
            ids = queue.enqueue_many(messages) if messages else []
            self.log.info("Enqueued %d task(s) into queue %r", len(ids), queue.name)
            if self.wait_for_completion and ids:
                left = self._span()
                if self.deferrable:
                    self._defer(ids, left)
                try:
                    tasks = queue.wait(ids, timeout=left)
                except WaitTimeout as error:
                    raise AirflowException(str(error)) from error
                check_outcomes(queue.name, tasks)
        return self._told(ids)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> str | list[str]:  # noqa: ARG002
        """Go on after the trigger: look at the tasks, return what `execute` does. Raises `AirflowException`."""
        if event["status"] != "done":
            raise AirflowException(event["message"])
        ids: list[str] = event["ids"]
        with ZkmqHook(self.zkmq_conn_id, self.zkmq_queue) as hook:
            queue = hook.queue()
            check_outcomes(queue.name, queue.wait(ids, timeout=0))
        return self._told(ids)

    def _defer(self, ids: list[str], left: float | None) -> None:
        self.defer(
            trigger=ZkmqTaskTrigger(
                task_ids=ids,
                queue=self.zkmq_queue or None,
                zkmq_conn_id=self.zkmq_conn_id,
                deadline=None if left is None else time.time() + left,
            ),
            method_name="execute_complete",
            timeout=None if left is None else timedelta(seconds=left),
        )

    def _told(self, ids: list[str]) -> str | list[str]:
        return ids if self.messages is not None else ids[0]

    def _span(self) -> float | None:
        """Return how long to wait, in seconds."""
        span = self.timeout if self.timeout is not None else self.execution_timeout
        return span.total_seconds() if isinstance(span, timedelta) else span

    def _messages(self, context: Context) -> list[Message]:
        origin = _origin(context) if self.add_origin else None
        if self.messages is None:
            return [self._message({"data": self.data, "task_id": self.zkmq_task_id or None}, origin)]
        return [
            self._message(_spelled(at, item), origin) for at, item in enumerate(items_of("messages", self.messages))
        ]

    def _message(self, given: Mapping[str, Any], origin: dict[str, Any] | None) -> Message:
        """Make a message of what is given for it and, for the rest, of the operator's arguments."""
        metadata = dict(given.get("metadata", self.metadata) or {})
        if origin is not None:
            metadata.setdefault("airflow", origin)
        policy = given.get("policy", self.policy)
        return Message(
            data=given["data"],
            filters=given.get("filters", self.filters),
            priority=_number("priority", given.get("priority", self.priority), int),
            delay=_number("delay", given.get("delay", self.delay), float),
            task_id=given.get("task_id"),
            metadata=metadata or None,
            policy=RetryPolicy(**policy) if isinstance(policy, Mapping) else policy,
        )


def _spelled(at: int, item: object) -> Mapping[str, Any]:
    """Return one item of `messages` as a mapping. Raises `ConfigError` naming its place in the list."""
    if isinstance(item, Message):
        return {name: value for name in _KEYS if (value := getattr(item, name)) is not None}
    if isinstance(item, Mapping):
        if unknown := sorted(set(map(str, item)) - set(_KEYS)):
            raise ConfigError(f"messages[{at}]: unknown {', '.join(unknown)}; known: {', '.join(_KEYS)}")
        if "data" not in item:
            raise ConfigError(f"messages[{at}] has no 'data'")
        return item
    return {"data": item}


def _number(name: str, value: Any, kind: type[int | float]) -> Any:
    """Return the number a template rendered to text; anything but text as it is. Raises `ConfigError`."""
    if not isinstance(value, str):
        return value
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{name} {value!r} is no number") from None


def _origin(context: Context) -> dict[str, Any]:
    """Return which task instance enqueues."""
    instance: Any = context["ti"]
    return {name: getattr(instance, name, None) for name in ("dag_id", "run_id", "task_id", "map_index", "try_number")}
