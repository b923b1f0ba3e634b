"""How queues are looked at by operators: many side by side, page by page, by lanes, and by what went on of late."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.model.filters import String
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.read import inspect, overview, pages
from airflow_provider_zkmq.engine.core.tasks import admin
from airflow_provider_zkmq.engine.core.zk_operations import Get, Op, Pipeline, Procedure, SetData, together
from airflow_provider_zkmq.engine.errors import ConfigError, QueueNotFound, SessionLost, ZkmqError
from tests.unit.damage import world
from tests.unit.world import Client, new_queue

# --- Side by side.


def read(*paths: str) -> Procedure[list[bytes | None]]:
    """Read znodes one after the other."""
    found: list[bytes | None] = []
    for path in paths:
        node = yield Get(path)
        found.append(None if node is None else node.data)
    return found


def failing(error: Exception) -> Procedure[Any]:
    yield Get("/")
    raise error


def noting(procedure: Procedure[Any], ops: list[Op]) -> Procedure[Any]:
    """Carry out a procedure, and note what it asks for."""
    answer: Any = None
    while True:
        try:
            op = procedure.send(answer)
        except StopIteration as stop:
            return stop.value
        ops.append(op)
        answer = yield op


def test_procedures_side_by_side_take_the_round_trips_of_the_longest() -> None:
    """Each returns what it would by itself; one that fails keeps no other from its end."""
    client, ops = new_queue(), list[Op]()
    a, b = (client.context.paths.at(name) for name in ("conf", "dlq"))
    wrong = ZkmqError("no")
    procedures = [read(a, b, a), read(b), failing(wrong), read(), read(a, a)]
    told = client.do(noting(together(procedures), ops))
    conf = told[0][0]
    assert told == [[conf, b"", conf], [b""], wrong, [], [conf, conf]]
    assert conf
    assert len(ops) == 3
    assert all(isinstance(op, Pipeline) for op in ops)


def test_an_operation_that_is_refused_is_refused_to_whose_it_is() -> None:
    """The others get their answers; what is lost with the connection is lost for all."""

    def run(fails: type[ZkmqError]) -> list[Any]:
        procedures = [read("/a", "/b"), read("/c")]
        driver, answer = together(procedures), None
        resume: Any = driver.send
        while True:
            try:
                op = resume(answer)
            except StopIteration as stop:
                return list(stop.value)
            paths = [each.path for each in (op.ops if isinstance(op, Pipeline) else (op,))]
            resume, answer = (driver.throw, fails("no")) if "/c" in paths else (driver.send, [None] * len(paths))
            if not isinstance(op, Pipeline) and "/c" not in paths:
                answer = None

    read_all, refused = run(ZkmqError)
    assert read_all == [None, None]
    assert str(refused) == "no"
    with pytest.raises(SessionLost):
        run(SessionLost)


def test_overviews_of_many_queues_are_those_of_each() -> None:
    """Also of one that is not there: its error stands in its place."""
    client = Client(world().copy(), "reader")
    one = client.do(overview.overview(client.context))
    seen = client.do(together([overview.overview(client.context), overview.overview(client.context)]))
    assert seen == [one, one]
    elsewhere = new_queue()
    elsewhere.do(admin.delete(elsewhere.context, confirm=True))
    (missing,) = elsewhere.do(together([overview.overview_and_activity(elsewhere.context)]))
    assert isinstance(missing, QueueNotFound)


# --- Lanes.


def test_each_lane_tells_who_accepts_it() -> None:
    """What nobody accepts is counted over all priorities; without live consumers nothing is called unaccepted."""
    client = new_queue(filters={"region": String()})
    for region, priority in (("eu", 0), ("us", 0), ("us", 5), ("us", 5)):
        client.put(filters={"region": region}, priority=priority)
    lanes = client.do(overview.overview(client.context)).lanes
    assert [(lane.priority, dict(lane.filters or {}), lane.count, lane.accepted_by) for lane in lanes] == [
        (5, {"region": "us"}, 2, ()),
        (0, {"region": "eu"}, 1, ()),
        (0, {"region": "us"}, 1, ()),
    ]
    assert client.do(overview.overview(client.context)).unaccepted == ()
    client.claimed(selector="region==eu")
    seen = client.do(overview.overview(client.context))
    assert [(dict(each.filters), each.count) for each in seen.unaccepted] == [({"region": "us"}, 3)]
    assert seen.counts == client.do(inspect.counts(client.context))


# --- Page by page.


def walk(client: Client, state: State | str, most: int) -> list[str]:
    """All ids of a state, so many on a page."""
    found, after = list[str](), None
    while page := client.do(pages.page(client.context, state, after, most)):
        assert len(page) <= most
        found += [task for _, task in page]
        after = page[-1][0]
    return found


def test_pages_of_any_size_have_each_task_once(subtests: pytest.Subtests) -> None:
    """In the same order: pending tasks as they are listed, ended ones the latest first."""
    client = new_queue(filters={"region": String()})
    for number in range(9):
        client.put(task_id=f"t{number}", filters={"region": "x" if number % 2 else "x-1"}, priority=number % 2)
    for number in range(4):
        client.put(task_id=f"late{number}", delay=100 - number)
    assert walk(client, "scheduled", 3) == ["late3", "late2", "late1", "late0"], "by when they are due"
    for _ in range(4):
        client.zk.advance(10)
        client.complete(client.claimed())
    for state in (State.INSERTED, State.FINISHED):
        whole = walk(client, state, 1_000)
        listed = client.do(inspect.list_ids(client.context, state))
        assert sorted(whole) == sorted(task for task in listed if not task.startswith("late"))
        for most in (1, 2, 3, 5):
            with subtests.test(state=str(state), most=most):
                assert walk(client, state, most) == whole
    ended = [client.state(task).ended or 0 for task in walk(client, State.FINISHED, 2)]
    assert ended == sorted(ended, reverse=True)


def test_a_page_goes_on_where_what_it_stood_at_has_gone() -> None:
    """The task that the last page ended with was claimed, or its whole list deleted."""
    client = new_queue()
    for name in "abcd":
        client.put(task_id=name)
    (at, first), *_ = client.do(pages.page(client.context, State.INSERTED, None, 1))
    assert first == "a"
    client.claimed()
    assert [task for _, task in client.do(pages.page(client.context, State.INSERTED, at))] == ["b", "c", "d"]
    assert client.do(pages.page(client.context, State.INSERTED, "queue/p09999/99999999/x")) == []


def test_a_page_of_dead_or_claimed_tasks_is_by_their_ids() -> None:
    client = new_queue()
    for name in "cab":
        client.put(task_id=name)
    for _ in range(3):
        client.claimed()
    assert walk(client, State.CLAIMED, 2) == ["a", "b", "c"]


def test_lanes_that_a_selector_refuses_are_not_looked_into() -> None:
    """A mixed lane is, and so is one whose name does not tell its filters."""
    client = new_queue(filters={"region": String()})
    for region in ("eu", "us", "x" * 250):
        client.put(task_id=region[:2], filters={"region": region})
    page = client.do(pages.page(client.context, State.INSERTED, selector="region==us"))
    assert [task for _, task in page] == ["xx", "us"]
    with pytest.raises(ConfigError):
        client.do(pages.page(client.context, State.INSERTED, selector="colour==red"))


def test_what_is_no_page_is_refused() -> None:
    client = new_queue()
    for wrong in (("lost", 5), (State.DEAD, 0), (State.DEAD, 1_001)):
        with pytest.raises(ConfigError):
            client.do(pages.page(client.context, wrong[0], None, wrong[1]))


# --- What went on.


def test_activity_counts_what_was_written_and_what_finished_by_the_minute() -> None:
    """Tasks that were deleted were written all the same; what finished before the time asked for is left out."""
    client = new_queue()
    for number in range(5):
        client.put(task_id=f"t{number}")
    for _ in range(3):
        client.complete(client.claimed())
        client.zk.advance(60)
    client.cancel("t4")
    client.write(SetData(client.context.paths.at("gc"), b"{}", -1))
    seen = client.do(overview.activity(client.context))
    assert seen.written == 5
    assert [count for _, count in seen.finished] == [1, 1, 1]
    assert [start % 60_000 for start, _ in seen.finished] == [0, 0, 0]
    assert len(client.do(overview.activity(client.context, 1)).finished) == 1
