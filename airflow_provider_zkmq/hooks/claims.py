"""Claims as XComs, events and runs' configurations spell them: who holds what, and never what is in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypedDict

from airflow_provider_zkmq.engine import ConfigError, check_name
from airflow_provider_zkmq.hooks.templating import items_of

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AnyClaim, AsyncClaim

#: A run has at most so many tasks in hand: what the triggerer is told of them fits where Airflow stores it.
MOST: Final = 100


class Claim(TypedDict):
    """A claim: whoever knows the task's id and the token may extend and settle it, from wherever."""

    queue: str
    id: str
    token: int
    attempt: int
    filters: dict[str, str]


def told(queue: str, claim: AnyClaim | AsyncClaim) -> Claim:
    """Return what is told of a claim."""
    task = claim.task
    return {"queue": queue, "id": task.id, "token": claim.token, "attempt": task.attempt, "filters": dict(task.filters)}


def read_claims(what: str, value: object) -> list[Claim]:
    """Return the claims of a list, of one claim, or of the text that a template makes of them.

    Raises `ConfigError` for what is none, and for more than `MOST`.
    """
    if isinstance(value, str) and value.strip().startswith("{"):
        value = f"[{value}]"
    items = [value] if isinstance(value, Mapping) else [] if value is None else items_of(what, value)
    if len(items) > MOST:
        raise ConfigError(f"{what} has {len(items)} claims: a run takes at most {MOST}")
    return [_claim(f"{what}[{position}]", item) for position, item in enumerate(items)]


def _claim(where: str, item: object) -> Claim:
    try:
        fields: Mapping[str, Any] = item  # type: ignore[assignment]
        return {
            "queue": check_name("queue", fields["queue"]),
            "id": check_name("task id", fields["id"]),
            "token": int(fields["token"]),
            "attempt": int(fields.get("attempt", 0)),
            "filters": dict(fields.get("filters") or {}),
        }
    except (TypeError, KeyError, ValueError, OverflowError, AttributeError) as error:
        raise ConfigError(f"{where} is no claim: {type(error).__name__}: {error}") from None


def shown(claim: Claim) -> str:
    """Return how a log names the task of a claim."""
    return f"task {claim['id']!r} of queue {claim['queue']!r}"
