"""A secrets backend that notes each look-up in a file; and waits that are put to Airflow as if they had deferred."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from airflow.secrets import BaseSecretsBackend


class Lookups(BaseSecretsBackend):
    """A secrets backend that knows nothing."""

    def get_connection(self, conn_id: str, *_given: Any, **_named: Any) -> None:
        """Note who was asked for."""
        with Path(os.environ["ZKMQ_E2E_LOOKUPS"]).open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {conn_id}\n")

    def get_conn_value(self, conn_id: str, *_given: Any, **_named: Any) -> None:
        """As above."""
        self.get_connection(conn_id)


def defer(dag: str) -> int:
    """Defer each task instance of a DAG, as if it had run and deferred; how many those are."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.trigger import Trigger
    from airflow.utils.session import create_session
    from sqlalchemy import select

    from airflow_provider_zkmq.triggers.zkmq import ZkmqTaskTrigger

    with create_session() as session:
        instances = session.scalars(select(TaskInstance).where(TaskInstance.dag_id == dag)).all()
        for number, instance in enumerate(instances):
            waits = ZkmqTaskTrigger(task_ids=[f"task-{instance.map_index}"], queue="many")
            trigger = Trigger.from_object(waits)
            session.add(trigger)
            session.flush()
            instance.trigger_id, instance.state, instance.next_method = trigger.id, "deferred", "execute_complete"
            if number % 50 == 0:
                session.commit()  # SQLite has one writer: the others give up after some seconds
        return len(instances)


if __name__ == "__main__":
    sys.stdout.write(f"{defer(sys.argv[1])}\n")
