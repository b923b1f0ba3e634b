"""`ZkmqHook`: an Airflow connection of type ``zkmq`` as a connection to the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from airflow.sdk import BaseHook

from ..engine import ConfigError
from . import connection_options

if TYPE_CHECKING:
    from ..engine import AnyClient, AnyQueue, AsyncQueue, AsyncZkmq


class ZkmqHook(BaseHook):
    """Connects to the queue that an Airflow connection of type ``zkmq`` describes.

    One ZooKeeper session is opened at the first use and kept until `close`; the hook is a context manager.
    `zkmq_conn_id`: the id of the Airflow connection. `queue`: what `queue` gives without a name; None: the
    connection's.
    """

    conn_name_attr = "zkmq_conn_id"
    default_conn_name = connection_options.DEFAULT_CONN_ID
    conn_type = "zkmq"
    hook_name = "ZooKeeper queue (zkmq)"

    def __init__(
        self, zkmq_conn_id: str = connection_options.DEFAULT_CONN_ID, queue: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.zkmq_conn_id = zkmq_conn_id
        self.queue_name = queue
        self._client: AnyClient | None = None
        self._default_queue = connection_options.DEFAULT_QUEUE

    def get_conn(self) -> AnyClient:
        """Return the connection, opened by the first call.

        Raises `AirflowNotFoundException`; `ConfigError` for a connection that is not understood, or (`AccessDenied`)
        whose password is refused; `Unavailable`, which names the hosts, where none answered within its
        ``connect_timeout``.
        """
        if self._client is None:
            from ..engine import Zkmq

            connection_options.limit_kazoo_logging()
            conn = self.get_connection(self.zkmq_conn_id)
            options = connection_options.connection_options(conn)
            self._default_queue = options.pop("queue")
            self._client = Zkmq.connect(**options)
        return self._client

    def queue(self, name: str | None = None) -> AnyQueue:
        """Return a queue: `name`, else the hook's, else the connection's. Raises as `get_conn`, and for no name."""
        client = self.get_conn()
        return client.queue(self._named(name))

    async def get_async_conn(self) -> AsyncZkmq:
        """Open a connection for the running event loop, the caller's to close. Raises what `get_conn` does."""
        from ..engine import AsyncZkmq

        options = await connection_options.async_connection_options(self.zkmq_conn_id)
        self._default_queue = options.pop("queue")
        return await AsyncZkmq.connect(**options)

    def async_queue(self, client: AsyncZkmq, name: str | None = None) -> AsyncQueue:
        """Return a queue of a connection from `get_async_conn`, chosen as `queue` chooses."""
        return client.queue(self._named(name))

    def _named(self, name: str | None) -> str:
        chosen = name or self.queue_name or self._default_queue
        if not isinstance(chosen, str):
            raise ConfigError(f"a queue's name is text, not {type(chosen).__name__}")
        return chosen

    def test_connection(self) -> tuple[bool, str]:
        """Connect for Airflow's *Test* button: whether it worked, and what to tell the user."""
        try:
            client = self.get_conn()
            names = client.queues()
            message = f"Connected to {client.config.hosts}: {len(names)} queue(s) under {client.config.root}"
            opened = f"; open to anyone, above the root: {', '.join(client.open_above)}" if client.open_above else ""
            return True, message + opened
        except Exception as error:  # noqa: BLE001  whatever goes wrong is the answer
            return False, str(error)
        finally:
            self.close()

    def close(self) -> None:
        """End the session; what it had claimed is given back at once. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
