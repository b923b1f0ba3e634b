"""Streams of what ended, with a real Spark and a real ZooKeeper."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

from airflow_provider_zkmq.engine import Error, Message, OrderedEnum, Queue, Task, Zkmq
from airflow_provider_zkmq.spark import register
from tests.faulty import Faulty
from tests.integration.following import follow
from tests.support import eventually

pytestmark = pytest.mark.filterwarnings("ignore")  # PySpark and pandas warn of each other
SCALE = bool(os.environ.get("ZKMQ_SCALE"))


@pytest.fixture
def queue(zk: Zkmq) -> Queue:
    queue = zk.queue("q")
    queue.configure(filters={"size": OrderedEnum("small", "large")})
    return queue


@pytest.fixture
def told(zookeeper: str, root: str, tmp_path: Path) -> dict[str, Any]:
    """What a stream of this test's queues is told."""
    options = {"hosts": zookeeper, "root": root}
    return {"options": options, "checkpoint": str(tmp_path / "checkpoint"), "table": str(tmp_path / "table")}


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
    for _ in range(5):
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
    for _ in range(5):
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
    expected = [
        ("a", "finished"),
        ("b", "dead"),
        ("c", "cancelled"),
        ("b", "finished"),
        ("d", "dead"),
        ("a", "finished"),
    ]
    assert ended(streaming, told) == expected
    rows = table(streaming, told)
    first, dead = rows[0], rows[4]
    assert (first.queue, first.status, bytes(first.data), bytes(first.result)) == (
        "q", "done-awaiting-gc", b"data a", b"result a",
    )  # fmt: skip
    assert (json.loads(first.metadata), first.filters, first.attempt) == ({"n": 1}, {"size": "small"}, 1)
    assert (dead.error, dead.filters, [each.outcome for each in dead.history]) == (
        "no d",
        {"size": "large"},
        ["failed"],
    )
    assert rows[5].version == queue.task("a").version
    assert [bytes(row.data) for row in rows if row.task_id == "b"] == [b"data b"] * 2


def test_batches_are_bounded_and_columns_states_and_selectors_chosen(
    streaming: SparkSession, queue: Queue, told: dict[str, Any]
) -> None:
    finish(queue, *(f"f{n}" for n in range(5)))
    bury(queue, *(f"d{n}" for n in range(5)))
    told["options"] |= {
        "maxTasksPerTrigger": "4", "columns": "task_id,ended_at,version", "states": "dead,cancelled",
        "selector": "size==large", "queues": "q",
    }  # fmt: skip
    query = follow_to_the_end(streaming, told)
    assert json.loads(query.lastProgress["sources"][0]["endOffset"])["runs"] == 2
    frame = streaming.read.parquet(told["table"])
    assert frame.columns == ["task_id", "ended_at", "version"]
    assert sorted(row.task_id for row in frame.collect()) == [f"d{n}" for n in range(5)]
    assert [progress["batchId"] for progress in query.recentProgress] == [0, 1, 2]


def follow_as_shown(_: SparkSession, told: dict[str, Any]) -> StreamingQuery:
    """What the documentation shows, executed as it stands, but for addresses and times."""
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    (code,) = (
        each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "spark.readStream.format" in each
    )
    options = ", ".join(f"{name}={value!r}" for name, value in told["options"].items())
    for shown, real in (
        ('hosts="127.0.0.1:2181"', options), ('queues="census"', 'queues="q"'), ("10 seconds", "0 seconds"),
        ("/data/census-checkpoint", told["checkpoint"]), ("/data/census", told["table"]),
    ):  # fmt: skip
        assert shown in code
        code = code.replace(shown, real)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/spark.md", "exec"), names)  # noqa: S102
    query: StreamingQuery = names["query"]
    return query


def test_an_idle_stream_makes_no_batch_and_writes_nothing(
    streaming: SparkSession, queue: Queue, told: dict[str, Any]
) -> None:
    """It looks again all the time: a run that ends is read without being waited for. The query is the page's."""
    streaming.conf.set("spark.sql.streaming.noDataProgressEventInterval", "300")
    finish(queue, "a")
    query = follow_on(streaming, told, "a", start=follow_as_shown)
    eventually(lambda: query.lastProgress["batchId"] == 1, 60)

    def nothing_was_written() -> bool:
        before, idle = queue.zxid(), len(query.recentProgress)
        eventually(lambda: len(query.recentProgress) >= idle + 3, 60)
        return queue.zxid() == before + 1

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
def test_errors_say_in_their_first_line_what_is_wrong(
    streaming: SparkSession, queue: Queue, told: dict[str, Any]
) -> None:
    finish(queue, "a")
    options = told["options"]
    for wrong, error in (
        ({"queues": "qq"}, "queue 'qq' does not exist"),
        ({"startingOffsets": "soon"}, "startingOffsets must be"),
        ({"hosts": "127.0.0.1:1", "connectTimeout": "1"}, "no ZooKeeper server answered at 127.0.0.1:1"),
    ):
        assert error in refusal(streaming, told | {"options": options | wrong})
    follow_to_the_end(streaming, told)
    finish(queue, "b")
    eventually(lambda: queue.collect_garbage(lifetime=0).ran)  # a client of the stream's may be cleaning up just now
    assert queue.ids("finished") == []
    finish(queue, "c")
    assert "runs of queue 'q' that ended after" in refusal(streaming, told)
    follow_to_the_end(streaming, told | {"options": options | {"failOnDataLoss": "false"}})
    assert [task_id for task_id, _ in ended(streaming, told)] == ["a", "c"]


@pytest.mark.full
def test_zookeeper_may_go_away_for_a_while(
    streaming: SparkSession, door: Faulty, queue: Queue, told: dict[str, Any]
) -> None:
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


class Load:
    """Work that goes on: tasks are enqueued, finish, die, are redriven, run anew; and a book of what ended."""

    def __init__(self, zk: Zkmq, seed: int) -> None:
        self.queue, self.random = zk.queue("q"), random.Random(seed)
        self.book: Counter[tuple[str, str]] = Counter()
        self.lock, self.stopped = threading.Lock(), threading.Event()
        self.worker = self.queue.worker(self._handle, threads=4)
        self.producer = threading.Thread(target=self._produce, daemon=True)

    def _handle(self, task: Task) -> object:
        dies = self.random.random() < 0.15 and task.data != b"redriven"
        with self.lock:
            self.book[task.id, "dead" if dies else "finished"] += 1
        return Error("no") if dies else f"result of {task.id}".encode()

    def _produce(self) -> None:
        number = 0
        while not self.stopped.wait(0.5):  # enough of a load, however fast the machine is
            ids = [f"t{number + each}" for each in range(20)]
            self.queue.enqueue_many([Message(b"x", {"size": "small"}, task_id=task_id) for task_id in ids])
            number += len(ids)
            for task_id in self.queue.ids("dead")[:2]:
                self.queue.redrive(task_id, data=b"redriven")
            for task_id in self.random.sample(ids, 2):
                self.queue.wait([task_id], "completion", timeout=20)
                if self.queue.task(task_id).state == "finished":
                    self.queue.enqueue(b"again", {"size": "small"}, task_id=task_id)

    def __enter__(self) -> Self:
        self.worker.start()
        self.producer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.producer.join(60)
        eventually(lambda: not self.queue.counts()["inserted"], 60)
        self.worker.stop()
        self.worker.join()


def killed(told: dict[str, Any], batches: int, delay: float) -> None:
    """Start a process that follows, and end it as a machine would, some time after it has done so many batches."""
    command, log = [sys.executable, "-m", "tests.integration.following", json.dumps(told)], Path(f"{told['table']}.log")
    for _ in range(5):
        with log.open("w") as errors:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
            )
        assert process.stdout is not None
        done = sum(1 for _ in itertools.islice((line for line in process.stdout if '"batch"' in line), batches))
        time.sleep(delay)  # wherever it is by then
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if done == batches:
            return
        assert BUSY in log.read_text(), f"the stream ended by itself: {log.read_text()[-3_000:]}"
    raise AssertionError(BUSY)


@pytest.mark.full
@pytest.mark.parametrize("kills", [5 if SCALE else 1])
def test_killed_drivers_lose_and_double_nothing(
    kills: int, streaming: SparkSession, zookeeper: str, root: str, queue: Queue, told: dict[str, Any]
) -> None:
    """The driver is killed while tasks end, die, are redriven and run anew: each ended run is in the table once."""
    queue.configure(follow=True)  # what is run anew before the stream has started is to be kept, too
    chance = random.Random(kills)
    told["options"] |= {"maxTasksPerTrigger": "25", "columns": "task_id,state,version,result"}
    with Zkmq.connect(zookeeper, root=root, session_timeout=30, gc=False) as zk, Load(zk, seed=kills) as load:
        for _ in range(kills):
            killed(told, chance.randint(1, 4), chance.uniform(0, 1.5))
    told["options"]["maxTasksPerTrigger"] = "1000"
    follow_to_the_end(streaming, told)
    rows = table(streaming, told)
    assert len({(row.task_id, row.version) for row in rows}) == len(rows)
    assert Counter((row.task_id, row.state) for row in rows) == load.book
    assert all(bytes(row.result) == f"result of {row.task_id}".encode() for row in rows if row.state == "finished")
    assert follow_to_the_end(streaming, told).lastProgress is None or len(table(streaming, told)) == len(rows)


@pytest.mark.skipif(not SCALE, reason="starts a Spark cluster")
def test_a_stream_on_a_cluster_of_a_secured_zookeeper(
    streaming: SparkSession, zookeeper: str, root: str, told: dict[str, Any], tmp_path: Path
) -> None:
    """Executors in processes of their own; the password is in their environment, and in no plan and no event log."""
    with Zkmq.connect(zookeeper, root=root, auth="ann:sesame", gc=False) as zk:
        queue = zk.queue("q")
        queue.configure(filters={"size": OrderedEnum("small", "large")})
        finish(queue, *(f"t{n}" for n in range(50)))
    events = tmp_path / "events"
    events.mkdir()
    conf = {
        "spark.executor.memory": "600m", "spark.eventLog.enabled": "true", "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
    }  # fmt: skip
    cluster = told | {"master": "local-cluster[2,1,700]", "until_empty": True, "conf": conf}
    cluster["options"] |= {"numPartitions": "4"}
    process = subprocess.run(
        [sys.executable, "-m", "tests.integration.following", json.dumps(cluster)],
        env=os.environ | {"ZKMQ_AUTH": "ann:sesame"}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-3_000:]
    assert json.loads(process.stdout.splitlines()[-1]) == {"ended": True, "executors": 2}
    assert sorted(task_id for task_id, _ in ended(streaming, told)) == sorted(f"t{n}" for n in range(50))
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"sesame" in path.read_bytes()]
    assert "ann" in refusal(streaming, told) or "access" in refusal(streaming, told)
