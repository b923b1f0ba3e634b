"""Extra links of the operators: from an Airflow task to its queue and its tasks on the page of queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from airflow.sdk import BaseOperatorLink, conf

from .page_address import MOST_TASKS, page_url


class DealtWith(NamedTuple):
    """What an Airflow task did to which tasks of a queue: ``enqueued``, ``waited for``, ``claimed`` or ``settled``.

    ``failed``: those of them that are dead or cancelled. ``batch``: instead of the ids, where they are a batch.
    """

    queue: str
    how: str
    ids: Sequence[str] = ()
    failed: Sequence[str] = ()
    batch: str | None = None


def note(
    operator: Any, queue: str, how: str, ids: Sequence[str], failed: Sequence[str] = (), *, batch: Any = None
) -> None:
    """Note for the links of an operator what it has dealt with."""
    operator.dealt_with = DealtWith(queue, how, ids, failed, batch)


def _base_url() -> str:
    return conf.get("api", "base_url", fallback=None) or ""


def page_of(conn_id: str, queue: str | None = None, **more: str | None) -> str | None:
    """Return the whole address of a view of the page; None where Airflow's own, ``[api] base_url``, is not set."""
    base = _base_url()
    return page_url(base, conn_id, queue, **more) if base else None


def _address(operator: Any, queue: str | None, **more: str | None) -> str:
    return page_url(_base_url(), operator.zkmq_conn_id, queue, **more)


class QueueLink(BaseOperatorLink):
    """To the queue."""

    name = "Queue"

    def get_link(self, operator: Any, *, ti_key: object) -> str:
        """Return the address; Airflow asks for it when the task has ended."""
        del ti_key
        dealt: DealtWith | None = getattr(operator, "dealt_with", None)
        return _address(operator, getattr(operator, "zkmq_queue", None) if dealt is None else dealt.queue)


class TaskLink(BaseOperatorLink):
    """To the task: the first that failed, or the only one; else to a list of them."""

    name = "Task"

    def get_link(self, operator: Any, *, ti_key: object) -> str:
        """Return the address, or nothing where no task was dealt with."""
        del ti_key
        dealt: DealtWith | None = getattr(operator, "dealt_with", None)
        if dealt is None or not (dealt.ids or dealt.batch):
            return ""
        named = dict.fromkeys([*dealt.failed, *dealt.ids])
        one = dealt.failed[0] if dealt.failed else dealt.ids[0] if len(dealt.ids) == 1 else None
        return _address(
            operator,
            dealt.queue,
            task=one,
            view=None if one else "tasks",
            batch=dealt.batch,
            how=dealt.how,
            of=",".join(list(named)[:MOST_TASKS]) or None,
        )


LINKS: Final = (QueueLink(), TaskLink())
