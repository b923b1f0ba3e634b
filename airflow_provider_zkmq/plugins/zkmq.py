"""`ZkmqPlugin`: where Airflow's UI shows the page of queues. Every process imports it, so it imports little."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, ClassVar, TypeAlias

from airflow.plugins_manager import AirflowPlugin

from ..hooks.page_address import PREFIX, ROUTE

_Message: TypeAlias = MutableMapping[str, Any]


class QueuePage:
    """The page's app, made when it is first asked for something: a scheduler or a worker never does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._app: Any = None

    def made(self) -> Any:
        """The FastAPI app."""
        with self._lock:
            if self._app is None:
                self._app = importlib.import_module(".app", __package__).make_app()
        return self._app

    @property
    def routes(self) -> Any:
        """Its routes, for whoever lists them."""
        return self.made().routes

    async def __call__(
        self,
        scope: _Message,
        receive: Callable[[], Awaitable[_Message]],
        send: Callable[[_Message], Awaitable[None]],
    ) -> None:
        """Answer a request of the api-server's."""
        app = self._app or await asyncio.to_thread(self.made)
        await app(scope, receive, send)


class ZkmqPlugin(AirflowPlugin):
    """Shows the queues under *Browse*, and those tasks of a queue that an Airflow task dealt with."""

    name = "zkmq"
    fastapi_apps: ClassVar[list[Any]] = [{"app": QueuePage(), "url_prefix": PREFIX, "name": "Queues on ZooKeeper"}]
    external_views: ClassVar[list[Any]] = [
        {
            "name": "Queues",
            "href": f"{PREFIX[1:]}/",
            "destination": "nav",
            "category": "browse",
            "url_route": ROUTE,
        },
        {
            "name": "Queue tasks",
            "href": f"{PREFIX[1:]}/?dag_id={{DAG_ID}}&run_id={{RUN_ID}}&task_id={{TASK_ID}}&map_index={{MAP_INDEX}}",
            "destination": "task_instance",
            "url_route": "zkmq-tasks",
        },
    ]
