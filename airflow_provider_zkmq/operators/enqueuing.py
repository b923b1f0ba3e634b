"""The enqueue operator: it writes tasks, once for each run, and may wait for them."""

from __future__ import annotations

import json
import math
import secrets
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.sdk import BaseOperator, Context, conf
from airflow.sdk.exceptions import AirflowException

from .. import engine, traces
from ..engine import Message
from ..engine.queue_internals import internals
from ..hooks import (
    compact_task_ids,
    connection_options,
    deferring,
    lineage,
    metrics,
    outages,
    task_instance,
    xcom_results,
)
from ..hooks.arguments import check_choice, items_of, kind_of, moment, span
from ..hooks.deferring import deferral, may_end_in_triggerer, pushed_for
from ..hooks.outcome_logs import log_ended, log_open
from ..hooks.xcom_results import XComResults, size
from ..hooks.zkmq import ZkmqHook
from ..triggers.zkmq import ZkmqTaskTrigger

if TYPE_CHECKING:
    from ..engine import AnyQueue, Batch, Task


_KEYS: Final = tuple(each.name for each in fields(Message))
_TIMES: Final = ("delay", "not_before")
_SPANS: Final = ("factor", "min_backoff", "max_backoff")


def spelled(where: str, item: object) -> Mapping[str, Any]:
    """Return a message as a mapping. Raises `ConfigError` naming where it stands."""
    if isinstance(item, Message):
        return {name: value for name in _KEYS if (value := getattr(item, name)) is not None}
    if isinstance(item, Mapping):
        if unknown := sorted(set(map(str, item)) - set(_KEYS)):
            raise engine.ConfigError(f"{where}: unknown {', '.join(unknown)}; known: {', '.join(_KEYS)}")
        if "data" not in item:
            raise engine.ConfigError(f"{where} has no 'data'")
        if item["data"] is None:
            raise engine.ConfigError(f"{where}: data is None: give bytes or text")
        return item
    if item is None:
        raise engine.ConfigError(f"{where} is None: give bytes, text, a Message or a mapping")
    return {"data": item}


def completed(fields: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with what it leaves out taken from `common`; one that says when it is due, says so alone."""
    own = any(fields.get(name) is not None for name in _TIMES)
    return {name: value for name, value in common.items() if not (own and name in _TIMES)} | dict(fields)


def message(fields: Mapping[str, Any], origin: Mapping[str, object] | None) -> Message:
    """Make a message, with numbers, times and truth values that templates may have rendered to text.

    `origin` is noted under ``metadata["airflow"]``, unless the message has something there. Raises `ConfigError`.
    """
    metadata = dict(_mapping("metadata", fields.get("metadata")))
    if origin is not None:
        metadata.setdefault(task_instance.NOTE, origin)
    priority: Any = fields.get("priority", 0)
    if isinstance(priority, str):
        try:
            priority = int(priority)
        except ValueError:
            raise engine.ConfigError(f"priority {priority!r} is no whole number") from None
    policy = fields.get("policy")
    if policy is not None and not isinstance(policy, engine.RetryPolicy):
        if not isinstance(policy, Mapping):
            raise engine.ConfigError(f"policy {policy!r} is not understood: give a mapping or a RetryPolicy")
        try:
            parts: Any = {name: span(name, part) if name in _SPANS else part for name, part in policy.items()}
            policy = engine.RetryPolicy(**parts)
        except TypeError as error:
            raise engine.ConfigError(f"policy {policy!r} is not understood: {error}") from None
    return Message(
        data=fields["data"],
        filters=_mapping("filters", fields.get("filters")) or None,
        priority=priority,
        delay=span("delay", fields.get("delay")),
        task_id=fields.get("task_id"),
        metadata=metadata or None,
        policy=policy,
        lock=span("lock", fields.get("lock")),
        on_conflict=fields.get("on_conflict", "raise"),
        not_before=moment("not_before", fields.get("not_before")),
    )


def _mapping(name: str, value: object) -> Mapping[str, Any]:
    """Return a mapping, an empty one for nothing. Raises `ConfigError`, which does not show what may be data."""
    if not value:
        return {}
    if not isinstance(value, Mapping):
        raise engine.ConfigError(f"{name} must be a mapping, not {kind_of(value)}")
    return value


_IDENTITIES: Final[dict[str, tuple[str, ...]]] = {"run": task_instance.INSTANCE, "try": task_instance.TRY, "none": ()}


def series_key(idempotency: str, origin: Mapping[str, object], queue: str) -> str:
    """Return what the ids of an operator's tasks begin with: the same for each try that is to enqueue nothing more."""
    parts = [origin[name] for name in _IDENTITIES[idempotency]] or [secrets.token_hex(16)]
    return engine.idempotency_series(queue, json.dumps(parts, default=str))


def _changes(message: Message) -> bool:
    """Whether a message may change a task that has its id."""
    return message.replaces or message.requeues


def named(messages: Sequence[Message], key: str) -> list[Message]:
    """Return the messages, each with an id: its own, or that of its position in the series."""
    return [
        message if message.task_id is not None else replace(message, task_id=compact_task_ids.series_id(key, position))
        for position, message in enumerate(messages)
    ]


@dataclass(frozen=True, slots=True)
class IdempotentEnqueue:
    """One try's enqueue. `origin`: the task instance; `key`: that of the series its tasks without ids belong to.

    `outlasting`: each call of the queue's is tried again by itself, the very same: so one of unknown outcome takes over
    what it had written, where all of it done anew would take that for an earlier try's.
    """

    queue: AnyQueue
    origin: Mapping[str, object]
    idempotency: str
    on_duplicate: str
    key: str
    outlasting: outages.Outlasting

    def enqueue(self, messages: Sequence[Message]) -> int:
        """Write what is missing; return how many tasks were adopted. Raises what `Queue.enqueue_many` does."""
        own: list[Message] = []
        series: list[Message] = []
        for passed, message in zip(messages, named(messages, self.key), strict=True):
            (own if passed.task_id is not None or _changes(passed) else series).append(message)
        adopted = 0
        if series:  # whatever state such a task is in, it is left as it is: only an earlier try can have written it
            try:
                tasks = self.outlasting.call(lambda: internals(self.queue).enqueue_new(series))
            except engine.BadMessage as error:
                raise error.__cause__ or error from None
            self._refuse_unless_adopted(tasks.existing, tasks.written)
            adopted = len(tasks.existing)
        # Ids that the caller chose may be another's: adopted is what notes this operator as its origin. A later try
        # looks first, as an id whose task has ended would run again; the first try has nothing to find.
        looks = self.idempotency == "run" and self.origin["try_number"] != 1
        there = {message.task_id or "" for message in own if looks and self._adoptable(message)}
        self._refuse_unless_adopted(sorted(there), [])
        left = [message for message in own if message.task_id not in there]
        met: list[Message] = []
        try:
            if left:
                self.outlasting.call(lambda: self.queue.enqueue_many(left))
        except engine.DuplicateTask as error:
            used = set(error.duplicates)
            met = [message for message in left if message.task_id in used]
            if not (self._adopts and met and all(map(self._adoptable, met))):
                raise
        return adopted + len(own) - len(left) + len(met)

    def enqueue_batch(self, messages: Sequence[Message], batch: str, then: Message | None) -> int:
        """Write a batch, or what an earlier try left unwritten of it; return how many tasks were adopted.

        Raises what `Queue.enqueue_many` does; `DuplicateTask` for a batch that is not known to be this operator's.
        """
        try:
            self.outlasting.call(lambda: self.queue.enqueue_many(messages, batch=batch, then=then))
        except engine.DuplicateTask as error:
            if error.duplicates or error.enqueued:
                raise
            if self._adopts and self._one_written([message.task_id or "" for message in named(messages, batch)]):
                return len(messages)
            known = self.outlasting.call(lambda: self.queue.batch(batch))
            failed = f", {len(known.failed)} failed (first: {known.failed[0]})" if known.failed else ""
            raise engine.DuplicateTask(
                f"batch {batch!r} of queue {self.queue.name!r} was enqueued before, completely ({known.total} task(s), "
                f"{known.open} open{failed}); nothing was enqueued. ZkmqTaskSensor(batch=…) waits for it; for another, "
                "put what tells them apart into the name, such as {{ ti.try_number }}"
            ) from error
        return 0

    @property
    def _adopts(self) -> bool:
        return self.on_duplicate == "adopt" and self.idempotency != "none"

    def _refuse_unless_adopted(self, existing: Sequence[str], written: Sequence[str]) -> None:
        """Raise `DuplicateTask` for what an earlier try wrote, where it is not to be adopted."""
        if existing and self.on_duplicate == "fail":
            raise engine.DuplicateTask(
                f"{len(existing)} task(s) of queue {self.queue.name!r} were enqueued by an earlier try, the first is "
                f"{existing[0]}; on_duplicate='adopt' goes on with them",
                duplicates=existing,
                enqueued=written,
            )

    def _adoptable(self, message: Message) -> bool:
        """Whether the task is there already by an earlier try; what replaces or requeues is about others' tasks."""
        return not _changes(message) and self._one_written([message.task_id or ""])

    def _one_written(self, task_ids: Iterable[str]) -> bool:
        """Whether the first of these tasks that is there notes this operator, in this run or try, as its origin."""
        for task_id in task_ids:
            with suppress(engine.TaskNotFound):
                task = self.outlasting.call(partial(self.queue.task, task_id))
                return task_instance.is_of(task.metadata, self.origin, _IDENTITIES[self.idempotency])
        return False


#: Airflow kills a process five seconds after it told it to end: what is cancelled is waited for so many seconds.
_CANCELLING: Final = 4.0
#: One task that is dead or cancelled fails the operator, and the XCom has no results.
_RESULTS: Final = XComResults(results=False, max_xcom_bytes=48_000, fail_on="any")


def _members(batch: str, ids: list[str], key: str) -> list[str]:
    """Return the ids of a batch's members: those that were not given are named by the batch, not by the series."""
    by_key, by_batch = (compact_task_ids.series_ids(each, len(ids)) for each in (key, batch))
    of_series = dict(zip(by_key, by_batch, strict=True))
    return [of_series.get(task_id, task_id) for task_id in ids]


class ZkmqEnqueueOperator(lineage.WritesQueue, BaseOperator):
    """Enqueues one task (`data`) or many (`messages`); its XCom is the id, the list of ids, or the batch's name.

    A retry, a clear, or a try after a worker was killed enqueues nothing twice: it adopts what an earlier try of the
    same DAG run wrote, writes what is missing, and goes on waiting, for as long as the queue keeps what has ended
    (``task_gc_lifetime``). Tasks without an id of their own are known by theirs, made of the DAG, the run, the task,
    the map index and the position in `messages`: an earlier try's task stays as it is, also where its data differ.
    A task with an id of the caller's, and a batch, are adopted where they note this operator in this run as their
    origin (`add_origin`); one of another's is a `DuplicateTask`, as is a message with ``on_conflict="requeue"`` that is
    refused. A dead task is adopted, too, and fails the operator that waits: redrive it before the retry, or give
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
            ``on_conflict``). What a mapping leaves out is taken from the operator's arguments.
        batch: a name for the messages (one at least) together, by which `ZkmqTaskSensor` waits for them.
        then: one more message, as in `messages`, enqueued when the last of the batch has ended, whichever way.
        zkmq_queue: the queue's name; None: the connection's. (``queue`` is the executor's queue, as in every operator.)
        filters: values of the queue's declared filters.
        priority: higher comes first, -9999 to 9999.
        delay: how long the task is not to be handled yet: seconds, a duration, or text such as ``"5m"``, ``"PT1H30M"``.
        not_before: instead of a delay: until when, by ZooKeeper's clock; a moment with a zone, or its text, such as
            ``"{{ data_interval_end }}"``.
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
    operator_extra_links = task_instance.LINKS

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
        delay: engine.Duration | str | None = None,
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
        timeout: engine.Duration | str | None = None,
        zkmq_conn_id: str = connection_options.DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (data is None) == (messages is None):
            raise ValueError("ZkmqEnqueueOperator: give either data (one task) or messages (many)")
        if isinstance(data, Mapping | list | tuple | set | int | float):
            problem = f"ZkmqEnqueueOperator: data is a {type(data).__name__}: give bytes or text, such as json.dumps(…)"
            raise ValueError(problem)  # noqa: TRY004  as for whatever else is refused here
        if messages is not None and zkmq_task_id is not None:
            raise ValueError("ZkmqEnqueueOperator: with messages, give each its own task_id rather than zkmq_task_id")
        if then is not None and batch is None:
            raise ValueError("ZkmqEnqueueOperator: then follows the end of a batch; give batch, too")
        if delay is not None and not_before is not None:
            raise ValueError("ZkmqEnqueueOperator: give either delay (how long) or not_before (until when)")
        check_choice("ZkmqEnqueueOperator: idempotency", idempotency, _IDENTITIES)
        check_choice("ZkmqEnqueueOperator: on_duplicate", on_duplicate, ("adopt", "fail"))
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
        #: What is waited for on this worker: where, which tasks, and the Airflow task instance.
        self._held: tuple[AnyQueue, list[str], dict[str, Any]] | None = None
        self._canceller: threading.Thread | None = None

    def execute(self, context: Context) -> str | list[str]:
        """Enqueue; wait if asked to; return the `batch`, else the id (`data`) or the ids (`messages`).

        Raises:
            AirflowException: a task is dead or cancelled, or was not finished in time.
            ConfigError: an argument is refused; the message says which, and shows no payload. Nothing was written, but
                of `messages` with and without ids of their own, the latter may have been; a retry adopts them.
            TransportError: ZooKeeper was away for too long; a retry adopts what was written all the same.
            ZkmqError: nothing could be enqueued; the message says why.
        """
        origin = task_instance.origin_of(context)
        messages, then = self._messages(origin), self._follow_up(origin)
        with ZkmqHook(self.zkmq_conn_id, self.zkmq_queue) as hook:
            outlasting = outages.Outlasting(self.log, "Enqueueing", self.execution_timeout)
            queue = outlasting.call(hook.queue)
            key = series_key(self.idempotency, origin, queue.name)
            ids = [message.task_id or "" for message in named(messages, key)]
            series = IdempotentEnqueue(queue, origin, self.idempotency, self.on_duplicate, key, outlasting)
            with traces.enqueuing(queue.name, [*messages, *([] if then is None else [then])]) as sent:
                if self.batch is None:
                    adopted = series.enqueue(sent)
                else:
                    then = None if then is None else sent.pop()
                    adopted = series.enqueue_batch(sent, self.batch, then)
            first = named(messages, self.batch or key)[:1]
            hint = (
                f"; see: {xcom_results.typed(self.zkmq_conn_id, 'show', queue.name, first[0].task_id or '')}"
                if first
                else ""
            )
            written = len(messages) - adopted
            metrics.count_enqueued(queue.name, written)
            self.log.info("Enqueued %d task(s) into queue %r%s", written, queue.name, hint)
            if adopted:
                what = "Adopted %d task(s) of queue %r that an earlier try had enqueued%s"
                self.log.info(what, adopted, queue.name, hint)
            task_instance.link_tasks(self, queue.name, "enqueued", ids, batch=self.batch)
            if self.wait_for_completion and ids:
                self._await(context, queue, ids, key, deferring.wait_limit(self))
        return self._to_xcom(ids)

    def execute_complete(
        self, context: Context, event: dict[str, Any], key: str | None = None, deadline: float | None = None
    ) -> str | list[str]:
        """Go on after the trigger: look at the tasks, return what `execute` does. Raises `AirflowException`.

        Where ZooKeeper is away it defers again. An event without ids is about the messages', and the series of this
        `key`.
        """
        if event["status"] != "done":
            raise AirflowException(deferring.naming(event["message"], deferring.wait_limit(self)))
        ids: list[str] = event.get("ids", [])
        if not ids and key is not None:
            ids = [message.task_id or "" for message in named(self._messages(task_instance.origin_of(context)), key)]
        try:
            with ZkmqHook(self.zkmq_conn_id, self.zkmq_queue) as hook:
                self._end(hook.queue(), ids, 0)
        except engine.WaitTimeout as error:  # there are more, or one was redriven since
            if deadline is not None and time.time() >= deadline:
                raise AirflowException(deferring.naming(str(error), deferring.wait_limit(self))) from None
            self._defer(context, ids, key, deadline, error.left)
        except outages.NO_OUTAGE as error:
            raise AirflowException(str(error)) from None
        except engine.TransportError:  # they have ended in time: an outage beyond the deadline fails nothing
            self._defer(
                context, ids, key, None if deadline is None else max(deadline, time.time() + outages.RETRY_SECONDS)
            )
        return self._to_xcom(ids)

    def _to_xcom(self, ids: list[str]) -> str | list[str]:
        if self.batch is not None:
            return self.batch
        return ids if self.messages is not None else ids[0]

    def _common(self) -> dict[str, Any]:
        """Return what is taken from the operator's arguments where a message leaves it out."""
        names = ("filters", "priority", "delay", "not_before", "metadata", "policy")
        return {name: getattr(self, name) for name in names}

    def _messages(self, origin: Mapping[str, object]) -> list[Message]:
        noted, common = origin if self.add_origin else None, self._common()
        if self.messages is None:
            return [message({**common, "data": self.data, "task_id": self.zkmq_task_id or None}, noted)]
        items = [spelled(f"messages[{at}]", item) for at, item in enumerate(items_of("messages", self.messages))]
        return [message(completed(fields, common), noted) for fields in items]

    def _follow_up(self, origin: Mapping[str, object]) -> Message | None:
        noted = origin if self.add_origin else None
        return None if self.then is None else message(completed(spelled("then", self.then), self._common()), noted)

    def on_kill(self) -> None:
        """Cancel what is waited for, if that was asked for and a user has ended this task.

        Called from a signal handler, which may have interrupted the holder of a lock: another thread does it.
        """
        if self.cancel_on_kill and self._held is not None:
            self._canceller = threading.Thread(target=self._cancel, args=self._held, daemon=True)
            self._canceller.start()

    def _cancel(self, queue: AnyQueue, ids: list[str], instance: Mapping[str, Any]) -> None:
        problem = "Told to end: where a user did that, what is open of %d task(s) of queue %r is cancelled"
        self.log.warning(problem, len(ids), queue.name)
        try:
            if task_instance.ended_by_user(instance):
                count = 0
                for task_id in ids:
                    with suppress(engine.IllegalTransition, engine.TaskNotFound):
                        queue.cancel(task_id)
                        count += 1
                self.log.warning("Ended by a user: cancelled %d task(s) of queue %r", count, queue.name)
        except Exception as error:  # noqa: BLE001  a thread beside the end of a process: nobody would hear it
            self.log.warning("The tasks of queue %r are not cancelled: %s", queue.name, error)

    def _await(self, context: Context, queue: AnyQueue, ids: list[str], key: str, span: float | None) -> None:
        """Wait here, through any outage, or look and defer. Raises `AirflowException`: not in time, or failed."""
        deadline = None if span is None else time.time() + span
        members = ids if self.batch is None else _members(self.batch, ids, key)
        self._held = (queue, members, task_instance.origin_of(context))
        try:
            if self.deferrable:
                self._end(queue, ids, 0)
            else:
                outages.persist(self.log, math.inf if deadline is None else deadline, partial(self._end, queue, ids))
        except (engine.WaitTimeout, engine.TransportError) as error:
            if not self.deferrable or isinstance(error, outages.NO_OUTAGE):
                raise AirflowException(deferring.naming(str(error), span)) from None
            if isinstance(error, engine.WaitTimeout):
                log_open(self.log, queue, error.left, self.zkmq_conn_id)
            self._defer(context, ids, key, deadline, getattr(error, "left", ()))
        finally:
            self._held = None
            if self._canceller is not None:  # the first that it cancelled has ended the wait, perhaps
                self._canceller.join(_CANCELLING)

    def _end(self, queue: AnyQueue, ids: list[str], left: float) -> None:
        """Wait for the batch, else for the tasks. Raises `WaitTimeout`, and `AirflowException` for failures."""
        span = None if left == math.inf else left
        ended: Sequence[Task] | Batch
        if self.batch is None:
            ended = queue.wait(ids, timeout=span, stop_at_failure=True)
        else:
            ended = queue.wait_batch(self.batch, span)
        failed = (
            [task.id for task in ended if task.state in {"dead", "cancelled"}]
            if isinstance(ended, Sequence)
            else ended.failed
        )
        task_instance.link_tasks(self, queue.name, "enqueued", ids, failed, batch=self.batch)
        log_ended(self.log, queue.name, ended, self.zkmq_conn_id)
        _RESULTS.check(queue.name, ended)

    def _defer(
        self, context: Context, ids: list[str], key: str | None, deadline: float | None, left: Sequence[str] = ()
    ) -> None:
        """Defer until `deadline`. `left`: those of the ids that have not ended, as far as that is known."""
        value = self._to_xcom(ids)
        success: dict[str, Any] | None = None
        if size(value) <= compact_task_ids.EVENT_BYTES and may_end_in_triggerer(self, context):
            success = {"telling": asdict(_RESULTS), "push": pushed_for(self, context), "value": value}
        cancels: dict[str, Any] | None = None
        if self.cancel_on_kill:
            # Very many with ids of their own are named once: by what the trigger waits for, or, of a batch, here. The
            # others of them are found by their metadata, which say who enqueued them.
            if self.batch is not None and key is not None:
                open_ids = compact_task_ids.awaited_ids(_members(self.batch, ids, key), self.batch)
            else:
                open_ids = compact_task_ids.awaited_ids(ids, key)
            if open_ids.pop("partial", False):
                if self.batch is None:
                    del open_ids["task_ids"]
                if self.add_origin:
                    open_ids["noted"] = list(_IDENTITIES[self.idempotency] or task_instance.TRY)
            cancels = {"instance": task_instance.origin_of(context), **open_ids}
        awaited = {"batch": self.batch} if self.batch is not None else compact_task_ids.awaited_ids(ids, key, left)
        kwargs = {"key": key, "deadline": deadline}
        wanted = {**awaited, "queue": self.zkmq_queue or None, "stop_at_failure": True}
        self.defer(**deferral(self, ZkmqTaskTrigger, kwargs, **wanted, success=success, cancels=cancels))
