"""Which tasks of queues an Airflow task instance dealt with, and which instances dealt with a task.

Airflow's database knows it by the links that the operators of this package leave there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import quote, quote_plus

from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import Text, cast, select

from ..engine import ConfigError
from ..hooks import page_address, task_instance
from .live import Live

Link = dict[str, str]

_SHOWN: Final = 200
#: Of a task that very many runs dealt with, the latest are shown.
_INSTANCES: Final = 20
#: The clocks of Airflow's workers and of ZooKeeper's servers may differ by so much.
_CLOCKS: Final = timedelta(minutes=5)
_LABELS: Final = {
    "enqueued": "Enqueued by",
    "waited for": "Waited for by",
    "claimed": "Claimed in Airflow by",
    "settled": "Settled in Airflow by",
}


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


def links_of(
    may_read: Callable[[str], bool], conn_id: str, queue: str, task: Mapping[str, Any]
) -> list[dict[str, str]]:
    """Where in Airflow somebody finds who enqueued a task, waited for it, claimed it or settled it.

    Who enqueued it stands in its metadata. `may_read`: whether a DAG, by its id, may be named.
    """
    links = list(_noted(task))
    links += [link for dag_id, link in _dealt(conn_id, queue, task) if may_read(dag_id)]
    return [dict(each) for each in dict.fromkeys(tuple(link.items()) for link in links)]


def _noted(task: Mapping[str, Any]) -> Iterator[Link]:
    match (task["metadata"] or {}).get(task_instance.NOTE):
        case {"dag_id": str(dag_id), "run_id": str(run_id), "task_id": str(task_id), **more}:
            yield _link("enqueued", dag_id, run_id, task_id, more.get("map_index"))


def _dealt(conn_id: str, queue: str, task: Mapping[str, Any]) -> Iterator[tuple[str, Link]]:
    """The instances whose links name a task, the latest first, with the ids of their DAGs."""
    columns = XComModel.dag_id, XComModel.run_id, XComModel.task_id, XComModel.map_index, XComModel
    wanted = select(*columns).where(
        XComModel.key == task_instance.TaskLink().xcom_key,
        XComModel.timestamp >= datetime.fromisoformat(task["enqueued_at"]) - _CLOCKS,
        cast(XComModel.value, Text).contains(quote_plus(task["id"]), autoescape=True),
    )
    with create_session() as session:
        for *instance, found in session.execute(wanted.order_by(XComModel.timestamp.desc()).limit(_INSTANCES)):
            link = page_address.read_url(str(XComModel.deserialize_value(found)))
            ids = {*link.get("of", "").split(","), link.get("task")}
            here = (link.get("connection", "").lower(), link.get("queue")) == (conn_id.lower(), queue)
            if here and task["id"] in ids and link.get("how") in _LABELS:
                yield str(instance[0]), _link(link["how"], *instance)


def _link(how: str, dag_id: str, run_id: str, task_id: str, map_index: object) -> Link:
    dag, run, task = (quote(each, safe="") for each in (dag_id, run_id, task_id))
    tail = f"/mapped/{map_index}" if isinstance(map_index, int) and map_index >= 0 else ""
    text = f"{dag_id} / {run_id} / {task_id}"
    return {"label": _LABELS[how], "text": text, "href": f"dags/{dag}/runs/{run}/tasks/{task}{tail}"}
