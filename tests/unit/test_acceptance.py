"""What an id accepts in each state of its task: an enqueue, an update, a requeue, a cancel, a redrive."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, Final

import pytest

from airflow_provider_zkmq.engine.core.tasks import interventions
from airflow_provider_zkmq.engine.errors import DuplicateTask, IllegalTransition, TaskNotFound
from tests.unit.world import Client, new_queue


def claimed(client: Client, *, again: bool = False) -> Any:
    client.put(b"old", task_id="a")
    held = client.claimed()
    if again:
        client.put(b"again", task_id="a", on_conflict="requeue")
    return held


def died(client: Client) -> None:
    client.fail(claimed(client), retry=False)


def cancelled(client: Client) -> None:
    client.put(task_id="a")
    client.cancel("a")


ALL: Final = {"raise", "replace", "requeue", "replace-or-requeue"}
UPDATE, REQUEUE, BOTH = {"replace", "replace-or-requeue"}, {"requeue", "replace-or-requeue"}, {"replace-or-requeue"}
#: How a task comes into each state; with which `on_conflict` an enqueue is accepted there; which verb changes it.
STATES: Final[dict[str, tuple[Callable[[Client], Any], set[str], str]]] = {
    "unknown": (lambda _it: None, ALL, ""),
    "queued": (lambda it: it.put(b"old", task_id="a"), UPDATE, "cancel"),
    "delayed": (lambda it: it.put(b"old", task_id="a", delay=5), UPDATE, "cancel"),
    "claimed": (claimed, REQUEUE, "cancel"),
    "claimed, another run in escrow": (lambda it: claimed(it, again=True), BOTH, "cancel"),
    "finished": (lambda it: it.complete(claimed(it)), ALL, ""),
    "in its window": (lambda it: it.complete(claimed(it), dedupe=50), REQUEUE, ""),
    "in its window, another run in escrow": (lambda it: it.complete(claimed(it, again=True), dedupe=50), BOTH, ""),
    "dead": (died, set(), "redrive"),
    "cancelled": (cancelled, ALL, "redrive"),
}


def handled(client: Client) -> list[bytes]:
    """What another consumer finds to do, when this one has died and time has passed."""
    client.check()
    client.zk.expire(client.session)
    client.zk.advance(100)
    later, found = Client(client.zk, "later"), []
    while (claim := later.take()) is not None:
        found.append(claim.data)
        later.complete(claim)
    later.check()
    return found


def test_each_state_accepts_what_carmine_s_rules_say(subtests: pytest.Subtests) -> None:
    """What is accepted is handled once; what is refused changes nothing, and the queue goes on."""
    for (state, (setup, accepted, _)), on_conflict in product(STATES.items(), sorted(ALL)):
        with subtests.test(state=state, on_conflict=on_conflict):
            client = new_queue()
            setup(client)
            before = client.check()
            if on_conflict in accepted:
                client.put(b"new", task_id="a", on_conflict=on_conflict)
                assert handled(client).count(b"new") == 1
            else:
                with pytest.raises(DuplicateTask):
                    client.put(b"new", task_id="a", on_conflict=on_conflict)
                assert client.check() == before
                assert b"new" not in handled(client)


def test_a_task_is_cancelled_before_its_end_and_redriven_after_one_without_success(subtests: pytest.Subtests) -> None:
    """Elsewhere both are refused, and change nothing."""
    for (state, (setup, _, changes)), verb in product(STATES.items(), ("cancel", "redrive")):
        with subtests.test(state=state, verb=verb):
            client = new_queue()
            setup(client)
            before = client.check()
            if verb == changes:
                client.do(getattr(interventions, verb)(client.context, "a"))
                assert client.check()["a"].state == ("cancelled" if verb == "cancel" else "inserted")
                assert (handled(client) == []) == (verb == "cancel")
            else:
                with pytest.raises(IllegalTransition if before else TaskNotFound):
                    client.do(getattr(interventions, verb)(client.context, "a"))
                assert client.check() == before
