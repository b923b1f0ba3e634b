"""What a worker has in hand: one decides on its end, and heartbeats come in time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from airflow_provider_zkmq.engine.core.model.outcomes import Success
from airflow_provider_zkmq.engine.working.deliveries import NOT_BEGUN, OUTLASTED, Deliveries


@dataclass
class FakeClaim:
    settled: bool = False


def test_who_decides_first_settles() -> None:
    """Of the handler's thread and of who ends the worker, one is told that it may settle."""
    for _ in range(200):
        table = Deliveries()
        it = table.add(FakeClaim(), None)
        assert table.begin(it)
        start = threading.Barrier(2)

        def decide(work, start: threading.Barrier = start) -> bool:
            start.wait()
            return work()

        with ThreadPoolExecutor(2) as pool:
            mine = pool.submit(decide, lambda table=table, it=it: table.decide(it, Success()))
            theirs = pool.submit(decide, lambda table=table, it=it: table.give_up(it))
        assert mine.result() is not theirs.result()
        assert it.outcome == (Success() if mine.result() else OUTLASTED)


def test_what_was_given_up_does_not_begin() -> None:
    """Given up before its handler was called it is to be released, and its handler is never called."""
    table = Deliveries()
    it = table.add(FakeClaim(), None)
    assert table.give_up(it)
    assert it.outcome == NOT_BEGUN
    assert not table.begin(it)


def test_a_heartbeat_that_failed_is_tried_again_soon() -> None:
    """Long before the next one of its span would be due, and a claim that is over is not extended at all."""
    table = Deliveries()
    long, ended = table.add(FakeClaim(), 600), table.add(FakeClaim(settled=True), 0.001)
    assert table.until_next_beat(1000) > 100
    table.beaten(long, good=False)
    assert table.until_next_beat(1000) <= 0.5
    table.beaten(long, good=True)
    assert table.until_next_beat(1000) > 100
    table.beaten(ended, good=False)
    assert (table.due(), table.until_next_beat(1000) > 100) == ([], True)
    table.drop(long)
    assert table.until_next_beat(1000) == 1000


def test_the_table_is_shared_by_many_threads() -> None:
    """Eight threads take and drop while another looks for what is due: nobody raises, nothing stays."""
    table, done = Deliveries(), threading.Event()

    def work(_: int) -> None:
        for _ in range(2000):
            it = table.add(FakeClaim(), 0.003)
            table.beaten(it, good=True)
            table.drop(it)

    def beat() -> None:
        while not done.is_set():
            table.due()
            table.until_next_beat(1)

    with ThreadPoolExecutor(9) as pool:
        beating = pool.submit(beat)
        list(pool.map(work, range(8)))
        done.set()
        beating.result()
    assert (len(table), table.wait_empty(0)) == (0, True)
