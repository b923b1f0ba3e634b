"""Random histories of a queue as bronze rows, and what pandas computes of them by brute force."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from airflow_provider_zkmq.delta_tables import Table
from airflow_provider_zkmq.location import Location
from airflow_provider_zkmq.spark.history.queue_reader import SCHEMA
from airflow_provider_zkmq.spark.history.stage_and_load import stage_here

HOUR = 3_600_000
DAY = 24 * HOUR
START = 1_767_225_600_000  # 2026-01-01, in UTC
CLASSES = ({"size": "large"}, {"size": "small", "region": "a;b=c%"}, {})
CONSUMERS = ("one", "two", "three")


def moment(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)


def spelt(filters: dict[str, str]) -> str:
    def escaped(text: str) -> str:
        return text.replace("%", "%25").replace(";", "%3B").replace("=", "%3D")

    return ";".join(f"{escaped(name)}={escaped(filters[name])}" for name in sorted(filters))


@dataclass
class Histories:
    """Runs of tasks in the order in which they ended, some ids more than once, some with more than ten deliveries."""

    seed: int
    days: float = 3.0
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def make(self, ids: int) -> list[dict[str, Any]]:
        """Rows of so many ids, in order of their ends; their versions are made by `number`."""
        made = [row for n in range(ids) for row in self._id(f"t{n}")]
        return sorted(made, key=lambda row: row["ended"])

    def _id(self, task_id: str) -> Iterator[dict[str, Any]]:
        chance, now = self.chance, START + self.chance.randrange(int(self.days * DAY))
        past: list[dict[str, Any]] = []
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            enqueued, filters = now, chance.choice(CLASSES)
            state = chance.choice(("finished", "finished", "finished", "dead", "cancelled"))
            attempts = chance.choice((1, 1, 1, 2, 3, 13)) if state != "cancelled" else chance.choice((0, 1))
            last: dict[str, Any] = {}
            for number in range(1, attempts + 1):
                began = now + chance.choice((0, 5, chance.randrange(HOUR), chance.randrange(9 * HOUR)))
                now = began + chance.choice((0, 1, chance.randrange(HOUR // 4), chance.randrange(3 * HOUR)))
                if chance.random() < 0.1:
                    past.append(self._revoked(number, now))
                    now = past[-1]["ended"]
                outcome = chance.choice(("failed", "rescued")) if number < attempts or state == "dead" else state
                last = {"number": number, "consumer": chance.choice(CONSUMERS), "claimed": began, "ended": now}
                last |= {"outcome": outcome, "error": None if outcome == "finished" else f"error {number}"}
                if outcome != "finished":
                    past.append(last)
            if state == "cancelled" and attempts and chance.random() < 0.5:  # pending, after two deliveries
                last["outcome"] = "failed"
                past.append(self._revoked(2, now))
                now = past[-1]["ended"]
            done = state == "finished"
            run = {"id": task_id, "state": state, "attempt": attempts, "priority": 0, "filters": filters}
            told = {"consumer": last["consumer"] if done else None, "error": last["error"] if state == "dead" else None}
            times = {"enqueued": enqueued, "claimed": last["claimed"] if done else None, "ended": now}
            yield run | told | times | {"history": [dict(each) for each in past[-10:]]}
            if done:  # a later run of the id tells of it, with a time of its own
                past.append(last | {"ended": last["ended"] + chance.choice((0, 3))})
            now += 1 + chance.randrange(HOUR)

    def _revoked(self, number: int, now: int) -> dict[str, Any]:
        """A delivery that an operator took away: it counts as no attempt."""
        known = {"number": number, "consumer": self.chance.choice(CONSUMERS), "outcome": "revoked", "error": None}
        return known | {"claimed": now + 1, "ended": now + 1 + self.chance.randrange(HOUR)}

    def number(self, rows: list[dict[str, Any]], first: int) -> None:
        """Give rows their versions, in their order, from `first` on."""
        for n, row in enumerate(rows):
            row["version"] = first + n
        self.rows += rows


def as_bronze(queue: str, row: dict[str, Any]) -> dict[str, Any]:
    times = {f"{name}_at": moment(row[name]) for name in ("enqueued", "claimed", "ended")}
    claimed, spans = row["claimed"], {"wait_ms": None, "run_ms": None}
    if claimed is not None:
        spans = {"wait_ms": claimed - row["enqueued"], "run_ms": row["ended"] - claimed}
    history = [
        each | {"claimed_at": moment(each["claimed"]), "ended_at": moment(each["ended"])} for each in row["history"]
    ]
    rest = {"queue": queue, "metadata": "{}", "data": b"payload", "day": times["ended_at"].date(), "history": history}
    return row | times | spans | rest


def write_bronze(home: Path | Location, rows: list[dict[str, Any]], watermark: int) -> None:
    """Archive these rows, as a run up to zxid `watermark` would."""
    table = Table.open(Location.of(home), "bronze")
    bronze = pa.Table.from_pylist([as_bronze(home.name, row) for row in rows], SCHEMA)
    table.commit(stage_here(table, SCHEMA, [bronze], watermark), replace(table.mark, watermark=watermark))


def runs_by_pandas(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """What silver's runs should be, as far as gold needs them."""
    runs = []
    for row in rows:
        counted = [each for each in row["history"] if each["outcome"] != "revoked"]
        own = counted[-1] if counted and counted[-1]["number"] == row["attempt"] else {}
        claimed = row["claimed"] if row["claimed"] is not None else own.get("claimed")
        ran = row["ended"] - claimed if row["claimed"] is not None else own.get("ended", 0) - own.get("claimed", 0)
        kept = {"task_id": row["id"], "class": spelt(row["filters"]), "claimed": claimed}
        spans = {"wait_ms": None, "run_ms": None}
        if claimed is not None:
            spans = {"wait_ms": claimed - row["enqueued"], "run_ms": ran}
        runs.append(kept | spans | {name: row[name] for name in ("version", "state", "enqueued", "ended")})
    return pd.DataFrame(runs)


def deliveries_by_pandas(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """What silver's deliveries should be: each once, as the first row has it that tells of it."""
    known: dict[tuple[str, int, int], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["version"]):
        own = {"number": row["attempt"], "consumer": row["consumer"], "claimed": row["claimed"], "ended": row["ended"]}
        last = [own | {"outcome": "finished", "error": None}] if row["state"] == "finished" else []
        for each in row["history"] + last:
            key = row["id"], each["number"], each["claimed"]
            run = {"task_id": row["id"], "version": row["version"], "class": spelt(row["filters"])}
            known.setdefault(key, each | run)
    return pd.DataFrame(known.values())


def hourly_by_pandas(runs: pd.DataFrame, deliveries: pd.DataFrame) -> dict[tuple[str, int], dict[str, float]]:
    """Gold's numbers of each class and hour (counted since 1970), by brute force."""
    gone = runs["claimed"].fillna(runs["ended"]).astype("int64")
    hours = range(int(runs["enqueued"].min()) // HOUR, int(runs["ended"].max()) // HOUR + 1)
    table = {}
    for name in sorted(set(runs["class"]) | set(deliveries["class"])):
        mine, leave = runs[runs["class"] == name], gone[runs["class"] == name]
        work = deliveries[deliveries["class"] == name]
        for hour in hours:
            numbers = _hour(mine, leave, work, hour * HOUR)
            if any(numbers[each] for each in ("arrivals", "ended", "deliveries", "busy_ms", "depth_max", "departures")):
                table[name, hour] = numbers
    return table


def _hour(runs: pd.DataFrame, gone: pd.Series, work: pd.DataFrame, begin: int) -> dict[str, float]:
    end = begin + HOUR
    came = runs["enqueued"]
    ended = runs[(runs["ended"] >= begin) & (runs["ended"] < end)]
    closed = work[(work["ended"] >= begin) & (work["ended"] < end)]
    moments = [at for at in {*came, *gone} if begin <= at < end]
    depths = [int((came <= at).sum() - (gone <= at).sum()) for at in moments]
    start = int((came < begin).sum() - (gone < begin).sum())
    waited = (gone.clip(upper=end) - came.clip(lower=begin)).clip(lower=0).sum()
    numbers: dict[str, float] = {
        "arrivals": int(((came >= begin) & (came < end)).sum()),
        "departures": int(((gone >= begin) & (gone < end)).sum()),
        "deliveries": len(closed),
        "retries": int((closed["number"] > 1).sum()),
        "ended": len(ended),
        **{state: int((ended["state"] == state).sum()) for state in ("finished", "dead", "cancelled")},
        "throughput_per_s": (ended["state"] == "finished").sum() / 3600,
        "depth_start": start,
        "depth_end": int((came < end).sum() - (gone < end).sum()),
        "depth_max": max([start, *depths]),
        "depth_mean": waited / HOUR,
        "busy_ms": int((work["ended"].clip(upper=end) - work["claimed"].clip(lower=begin)).clip(lower=0).sum()),
    }
    for span in ("wait", "run"):
        times = ended[f"{span}_ms"].dropna().astype(float)
        numbers |= {f"{span}_p{point}": times.quantile(point / 100) for point in (50, 95, 99)}
        numbers[f"{span}_mean"] = times.mean()
    return numbers


def consumers_by_pandas(deliveries: pd.DataFrame) -> dict[tuple[str, int], dict[str, float]]:
    """Gold's numbers of each consumer and hour, by brute force."""
    table = {}
    for _, each in deliveries.iterrows():
        for hour in range(each["claimed"] // HOUR, each["ended"] // HOUR + 1):
            counts = dict.fromkeys(("deliveries", "finished", "failed", "busy_ms"), 0)
            row = table.setdefault((each["consumer"], hour), counts)
            here = each["ended"] // HOUR == hour
            row["deliveries"] += here
            row["finished"] += here and each["outcome"] == "finished"
            row["failed"] += here and each["outcome"] not in {"finished", "cancelled", "revoked"}
            row["busy_ms"] += min(each["ended"], (hour + 1) * HOUR) - max(each["claimed"], hour * HOUR)
    return {key: row | {"utilisation": row["busy_ms"] / HOUR} for key, row in table.items()}
