"""Streams over the engine's own verbs, on ZooKeeper in memory: each run that ended is read once, whatever happens."""

from __future__ import annotations

import contextlib
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test
from pyspark.sql.types import StructType

from airflow_provider_zkmq.engine import ZkmqError
from airflow_provider_zkmq.engine.core.maintenance import collect
from airflow_provider_zkmq.engine.core.read import completion_log, configuration
from airflow_provider_zkmq.engine.core.tasks import admin, interventions
from tests.unit.followed import Interrupted, Query
from tests.unit.world import Client, new_queue

IDS = st.sampled_from("abc")
COLUMNS = StructType().add("task_id", "string").add("state", "string").add("version", "long").add("data", "binary")


class EngineQueue:
    """The verbs that a stream uses."""

    name = "q"

    def __init__(self, client: Client) -> None:
        self.client = client

    def __internals__(self) -> Any:
        return self

    def __getattr__(self, verb: str) -> Any:
        procedures = {
            "conf": configuration.conf, "configure": admin.configure, "truncated_at": completion_log.truncated_at,
            "latest_end": completion_log.latest_end, "ended_between": completion_log.ended_between,
            "read_ended": completion_log.read_ended,
        }  # fmt: skip
        return lambda *args, **options: self.client.do(procedures[verb](self.client.context, *args, **options))


class Following(Interrupted):
    """Tasks end, leave and come again in any order, while a stream is killed and started again anywhere.

    The book tells runs by their payloads: each enqueue has one of its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.client = new_queue()
        followed = EngineQueue(Client(self.client.zk, "stream"))
        queues = SimpleNamespace(queues=lambda: ["q"], queue=lambda _name: followed, close=lambda: None)
        self.query = Query(queues, self.patch, schema=COLUMNS)
        self.query.run()  # from now on what leaves is kept
        self.book: Counter[tuple[str, str, bytes]] = Counter()
        self.payloads = 0

    def data(self, task_id: str) -> bytes:
        data: bytes = self.client.zk.nodes[self.client.context.paths.task(task_id, "data")].data
        return data

    @rule(task_id=IDS, requeue=st.booleans())
    def put(self, task_id: str, requeue: bool) -> None:
        """A new task, or another run of one that has ended; with `requeue` also one to come after the run under way."""
        self.payloads += 1
        with contextlib.suppress(ZkmqError):
            self.client.put(b"%d" % self.payloads, task_id=task_id, on_conflict="requeue" if requeue else "raise")

    @rule(end=st.sampled_from(["finished", "dead", "again"]), dedupe=st.sampled_from([None, 5]))
    def work(self, end: str, dedupe: float | None) -> None:
        claimed = self.client.take()
        if claimed is None:
            return
        data = self.data(claimed.task_id)
        if end == "finished":
            self.client.complete(claimed, dedupe=dedupe)
        else:
            self.client.fail(claimed, retry=end == "again", backoff=0)
        if end != "again":
            self.book[claimed.task_id, end, data] += 1

    @rule(task_id=IDS, verb=st.sampled_from([interventions.redrive, interventions.drop, interventions.cancel]))
    def operate(self, task_id: str, verb: Any) -> None:
        with contextlib.suppress(ZkmqError, KeyError):
            data = self.data(task_id)
            self.client.do(verb(self.client.context, task_id))
            if verb is interventions.cancel:
                self.book[task_id, "cancelled", data] += 1

    @rule(seconds=st.sampled_from([1, 10, 100]))
    def time_passes(self, seconds: int) -> None:
        self.client.zk.advance(seconds)

    @rule()
    def clean_up_of_what_the_stream_has(self) -> None:
        self.query.run()
        self.client.zk.advance(100)
        self.client.do(collect.collect_garbage(self.client.context, 0))

    @invariant()
    def no_run_is_read_that_did_not_end_or_twice(self) -> None:
        assert self.rows() <= self.book

    def teardown(self) -> None:
        self.query.run()
        assert self.rows() == self.book
        assert [row[2] for row in self.query.rows()] == sorted(row[2] for row in self.query.rows())

    def rows(self) -> Counter[tuple[str, str, bytes]]:
        return Counter((task_id, state, data) for task_id, state, _, data in self.query.rows())


def test_each_run_of_the_engines_is_read_once_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    Following.patch = staticmethod(monkeypatch.setattr)
    run_state_machine_as_test(Following, settings=settings(max_examples=60, stateful_step_count=30, deadline=None))
