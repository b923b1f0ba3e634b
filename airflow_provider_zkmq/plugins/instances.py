"""Which tasks of queues an Airflow task instance dealt with, and which instances dealt with a task.

Airflow's database knows it by the links that the operators of this package leave there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import quote, quote_plus

from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import Text, cast, or_, select

from ..engine import ConfigError
from ..hooks import page_address, task_instance
from .live import Live

Link = dict[str, str]

_SHOWN: Final = 200
#: Of a task that very many runs dealt with, the latest are shown.
_INSTANCES: Final = 20
#: So many rows of Airflow's database are looked at for them, and what was found is believed for so many seconds.
_LOOKED_AT: Final = 500
BELIEVED_SECONDS: Final = 30.0
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


def links_of(live: Live, may_read: Callable[[str], bool], queue: str, task: Mapping[str, Any]) -> list[Link]:
    """Where in Airflow somebody finds who enqueued a task, waited for it, claimed it or settled it.

    Who enqueued it stands in its metadata; the others are known by the links that their operators left in Airflow's
    database, which is asked once in half a minute. `may_read`: whether a DAG, by its id, may be named.
    """
    dealt = live.shared(("runs", queue, task["id"]), lambda: _dealt(live.name, queue, task), BELIEVED_SECONDS)
    readable = {dag_id: may_read(dag_id) for dag_id in {dag_id for dag_id, _ in dealt}}
    links = [*_noted(task), *(link for dag_id, link in dealt if readable[dag_id])]
    return [dict(each) for each in dict.fromkeys(tuple(link.items()) for link in links)][:_INSTANCES]


def _noted(task: Mapping[str, Any]) -> Iterator[Link]:
    match (task["metadata"] or {}).get(task_instance.NOTE):
        case {"dag_id": str(dag_id), "run_id": str(run_id), "task_id": str(task_id), **more}:
            yield _link("enqueued", dag_id, run_id, task_id, more.get("map_index"))


def _dealt(conn_id: str, queue: str, task: Mapping[str, Any]) -> list[tuple[str, Link]]:
    """The instances whose links name a task or its batch, the latest first, with the ids of their DAGs."""
    value = cast(XComModel.value, Text)
    named = [f"{before}{quote_plus(task['id'])}{after}" for before in ("=", "%2C") for after in ("&", "%2C", "\\", '"')]
    if task["batch"] is not None:
        named.append(f"batch={quote_plus(task['batch'])}&")
    columns = XComModel.dag_id, XComModel.run_id, XComModel.task_id, XComModel.map_index, XComModel.value
    wanted = select(*columns).where(
        XComModel.key == task_instance.TaskLink().xcom_key,
        XComModel.timestamp >= datetime.fromisoformat(task["enqueued_at"]) - _CLOCKS,
        value.contains(f"queue={quote_plus(queue)}&", autoescape=True),
        or_(*(value.contains(each, autoescape=True) for each in named)),
    )
    found = []
    with create_session() as session:
        for *instance, row in session.execute(wanted.order_by(XComModel.timestamp.desc()).limit(_LOOKED_AT)):
            link = page_address.read_url(str(XComModel.deserialize_value(SimpleNamespace(value=row))))
            dealt = task["id"] in {*link.get("of", "").split(","), link.get("task")}
            dealt = dealt or (task["batch"] is not None and link.get("batch") == task["batch"])
            here = (link.get("connection", "").lower(), link.get("queue")) == (conn_id.lower(), queue)
            if here and dealt and link.get("how") in _LABELS:
                found.append((str(instance[0]), _link(link["how"], *instance)))
    return found


def _link(how: str, dag_id: str, run_id: str, task_id: str, map_index: object) -> Link:
    dag, run, task = (quote(each, safe="") for each in (dag_id, run_id, task_id))
    tail = f"/mapped/{map_index}" if isinstance(map_index, int) and map_index >= 0 else ""
    text = f"{dag_id} / {run_id} / {task_id}"
    return {"label": _LABELS[how], "text": text, "href": f"dags/{dag}/runs/{run}/tasks/{task}{tail}"}
