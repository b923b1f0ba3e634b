"""Retention: days that are older than was asked for leave a table, never before the next table has them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from airflow_provider_zkmq.engine import ConfigError
from airflow_provider_zkmq.spark.history.manifest import GOLD, SILVER, publish, read_manifest
from airflow_provider_zkmq.spark.history.parts import GRACE, sweep, without


@dataclass(frozen=True, slots=True)
class Retention:
    """For how many days each table keeps what ended, today included; None: for ever."""

    bronze: int | None = None
    silver: int | None = None
    gold: int | None = None

    def __post_init__(self) -> None:
        for name in ("bronze", "silver", "gold"):
            days = getattr(self, name)
            if days is not None and (not isinstance(days, int) or days < 1):
                raise ConfigError(f"retention of {name}: {days!r} is no number of days, 1 or more")


def retain(home: Path, keep: Retention, *, today: date | None = None, grace: float = GRACE) -> int:
    """Have the tables in the queue's folder `home`, which the caller holds, forget the days before.

    Returns how many rows left bronze. Nothing leaves a table that the next one has not seen as a whole; hours of gold
    that silver has forgotten stay as they are.
    """
    now = today or datetime.now(UTC).date()
    before = read_manifest(home).rows
    for table, following, days in (("", SILVER, keep.bronze), (SILVER, GOLD, keep.silver), (GOLD, None, keep.gold)):
        if days is not None and _seen(home, table, following):
            _forget(home / table, (now - timedelta(days=days - 1)).isoformat(), grace)
    return before - read_manifest(home).rows


def _seen(home: Path, table: str, following: str | None) -> bool:
    here = read_manifest(home / table).watermark
    return following is None or read_manifest(home / following).watermark >= here


def _forget(home: Path, cut: str, grace: float) -> None:
    _, manifest = sweep(home, read_manifest(home), grace)
    kept = without(home, manifest, lambda day: day < cut)
    if kept.runs != manifest.runs or kept.horizon < cut:
        home.mkdir(exist_ok=True)
        publish(home, replace(kept, horizon=max(kept.horizon, cut)))
