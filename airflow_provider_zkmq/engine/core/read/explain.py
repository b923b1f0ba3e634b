"""Why is nobody taking this task? Consumers announce what they accept, so that the question has an answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from airflow_provider_zkmq.engine.core.client.context import Context
from airflow_provider_zkmq.engine.core.model import codec
from airflow_provider_zkmq.engine.core.model.codec import load
from airflow_provider_zkmq.engine.core.model.policy import Conf
from airflow_provider_zkmq.engine.core.model.selectors import parse_selector
from airflow_provider_zkmq.engine.core.model.states import State, Status
from airflow_provider_zkmq.engine.core.protocol.ops import Children, Node, Procedure
from airflow_provider_zkmq.engine.core.read.configuration import read_conf
from airflow_provider_zkmq.engine.core.read.inspect import Task, read_task
from airflow_provider_zkmq.engine.core.read.nodes import read_nodes
from airflow_provider_zkmq.engine.core.read.server_clock import server_time
from airflow_provider_zkmq.engine.errors import ConfigError, CorruptRecord


@dataclass(frozen=True, slots=True)
class ConsumerMatch:
    """A live consumer and a task: ``refuses`` names the condition that keeps it from it; None: it accepts it."""

    consumer: str
    accepts: tuple[str, ...]
    refuses: str | None
    in_hand: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a task is where it is: ``reasons`` of the task and the queue, then each live consumer's verdict."""

    task_id: str
    status: str
    reasons: tuple[str, ...]
    consumers: tuple[ConsumerMatch, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The explanation for people, a line each."""
        yield f"task {self.task_id} is {self.status}"
        yield from (f"  {reason}" for reason in self.reasons)
        for matched in self.consumers:
            busy = f" ({matched.in_hand} in hand)" if matched.in_hand else ""
            yield f"  consumer {matched.consumer}{busy}: {matched.refuses or 'accepts it'}"


def explain(context: Context, task_id: str) -> Procedure[Explanation]:
    """Say why a task is not being handled: paused, backoff, dedupe window, or which filter of whom refuses it.

    Raises `TaskNotFound`.
    """
    conf = yield from read_conf(context)
    task: Task = yield from read_task(context, task_id)
    now = yield from server_time(context)
    matches = (yield from _matches(context, conf, task)) if task.state is State.INSERTED else ()
    reasons = tuple(_reasons(conf, task, now, matches))
    return Explanation(task.id, str(task.status), reasons, matches)


def _reasons(conf: Conf, task: Task, now: int, matches: tuple[ConsumerMatch, ...]) -> Iterator[str]:
    match task.state:
        case State.CLAIMED:
            yield f"it is with consumer {task.consumer}, attempt {task.attempt}"
        case State.FINISHED if task.status is Status.DONE_WITH_REQUEUE:
            yield f"it is finished; another run is held in escrow for {_span((task.dedupe_ms or now) - now)}"
        case State.FINISHED if task.dedupe_ms is not None and task.dedupe_ms > now:
            yield f"it is finished; its id is refused for another {_span(task.dedupe_ms - now)} (dedupe window)"
        case State.FINISHED:
            yield "it is finished"
        case State.DEAD:
            yield f"it is dead after attempt {task.attempt}: {task.error}; redrive puts it back"
        case State.CANCELLED:
            yield "it was cancelled; redrive puts it back"
        case State.INSERTED:
            yield from _waiting(conf, task, now, matches)


def _waiting(conf: Conf, task: Task, now: int, matches: tuple[ConsumerMatch, ...]) -> Iterator[str]:
    if conf.paused:
        yield "the queue is paused; resume hands out tasks again"
    if task.status is Status.QUEUED_WITH_BACKOFF:
        why = f"backoff after: {task.error}" if task.error else "its delay"
        yield f"it is not to be handled for another {_span((task.due_ms or now) - now)} ({why})"
    if not matches:
        yield "no live consumer is registered"
    elif all(matched.refuses for matched in matches):
        yield "no live consumer accepts it"
    elif not conf.paused and task.status is Status.QUEUED:
        yield "it waits for its turn"


def _span(milliseconds: int) -> str:
    return f"{max(0, milliseconds) / 1000:.1f} s"


def _matches(context: Context, conf: Conf, task: Task) -> Procedure[tuple[ConsumerMatch, ...]]:
    live = sorted((yield Children(context.paths.at("live"))) or ())
    parts = [(context.paths.consumer(name), context.paths.consumer(name, "current")) for name in live]
    nodes = yield from read_nodes([path for both in parts for path in both])
    consumers = zip(live, nodes[::2], nodes[1::2], strict=True)
    return tuple(
        _match(context, conf, task, name, record, 0 if current is None else current.stat.children)
        for name, record, current in consumers
        if record is not None
    )


def _match(context: Context, conf: Conf, task: Task, name: str, record: Node, in_hand: int) -> ConsumerMatch:
    try:
        written: Any = load(context.paths.consumer(name), record.data).get("accepts", [])
        accepts = tuple(codec.shown(text) for text in written if isinstance(text, str))
        refusals = [parse_selector(text).refusal(task.filters, conf.types) for text in accepts]
    except (CorruptRecord, ConfigError, TypeError) as error:
        return ConsumerMatch(name, (), f"what it accepts cannot be read: {error}", in_hand)
    refusing = [why for why in refusals if why is not None]
    why = "; ".join(refusing) if refusals and len(refusing) == len(refusals) else None
    return ConsumerMatch(name, accepts, why if accepts else "it has announced nothing that it accepts", in_hand)
