"""Streams of what ended, with a real Spark and a real ZooKeeper."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

from airflow_provider_zkmq.engine import OrderedEnum, Queue, Zkmq
from airflow_provider_zkmq.engine.queue_internals import internals
from airflow_provider_zkmq.spark import register
from tests.integration.ended import ended_runs, produce
from tests.integration.spark_programs import follow, program, shown
from tests.support import eventually

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.filterwarnings("ignore")]
SCALE = bool(os.environ.get("ZKMQ_SCALE"))


@pytest.fixture
def queue(zk: Zkmq) -> Queue:
    queue = zk.queue("q")
    queue.configure(filters={"size": OrderedEnum("small", "large")})
    return queue


@pytest.fixture
def told(where: dict[str, str], tmp_path: Path) -> dict[str, Any]:
    """What a stream of this test's queues is told."""
    return {"options": where, "checkpoint": str(tmp_path / "checkpoint"), "table": str(tmp_path / "table")}


@pytest.fixture
def streaming(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, which knows the data source; its queries end with the test."""
    register(spark)
    yield spark
    for query in spark.streams.active:
        query.stop()


def finish(queue: Queue, *ids: str) -> None:
    for task_id in ids:
        queue.enqueue(f"data {task_id}", {"size": "small"}, task_id=task_id, metadata={"n": 1})
        queue.claim(timeout=5).complete(f"result {task_id}")


def bury(queue: Queue, *ids: str) -> None:
    for task_id in ids:
        queue.enqueue(f"data {task_id}", {"size": "large"}, task_id=task_id)
        queue.claim(timeout=5).fail(f"no {task_id}", retry=False)


#: What Spark says where it has waited in vain for ten seconds for a Python process: the machine is busy.
BUSY = "Python worker failed to connect back"


def follow_to_the_end(spark: SparkSession, told: dict[str, Any]) -> StreamingQuery:
    """All that has ended by now; tried again where the machine was too busy, which a checkpoint is for."""
    for _ in range(30):
        query = follow(spark, told | {"until_empty": True})
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if BUSY not in str(error):
                raise
        else:
            break
    return query


def follow_on(
    spark: SparkSession, told: dict[str, Any], *ids: str, start: Callable[..., StreamingQuery] = follow
) -> StreamingQuery:
    """A query that goes on, and has come so far."""
    for _ in range(30):
        query = start(spark, told)
        eventually(partial(come_so_far, query, spark, told, ids), 120)
        if query.isActive:
            return query
        assert BUSY in str(query.exception())
    raise AssertionError(BUSY)


def come_so_far(query: StreamingQuery, spark: SparkSession, told: dict[str, Any], ids: tuple[str, ...]) -> bool:
    """Whether these runs have been read, or the query has ended."""
    return not query.isActive or tuple(task_id for task_id, _ in ended(spark, told)) == ids


def table(spark: SparkSession, told: dict[str, Any]) -> list[Row]:
    try:
        return spark.read.parquet(told["table"]).orderBy("version", "task_id").collect()
    except AnalysisException:
        return []  # the first batch is not committed yet


def ended(spark: SparkSession, told: dict[str, Any]) -> list[tuple[str, str]]:
    return [(row.task_id, row.state) for row in table(spark, told)]


def test_a_restart_goes_on_from_the_checkpoint(streaming: SparkSession, queue: Queue, told: dict[str, Any]) -> None:
    """Each run that ended once, finished, dead or cancelled, whatever became of its task since."""
    finish(queue, "a")
    bury(queue, "b")
    queue.enqueue("never", task_id="c")
    queue.cancel("c")
    follow_to_the_end(streaming, told)
    queue.redrive("b")
    queue.claim(timeout=5).complete()
    bury(queue, "d")
    queue.drop("d")
    finish(queue, "a")
    follow_to_the_end(streaming, told)
    finished, dead = [(name, "finished") for name in "aba"], [(name, "dead") for name in "bd"]
    assert ended(streaming, told) == [finished[0], dead[0], ("c", "cancelled"), finished[1], dead[1], finished[2]]
    rows = table(streaming, told)
    first, letter = rows[0], rows[4]
    said = first.queue, first.status, bytes(first.data), bytes(first.result)
    assert said == ("q", "done-awaiting-gc", b"data a", b"result a")
    assert (json.loads(first.metadata), first.filters, first.attempt) == ({"n": 1}, {"size": "small"}, 1)
    outcomes = [each.outcome for each in letter.history]
    assert (letter.error, letter.filters, outcomes) == ("no d", {"size": "large"}, ["failed"])
    assert rows[5].version == queue.task("a").version
    assert [bytes(row.data) for row in rows if row.task_id == "b"] == [b"data b"] * 2


def follow_as_shown(_: SparkSession, told: dict[str, Any]) -> StreamingQuery:
    """What the documentation shows, executed as it stands, but for addresses and times."""
    options = ", ".join(f"{name}={value!r}" for name, value in told["options"].items())
    real = {
        'hosts="127.0.0.1:2181"': options, 'queues="census"': 'queues="q"', "10 seconds": "0 seconds",
        "/data/census-checkpoint": told["checkpoint"], "/data/census": told["table"],
    }  # fmt: skip
    names: dict[str, Any] = {}
    exec(compile(shown("spark.readStream.format", real), "docs/spark.md", "exec"), names)  # noqa: S102
    query: StreamingQuery = names["query"]
    return query


@pytest.mark.full
def test_an_idle_stream_makes_no_batch_and_writes_nothing(streaming, queue, told) -> None:
    """It looks again all the time: a run that ends is read without being waited for. The query is the page's."""
    streaming.conf.set("spark.sql.streaming.noDataProgressEventInterval", "300")
    finish(queue, "a")
    query = follow_on(streaming, told, "a", start=follow_as_shown)
    eventually(lambda: query.lastProgress["batchId"] == 1, 60)

    def nothing_was_written() -> bool:
        before, idle = internals(queue).zxid(), len(query.recentProgress)
        eventually(lambda: len(query.recentProgress) >= idle + 3, 60)
        return internals(queue).zxid() == before + 1

    eventually(nothing_was_written, 60)  # sessions of other tests may end on the same server, each by a write
    assert query.lastProgress["numInputRows"] == 0
    finish(queue, "b")
    eventually(lambda: len(ended(streaming, told)) == 2, 60)
    assert query.exception() is None
    query.stop()
    commits = (Path(told["checkpoint"]) / "commits").iterdir()
    assert sorted(path.name for path in commits if path.name.isdecimal()) == ["0", "1"]


def refusal(spark: SparkSession, told: dict[str, Any]) -> str:
    """What a query that fails says first: by `load`, or when it runs."""
    with pytest.raises((AnalysisException, StreamingQueryException)) as raised:
        follow_to_the_end(spark, told)
    return str(raised.value).splitlines()[0]


@pytest.mark.full
def test_options_choose_and_errors_say_in_their_first_line_what_is_wrong(streaming, queue, told, tmp_path) -> None:
    """Batches are bounded, and columns, states and selectors chosen; what is wrong, or lost, is told."""
    finish(queue, "a")
    bury(queue, *(f"d{n}" for n in range(3)))
    options = told["options"]
    chosen = {"maxTasksPerTrigger": "2", "columns": "task_id,version", "states": "dead,cancelled"}
    folders = {"table": str(tmp_path / "few"), "checkpoint": str(tmp_path / "few-checkpoint")}
    few = told | folders | {"options": options | chosen | {"selector": "size==large", "queues": "q"}}
    query = follow_to_the_end(streaming, few)
    assert [json.loads(each["sources"][0]["endOffset"])["runs"] for each in query.recentProgress] == [2, 2]
    assert [tuple(row) for row in table(streaming, few)] == [(f"d{n}", queue.task(f"d{n}").version) for n in range(3)]
    queue.clear("dead")
    told["options"] = options = options | {"states": "finished"}
    nowhere = {"hosts": "127.0.0.1:1", "connectTimeout": "1"}
    for wrong, error in (({"queues": "qq"}, "queue 'qq' does not exist"), (nowhere, "no ZooKeeper server answered at")):
        assert error in refusal(streaming, told | {"options": options | wrong})
    follow_to_the_end(streaming, told)
    finish(queue, "b")
    eventually(lambda: queue.collect_garbage(lifetime=0).ran)  # a client of the stream's may be cleaning up just now
    assert internals(queue).ids("finished") == []
    finish(queue, "c")
    assert "runs of queue 'q' that ended after" in refusal(streaming, told)
    follow_to_the_end(streaming, told | {"options": options | {"failOnDataLoss": "false"}})
    assert [task_id for task_id, _ in ended(streaming, told)] == ["a", "c"]


@pytest.mark.full
def test_zookeeper_may_go_away_for_a_while(streaming, door, queue, told) -> None:
    """A stream waits for it, and ends after its ``requestTimeout``; started again, it has lost nothing."""
    told["options"] |= {"hosts": door.hosts, "requestTimeout": "5"}
    finish(queue, "a")
    query = follow_on(streaming, told, "a")
    door.down()
    finish(queue, "b")
    door.up()
    eventually(lambda: len(ended(streaming, told)) == 2, 60)
    assert query.isActive
    door.down()
    finish(queue, "c")
    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination(60)
    assert f"no ZooKeeper server answered at {door.hosts}" in str(raised.value).splitlines()[0]
    door.up()
    follow_to_the_end(streaming, told)
    assert [task_id for task_id, _ in ended(streaming, told)] == ["a", "b", "c"]


@contextmanager
def busy(queue: Queue) -> Iterator[None]:
    """Tasks end in all ways in the block."""
    stopped = threading.Event()

    def work() -> None:
        for number in itertools.count():
            produce(queue, 20, number)
            if stopped.wait(0.2):  # enough of a load, however fast the machine is
                return

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        try:
            yield
        finally:
            stopped.set()
        working.result()


def killed(told: dict[str, Any], batches: int, delay: float) -> None:
    """Start a process that follows, and end it as a machine would, some time after it has done so many batches."""
    log = Path(f"{told['table']}.log")
    for _ in range(5):
        with log.open("w") as errors:
            process = program("following", json.dumps(told), stderr=errors)
        assert process.stdout is not None
        done = sum(1 for _ in itertools.islice((line for line in process.stdout if "batch" in line), batches))
        threading.Event().wait(delay)  # whatever it is doing by then
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if done == batches:
            return
        assert BUSY in log.read_text(), f"the stream ended by itself: {log.read_text()[-3_000:]}"
    raise AssertionError(BUSY)


@pytest.mark.full
@pytest.mark.parametrize("kills", [5 if SCALE else 1])
def test_killed_drivers_lose_and_double_nothing(kills, streaming, q, told) -> None:
    """The driver is killed while tasks end, die, are dropped and run anew: each ended run is in the table once."""
    q.configure(follow=True)  # what is run anew before the stream has started is to be kept, too
    seed = int(os.environ.get("ZKMQ_SEED") or random.randrange(1 << 32))
    sys.stdout.write(f"ZKMQ_SEED={seed}\n")
    chance = random.Random(seed)
    told["options"] |= {"maxTasksPerTrigger": "25", "columns": "task_id,state,version,result"}
    with busy(q):
        for _ in range(kills):
            killed(told, chance.randint(1, 4), chance.uniform(0, 1.5))
    told["options"]["maxTasksPerTrigger"] = "1000"
    follow_to_the_end(streaming, told)
    rows = table(streaming, told)
    assert sorted((row.task_id, row.version) for row in rows) == sorted(ended_runs(q))
    assert {row.state for row in rows} == {"finished", "dead"}
    assert all(row.result for row in rows if row.state == "finished")
    follow_to_the_end(streaming, told)
    assert len(table(streaming, told)) == len(rows)
