"""Which connections the page may show to whom: Airflow's auth manager decides it, for each by itself."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails, DagAccessEntity, DagDetails
from airflow.configuration import conf
from airflow.exceptions import AirflowNotFoundException
from airflow.models.connection import Connection
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from sqlalchemy import select

from ..engine import ConfigError
from ..hooks.connection_options import DEFAULT_CONN_ID, connection_options

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser

_TYPE: Final = "zkmq"
_VARIABLE: Final = "AIRFLOW_CONN_"


class UnknownConnection(LookupError):
    """There is no zkmq connection of that id."""


def connections(user: BaseUser, method: ResourceMethod = "GET") -> list[str]:
    """The ids of the zkmq connections on which a user may do this, sorted.

    Looked for in Airflow's database and in the environment; other secrets backends cannot be listed, but of those
    `zkmq_default` is looked for, too.
    """
    teams = _listed()
    for conn_id in {*_of_environment(), DEFAULT_CONN_ID} - teams.keys():
        if _is_zkmq(conn_id):
            teams[conn_id] = None
    manager = get_auth_manager()
    return sorted(
        conn_id
        for conn_id, team in teams.items()
        if manager.is_authorized_connection(
            method=method, details=ConnectionDetails(conn_id=conn_id, team_name=team), user=user
        )
    )


def options_of(conn_id: str) -> dict[str, Any]:
    """The arguments of `Zkmq.connect` for a connection; they hold its password.

    Raises `UnknownConnection`, and `ConfigError`. An id has one spelling, by which its rights are asked for: that the
    environment knows capitals only makes no others of it.
    """
    listed = _listed()
    if conn_id != conn_id.lower() and conn_id.lower() in _of_environment() and conn_id not in listed:
        raise UnknownConnection(f"there is no connection {conn_id!r}")
    try:
        conn = Connection.get_connection_from_secrets(conn_id, **_team(listed.get(conn_id)))
    except AirflowNotFoundException:
        raise UnknownConnection(f"there is no connection {conn_id!r}") from None
    if conn.conn_type != _TYPE:
        raise UnknownConnection(f"connection {conn_id!r} is none of type {_TYPE}")
    options = connection_options(conn)
    options.pop("queue")
    return options


def may_read_instances(user: BaseUser, dag_id: str) -> bool:
    """Whether a user may see the task instances of a DAG."""
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    manager, entity = get_auth_manager(), DagAccessEntity.TASK_INSTANCE
    return bool(manager.is_authorized_dag(method="GET", access_entity=entity, details=details, user=user))


def _team(name: str | None) -> dict[str, str]:
    """Which team a connection is looked up for."""
    return {} if name is None or not conf.getboolean("core", "multi_team", fallback=False) else {"team_name": name}


def _listed() -> dict[str, str | None]:
    """The teams of the zkmq connections in Airflow's database, by their ids."""
    with create_session() as session:
        rows = session.execute(select(Connection.conn_id, Connection.team_name).where(Connection.conn_type == _TYPE))
        return {str(conn_id): team for conn_id, team in rows}


def _of_environment() -> set[str]:
    """The ids of the connections in the environment, of whatever type."""
    return {name.removeprefix(_VARIABLE).lower() for name in os.environ if name.startswith(_VARIABLE)}


def _is_zkmq(conn_id: str) -> bool:
    try:
        options_of(conn_id)
    except ConfigError:  # it is one, and what is wrong with it is told where it is shown
        return True
    except Exception:  # noqa: BLE001  what cannot be read is of no type
        return False
    return True
