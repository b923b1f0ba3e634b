"""What ended in a queue on each of the last days, by the tables that the maintenance DAG keeps; without Spark."""

from __future__ import annotations

import logging
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from ..engine import Unsupported
from ..engine.queue_internals import internals

if TYPE_CHECKING:
    from ..engine import AnyQueue

_LOG: Final = logging.getLogger(__name__)
#: So many days are shown.
DAYS: Final = 31
_COLUMNS: Final = ("hour", "finished", "dead", "deliveries", "wait_mean", "wait_p95")
_NONE: Final = "there is no history: run the maintenance DAG with an archive directory"


def days_of(queue: AnyQueue) -> tuple[list[dict[str, Any]] | None, str | None]:
    """A row for each day on which something ended: ``day``, ``finished``, ``dead``, and how long tasks waited.

    Read where the queue itself says that it is archived: others may have queues of its name. ``wait_mean``: in seconds;
    ``wait_p95``: that of the day's worst hour. Instead of rows, why there are none. Raises `QueueNotFound`.
    """
    try:
        archive = internals(queue).archive()
    except Unsupported:
        return None, _NONE
    if not archive.directory:
        return None, _NONE
    try:
        from ..delta_tables import open_for_reading
        from ..location import Location

        since = datetime.now(UTC) - timedelta(days=DAYS)
        table = open_for_reading(Location.of(archive.directory) / queue.name, "hourly")
        if table.delta is None or (table.mark.born not in {0, archive.born} and archive.born <= table.mark.watermark):
            return None, _NONE
        read = table.delta.to_pyarrow_table(columns=list(_COLUMNS), filters=[("hour", ">=", since)])
    except ModuleNotFoundError as error:
        return None, f"the history is read with {error.name}: pip install 'airflow-provider-zkmq[spark]'"
    except Exception:  # noqa: BLE001  whatever a store answers
        _LOG.exception("reading the history of queue %r", queue.name)
        return None, "the history cannot be read; Airflow's log says why"
    days = defaultdict[str, list[dict[str, Any]]](list)
    for row in read.to_pylist():
        days[row["hour"].astimezone(UTC).date().isoformat()].append(row)
    return [_day(day, rows) for day, rows in sorted(days.items())], None


def _day(day: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    weighed = [(row["wait_mean"], row["deliveries"] or 1) for row in rows if row["wait_mean"] is not None]
    weight = sum(count for _, count in weighed)
    return {
        "day": day,
        "finished": sum(row["finished"] or 0 for row in rows),
        "dead": sum(row["dead"] or 0 for row in rows),
        "wait_mean": sum(mean * count for mean, count in weighed) / weight / 1000 if weight else None,
        "wait_p95": max((row["wait_p95"] / 1000 for row in rows if row["wait_p95"] is not None), default=None),
    }
