"""Whole numbers that callers give: how many at the most, how many at least."""

from __future__ import annotations

from typing import Final

from airflow_provider_zkmq.engine.core.model.shown import named
from airflow_provider_zkmq.engine.errors import ConfigError

#: So many tasks can be claimed together.
MOST_AT_ONCE: Final = 64


def whole_number(what: str, value: object, least: int = 0) -> int:
    """A whole number of `least` or more; `what` is the parameter's name. Raises `ConfigError`, which names it."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    msg = f"{named(what, value)} is not allowed: a whole number, {least} or more"
    raise ConfigError(msg)


def optional_whole_number(what: str, value: object, least: int = 0) -> int | None:
    """Like `whole_number`, keeping None."""
    return None if value is None else whole_number(what, value, least)


def number_of_claims(n: int, what: str = "n") -> int:
    """How many tasks a caller wants to claim together; `what` is the parameter's name. Raises `ConfigError`."""
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST_AT_ONCE:
        raise ConfigError(f"{what} {n!r} is not allowed: a whole number from 1 to {MOST_AT_ONCE}")
    return n
