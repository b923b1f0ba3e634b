"""The options of the data source, the way to ZooKeeper, its errors, and what executors need."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

from ... import __version__, engine
from ...engine import AnyClient, ConfigError, Zkmq, ZkmqError, parse_duration
from ...environment import environment_options

# --- What users of the data source see where something is wrong: our message first, and no walk through Spark's code.


class SourceError(ZkmqError):
    """What the data source refuses: an option, a column, a queue; or that ZooKeeper cannot be reached."""


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Raise what the engine raises inside as a `SourceError` whose text is all that Spark shows of it."""
    try:
        yield
    except ZkmqError as error:
        # Spark starts its Python workers, and nobody else, with such variables; they end after an error.
        if any(name.startswith("PYTHON_WORKER_FACTORY_") for name in os.environ):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        if isinstance(error, SourceError):
            raise
        raise SourceError(str(error)) from None


def unknown(what: str, name: str, known: Collection[str]) -> SourceError:
    """The error for a name that is none of the `known` ones, with those that come close."""
    lower = {each.lower(): each for each in known}
    close = [lower[each] for each in difflib.get_close_matches(name.lower(), lower)]
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    return SourceError(f"unknown {what}: {hint}known are {', '.join(known)}")


# --- The options of the data source: text, by names whose case does not matter, each checked once, at planning time.

#: How to reach ZooKeeper; every use of the data source takes these.
CONNECTION: Final = ("hosts", "root", "conn_id", "connectTimeout", "requestTimeout")
_TASKS: Final = ("queues", "states", "columns", "selector", "numPartitions")
READ: Final = (*CONNECTION, *_TASKS, "since", "maxRequestsInFlight", "report")
STREAM: Final = (*CONNECTION, *_TASKS, "startingOffsets", "maxTasksPerTrigger", "failOnDataLoss")
_PARTS: Final = ("id", "key", "data", "filters", "metadata", "priority", "delay", "notBefore")
WRITE: Final = (*CONNECTION, "queue", *_PARTS, "batch", "report")
#: Spark itself hands these on to the writer of a stream.
STREAM_WRITE: Final = (*WRITE, "checkpointLocation", "queryName", "path")
#: What looks like a password by its name is refused.
SECRETS: Final = ("auth", "password", "passwd", "secret", "token", "credential", "tls")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one use of the data source, by their names in small letters. No secret is among them."""

    values: Mapping[str, str]

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Spark's options. Raises `SourceError` for whatever looks like a password."""
        values = {name.lower(): text for name, text in options.items()}
        for name in values:
            if any(word in name for word in SECRETS):
                raise SourceError(
                    f"option {name!r} is refused: options are kept in Spark's plans and event logs. Give conn_id, an "
                    "Airflow connection that is looked up where it is used, or set ZKMQ_AUTH and ZKMQ_TLS_* in the "
                    "environment of driver and executors"
                )
        return cls(values)

    def check(self, known: Collection[str], use: str) -> None:
        """Raise `SourceError` for an option that `use` does not have, with the names that come close."""
        names = {name.lower(): name for name in known}
        for name in self.values:
            if name not in names:
                raise unknown(f"option {name!r} of {use}", name, names.values())

    def text(self, name: str) -> str | None:
        """An option's text; None where it is not given or empty."""
        return self.values.get(name.lower(), "").strip() or None

    def names(self, name: str) -> list[str]:
        """The names of a comma list, each once; none where it is not given."""
        parts = (part.strip() for part in (self.text(name) or "").split(","))
        return list(dict.fromkeys(part for part in parts if part))

    def count(self, name: str, default: int) -> int:
        """A whole number of at least 1. Raises `SourceError` for what is none."""
        text = self.text(name)
        if text is None:
            return default
        if not text.isdecimal() or int(text) < 1:
            raise SourceError(f"option {name} must be a whole number of at least 1, not {text!r}")
        return int(text)


# --- The way to ZooKeeper from wherever Spark runs code: no credentials come with it, they are looked up there.

_CLIENTS: dict[tuple[int, str], AnyClient] = {}


def connect(options: SourceOptions) -> AnyClient:
    """Open a connection that takes no part in clean-up. Raises what `Zkmq.connect` raises."""
    return Zkmq.connect(**connection(options), gc=False)


def cached(options: SourceOptions) -> AnyClient:
    """The connection of this process, such as a Python worker of Spark, for such options, opened once and left open."""
    key = os.getpid(), repr([options.text(name) for name in CONNECTION])
    client = _CLIENTS.get(key)
    if client is None or client.closed:
        client = _CLIENTS[key] = connect(options)
    return client


def connection(options: SourceOptions) -> dict[str, Any]:
    """The arguments of `Zkmq.connect`, which hold credentials: never to be shown. What an option says, wins."""
    given: dict[str, Any] = {name: text for name in ("hosts", "root") if (text := options.text(name)) is not None}
    for name, option in (("connect_timeout", "connectTimeout"), ("request_timeout", "requestTimeout")):
        if (text := options.text(option)) is not None:
            given[name] = parse_duration(text)
    conn_id = options.text("conn_id")
    if conn_id is None:
        try:
            return environment_options(given.get, Path.read_bytes) | given
        except OSError as error:
            raise ConfigError(f"{error.filename} cannot be read: {error.strerror or error}") from None
    try:
        from ...hooks.connection_options import look_up_options
    except ImportError as error:
        raise ConfigError(f"conn_id {conn_id!r} cannot be looked up: Airflow is not installed here ({error})") from None
    known = look_up_options(conn_id)
    known.pop("queue")
    return known | given


# --- What executors need that have nothing of this installed: one zip for ``spark.submit.pyFiles``.


def py_files(folder: str | os.PathLike[str]) -> str:
    """Write a zip with this package and kazoo into `folder`, for ``spark.submit.pyFiles``; returns its path.

    Executors need besides what PySpark's own data sources need: pyarrow. Nothing of the zip imports pendulum, which is
    no pure Python, unless it is asked for; Airflow has to be there only where the option ``conn_id`` is used.
    Raises `SourceError` where a package is not installed as files.
    """
    target = Path(folder).absolute() / f"zkmq-{__version__}.zip"
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in ("airflow_provider_zkmq", "kazoo"):
            where = importlib.import_module(package).__file__
            home = None if where is None else Path(where).parent
            if home is None or not home.is_dir():
                raise SourceError(f"{package} is at {where}, not in a folder: it cannot be put into a zip")
            for path in sorted(home.rglob("*")):
                if path.is_file() and {"__pycache__", "tests"}.isdisjoint(path.relative_to(home).parts):
                    archive.write(path, Path(package, path.relative_to(home)))
    temporary.replace(target)
    return str(target)


#: How to reach ZooKeeper: the arguments of `Zkmq.connect`, a function that can be pickled and connects, or the options
#: of the data source, by which credentials are looked up where the code runs.
Connect: TypeAlias = Mapping[str, Any] | Callable[[], AnyClient] | SourceOptions


def open_client(source: Connect) -> AnyClient:
    """Open a connection of its own that takes no part in clean-up. Raises what `Zkmq.connect` raises."""
    if isinstance(source, SourceOptions):
        return connect(source)
    return source() if callable(source) else engine.Zkmq.connect(**{**source, "gc": False})
