"""Histories made up for reports: silver's and gold's tables of tasks that were never in a queue."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_provider_zkmq.delta_tables import Table
from airflow_provider_zkmq.location import Location
from airflow_provider_zkmq.spark.history.gold import CONSUMERS, HOURLY
from airflow_provider_zkmq.spark.history.silver import DELIVERIES, RUNS
from airflow_provider_zkmq.spark.history.stage_and_load import stage_here, with_day
from airflow_provider_zkmq.spark.reporting.tables import Tables
from tests.unit.queueing import Served

START = datetime(2026, 11, 22, 6, tzinfo=UTC)
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Try:
    """One delivery; times in seconds after `START`."""

    claimed: float
    ended: float
    consumer: str = "worker-1"
    outcome: str = "finished"
    error: str | None = None


def at(seconds: float) -> datetime:
    return START + timedelta(milliseconds=round(seconds * 1000))


@dataclass
class History:
    """What ended, run by run."""

    runs: list[dict[str, Any]] = field(default_factory=list)
    deliveries: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self, name: str, enqueued: float, tries: Iterable[Try], *, queue: str = "q", task: str = "", state: str = ""
    ) -> History:
        tries = list(tries)
        last = tries[-1] if tries else None
        dead = last is not None and last.outcome != "finished"
        key = {
            "queue": queue,
            "task_id": task or f"{queue}-{len(self.runs)}",
            "version": len(self.runs) + 1,
            "class": name,
        }
        self.runs.append(
            key
            | {
                "state": state or ("dead" if dead else "finished"),
                "filters": dict(part.split("=", 1) for part in name.split(";") if part),
                "priority": 0,
                "attempt": len(tries),
                "consumer": last and last.consumer,
                "batch": None,
                "enqueued_at": at(enqueued),
                "claimed_at": last and at(last.claimed),
                "ended_at": at(last.ended if last else enqueued),
                "wait_ms": last and round((last.claimed - enqueued) * 1000),
                "run_ms": last and round((last.ended - last.claimed) * 1000),
                "error": last and last.error,
            }
        )
        for number, each in enumerate(tries, 1):
            times = {"claimed_at": at(each.claimed), "ended_at": at(each.ended)}
            span = {"run_ms": round((each.ended - each.claimed) * 1000)}
            told = {"consumer": each.consumer, "outcome": each.outcome, "error": each.error}
            self.deliveries.append(key | {"number": number} | times | span | told)
        return self

    def simulated(self, served: Iterable[Served], queue: str = "q", names: str = "class={}") -> History:
        """All tasks of a simulation, in the classes that its letters stand for."""
        for task in served:
            one = Try(task.claimed, task.ended, task.consumer)
            self.add(names.format(task.name), task.enqueued, [one], queue=queue)
        return self

    def tables(self, folder: Path) -> Tables:
        """The tables, with the columns that the pipeline gives them, in a folder of their own."""
        directory = Path(tempfile.mkdtemp(dir=folder))
        kinds = {
            "runs": (self.runs, RUNS, "ended_at"),
            "deliveries": (self.deliveries, DELIVERIES, "ended_at"),
            "hourly": (self._hourly(), HOURLY, "hour"),
            "consumers": (self._consumers(), CONSUMERS, "hour"),
        }
        queues = list(dict.fromkeys(run["queue"] for run in self.runs))
        for queue in queues:
            for kind, (rows, schema, moment) in kinds.items():
                own = [row | {"day": row[moment].date()} for row in rows if row["queue"] == queue]
                table = Table.open(Location.of(directory / queue), kind)
                staged = stage_here(table, schema, [pa.Table.from_pylist(own, with_day(schema))])
                table.commit(staged, replace(table.mark, watermark=1))
        return Tables.open(directory, queues)

    def _hourly(self) -> list[dict[str, Any]]:
        cells: dict[tuple[str, str, datetime], dict[str, Any]] = defaultdict(lambda: defaultdict(int))
        for run in self.runs:
            key = run["queue"], run["class"]
            cells[*key, _hour(run["enqueued_at"])]["arrivals"] += 1
            ended = cells[*key, _hour(run["ended_at"])]
            ended["ended"] += 1
            ended[run["state"]] += 1
            ended["retries"] += max(0, run["attempt"] - 1)
            if run["wait_ms"] is not None:
                _spread(cells, key, run)
        names = ("arrivals", "ended", "finished", "dead", "cancelled", "retries", "depth_max", "depth_end")
        return [
            {"queue": queue, "class": name, "hour": hour, "depth_mean": float(cell["depth_mean"])}
            | {each: cell[each] for each in names}
            for (queue, name, hour), cell in cells.items()
        ]

    def _consumers(self) -> list[dict[str, Any]]:
        cells: dict[tuple[str, str, datetime], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for each in self.deliveries:
            cell = cells[each["queue"], each["consumer"], _hour(each["ended_at"])]
            cell["deliveries"] += 1
            cell["finished" if each["outcome"] == "finished" else "failed"] += 1
            cell["busy_ms"] += each["run_ms"]
        return [
            {"queue": queue, "consumer": consumer, "hour": hour, "utilisation": cell["busy_ms"] / HOUR_MS} | cell
            for (queue, consumer, hour), cell in cells.items()
        ]


def _spread(cells: Any, key: tuple[str, str], run: dict[str, Any]) -> None:
    """Add a task's wait to the depth of the hours in which it waited."""
    hour, end = _hour(run["enqueued_at"]), run["claimed_at"]
    while hour <= end:
        inside = min(end, hour + timedelta(hours=1)) - max(run["enqueued_at"], hour)
        cell = cells[*key, hour]
        cell["depth_mean"] += inside.total_seconds() / 3600
        cell["depth_max"] += 1
        cell["depth_end"] += end > hour + timedelta(hours=1)
        hour += timedelta(hours=1)


def _hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)
