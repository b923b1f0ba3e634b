"""Who holds what: the claimed tasks of living sessions, compared with what the callers have in hand."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_zkmq.engine import Claim, Queue, Task


def claimed_by_the_living(observer: Queue) -> dict[str, Task]:
    """The claimed tasks whose consumer's session lives, as a client that takes no part sees them."""
    live = set(observer._session.client.get_children(observer._context.paths.at("live")))
    return {task.id: task for task in observer.tasks(state="claimed") if task.consumer in live}


def stranded(observer: Queue, in_hand: Iterable[str]) -> list[str]:
    """One line for each claimed task of a living session that nobody holds."""
    claimed = set(in_hand)
    return [
        f"{task.id} ({task.data.decode(errors='replace')!r}): claimed by {task.consumer} and in nobody's hand"
        for task in claimed_by_the_living(observer).values()
        if task.id not in claimed
    ]


def claim_the_rest(q: Queue) -> list[Claim]:
    """Claim until nothing is left."""
    found = []
    while (claim := q.claim()) is not None:
        found.append(claim)
    return found
