"""What is there, from where tasks are listed: their ids, and, where nobody asks for more, the states they are in."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from airflow_provider_zkmq.engine import AnyQueue, State

#: Columns for which no record need be read: a task is listed by its state.
LISTED: Final = frozenset({"queue", "task_id", "state"})


def list_ids(queue: AnyQueue, states: Sequence[str]) -> list[str]:
    """The ids of the tasks in these states, in any of them without; each once.

    What each is in by the time it is read decides.
    """
    return list(_seen(queue, states)) if states else queue.ids()


def list_states(queue: AnyQueue, states: Sequence[str]) -> dict[str, str]:
    """The tasks in these states, in any of them without, and the state of each; each once.

    Of those that were on their way from one list to another the records are read.
    """
    seen = _seen(queue, states or [str(state) for state in State])
    if not states:  # what was on its way the other direction is in none of the lists
        seen = {each: seen.get(each) for each in queue.ids()}
    doubtful = [each for each, state in seen.items() if state is None]
    scanned = queue.scan(doubtful, ["id", "state"], states=states or None).columns if doubtful else {}
    now = dict(zip(scanned.get("id", ()), map(str, scanned.get("state", ())), strict=True))
    return {each: state or now[each] for each, state in seen.items() if state is not None or each in now}


def _seen(queue: AnyQueue, states: Collection[str]) -> dict[str, str | None]:
    """The tasks that are listed by these states, and by which; None for several.

    The states are in the order in which tasks go through them, so that one that goes on meanwhile is met; those that
    come back, from a claim or by a redrive, are looked for once more.
    """
    seen: dict[str, str | None] = {}
    order = [str(state) for state in State if state in states]
    for state in order:
        for each in queue.ids(state):
            seen[each] = state if each not in seen else None
    if State.INSERTED in order and len(order) > 1:
        for each in queue.ids(State.INSERTED):
            seen.setdefault(each, None)
    return seen
