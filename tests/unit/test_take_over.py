"""Taking a claim over by its token: the claim as its maker has it, nothing written, one owner in each process."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_zkmq.engine import ClaimLost, ConfigError
from airflow_provider_zkmq.engine.core.claiming import by_id, over
from airflow_provider_zkmq.engine.core.memory.claims import Caller, Claimed
from airflow_provider_zkmq.engine.core.tasks import beginning, settle
from tests.unit.world import Client, new_queue


def asked(client: Client, ask: Any) -> Any:
    """As the fronts carry it out, for a caller that gets what was asked for."""
    claims = yield from (yield from ask).claiming(Caller())
    for claimed in claims:
        client.context.claims.deliver(claimed)
    return claims[0] if claims else None


def claim(client: Client, **options: Any) -> Claimed:
    claimed: Claimed = client.do(asked(client, by_id.ask_by_id(client.context, "a", **options)))
    return claimed


def take_over(client: Client, token: int, task_id: str = "a", **options: Any) -> Claimed | None:
    claimed: Claimed | None = client.do(asked(client, over.ask_over(client.context, task_id, token, **options)))
    return claimed


@pytest.fixture
def maker() -> Client:
    client = new_queue()
    client.put(task_id="a", metadata={"k": "v"})
    return client


def test_the_claim_is_as_its_maker_has_it_and_nothing_is_written(maker: Client) -> None:
    made = claim(maker, lease=60)
    before = maker.zk.zxid
    other = Client(maker.zk, "other")
    taken = take_over(other, made.token)
    assert taken is not None
    assert maker.zk.zxid == before
    names = ("task_id", "token", "version", "state", "created", "data", "metadata", "span", "ahead")
    assert {name: getattr(taken, name) for name in names} == {name: getattr(made, name) for name in names}
    other.complete(taken)
    with pytest.raises(ClaimLost):
        maker.complete(made)
    assert (maker.work(), maker.state("a").state) == ([], "finished")
    maker.check()


def test_what_is_not_the_current_claim_is_none_and_stays_as_it_is(maker: Client) -> None:
    """Another token, no such task, a claim that is over, and one that came after it."""
    made = claim(maker, lease=60)
    other = Client(maker.zk, "other")
    assert take_over(other, made.token + 1) is None
    assert take_over(other, made.token, "gone") is None
    maker.do(settle.release(maker.context, made))
    assert take_over(other, made.token) is None
    again = claim(maker, lease=60)
    assert take_over(other, made.token) is None
    assert (again.lost, maker.state("a").state) == (False, "claimed")
    maker.complete(again)


def test_its_maker_s_own_process_gets_the_same_claim(maker: Client) -> None:
    """Two of one claim would not know of each other; the one that is there is not lost by it."""
    made = claim(maker, lease=60)
    assert take_over(maker, made.token) is made
    assert not made.lost
    maker.complete(made)


def test_it_holds_as_long_as_is_asked_for(maker: Client) -> None:
    """A worker extends it by that, and as often; the claim that is there for its maker is as it was."""
    made = claim(maker, lease=60)
    other = Client(maker.zk, "other")
    taken = take_over(other, made.token, lease=7)
    assert taken is not None
    assert (taken.span, made.span) == (7, 60)
    maker.zk.advance(8)
    assert Client(maker.zk, "third").claimed().state.attempt == 2
    assert take_over(other, made.token) is None
    for lease in (0, -1, "soon"):
        with pytest.raises(ConfigError, match="lease"):
            take_over(other, made.token, lease=lease)


def test_one_that_is_over_is_none_in_its_maker_s_process_too(maker: Client) -> None:
    """Although that still refers to it; nor is one that is bound to its session to be had there."""
    made = claim(maker, lease=6)
    maker.zk.advance(7)
    again = Client(maker.zk, "other").claimed()
    assert take_over(maker, made.token) is None
    with pytest.raises(ConfigError, match="ends with the session"):
        take_over(maker, again.token)


def test_one_taken_ahead_counts_when_it_begins(maker: Client) -> None:
    made = claim(maker, lease=60, ahead=True)
    other = Client(maker.zk, "other")
    taken = take_over(other, made.token)
    assert taken is not None
    assert taken.ahead
    other.do(beginning.begin(other.context, taken))
    later = take_over(Client(maker.zk, "third"), made.token)
    assert later is not None
    assert not later.ahead


def test_a_claim_that_ends_with_its_session_cannot_be_anothers(maker: Client) -> None:
    """It would end although whoever took it over lives. Nor is anything else a token or an id."""
    made = claim(maker)
    other = Client(maker.zk, "other")
    with pytest.raises(ConfigError, match="ends with the session that made it: claim with a lease"):
        take_over(other, made.token)
    for task_id, token in (("a", "1"), ("a", True), ("a/b", 1)):
        with pytest.raises(ConfigError):
            take_over(other, token, task_id)
    maker.complete(made)
