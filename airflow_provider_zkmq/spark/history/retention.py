"""Retention: days that are older than was asked for leave a table, never before the next table has them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from ...delta_tables import Table
from ...engine import ConfigError
from ...location import Location


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


def retain(home: Location, keep: Retention, *, today: date | None = None) -> int:
    """Have the tables in the queue's folder `home` forget the days before. Returns how many rows left bronze.

    Nothing leaves a table that the next one has not seen as a whole; hours of gold that silver has forgotten stay as
    they are. Raises `ConfigError` where another run is at work.
    """
    now = today or datetime.now(UTC).date()
    gone = dict[str, int]()
    steps = (
        (("bronze",), "runs", keep.bronze),
        (("deliveries", "runs"), "hourly", keep.silver),
        (("consumers", "hourly"), None, keep.gold),
    )
    for kinds, following, days in steps:
        if days is None:
            continue
        tables = [Table.open(home, kind) for kind in kinds]
        seen = Table.open(home, following).mark.watermark if following else None
        if seen is None or all(table.mark.watermark <= seen for table in tables):
            gone |= {
                kind: table.forget(now - timedelta(days=days - 1)) for kind, table in zip(kinds, tables, strict=True)
            }
    return gone.get("bronze", 0)
