"""What ended in a queue on each of the last days, by the tables that the maintenance DAG keeps; without Spark."""

from __future__ import annotations

import os
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from airflow.models.variable import Variable

from ..engine import ZkmqError
from ..hooks import settings

#: So many days are shown.
DAYS: Final = 31
_COLUMNS: Final = ("hour", "finished", "dead", "deliveries", "wait_mean", "wait_p95")
_NONE: Final = "there is no history: run the maintenance DAG with an archive directory ([zkmq] archive_directory)"


def days_of(queue: str) -> tuple[list[dict[str, Any]] | None, str | None]:
    """A row for each day on which something ended: ``day``, ``finished``, ``dead``, and how long tasks waited.

    ``wait_mean``: in seconds; ``wait_p95``: that of the day's worst hour. Instead of rows, why there are none.
    """
    said = Variable.get("zkmq_archive_dir", default_var=None) or os.environ.get("ZKMQ_ARCHIVE_DIR")
    directory = said or settings.setting("archive_directory")
    if not directory:
        return None, _NONE
    try:
        from ..history import table

        since = datetime.now(UTC) - timedelta(days=DAYS)
        read = table("hourly", directory, queue).to_pyarrow_table(
            columns=list(_COLUMNS), filters=[("hour", ">=", since)]
        )
    except ModuleNotFoundError as error:
        return None, f"the history is read with {error.name}: pip install 'airflow-provider-zkmq[spark]'"
    except (ZkmqError, OSError) as error:
        return None, str(error)
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
