"""Which tasks of queues an Airflow task instance dealt with: by the links that its operator left."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import select

from ..engine import ConfigError
from ..hooks import page_address, task_instance
from .live import Live

_SHOWN: Final = 200


def tasks_of(
    live_of: Callable[[str], Live], readable: Collection[str], instance: tuple[str, str, str, int]
) -> dict[str, Any]:
    """The tasks that an instance (DAG, run, task, map index) dealt with, of connections that somebody may read."""
    dag_id, run_id, task_id, map_index = instance
    columns = XComModel.dag_id, XComModel.run_id, XComModel.task_id, XComModel.map_index, XComModel.key
    wanted = (dag_id, run_id, task_id, map_index, task_instance.TaskLink().xcom_key)
    with create_session() as session:
        conditions = [column == value for column, value in zip(columns, wanted, strict=True)]
        found = session.scalars(select(XComModel).where(*conditions)).first()
        url = None if found is None else XComModel.deserialize_value(found)
    link = page_address.read_url(url) if isinstance(url, str) else {}
    connection, queue = link.get("connection"), link.get("queue")
    ids = [each for each in (link.get("of") or link.get("task") or "").split(",") if each]
    if connection is not None and connection not in readable:
        connection = connection.lower()  # as the environment knows it, where DAGs may write capitals
    if connection is None or queue is None or connection not in readable:
        return {"tasks": [], "hidden": 0}
    live = live_of(connection)
    try:
        handle = live.client().queue(queue)
        members = handle.tasks(batch=link["batch"], parts=(), limit=_SHOWN) if "batch" in link else []
        there = {task.id: task for task in [*members, *(handle.tasks(ids=ids, parts=()) if ids else ())]}
    except ConfigError:  # there is no such queue any more
        there = {}
    rows = [
        {
            "connection": connection,
            "queue": queue,
            "id": each,
            "how": link.get("how", "enqueued"),
            "state": str(there[each].state) if each in there else None,
            "error": there[each].error if each in there else None,
        }
        for each in dict.fromkeys([*ids, *there])
    ]
    return {"tasks": rows[:_SHOWN], "hidden": max(0, len(rows) - _SHOWN)}
