"""A secrets backend that notes each look-up in a file; and waits that are put to Airflow as if they had deferred."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from airflow.secrets import BaseSecretsBackend
from airflow.triggers.base import BaseTrigger, TriggerEvent


class Lookups(BaseSecretsBackend):
    """A secrets backend that knows nothing."""

    def get_connection(self, conn_id: str, *_given: Any, **_named: Any) -> None:
        """Note who was asked for."""
        with Path(os.environ["ZKMQ_E2E_LOOKUPS"]).open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {conn_id}\n")

    def get_conn_value(self, conn_id: str, *_given: Any, **_named: Any) -> None:
        """As above."""
        self.get_connection(conn_id)


class Sleep(BaseTrigger):
    """What a trigger costs Airflow at the least: it sleeps."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        return ("tests.e2e.lookups.Sleep", {"seconds": self.seconds})

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event."""
        await asyncio.sleep(self.seconds)
        yield TriggerEvent({"status": "done"})


def defer(dag: str, seconds: float | None) -> int:
    """Defer each task instance of a DAG, as if it had run and deferred; how many those are.

    `seconds`: they sleep for so long; None: each waits for a task of the queue.
    """
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.trigger import Trigger
    from airflow.utils.session import create_session
    from sqlalchemy import select

    from airflow_provider_zkmq.triggers.zkmq import ZkmqTaskTrigger

    with create_session() as session:
        instances = session.scalars(select(TaskInstance).where(TaskInstance.dag_id == dag)).all()
        for number, instance in enumerate(instances):
            ours = ZkmqTaskTrigger(task_ids=[f"task-{instance.map_index}"], queue="many")
            trigger = Trigger.from_object(ours if seconds is None else Sleep(seconds))
            session.add(trigger)
            session.flush()
            instance.trigger_id, instance.state, instance.next_method = trigger.id, "deferred", "execute_complete"
            if number % 50 == 0:
                session.commit()  # SQLite has one writer: the others give up after some seconds
        return len(instances)


if __name__ == "__main__":
    name, *span = sys.argv[1:]
    sys.stdout.write(f"{defer(name, float(span[0]) if span else None)}\n")
