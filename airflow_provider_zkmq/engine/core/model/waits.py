"""What can be waited for."""

from __future__ import annotations

from enum import StrEnum

from airflow_provider_zkmq.engine.errors import ConfigError


class WaitFor(StrEnum):
    """What a waiter waits for: that a task was claimed, or that it ended."""

    CLAIM = "claim"
    COMPLETION = "completion"


def wait_event(event: object) -> WaitFor:
    """The event by its name. Raises `ConfigError`."""
    try:
        return WaitFor(str(event))
    except ValueError:
        msg = f"cannot wait for {event!r}: use 'completion' or 'claim'"
        raise ConfigError(msg) from None
