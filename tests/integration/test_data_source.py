"""The data source `zkmq` with a real Spark and a real ZooKeeper."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_zkmq.engine import Message, OrderedEnum, Queue, Zkmq
from airflow_provider_zkmq.spark import read_report, register
from tests.support import fresh_root

pytestmark = pytest.mark.filterwarnings("ignore")  # PySpark and pandas warn of each other
PASSWORD = "s3cr3t-of-ann"
TOP = Path(__file__).parents[2]
SCALE = pytest.mark.skipif(not os.environ.get("ZKMQ_SCALE"), reason="takes minutes: set ZKMQ_SCALE=1")


class World:
    """A queue with tasks in several states, and how it is read."""

    def __init__(self, hosts: str, spark: SparkSession) -> None:
        self.hosts, self.root, self.spark = hosts, fresh_root(), spark
        self.zk: Any = Zkmq.connect(hosts, self.root, gc=False)
        self.queue: Queue = self.zk.queue("census")
        self.queue.configure(filters={"size": OrderedEnum("small", "large")})
        self.queue.enqueue_many(
            [Message(f"data {n}", {"size": "small"}, task_id=f"t{n}", metadata={"n": n}) for n in range(20)], batch="b"
        )
        for _ in range(5):
            self.queue.claim(lease=60).complete(b"result")
        self.queue.claim(lease=60).fail("broken", retry=False)
        self.queue.claim(lease=60)
        self.zk.queue("orders").enqueue("x", task_id="one")

    def load(self, **options: object) -> DataFrame:
        return self.spark.read.format("zkmq").options(hosts=self.hosts, root=self.root, **options).load()


@pytest.fixture
def world(zookeeper: str, spark: SparkSession) -> Iterator[World]:
    register(spark)
    world = World(zookeeper, spark)
    yield world
    world.zk.close()


def test_queues_are_dataframes(world: World, tmp_path: Path) -> None:
    """A row for each task, as the tasks say; two uses of one DataFrame do not disturb each other; rows are counted."""
    frame = world.load(queues="census", numPartitions=3, report=str(tmp_path)).cache()
    rows = {row.task_id: row for row in frame.collect()}
    tasks = {task.id: task for task in world.queue.tasks()}
    assert rows.keys() == tasks.keys()
    for name, task in tasks.items():
        row = rows[name]
        assert (row.queue, row.state, row.status, row.attempt) == ("census", task.state, task.status, task.attempt)
        assert (row.filters, json.loads(row.metadata), row.data) == (task.filters, dict(task.metadata), task.data)
        assert (row.result, row.error, row.consumer) == (task.result, task.error, task.consumer)
        assert (row.batch, row.version, len(row.history)) == ("b", task.version, len(task.history))
        assert row.wait_ms == (None if task.claimed_ms is None else task.claimed_ms - task.enqueued_ms)
        ended = task.ended_ms is not None and task.claimed_ms is not None
        assert row.run_ms == (task.ended_ms - task.claimed_ms if ended else None)  # type: ignore[operator]
    dead, done = (world.load(states=state) for state in ("dead", "finished"))
    assert dead.union(done).groupBy("state").count().collect() == [("dead", 1), ("finished", 5)]
    assert read_report(tmp_path).rows == 20
    few = world.load(columns="state,task_id")
    assert few.columns == ["state", "task_id"]
    assert few.groupBy("state").count().orderBy("state").collect() == [
        ("claimed", 1), ("dead", 1), ("finished", 5), ("inserted", 14),
    ]  # fmt: skip
    either = few.where("state = 'dead'").union(few.where("state = 'claimed'"))
    assert sorted(row.state for row in either.collect()) == ["claimed", "dead"]


def test_what_is_wrong_is_one_clear_error_of_load(world: World) -> None:
    """It begins with ours, and there is no way to it through the code of Spark, in Python or in Java."""
    wrong = {
        "unknown option 'colums'": {"colums": "state"},
        "unknown column 'stat': did you mean state or status?": {"columns": "stat"},
        "unknown state 'done'": {"states": "done"},
        f"queue 'cencus' does not exist under '{world.root}' (did you mean 'census'?)": {"queues": "cencus"},
        "option 'password' is refused": {"password": PASSWORD},
        "no ZooKeeper server answered at 127.0.0.1:1 within connect_timeout (1 s)": {
            "hosts": "127.0.0.1:1", "connectTimeout": "1s",
        },
    }  # fmt: skip
    for expected, options in wrong.items():
        reader = world.spark.read.format("zkmq").options(**({"hosts": world.hosts, "root": world.root} | options))
        with pytest.raises(AnalysisException) as caught:
            reader.load()
        text = str(caught.value)
        assert expected in text.splitlines()[0], text
        assert "Traceback" not in text
        assert "\tat " not in text
        assert PASSWORD not in text
    assert world.load(columns="task_id").count() == 21, "and the session goes on"


def test_the_page_on_spark_reads(world: World, tmp_path: Path) -> None:
    """The block that reads runs as it stands."""
    page = (TOP / "docs/spark.md").read_text()
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "spark.read.format" in block)
    code = code.replace("127.0.0.1:2181", world.hosts).replace("/tmp/read-report", str(tmp_path))
    code = code.replace('"census"', f'"census-{world.root[1:]}"')
    exec(compile(code, "docs/spark.md", "exec"), {})  # noqa: S102


def _read_in_a_process_of_its_own(zookeeper: str, folder: Path, master: str) -> dict[str, Any]:
    root, password_file = fresh_root(), folder / "password"
    password_file.write_text(PASSWORD)
    with Zkmq.connect(zookeeper, root, auth=f"ann:{PASSWORD}", gc=False) as zk:
        zk.queue("q").enqueue_many([Message(b"x" * 10, task_id=f"t{n}") for n in range(40)])
    host, _, port = zookeeper.rpartition(":")
    connection = {"conn_type": "zkmq", "host": host, "port": int(port), "login": "ann", "password": PASSWORD}
    environment = {
        **os.environ,
        "ZKMQ_AUTH": f"ann:{PASSWORD}",
        "AIRFLOW_CONN_SECURED": json.dumps(connection | {"extra": {"root": root}}),
        "AIRFLOW_HOME": str(folder / "airflow"),
        "PYTHONPATH": os.pathsep.join([str(TOP), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.spark_reads", master, zookeeper, root, str(folder), password_file],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert PASSWORD not in done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _check_secured(answer: dict[str, Any]) -> None:
    assert answer["rows"] == [40, 40]
    assert (answer["payloads"], answer["reported"]) == (400, 40)
    assert answer["unknown"].startswith("AnalysisException: ")
    assert "connection 'nowhere' is not known here" in answer["unknown"].splitlines()[0]
    assert "option 'auth' is refused" in answer["refused"].splitlines()[0]
    assert [code for code in answer["code"] if ".zip/" not in code] == [], "what was shipped is what runs"
    assert answer["events"] > 0
    assert (answer["in plans"], answer["in commands"], answer["in events"]) == (False, False, False)


def test_credentials_come_from_where_the_code_runs_and_are_seen_nowhere(zookeeper: str, tmp_path: Path) -> None:
    """From the environment, or by an Airflow connection; not in plans, the event log, or command lines."""
    _check_secured(_read_in_a_process_of_its_own(zookeeper, tmp_path, "local[1]"))


@SCALE
def test_executors_of_a_cluster_read_a_secured_queue(zookeeper: str, tmp_path: Path) -> None:
    """In processes of their own, with the code out of the zip that is shipped to them."""
    answer = _read_in_a_process_of_its_own(zookeeper, tmp_path, "local-cluster[2,1,700]")
    _check_secured(answer)
    assert answer["executors"] == 2
    assert answer["pids"] >= 2
