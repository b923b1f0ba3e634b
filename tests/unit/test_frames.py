"""How deep a call's procedures go: so many lie between the verb and its transaction."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

import pytest

from airflow_provider_zkmq.engine.core.claim.claim import claim
from airflow_provider_zkmq.engine.core.claim.take import Wanted
from airflow_provider_zkmq.engine.core.model.filters import EVERYTHING
from airflow_provider_zkmq.engine.core.tasks.enqueue import enqueue_one
from airflow_provider_zkmq.engine.core.tasks.settle import complete, fail, release
from airflow_provider_zkmq.engine.core.zk_operations import Multi
from tests.unit.world import new_queue

#: A claim also looks: which lane, which entry.
MOST: Final = {"enqueue": 6, "complete": 6, "release": 6, "fail": 7, "claim": 9}


def frames_above_its_transaction(client: Any, procedure: Generator[Any, Any, Any]) -> list[str]:
    """The generators that a procedure is in when it sends what changes a task, from the verb down."""
    found: list[str] = []

    def look(op: Any) -> None:
        if isinstance(op, Multi) and any("/tasks/" in part.path for part in op.ops):
            inner: Any = procedure
            while inner is not None:
                found.append(inner.gi_code.co_qualname)
                inner = inner.gi_yieldfrom

    client.do(procedure, look)
    return found


@pytest.mark.parametrize("verb", sorted(MOST))
def test_few_procedures_lie_between_a_verb_and_its_transaction(verb: str) -> None:
    """A reader follows so many, and each step of the transaction passes them all."""
    client = new_queue()
    for _ in range(3):
        client.put()
        client.complete(client.claimed())
    client.put()
    if verb == "enqueue":
        procedure: Any = enqueue_one(client.context, b"x")
    elif verb == "claim":
        procedure = claim(client.context, Wanted(EVERYTHING, None), 0)
    else:
        ends: dict[str, Any] = {"complete": complete, "release": release, "fail": fail}
        arguments = ["why"] if verb == "fail" else []
        procedure = ends[verb](client.context, client.claimed(), *arguments)
    frames = frames_above_its_transaction(client, procedure)
    assert 0 < len(frames) <= MOST[verb], frames
