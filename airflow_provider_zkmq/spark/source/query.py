"""What a read asks for: its options, checked where the query is planned, before anything is read."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Self

from airflow_provider_zkmq.engine import (
    AnyClient,
    ConfigError,
    QueueNotFound,
    State,
    parse_duration,
    parse_moment,
    parse_selector,
)
from airflow_provider_zkmq.spark.source.columns import COLUMNS, arrow_schema
from airflow_provider_zkmq.spark.source.errors import SourceError
from airflow_provider_zkmq.spark.source.listing import LISTED
from airflow_provider_zkmq.spark.source.options import Options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: So many multi-reads are on their way together, unless the option says otherwise.
IN_FLIGHT: Final = 8


@dataclass(frozen=True, slots=True)
class Query:
    """Which tasks, and what of them. ``states``: all where it is empty; ``since``: enqueued then or later.

    ``partitions``: about how many; 0: as many as seem good.
    """

    columns: tuple[str, ...]
    states: tuple[str, ...]
    selector: str | None
    since: datetime | None
    in_flight: int
    partitions: int

    @property
    def listed(self) -> bool:
        """Whether all that is asked for is told by where tasks are listed."""
        return self.selector is None and self.since is None and LISTED.issuperset(self.columns)

    @classmethod
    def of(cls, options: Options, columns: Sequence[str] | None = None) -> Self:
        """What the options ask for; `columns`: of a schema that was given. Raises `SourceError`."""
        chosen = _known("column", options.names("columns") or columns or list(COLUMNS), COLUMNS)
        states = _known("state", options.names("states"), [str(state) for state in State])
        selector = options.text("selector")
        with _named("selector"):
            if selector is not None:
                parse_selector(selector)
        since = _since(options.text("since"))
        in_flight, partitions = options.count("maxRequestsInFlight", IN_FLIGHT), options.count("numPartitions", 0)
        return cls(chosen, states, selector, since, in_flight, partitions)


def queues_of(options: Options, client: AnyClient) -> list[str]:
    """The queues asked for, else all there are. Raises `SourceError` for one that is not there."""
    names = client.queues()
    wanted = options.names("queues") or names
    for name in wanted:
        if name not in names:
            raise QueueNotFound.among(name, f"under {client.queue(name).root!r}", names)
    return wanted


def columns_of(schema: StructType) -> list[str]:
    """The columns of a schema, which may be some of ours. Raises `SourceError` for what is not.

    Spark takes rows only if they are of the very schema that it was given.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    names = _known("column", schema.fieldNames(), COLUMNS)
    for column in schema.fields:
        ours = COLUMNS[column.name].spark.replace(" ", "")
        if column.dataType.simpleString() != ours:
            raise SourceError(f"column {column.name!r} is of type {ours}, not {column.dataType.simpleString()}")
    if to_arrow_schema(schema, timezone="UTC") != arrow_schema(names):
        raise SourceError("columns cannot be NOT NULL, nor what is in them: leave that out of the schema")
    return list(names)


def _known(kind: str, names: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known)
            hint = f"did you mean {' or '.join(close)}? " if close else ""
            raise SourceError(f"unknown {kind} {name!r}: {hint}known are {', '.join(known)}")
    return tuple(names)


def _since(text: str | None) -> datetime | None:
    """A moment in ISO 8601 with a zone, or a duration that is counted back from now."""
    if text is None:
        return None
    try:
        return datetime.now(UTC) - timedelta(seconds=parse_duration(text))
    except (ConfigError, OverflowError):
        with _named("since"):
            return parse_moment(text)


@contextmanager
def _named(option: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise SourceError(f"option {option}: {error}") from None
