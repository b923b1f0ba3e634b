"""`ZkmqEnqueueOperator`: enqueue tasks from a DAG. The other operators and the task group are found here, too."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import conf
from airflow.sdk.exceptions import AirflowException

from airflow_provider_zkmq.engine import Duration, Message, WaitTimeout
from airflow_provider_zkmq.hooks.connections import DEFAULT_CONN_ID
from airflow_provider_zkmq.hooks.deferring import AWAY, naming
from airflow_provider_zkmq.hooks.naming import typed
from airflow_provider_zkmq.hooks.origins import origin_of
from airflow_provider_zkmq.hooks.telemetry import count_enqueued
from airflow_provider_zkmq.hooks.templating import span
from airflow_provider_zkmq.hooks.zkmq import ZkmqHook
from airflow_provider_zkmq.operators.bridge import ZkmqExportOperator, ZkmqImportOperator
from airflow_provider_zkmq.operators.claiming import ZkmqClaimOperator
from airflow_provider_zkmq.operators.ending import WaitingOperator
from airflow_provider_zkmq.operators.groups import ZkmqTaskGroup
from airflow_provider_zkmq.operators.keeping import ZkmqKeepOperator
from airflow_provider_zkmq.operators.lineage import WritesQueue
from airflow_provider_zkmq.operators.messages import all_spelled, completed, message, spelled
from airflow_provider_zkmq.operators.once import Once, check_once, named, series_key
from airflow_provider_zkmq.operators.patience import NO_OUTAGE, PATIENCE, Outlasting
from airflow_provider_zkmq.operators.settling import ZkmqSettleOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = [
    "ZkmqClaimOperator",
    "ZkmqEnqueueOperator",
    "ZkmqExportOperator",
    "ZkmqImportOperator",
    "ZkmqKeepOperator",
    "ZkmqSettleOperator",
    "ZkmqTaskGroup",
]


class ZkmqEnqueueOperator(WritesQueue, WaitingOperator):
    """Enqueues one task (`data`) or many (`messages`); its XCom is the id, the list of ids, or the batch's name.

    A retry, a clear, or a try after a worker was killed enqueues nothing twice: it adopts what an earlier try of the
    same DAG run wrote, writes what is missing, and goes on waiting, for as long as the queue keeps what has ended
    (``task_gc_lifetime``). Tasks without an id of their own are known by theirs, made of the DAG, the run, the task,
    the map index and the position in `messages`: an earlier try's task stays as it is, also where its data differ.
    A task with an id of the caller's, and a batch, are adopted where they note this operator in this run as their
    origin (`add_origin`); one of another's is a `DuplicateTask`, as is a message with ``requeue`` that is refused.
    A dead task is adopted, too, and fails the operator that waits: redrive it before the retry, or give
    ``idempotency="try"``, with which each try, and each clearing, does the work anew.

    While ZooKeeper is away the write is tried again, for nine minutes or ``execution_timeout``, whichever is shorter,
    and nothing is written twice; a wait goes on until its `timeout`. Refused certificates and passwords fail at once.

    A batch's name such as ``"{{ dag.dag_id }}.{{ run_id }}"`` needs ``{{ task.task_id }}`` where a DAG writes several
    batches and ``{{ ti.map_index }}`` where the operator is mapped: of two that write one batch, the second is refused.
    Names have 1 to 121 characters of ``A-Z a-z 0-9 . _ : + @ = -``, as the run ids that Airflow makes; another is a
    `ConfigError`.

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
        idempotency: what is enqueued once: ``"run"``: by all tries of the operator in a DAG run; ``"try"``: by each of
            them; ``"none"``: each call enqueues again.
        on_duplicate: what to do with what an earlier try wrote: ``"adopt"`` it, or ``"fail"`` with `DuplicateTask`.
        wait_for_completion: succeed only when all the tasks are finished; fail when one is dead or cancelled.
        cancel_on_kill: where a user marks the waiting operator as failed, skipped or successful, cancel those of its
            tasks that have not ended. Clearing it does not, nor does another end of a worker or triggerer.
        deferrable: wait in the triggerer rather than on a worker, unless the tasks have ended already.
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
        idempotency: str = "run",
        on_duplicate: str = "adopt",
        wait_for_completion: bool = False,
        cancel_on_kill: bool = False,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        timeout: Duration | str | None = None,
        zkmq_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (data is None) == (messages is None):
            raise ValueError("ZkmqEnqueueOperator: give either data (one task) or messages (many)")
        if isinstance(data, Mapping | list | tuple | set | int | float):
            told = f"ZkmqEnqueueOperator: data is a {type(data).__name__}: give bytes or text, such as json.dumps(…)"
            raise ValueError(told)  # noqa: TRY004  as for whatever else is refused here
        if messages is not None and zkmq_task_id is not None:
            raise ValueError("ZkmqEnqueueOperator: with messages, give each its own task_id rather than zkmq_task_id")
        if then is not None and batch is None:
            raise ValueError("ZkmqEnqueueOperator: then follows the end of a batch; give batch, too")
        if delay is not None and not_before is not None:
            raise ValueError("ZkmqEnqueueOperator: give either delay (how long) or not_before (until when)")
        check_once(idempotency, on_duplicate)
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
        self.idempotency = idempotency
        self.on_duplicate = on_duplicate
        self.wait_for_completion = wait_for_completion
        self.cancel_on_kill = cancel_on_kill
        self.deferrable = deferrable
        self.timeout = span("timeout", timeout)
        self.zkmq_conn_id = zkmq_conn_id

    def execute(self, context: Context) -> str | list[str]:
        """Enqueue; wait if asked to; return the `batch`, else the id (`data`) or the ids (`messages`).

        Raises:
            AirflowException: a task is dead or cancelled, or was not finished in time.
            ConfigError: an argument is refused; the message says which, and shows no payload. Nothing was written, but
                of `messages` with and without ids of their own, the latter may have been; a retry adopts them.
            TransportError: ZooKeeper was away for too long; a retry adopts what was written all the same.
            ZkmqError: nothing could be enqueued; the message says why.

        """
        origin = origin_of(context)
        messages, then = self._messages(origin), self._follow_up(origin)
        with ZkmqHook(self.zkmq_conn_id, self.zkmq_queue) as hook:
            patience = Outlasting(self.log, "Enqueueing", self.execution_timeout)
            queue = patience.call(hook.queue)
            key = series_key(self.idempotency, origin, queue.name)
            ids = [message.task_id or "" for message in named(messages, key)]
            self._enqueue(Once(queue, origin, self.idempotency, self.on_duplicate, key, patience), messages, then)
            if self.wait_for_completion and ids:
                self._await(context, queue, ids, key, self._span())
        return self._told(ids)

    def execute_complete(
        self, context: Context, event: dict[str, Any], key: str | None = None, deadline: float | None = None
    ) -> str | list[str]:
        """Go on after the trigger: look at the tasks, return what `execute` does. Raises `AirflowException`.

        Where ZooKeeper is away it defers again. An event that names no ids is about those of the messages, and of the
        series that has this `key`.
        """
        if event["status"] != "done":
            raise AirflowException(naming(event["message"], self._span()))
        ids: list[str] = event.get("ids", [])
        if not ids and key is not None:
            ids = [message.task_id or "" for message in named(self._messages(origin_of(context)), key)]
        try:
            with ZkmqHook(self.zkmq_conn_id, self.zkmq_queue) as hook:
                self._end(hook.queue(), ids, 0)
        except WaitTimeout as error:  # there are more, or one was redriven since
            if deadline is not None and time.time() >= deadline:
                raise AirflowException(naming(str(error), self._span())) from None
            self._defer(context, ids, key, deadline, error.left)
        except NO_OUTAGE as error:
            raise AirflowException(str(error)) from None
        except AWAY:  # they have ended in time: an outage beyond the deadline fails nothing
            self._defer(context, ids, key, None if deadline is None else max(deadline, time.time() + PATIENCE))
        return self._told(ids)

    def _enqueue(self, once: Once, messages: list[Message], then: Message | None) -> None:
        adopted = once.enqueue(messages) if self.batch is None else once.enqueue_batch(messages, self.batch, then)
        name = once.queue.name
        first = named(messages, self.batch or once.key)[:1]
        hint = f"; see: {typed(self.zkmq_conn_id, 'show', name, first[0].task_id or '')}" if first else ""
        count_enqueued(name, len(messages) - adopted)
        self.log.info("Enqueued %d task(s) into queue %r%s", len(messages) - adopted, name, hint)
        if adopted:
            self.log.info("Adopted %d task(s) of queue %r that an earlier try had enqueued%s", adopted, name, hint)

    def _told(self, ids: list[str]) -> str | list[str]:
        if self.batch is not None:
            return self.batch
        return ids if self.messages is not None else ids[0]

    def _span(self) -> float | None:
        """Return how long to wait, in seconds."""
        limit = self.execution_timeout
        return limit.total_seconds() if self.timeout is None and limit is not None else self.timeout

    def _messages(self, origin: Mapping[str, object]) -> list[Message]:
        """Return what is to be enqueued; what a message leaves out is taken from the operator's arguments."""
        noted = origin if self.add_origin else None
        if self.messages is None:
            return [message({**self._common(), "data": self.data, "task_id": self.zkmq_task_id or None}, noted)]
        return [message(completed(fields, self._common()), noted) for fields in all_spelled("messages", self.messages)]

    def _follow_up(self, origin: Mapping[str, object]) -> Message | None:
        noted = origin if self.add_origin else None
        return None if self.then is None else message(completed(spelled("then", self.then), self._common()), noted)

    def _common(self) -> dict[str, Any]:
        names = ("filters", "priority", "delay", "not_before", "metadata", "policy")
        return {name: getattr(self, name) for name in names}
