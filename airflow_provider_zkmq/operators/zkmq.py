"""`ZkmqEnqueueOperator`: enqueue tasks from a DAG. The operators of the bridge are found here, too."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator, conf
from airflow.sdk.exceptions import AirflowException

from airflow_provider_zkmq.engine import DuplicateTask, Duration, Message, WaitTimeout
from airflow_provider_zkmq.hooks.connections import DEFAULT_CONN_ID
from airflow_provider_zkmq.hooks.outcomes import check_batch, check_outcomes
from airflow_provider_zkmq.hooks.templating import span
from airflow_provider_zkmq.hooks.zkmq import ZkmqHook
from airflow_provider_zkmq.operators.bridge import ZkmqExportOperator, ZkmqImportOperator
from airflow_provider_zkmq.operators.messages import all_spelled, completed, message, origin_of, spelled
from airflow_provider_zkmq.triggers.zkmq import ZkmqTaskTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_zkmq.engine import AnyQueue

__all__ = ["ZkmqEnqueueOperator", "ZkmqExportOperator", "ZkmqImportOperator"]


class ZkmqEnqueueOperator(BaseOperator):
    """Enqueues one task (`data`) or many (`messages`); its XCom is the id, the list of ids, or the batch's name.

    Each try of this operator enqueues again, unless the tasks have ids of their own (`zkmq_task_id`), or form a
    `batch`: then a second try fails with `DuplicateTask` and enqueues nothing. A batch that the try before left half
    written is carried on with instead. A try after one that was cut off while it waited fails, too: leave long waits
    for a batch to `deferrable`, or to a `ZkmqTaskSensor`.

    A batch's name is good for one call of the operator for as long as the queue keeps the batch. A name such as
    ``"{{ dag.dag_id }}.{{ run_id }}"`` needs ``{{ task.task_id }}`` where a DAG writes several batches and
    ``{{ ti.map_index }}`` where the operator is mapped: of two that write one batch, the second is refused.
    With ``{{ ti.try_number }}`` each try, and each clearing of the task, does the work anew. Names have 1 to 121
    characters of ``A-Z a-z 0-9 . _ : + @ = -``, as the run ids that Airflow makes; another is a `ConfigError`.

    Args:
        data: the payload of one task, bytes or text.
        messages: many tasks: bytes, texts, `Message` objects, or mappings with the keys of `Message` (``data``,
            ``filters``, ``priority``, ``delay``, ``not_before``, ``task_id``, ``metadata``, ``policy``, ``lock``,
            ``update``, ``requeue``). What a mapping leaves out is taken from the operator's arguments.
        batch: a name for the messages (one at least) together, by which `ZkmqTaskSensor` waits for them.
        then: one more message, as in `messages`, enqueued when the last of the batch has ended, whichever way.
        zkmq_queue: the queue's name; None: the connection's. (``queue`` is the executor's queue, as in every operator.)
        filters: values of the queue's declared filters.
        priority: higher comes first, -9999 to 9999.
        delay: how long the task is not to be handled yet: seconds, a duration, or text such as ``"5m"``, ``"PT1H30M"``.
        not_before: instead of a delay: until when; a moment with a zone, or its text, such as
            ``"{{ data_interval_end }}"``. It is compared with ZooKeeper's clock.
        zkmq_task_id: the queue's id for the one task of `data`; None: one is generated.
        metadata: a JSON object kept with the task.
        policy: when a failed task runs again, as a mapping or `RetryPolicy`; None: the queue's.
        add_origin: note under ``metadata["airflow"]`` which task instance enqueued.
        wait_for_completion: succeed only when all the tasks are finished; fail when one is dead or cancelled.
        deferrable: wait in the triggerer rather than on a worker.
        timeout: how long to wait at the most, as `delay`; None: ``execution_timeout``, else without bound.
        zkmq_conn_id: the Airflow connection.

    """

    template_fields: Sequence[str] = (
        "data",
        "messages",
        "batch",
        "then",
        "zkmq_queue",
        "filters",
        "priority",
        "delay",
        "not_before",
        "zkmq_task_id",
        "metadata",
        "policy",
        "zkmq_conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"filters": "json", "metadata": "json", "then": "json"}
    ui_color = "#e8f0e4"

    def __init__(
        self,
        *,
        data: object = None,
        messages: object = None,
        batch: str | None = None,
        then: object = None,
        zkmq_queue: str | None = None,
        filters: Mapping[str, object] | None = None,
        priority: int | str = 0,
        delay: Duration | str | None = None,
        not_before: datetime | str | None = None,
        zkmq_task_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        policy: object = None,
        add_origin: bool = True,
        wait_for_completion: bool = False,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        timeout: Duration | str | None = None,
        zkmq_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (data is None) == (messages is None):
            raise ValueError("ZkmqEnqueueOperator: give either data (one task) or messages (many)")
        if messages is not None and zkmq_task_id is not None:
            raise ValueError("ZkmqEnqueueOperator: with messages, give each its own task_id rather than zkmq_task_id")
        if then is not None and batch is None:
            raise ValueError("ZkmqEnqueueOperator: then follows the end of a batch; give batch, too")
        if delay is not None and not_before is not None:
            raise ValueError("ZkmqEnqueueOperator: give either delay (how long) or not_before (until when)")
        self.data = data
        self.messages = messages
        self.batch = batch
        self.then = then
        self.zkmq_queue = zkmq_queue
        self.filters = filters
        self.priority = priority
        self.delay = delay
        self.not_before = not_before
        self.zkmq_task_id = zkmq_task_id
        self.metadata = metadata
        self.policy = policy
        self.add_origin = add_origin
        self.wait_for_completion = wait_for_completion
        self.deferrable = deferrable
        self.timeout = span("timeout", timeout)
        self.zkmq_conn_id = zkmq_conn_id

    def execute(self, context: Context) -> str | list[str]:
        """Enqueue; wait if asked to; return the `batch`, else the id (`data`) or the ids (`messages`).

        Raises:
            AirflowException: a task is dead or cancelled, or was not finished in time.
            ZkmqError: nothing could be enqueued; the message says why.

        """
        origin = origin_of(context) if self.add_origin else None
        messages, then = self._messages(origin), self._follow_up(origin)
        with ZkmqHook(self.zkmq_conn_id, self.zkmq_queue) as hook:
            queue = hook.queue()
            ids = self._enqueue(queue, messages, then)
            self.log.info("Enqueued %d task(s) into queue %r", len(ids), queue.name)
            if self.wait_for_completion and ids:
                self._await(queue, ids)
        return self._told(ids)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> str | list[str]:  # noqa: ARG002
        """Go on after the trigger: look at the tasks, return what `execute` does. Raises `AirflowException`."""
        if event["status"] != "done":
            raise AirflowException(event["message"])
        ids: list[str] = event.get("ids", [])
        try:
            with ZkmqHook(self.zkmq_conn_id, self.zkmq_queue) as hook:
                _await_end(hook.queue(), event.get("batch"), ids, 0)
        except WaitTimeout:  # a task that had failed was redriven since the trigger looked: it goes on
            self._defer(ids, self._span())
        return self._told(ids)

    def _enqueue(self, queue: AnyQueue, messages: list[Message], then: Message | None) -> list[str]:
        if not messages and self.batch is None:
            return []
        try:
            return queue.enqueue_many(messages, batch=self.batch, then=then)
        except DuplicateTask as error:
            if self.batch is None or error.duplicates:
                raise
            raise DuplicateTask(_written_before(queue, self.batch)) from error

    def _await(self, queue: AnyQueue, ids: list[str]) -> None:
        """Wait here or deferred. Raises `AirflowException` where it was not in time or tasks failed."""
        left = self._span()
        if self.deferrable:
            self._defer(ids, left)
        try:
            _await_end(queue, self.batch, ids, left)
        except WaitTimeout as error:
            raise AirflowException(str(error)) from error

    def _defer(self, ids: list[str], left: float | None) -> None:
        self.defer(
            trigger=ZkmqTaskTrigger(
                task_ids=ids if self.batch is None else None,
                batch=self.batch,
                queue=self.zkmq_queue or None,
                zkmq_conn_id=self.zkmq_conn_id,
                deadline=None if left is None else time.time() + left,
            ),
            method_name="execute_complete",
            timeout=None if left is None else timedelta(seconds=left),
        )

    def _told(self, ids: list[str]) -> str | list[str]:
        if self.batch is not None:
            return self.batch
        return ids if self.messages is not None else ids[0]

    def _span(self) -> float | None:
        """Return how long to wait, in seconds."""
        limit = self.execution_timeout
        return limit.total_seconds() if self.timeout is None and limit is not None else self.timeout

    def _messages(self, origin: Mapping[str, object] | None) -> list[Message]:
        """Return what is to be enqueued; what a message leaves out is taken from the operator's arguments."""
        if self.messages is None:
            return [message({**self._common(), "data": self.data, "task_id": self.zkmq_task_id or None}, origin)]
        return [message(completed(fields, self._common()), origin) for fields in all_spelled("messages", self.messages)]

    def _follow_up(self, origin: Mapping[str, object] | None) -> Message | None:
        return None if self.then is None else message(completed(spelled("then", self.then), self._common()), origin)

    def _common(self) -> dict[str, Any]:
        names = ("filters", "priority", "delay", "not_before", "metadata", "policy")
        return {name: getattr(self, name) for name in names}


def _await_end(queue: AnyQueue, batch: str | None, ids: list[str], left: float | None) -> None:
    """Wait for the batch, else for the tasks. Raises `WaitTimeout`, and `AirflowException` naming those that failed."""
    if batch is None:
        check_outcomes(queue.name, queue.wait(ids, timeout=left))
    else:
        check_batch(queue.name, queue.wait_batch(batch, left))


def _written_before(queue: AnyQueue, name: str) -> str:
    batch = queue.batch(name)
    failed = f", {len(batch.failed)} failed (first: {batch.failed[0]})" if batch.failed else ""
    return (
        f"batch {name!r} of queue {queue.name!r} was enqueued before, completely ({batch.total} task(s), {batch.open} "
        f"open{failed}); nothing was enqueued. ZkmqTaskSensor(batch=…) waits for it; for another, put what tells them "
        "apart into the name, such as {{ ti.try_number }}"
    )
