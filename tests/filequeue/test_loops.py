"""Loops over the claims of a file: each step settles one task and claims the next."""

from __future__ import annotations

import pytest

from airflow_provider_zkmq.engine import ClaimLost, ConfigError, Message, RetryPolicy
from airflow_provider_zkmq.filequeue import FileClient, FileQueue


def fill(q: FileQueue, names: str = "abc") -> None:
    q.configure(policy=RetryPolicy(attempts=5, factor=0))
    q.enqueue_many([Message(b"x", task_id=name) for name in names])


def test_what_the_body_leaves_is_completed(q: FileQueue) -> None:
    """With the result that it set; what it settles itself is left as it is."""
    fill(q)
    for claim in q.claims(timeout=0, prefetch=8):
        if claim.task.id == "b":
            claim.fail("broken", retry=False)
        claim.result = f"result of {claim.task.id}"
    assert {task.id: task.state.value for task in q.tasks()} == {"a": "finished", "b": "dead", "c": "finished"}
    assert q.task("a").result == b"result of a"


@pytest.mark.parametrize("how", ["break", "exception", "close", "with"])
def test_a_loop_that_is_left_fails_what_is_in_hand(q: FileQueue, how: str) -> None:
    """It counts as a delivery, as a task that kills its handler must."""
    fill(q)
    claims = q.claims(timeout=0)
    if how == "break":
        for claim in claims:
            if claim.task.id == "b":
                break
    elif how == "exception":
        with pytest.raises(ZeroDivisionError), claims:
            any(1 / (claim.task.id != "b") > 1 for claim in claims)
    else:
        assert [next(claims).task.id for _ in range(2)] == ["a", "b"]
    if how == "with":
        with claims:
            pass
    else:
        claims.close()
    claims.close()
    assert list(claims) == []
    task = q.task("b")
    assert (task.state.value, task.attempt, q.task("a").state.value) == ("inserted", 1, "finished")
    assert "its loop was left" in str(task.error)
    assert [claim.task.id for claim in q.claims(timeout=0)] == ["b", "c"]


def test_a_lost_claim_is_told_by_the_next_step(files: FileClient, q: FileQueue) -> None:
    """And the loop goes on."""
    fill(q)
    claims = q.claims(timeout=0)
    first = next(claims)
    files.queue(q.name).release(first.task.id, first.token)
    with pytest.raises(ClaimLost):
        next(claims)
    assert [claim.task.id for claim in claims] == ["a", "b", "c"]


def test_a_loop_without_a_bound_ends_when_it_is_told(q: FileQueue) -> None:
    """`stopping` ends it."""
    fill(q)
    done: list[str] = []
    for claim in q.claims(stopping=lambda: len(done) == 3):
        done.append(claim.task.id)
    assert done == ["a", "b", "c"]


def test_what_cannot_be_asked_for_is_refused_at_once(q: FileQueue) -> None:
    """By the name of the argument."""
    with pytest.raises(ConfigError, match="prefetch"):
        q.claims(prefetch=0)
    with pytest.raises(ConfigError, match="timeout"):
        q.claims(timeout=-1)
