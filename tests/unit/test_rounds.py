"""Procedures' part of an event loop's round."""

from __future__ import annotations

import asyncio

import pytest

from airflow_provider_zkmq.engine.zk import rounds
from airflow_provider_zkmq.engine.zk.rounds import Rounds


async def in_which_rounds(count: int) -> list[int]:
    """In which round of the loop each of so many that are ready together gets its turn."""
    shared, went, now = Rounds(), list[int](), 0

    async def go() -> None:
        await shared.turn()
        went.append(now)

    everybody = [asyncio.create_task(go()) for _ in range(count)]
    while not all(each.done() for each in everybody):
        await asyncio.sleep(0)
        now += 1
    return went


async def test_a_round_that_is_long_enough_goes_on_without_those_who_come_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each gets its turn, one in a round where a round is no longer than one of them."""
    monkeypatch.setattr(rounds, "SHARE", 0.0)
    went = await in_which_rounds(10)
    assert len(set(went)) == 10


async def test_few_go_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """While there is time left of a round, nobody waits for another."""
    monkeypatch.setattr(rounds, "SHARE", 3600.0)
    assert len(set(await in_which_rounds(10))) == 1


def test_a_loop_that_ended_in_a_round_keeps_nobody_from_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session's rounds are those of whichever loop runs."""
    monkeypatch.setattr(rounds, "SHARE", 0.0)
    shared = Rounds()
    for _ in range(3):
        asyncio.run(asyncio.wait_for(shared.turn(), 20))


async def test_who_is_cancelled_before_its_turn_leaves_the_others_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The round is nobody's in particular."""
    monkeypatch.setattr(rounds, "SHARE", 0.0)
    shared = Rounds()
    first, second, third = (asyncio.create_task(shared.turn()) for _ in range(3))
    await first
    second.cancel()
    async with asyncio.timeout(20):
        await third
    assert second.cancelled()
