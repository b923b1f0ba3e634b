"""The data source `zkmq` with a real Spark and a real ZooKeeper."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_zkmq.engine import Message, Queue, Zkmq
from airflow_provider_zkmq.spark import read_report, register
from tests.integration.spark_programs import CLUSTER, TOP, program

pytestmark = pytest.mark.filterwarnings("ignore")  # PySpark and pandas warn of each other
PASSWORD = "s3cr3t-of-ann"
Load = Callable[..., DataFrame]


@pytest.fixture
def load(spark: SparkSession, zk: Zkmq, q: Queue, where: dict[str, str]) -> Load:
    """A queue with tasks in several states, and another one; how they are read."""
    register(spark)
    messages = [
        Message(f"data {n}", {"performance_class": "low"}, task_id=f"t{n}", metadata={"n": n}) for n in range(20)
    ]
    q.enqueue_many(messages, batch="b")
    for _ in range(5):
        q.claim(lease=60).complete(b"result")
    q.claim(lease=60).fail("broken", retry=False)
    q.claim(lease=60)
    zk.queue("orders").enqueue("x", task_id="one")
    return lambda **options: spark.read.format("zkmq").options(**where | options).load()


def test_queues_are_dataframes(load: Load, q: Queue, tmp_path: Path) -> None:
    """A row for each task, as the tasks say; two uses of one DataFrame do not disturb each other; rows are counted."""
    frame = load(queues="census", numPartitions=3, report=str(tmp_path)).cache()
    rows = {row.task_id: row for row in frame.collect()}
    tasks = {task.id: task for task in q.tasks()}
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
    assert read_report(tmp_path).rows == 20
    few = load(columns="state,task_id")
    assert few.columns == ["state", "task_id"]
    assert few.groupBy("state").count().orderBy("state").collect() == [
        ("claimed", 1), ("dead", 1), ("finished", 5), ("inserted", 14),
    ]  # fmt: skip
    either = few.where("state = 'dead'").union(few.where("state = 'claimed'"))
    both = either.union(load(columns="state,task_id", states="finished"))
    assert sorted(row.state for row in both.collect()) == ["claimed", "dead", *["finished"] * 5]


def test_what_is_wrong_is_one_clear_error_of_load(
    load: Load, spark: SparkSession, where: dict[str, str], subtests: pytest.Subtests
) -> None:
    """It begins with ours, without Spark's way to it; what Spark writes of a statement holds no password either."""
    wrong: dict[str, dict[str, object]] = {
        "unknown option 'colums'": {"colums": "state"},
        f"queue 'cencus' does not exist under '{where['root']}' (did you mean 'census'?)": {"queues": "cencus"},
        "option 'password' is refused": {"password": PASSWORD},
        "no ZooKeeper server answered at 127.0.0.1:1 within connect_timeout (1 s)": {
            "hosts": "127.0.0.1:1", "connectTimeout": "1s",
        },
    }  # fmt: skip
    for expected, options in wrong.items():
        with subtests.test(expected):
            with pytest.raises(AnalysisException) as caught:
                load(**options)
            text = str(caught.value)
            assert expected in text.splitlines()[0], text
            assert not any(part in text for part in ("Traceback", "\tat ", PASSWORD)), text
    for name in ("auth", "tls_key_password", "url"):
        with subtests.test(plan=name):
            statement = f"CREATE TEMPORARY VIEW v USING zkmq OPTIONS (hosts 'h:1', {name} 'ann:{PASSWORD}')"
            (row,) = spark.sql(f"EXPLAIN {statement}").collect()  # which is in the event log
            assert "h:1" in row[0]
            assert PASSWORD not in row[0]
    assert load(columns="task_id").count() == 21, "and the session goes on"


def test_the_page_on_spark_reads(load: Load, where: dict[str, str], tmp_path: Path) -> None:
    """The block that reads runs as it stands."""
    page = (TOP / "docs/spark.md").read_text()
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "spark.read.format" in block)
    code = code.replace("127.0.0.1:2181", where["hosts"]).replace("/tmp/read-report", str(tmp_path))
    code = code.replace('"census"', f'"census-{where["root"][1:]}"')
    exec(compile(code, "docs/spark.md", "exec"), {})  # noqa: S102


@pytest.mark.full
@pytest.mark.parametrize(
    "master",
    [
        "local[1]",
        pytest.param(CLUSTER, marks=pytest.mark.skipif(not os.environ.get("ZKMQ_SCALE"), reason="ZKMQ_SCALE=1")),
    ],
)
def test_credentials_come_from_where_the_code_runs_and_are_seen_nowhere(
    master: str, where: dict[str, str], tmp_path: Path
) -> None:
    """From the environment, or by an Airflow connection; not in plans, the event log, command lines or output.

    By a driver of its own, and executors that run the code out of the zip that is shipped to them.
    """
    hosts, root, password_file = *where.values(), tmp_path / "password"
    password_file.write_text(PASSWORD)
    with Zkmq.connect(hosts, root, auth=f"ann:{PASSWORD}", gc=False) as zk:
        zk.queue("q").enqueue_many([Message(b"x" * 10, task_id=f"t{n}") for n in range(40)])
    host, _, port = hosts.rpartition(":")
    connection = {"conn_type": "zkmq", "host": host, "port": int(port), "login": "ann", "password": PASSWORD}
    environment = {
        "ZKMQ_AUTH": f"ann:{PASSWORD}",
        "AIRFLOW_CONN_SECURED": json.dumps(connection | {"extra": {"root": root}}),
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
    }
    process = program(
        "reads", master, hosts, root, tmp_path, password_file,
        environment=environment, cwd=tmp_path, stderr=subprocess.PIPE,
    )  # fmt: skip
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert PASSWORD not in output + errors
