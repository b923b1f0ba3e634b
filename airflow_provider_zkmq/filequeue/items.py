"""A message of the file as a task."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

from airflow_provider_zkmq.engine.errors import ConfigError, CorruptRecord
from airflow_provider_zkmq.engine.model import (
    RetryPolicy,
    State,
    Task,
    check_name,
    derive_status,
    encode_metadata,
    parse_duration,
)
from airflow_provider_zkmq.filequeue.conf import Conf, lock_span
from airflow_provider_zkmq.filequeue.variables import KEPT, MOVED, ROOMS, bytes_of, data_of, time_of, unquote, width
from airflow_provider_zkmq.textqueue import Message, Status, mutex
from airflow_provider_zkmq.textqueue.write import whole_number


class Item:
    """A message that is no comment; what its variables say, and nothing where they are not understood."""

    def __init__(self, message: Message) -> None:
        self.message = message
        #: Its id in the queue; given by the `Book`.
        self.id = ""

    @cached_property
    def _at(self) -> dict[str, int]:
        places: dict[str, int] = {}
        for index, variable in enumerate(self.message.variables):
            name, separator, _ = variable.partition("=")
            if separator and not mutex.is_mutex(variable):
                places.setdefault(name, index)
        at = mutex.place(self.message.variables)
        return places if at is None else places | {"mutex": at}

    def value(self, name: str) -> str:
        """A variable's value without its padding; blank without the variable."""
        at = self._at.get(name)
        return "" if at is None else self.message.variables[at].partition("=")[2].strip()

    def set(self, name: str, value: str) -> None:
        """Write a variable in place, of an item that is `whole`."""
        self.message.set_variable(self._at[name], f"{name}={value}")

    @cached_property
    def foreign(self) -> list[str]:
        """The variables that are not ours, as they stand."""
        ours = {"id", MOVED, *ROOMS, *KEPT}
        kept = (variable.partition("=") for variable in self.message.variables if not mutex.is_mutex(variable))
        return ["".join(parts) for parts in kept if not (parts[1] and parts[0] in ours)]

    @property
    def own_id(self) -> str | None:
        """The id that its variable gives it."""
        try:
            return check_name("task id", self.value("id"))
        except ConfigError:
            return None

    @property
    def moved(self) -> bool:
        """Whether it was moved from elsewhere in the file, which is not brought to its end yet."""
        return bool(self.value(MOVED))

    @property
    def is_copy(self) -> bool:
        """Whether it is queued under the id of another task: a person copied that one's lines."""
        return self.own_id not in {self.id, None} and self.message.status is Status.QUEUED

    @property
    def whole(self) -> bool:
        """Whether it has its id and all the room that is reserved, so that every change can be made in place."""
        sizes = {name: width(self.message.variables[at]) - width(name) - 1 for name, at in self._at.items()}
        return self.own_id == self.id and all(sizes.get(name, -1) >= room for name, room in ROOMS.items())

    def number(self, name: str) -> int:
        """A count; 0 for what is none."""
        return whole_number(self.value(name))

    def record(self, name: str) -> dict[str, Any]:
        """A JSON object; an empty one for what is none."""
        try:
            record = json.loads(self.value(name) or "{}")
            encode_metadata(record)  # neither NaN nor 1e999, which others could not be given
        except (ValueError, RecursionError):
            return {}
        return record if isinstance(record, dict) else {}

    @property
    def holder(self) -> tuple[str, float] | None:
        """Who has it, or had, and until when (seconds since 1970)."""
        at = self._at.get("mutex")
        return None if at is None else mutex.holder(self.message.variables[at])

    @property
    def due(self) -> float:
        """Not to be handled before (seconds since 1970)."""
        return time_of(self.value("due")) or 0.0

    @property
    def filters(self) -> dict[str, str]:
        """The filters' values by name."""
        return {name: value for name, value in self.record("filters").items() if isinstance(value, str)}

    def policy(self, conf: Conf) -> RetryPolicy:
        """The task's own policy, else the queue's."""
        try:
            return RetryPolicy.decode(self.id, bytes_of(self.value("policy"))) if self.value("policy") else conf.policy
        except CorruptRecord:
            return conf.policy

    def span(self, conf: Conf) -> float:
        """How long a claim of it holds: the task's own lock, else the queue's."""
        try:
            return lock_span("lock", parse_duration(self.value("lock"), "lock")) if self.value("lock") else conf.lock
        except ValueError:
            return conf.lock

    def state(self, conf: Conf, now: float) -> State:
        """The task's state. Dead is also one whose owner let the last claim that its policy allows expire."""
        match self.message.status:
            case Status.PROCESSED:
                return State.FINISHED
            case Status.ERROR:
                return State.DEAD
        if self.holder is None:
            return State.INSERTED
        if self.holder[1] > now:
            return State.CLAIMED
        return State.DEAD if self.policy(conf).exhausted(self.number("attempts")) else State.INSERTED

    def task(self, conf: Conf, now: float, result: bytes | None) -> Task:
        """The task as others see it. A file keeps neither its history nor when it was claimed and ended."""
        state = self.state(conf, now)
        scheduled = state is State.INSERTED and self.due > now
        enqueued = time_of(self.value("enqueued")) or 0.0
        return Task(
            id=self.id,
            state=state,
            status=derive_status(state, scheduled=scheduled),
            attempt=self.number("attempts"),
            priority=0,
            filters=self.filters,
            metadata=self.record("metadata"),
            data=data_of(self.message.data, self.value("encoding")),
            result=result,
            error=unquote(self.value("error")) or None,
            consumer=self.holder[0] if self.holder is not None and state is State.CLAIMED else None,
            enqueued_ms=int(enqueued * 1000),
            claimed_ms=None,
            ended_ms=None,
            due_ms=int(self.due * 1000) if self.due else None,
            history=(),
            version=self.number("claims"),
        )
