"""`ZkmqHook`: an Airflow connection of type ``zkmq`` as a connection to the queue."""

from __future__ import annotations

import ast
import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowException

from airflow_provider_zkmq.engine.errors import ConfigError

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider_zkmq.engine.connect import Zkmq
    from airflow_provider_zkmq.engine.core.reading.inspect import Task
    from airflow_provider_zkmq.engine.core.tasks.batches import Batch
    from airflow_provider_zkmq.engine.fronts.aqueue import AsyncQueue
    from airflow_provider_zkmq.engine.fronts.client import AsyncZkmq
    from airflow_provider_zkmq.engine.fronts.queue import Queue

DEFAULT_CONN_ID: Final = "zkmq_default"
DEFAULT_QUEUE: Final = "queue"
_PLAIN: Final = ("root", "session_timeout", "connect_timeout", "request_timeout")
_TLS: Final = ("ca", "cert", "key", "key_password", "check_hostname")
_KNOWN: Final = frozenset({*_PLAIN, "queue", "tls", *(f"tls_{name}" for name in _TLS)})
_SHOWN: Final = 5


class ZkmqHook(BaseHook):
    """Connects to the queue that an Airflow connection of type ``zkmq`` describes.

    One ZooKeeper session is opened at the first use and kept until `close`; the hook is a context manager.

    Args:
        zkmq_conn_id: the id of the Airflow connection.
        queue: the queue that `queue` gives; None: the connection's.

    """

    conn_name_attr = "zkmq_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "zkmq"
    hook_name = "ZooKeeper queue (zkmq)"

    def __init__(self, zkmq_conn_id: str = DEFAULT_CONN_ID, queue: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.zkmq_conn_id = zkmq_conn_id
        self.queue_name = queue
        self._client: Zkmq | None = None
        self._default_queue = DEFAULT_QUEUE

    def get_conn(self) -> Zkmq:
        """Return the connection, opened by the first call.

        Raises:
            AirflowNotFoundException: there is no Airflow connection of this id.
            ConfigError: the Airflow connection is not understood, or (`AccessDenied`) its password is refused.
            Unavailable: no server answered within the connection's ``connect_timeout``; names the hosts.

        """
        if self._client is None:
            from airflow_provider_zkmq.engine.connect import Zkmq

            conn = self.get_connection(self.zkmq_conn_id)
            options = connection_options(conn)
            self._default_queue = options.pop("queue")
            self._client = Zkmq.connect(**options)
        return self._client

    def queue(self, name: str | None = None) -> Queue:
        """Return a queue: `name`, else the hook's, else the connection's. Raises what `get_conn` does."""
        client = self.get_conn()
        return client.queue(name or self.queue_name or self._default_queue)

    async def get_async_conn(self) -> AsyncZkmq:
        """Open a connection for the running event loop, the caller's to close. Raises what `get_conn` does."""
        from airflow_provider_zkmq.engine.fronts.client import AsyncZkmq

        options = await async_connection_options(self.zkmq_conn_id)
        self._default_queue = options.pop("queue")
        return await AsyncZkmq.connect(**options)

    def async_queue(self, client: AsyncZkmq, name: str | None = None) -> AsyncQueue:
        """Return a queue of a connection from `get_async_conn`, chosen as `queue` chooses."""
        return client.queue(name or self.queue_name or self._default_queue)

    def test_connection(self) -> tuple[bool, str]:
        """Connect for Airflow's *Test* button: whether it worked, and what to tell the user."""
        try:
            client = self.get_conn()
            names = client.queues()
            return True, f"Connected to {client.config.hosts}: {len(names)} queue(s) under {client.config.root}"
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connection_options(conn: Connection, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return an Airflow connection as the arguments of `Zkmq.connect` plus ``queue``, the default queue's name.

    The result holds the password: it is to be passed on, never logged. `extra`: the connection's extra if the
    caller has read it already (reading it on an event loop takes an ``await``).

    Raises:
        ConfigError: something is missing or unknown; the message names the connection.

    """
    where = f"connection {conn.conn_id!r}"
    if extra is None:
        extra = conn.extra_dejson
    if not isinstance(extra, Mapping):
        raise ConfigError(f"{where}: extra must be a JSON object")
    given = {name: value for name, value in extra.items() if value not in (None, "")}
    if unknown := sorted(set(given) - _KNOWN):
        raise ConfigError(f"{where}: unknown extra {', '.join(unknown)}; known: {', '.join(sorted(_KNOWN))}")
    if not conn.host:
        raise ConfigError(f"{where} has no host: give 'host' and 'port', or 'host1:port,host2:port'")
    options: dict[str, Any] = {"hosts": _hosts(conn.host, conn.port), "queue": given.get("queue", DEFAULT_QUEUE)}
    if "root" in given:
        options["root"] = given["root"]
    options |= {name: _number(where, name, given[name]) for name in _PLAIN[1:] if name in given}
    if conn.login or conn.password:
        if not (conn.login and conn.password):
            raise ConfigError(f"{where}: give both login and password, or neither")
        options["auth"] = [conn.login, conn.password]
    tls = {name: given[f"tls_{name}"] for name in _TLS if f"tls_{name}" in given}
    if "check_hostname" in tls:
        tls["check_hostname"] = flag(f"{where}: tls_check_hostname", tls["check_hostname"])
    # The form sends its checkboxes whether or not TLS is used: only files say that it is.
    if flag(f"{where}: tls", given.get("tls", bool(set(tls) - {"check_hostname"}))):
        options["tls"] = tls
    return options


async def async_connection_options(conn_id: str) -> dict[str, Any]:
    """Look up a connection without blocking the event loop; see `connection_options`.

    Raises:
        AirflowNotFoundException: there is no such connection.
        ConfigError: it is not understood.

    """
    conn = await BaseHook.aget_connection(conn_id)
    return connection_options(conn, await conn.aextra_dejson())


def _hosts(host: str, port: int | None) -> str:
    parts = [part.strip() for part in host.split(",")]
    if port is None:
        return ",".join(parts)
    return ",".join(part if ":" in part.rpartition("]")[2] else f"{part}:{port}" for part in parts)


def _number(where: str, name: str, value: object) -> object:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            raise ConfigError(f"{where}: {name} {value!r} is no number of seconds") from None
    return value


def flag(what: str, value: object) -> bool:
    """Return a truth value, or the text that a form or a template makes of one. Raises `ConfigError`."""
    known = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    try:
        return known[str(value).lower()]
    except KeyError:
        raise ConfigError(f"{what} {value!r} is neither true nor false") from None


def items_of(what: str, given: object) -> list[Any]:
    """Return a templated list: a list, any other series (as mapped tasks give it), or text that holds a list.

    Raises:
        ConfigError: `given` is none of these.

    """
    if isinstance(given, str):
        text = given.strip()
        if not text.startswith(("[", "(")):
            return [text] if text else []
        given = _literal(what, text)
    if isinstance(given, Mapping | bytes) or not isinstance(given, Iterable):
        raise ConfigError(f"{what} must be a list, not {type(given).__name__}")
    return list(given)


def _literal(what: str, text: str) -> object:
    """Read the text Jinja makes of a list, or JSON."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError):
            continue
    raise ConfigError(f"{what} is not a list: {text[:80]!r}")


def flat_ids(given: object) -> list[str]:
    """Return task ids from one id, a list, lists in lists, or the text of any of these; each id once, in order.

    Raises:
        ConfigError: there is something else in it.

    """
    found: list[str] = []
    for item in items_of("task_ids", given):
        if isinstance(item, str) and not item.startswith(("[", "(")):
            found.append(item)
        else:
            found += flat_ids(item)
    return list(dict.fromkeys(found))


def outcome(task: Task) -> dict[str, Any]:
    """Return what an XCom tells about a task: ``id``, ``state``, ``attempt``, ``error``, and its result.

    The result is text under ``result``, or, where the bytes are no UTF-8, base64 under ``result_b64``.
    """
    told: dict[str, Any] = {
        "id": task.id,
        "state": str(task.state),
        "attempt": task.attempt,
        "error": task.error,
        "result": None,
    }
    if task.result is not None:
        try:
            told["result"] = task.result.decode()
        except UnicodeDecodeError:
            told["result_b64"] = base64.b64encode(task.result).decode()
    return told


def check_outcomes(queue: str, tasks: Iterable[Task]) -> None:
    """Raise `AirflowException` naming the tasks that are dead or cancelled, the first few with their errors."""
    bad = [task for task in tasks if task.state in {"dead", "cancelled"}]
    if bad:
        told = [f"{task.id} is {task.state}" + (f" ({task.error})" if task.error else "") for task in bad]
        raise AirflowException(f"{len(bad)} task(s) of queue {queue!r} failed: {_few(told)}")


def check_batch(queue: str, batch: Batch) -> None:
    """Raise `AirflowException` naming the first few members of a batch that ended dead or cancelled."""
    if batch.failed:
        told = f"{len(batch.failed)} of {batch.total} task(s) of batch {batch.name!r} of queue {queue!r}"
        raise AirflowException(f"{told} ended dead or cancelled: {_few(batch.failed)}")


def _few(told: Sequence[str]) -> str:
    more = [f"and {len(told) - _SHOWN} more"] if len(told) > _SHOWN else []
    return "; ".join([*told[:_SHOWN], *more])


def progress_log(log: Any) -> Callable[[str, float, str], None]:
    """Return what logs the progress that a task's handler reports; see the `on_progress` of `Queue.wait`."""

    def tell(task_id: str, progress: float, note: str) -> None:
        log.info("Task %s: %.0f %%%s", task_id, 100 * progress, f", {note}" if note else "")

    return tell
