"""Whole numbers that callers give: how many at the most, how many at least."""

from __future__ import annotations

from airflow_provider_zkmq.engine.core.model.shown import named
from airflow_provider_zkmq.engine.errors import ConfigError


def whole_number(what: str, value: object, least: int = 0) -> int:
    """A whole number of `least` or more; `what` is the parameter's name. Raises `ConfigError`, which names it."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    msg = f"{named(what, value)} is not allowed: a whole number, {least} or more"
    raise ConfigError(msg)


def optional_whole_number(what: str, value: object, least: int = 0) -> int | None:
    """Like `whole_number`, keeping None."""
    return None if value is None else whole_number(what, value, least)
