"""Claims as XComs, events and runs' configurations spell them: who holds what, and never what is in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypedDict

from ..engine import ConfigError, check_name
from .arguments import items_of

if TYPE_CHECKING:
    from ..engine import AnyClaim, AsyncClaim

#: A run has at most so many tasks in hand: what the triggerer gets of them fits where Airflow stores it.
MOST: Final = 100


class ClaimReference(TypedDict):
    """A claim: whoever knows the task's id and the token may extend and settle it, from wherever."""

    queue: str
    id: str
    token: int
    attempt: int
    filters: dict[str, str]


def claim_reference(queue: str, claim: AnyClaim | AsyncClaim) -> ClaimReference:
    """Return what an XCom says of a claim."""
    task = claim.task
    return {"queue": queue, "id": task.id, "token": claim.token, "attempt": task.attempt, "filters": dict(task.filters)}


def read_claims(what: str, value: object) -> list[ClaimReference]:
    """Return the claims of a list, of one claim, or of their text. Raises `ConfigError`, also for more than `MOST`."""
    if isinstance(value, str) and value.strip().startswith("{"):
        value = f"[{value}]"
    items = [value] if isinstance(value, Mapping) else [] if value is None else items_of(what, value)
    if len(items) > MOST:
        raise ConfigError(f"{what} has {len(items)} claims: a run takes at most {MOST}")
    claims: list[ClaimReference] = []
    for position, item in enumerate(items):
        try:
            claim: ClaimReference = {
                "queue": check_name("queue", item["queue"]),
                "id": check_name("task id", item["id"]),
                "token": int(item["token"]),
                "attempt": int(item.get("attempt", 0)),
                "filters": dict(item.get("filters") or {}),
            }
        except (TypeError, KeyError, ValueError, OverflowError, AttributeError) as error:
            raise ConfigError(f"{what}[{position}] is no claim: {type(error).__name__}: {error}") from None
        claims.append(claim)
    return claims


def shown(claim: ClaimReference) -> str:
    """Return how a log names the task of a claim."""
    return f"task {claim['id']!r} of queue {claim['queue']!r}"
