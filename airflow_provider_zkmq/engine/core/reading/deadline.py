"""How long a caller waits."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.durations import Duration, optional_seconds
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure, Signal, Wait, Within


@dataclass(frozen=True, slots=True)
class Deadline:
    """The moment at which a wait ends, by the driver's monotonic clock; None: it has no bound."""

    context: Context
    at: float | None
    span: float | None = None
    """The seconds that were given for it."""

    @classmethod
    def after(cls, context: Context, timeout: Duration | None) -> Procedure[Deadline]:
        """`timeout` (seconds or a duration, None without bound) from now; it binds the whole call.

        Raises `ConfigError`.
        """
        span = optional_seconds("timeout", timeout)
        if span:  # who does not wait at all waits for the servers all the same
            yield Within(span)
        return cls(context, None if span is None else context.run.monotonic() + span, span)

    @property
    def left(self) -> float | None:
        """For how many seconds it may be waited still."""
        return None if self.at is None else max(0.0, self.at - self.context.run.monotonic())

    @property
    def passed(self) -> bool:
        """Whether the time is over."""
        return self.left == 0.0

    def __str__(self) -> str:
        return f"timeout ({self.span or 0:g} s)"

    def wait(self, signal: Signal, seen: int) -> Procedure[None]:
        """Wait until `signal` has happened more than `seen` times, or the time is over."""
        yield Wait(signal, seen, self.left)
