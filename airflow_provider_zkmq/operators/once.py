"""Enqueue once, however often an Airflow task is tried: what an earlier try wrote is adopted."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from airflow_provider_zkmq.engine import BadMessage, DuplicateTask, TaskNotFound, idempotency_series
from airflow_provider_zkmq.hooks.naming import series_id
from airflow_provider_zkmq.hooks.origins import INSTANCE, TRY, is_of
from airflow_provider_zkmq.operators.patience import Outlasting

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AnyQueue, Message

_IDENTITIES: Final[dict[str, tuple[str, ...]]] = {"run": INSTANCE, "try": TRY, "none": ()}
_ON_DUPLICATE: Final = ("adopt", "fail")


def check_once(idempotency: str, on_duplicate: str) -> None:
    """Raise `ValueError` for values that are not known."""
    if idempotency not in tuple(_IDENTITIES):  # a list has no hash
        raise ValueError(f"ZkmqEnqueueOperator: idempotency {idempotency!r} is not known: give run, try or none")
    if on_duplicate not in _ON_DUPLICATE:
        raise ValueError(f"ZkmqEnqueueOperator: on_duplicate {on_duplicate!r} is not known: give adopt or fail")


def series_key(idempotency: str, origin: Mapping[str, object], queue: str) -> str:
    """Return what the ids of an operator's tasks begin with: the same for each try that is to enqueue nothing more.

    It is made by the engine of an ``idempotency_key``: the DAG, the run, the task and the map index, as JSON.
    """
    parts = [origin[name] for name in _IDENTITIES[idempotency]] or [secrets.token_hex(16)]
    return idempotency_series(queue, json.dumps(parts, default=str))


def noted_by(idempotency: str) -> tuple[str, ...]:
    """Return the names by which the tasks of an operator's try note their origin, and others' do not."""
    return _IDENTITIES[idempotency] or TRY


def named(messages: Sequence[Message], key: str) -> list[Message]:
    """Return the messages, each with an id: its own, or that of its position in the series."""
    return [
        message if message.task_id is not None else replace(message, task_id=series_id(key, position))
        for position, message in enumerate(messages)
    ]


@dataclass(frozen=True, slots=True)
class Once:
    """One try's enqueue. `origin`: the task instance; `key`: that of the series its tasks without ids belong to.

    `patience`: each call of the queue's is tried again by itself. So one of unknown outcome is the very same again,
    which takes over what it had written; all of it done anew would take that for an earlier try's.
    """

    queue: AnyQueue
    origin: Mapping[str, object]
    idempotency: str
    on_duplicate: str
    key: str
    patience: Outlasting

    def enqueue(self, messages: Sequence[Message]) -> int:
        """Write what is missing; return how many tasks were adopted. Raises what `Queue.enqueue_many` does."""
        own: list[Message] = []
        series: list[Message] = []
        for given, message in zip(messages, named(messages, self.key), strict=True):
            (own if given.task_id is not None or given.update or given.requeue else series).append(message)
        return self._enqueue_series(series) + self._enqueue_own(own)

    def enqueue_batch(self, messages: Sequence[Message], batch: str, then: Message | None) -> int:
        """Write a batch, or what an earlier try left unwritten of it; return how many tasks were adopted.

        Raises what `Queue.enqueue_many` does; `DuplicateTask` for a batch that is not known to be this operator's.
        """
        try:
            self.patience.call(lambda: self.queue.enqueue_many(messages, batch=batch, then=then))
        except DuplicateTask as error:
            if error.duplicates:
                raise
            if self._adopts and self._wrote_one([message.task_id or "" for message in named(messages, batch)]):
                return len(messages)
            raise DuplicateTask(self.patience.call(lambda: _written_before(self.queue, batch))) from error
        return 0

    @property
    def _adopts(self) -> bool:
        return self.on_duplicate == "adopt" and self.idempotency != "none"

    def _enqueue_series(self, messages: list[Message]) -> int:
        """Whatever state a task of the series is in, it is left as it is: only an earlier try can have written it."""
        if not messages:
            return 0
        try:
            tasks = self.patience.call(lambda: self.queue.enqueue_new(messages))
        except BadMessage as error:
            raise error.__cause__ or error from None
        self._refuse_unless_adopted(tasks.existing, tasks.written)
        return len(tasks.existing)

    def _enqueue_own(self, messages: list[Message]) -> int:
        """Ids that the caller chose may be another's: adopted is what notes this operator as its origin.

        A later try looks first, as an id whose task has ended would run again; the first try has nothing to find.
        """
        looks = self.idempotency == "run" and self.origin["try_number"] != 1
        there = {message.task_id or "" for message in messages if looks and self._adoptable(message)}
        self._refuse_unless_adopted(sorted(there), [])
        left = [message for message in messages if message.task_id not in there]
        met: list[Message] = []
        try:
            if left:
                self.patience.call(lambda: self.queue.enqueue_many(left))
        except DuplicateTask as error:
            used = set(error.duplicates)
            met = [message for message in left if message.task_id in used]
            if not (self._adopts and met and all(map(self._adoptable, met))):
                raise
        return len(messages) - len(left) + len(met)

    def _refuse_unless_adopted(self, existing: Sequence[str], written: Sequence[str]) -> None:
        """Raise `DuplicateTask` for what an earlier try wrote, where it is not to be adopted."""
        if existing and self.on_duplicate == "fail":
            raise DuplicateTask(
                f"{len(existing)} task(s) of queue {self.queue.name!r} were enqueued by an earlier try, the first is "
                f"{existing[0]}; on_duplicate='adopt' goes on with them",
                duplicates=existing,
                enqueued=written,
            )

    def _adoptable(self, message: Message) -> bool:
        """Whether the task is there already by an earlier try; update and requeue are about others' tasks."""
        return not (message.update or message.requeue) and self._wrote(message.task_id or "")

    def _wrote(self, task_id: str) -> bool:
        """Whether a task notes this operator in this run (with ``"try"``: in this try) as its origin."""
        return self._wrote_one([task_id])

    def _wrote_one(self, task_ids: Iterable[str]) -> bool:
        """Whether the first of these tasks that is there is this operator's: some may be dropped, or collected."""
        for task_id in task_ids:
            with suppress(TaskNotFound):
                task = self.patience.call(partial(self.queue.task, task_id))
                return is_of(task.metadata, self.origin, _IDENTITIES[self.idempotency])
        return False


def _written_before(queue: AnyQueue, name: str) -> str:
    batch = queue.batch(name)
    failed = f", {len(batch.failed)} failed (first: {batch.failed[0]})" if batch.failed else ""
    return (
        f"batch {name!r} of queue {queue.name!r} was enqueued before, completely ({batch.total} task(s), {batch.open} "
        f"open{failed}); nothing was enqueued. ZkmqTaskSensor(batch=…) waits for it; for another, put what tells them "
        "apart into the name, such as {{ ti.try_number }}"
    )
