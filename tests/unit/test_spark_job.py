"""The pipeline as a program, and what of its tables needs no Spark to be told."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from airflow_provider_zkmq import spark
from airflow_provider_zkmq.delta_tables import FEW, LARGE, Table, chosen, open_for_reading
from airflow_provider_zkmq.engine import ConfigError, CorruptRecord
from airflow_provider_zkmq.history import table
from airflow_provider_zkmq.location import Location
from airflow_provider_zkmq.spark import job
from airflow_provider_zkmq.spark.history import pipeline
from airflow_provider_zkmq.spark.history.parquet_files import SIGNS, statistics
from airflow_provider_zkmq.spark.history.retention import Retention
from tests.delta_tables import commit, staged


def test_the_job_hands_its_options_on_and_takes_no_password(monkeypatch, capsys):
    """Executors can be given the way to connect, and it holds no credentials; progress goes to the output.

    What is wrong is said in one line.
    """
    requested = {}

    def run(connect, queues, directory, _session, *, progress, **rest):
        requested.update(rest, connect=connect, queues=queues, directory=directory)
        progress("queue a: mark: done, 0.0 s")
        if queues is None:
            raise ConfigError("queue 'a' does not exist")

    started = lambda name, master=None: requested.update(session=(name, master))
    monkeypatch.setattr(spark, "run_pipeline", run, raising=False)
    monkeypatch.setattr(spark, "spark_session", started, raising=False)
    line = "pipeline --directory /archive --conn-id zk --root /r --queues a,,b --lifetime 0 --keep-bronze 7"
    assert job.main([*line.split(), "--master", "local[2]"]) == 0
    assert (requested["queues"], requested["directory"], requested["session"]) == (
        ["a", "b"],
        Location("/archive"),
        ("zkmq-pipeline", "local[2]"),
    )
    assert (requested["lifetime"], requested["keep"]) == (0.0, Retention(bronze=7))
    assert dict(pickle.loads(pickle.dumps(requested["connect"])).values) == {"connid": "zk", "root": "/r"}  # noqa: S301  our own
    assert capsys.readouterr().out == "queue a: mark: done, 0.0 s\n"
    with pytest.raises(SystemExit):
        job.main(["pipeline", "--directory", "/archive", "--auth", "user:secret"])
    capsys.readouterr()
    assert job.main(["pipeline", "--directory", "/archive"]) == 1
    assert capsys.readouterr().err == "error: queue 'a' does not exist\n"


def test_the_job_reports(monkeypatch, tmp_path, capsys):
    """The report's text goes to the output, its page to a file."""
    page = tmp_path / "page.html"
    told = SimpleNamespace(text=lambda: "all is well", write_html=lambda path: Path(path).write_text("<html>"))
    monkeypatch.setattr(spark, "report", lambda *_a, **_k: told, raising=False)
    assert job.main(["report", "--directory", "/archive", "--html", str(page)]) == 0
    assert (page.read_text(), capsys.readouterr().out) == ("<html>", "all is well\n")


def test_of_an_error_of_spark_the_line_is_told_that_says_what_is_wrong():
    """Ours first, from a worker's traceback; else what Java was caused by; never a walk through Java alone."""
    walk = "An error occurred while calling o55.parquet.\n: org.apache.spark.SparkException: Job aborted\n\tat a.b(c)\n"
    ours = '  File "rows.py", line 3\nairflow_provider_zkmq.engine.errors.Unavailable: no server\n\tat d.e(f)\n'
    assert pipeline.said(Exception(walk + ours)) == "Unavailable: no server"
    full = "Caused by: java.io.IOException: No space left on device\n\tat g.h(i)\n"
    assert pipeline.said(Exception(walk + full)) == "java.io.IOException: No space left on device"
    assert (pipeline.said(ConfigError("plain")), pipeline.said(ConfigError())) == ("plain", "")


def test_rows_are_merged_a_few_times_however_many_files_come():
    """A hundred bytes a thousand times: the files stay few, and a row is written again about as often as they double.

    Large files, and few, are left as they are.
    """
    sizes, merges, written = [], 0, 0
    for _ in range(1_000):
        sizes.append(100)
        if group := chosen(sizes):
            merges += 1
            written += sum(group)
            for size in group:
                sizes.remove(size)
            sizes.append(sum(group))
    assert sum(sizes) == 100_000
    assert len(sizes) <= 3 * FEW
    assert written <= 10 * 100_000
    assert merges <= 1_000 / (FEW - 2)
    assert chosen([10] * (FEW - 1)) == chosen([LARGE, *[10] * (FEW - 1)]) == []
    assert chosen([LARGE, *[10] * FEW]) == [10] * FEW


def test_what_a_table_says_of_itself_outlives_its_log(tmp_path):
    """A checkpoint is made every twenty commits; what stood in the log before it is deleted when it is old."""
    for watermark in range(1, 46):
        commit(tmp_path / "q", "runs", 1, watermark)
    opened = Table.open(Location.of(tmp_path / "q"), "runs")
    log, long_ago = opened.location.folder / "_delta_log", time.time() - 30 * 86_400
    for path in log.iterdir():
        os.utime(path, (long_ago, long_ago))
    opened.delta.cleanup_metadata()
    assert len(list(log.glob("*.json"))) < 25
    again = Table.open(Location.of(tmp_path / "q"), "runs")
    assert (again.mark, again.mark.watermark, again.mark.rows) == (opened.mark, 45, 45)


def test_who_commits_to_a_table_second_is_refused_and_changes_nothing(tmp_path):
    """Also where both make the table. What was staged is seen by nobody, and deleted in time."""
    home = tmp_path / "q"
    for watermark in (5, 6):
        late = Table.open(Location.of(home), "runs")
        commit(home, "runs", 3, watermark)
        before = Table.open(Location.of(home), "runs")
        with pytest.raises(ConfigError, match="another run has written .*runs meanwhile; this one changed nothing"):
            late.commit(staged(late, 2, 7), replace(late.mark, watermark=7))
        now = Table.open(Location.of(home), "runs")
        assert (now.mark, now.pieces) == (before.mark, before.pieces)
    assert (now.mark.watermark, now.mark.rows) == (6, 6)
    assert now.sweep() == 0, "somebody may still be about to commit them"
    assert now.sweep(hours=0) == 2
    assert {str(path) for path in home.rglob("day=*/*.parquet")} == set(Table.open(Location.of(home), "runs").files())


def test_a_table_is_read_as_far_as_the_one_that_is_committed_after_it(tmp_path):
    """So runs and deliveries belong together, whatever was cut off in between; without runs there are no deliveries."""
    commit(tmp_path / "q", "deliveries", 3, 5)
    assert open_for_reading(Location.of(tmp_path / "q"), "deliveries").files() == []
    commit(tmp_path / "q", "runs", 2, 5)
    commit(tmp_path / "q", "deliveries", 1, 6)
    assert [table(kind, tmp_path, "q").to_pandas().shape for kind in ("runs", "deliveries")] == [(2, 2), (3, 2)]
    commit(tmp_path / "q", "runs", 0, 6)
    assert len(table("deliveries", tmp_path, "q").to_pandas()) == 4


def test_readers_need_no_spark_and_executors_no_delta(tmp_path):
    """A table is read where neither Spark nor Airflow can be imported; an executor's part where `deltalake` cannot."""
    commit(tmp_path / "q", "runs", 2, 5)
    reads = "from airflow_provider_zkmq.history import table; print(len(table('runs', sys.argv[1], 'q').to_pandas()))"
    works = "import airflow_provider_zkmq.spark.history.queue_reader; print('works')"
    for absent, code, told in (("pyspark airflow", reads, "2"), ("deltalake", works, "works")):
        program = f"import sys; sys.modules |= dict.fromkeys({absent!r}.split()); {code}"
        done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=False)
        assert (done.stdout.strip(), done.returncode) == (told, 0), done.stderr


def test_a_table_that_is_none_or_that_others_have_changed_is_refused(tmp_path):
    """Damage is `CorruptRecord` with the path. What was restored lacks rows that clean-up takes to be kept."""
    home = tmp_path / "q"
    for watermark in (5, 6):
        commit(home, "bronze", 3, watermark)
    delta = Table.open(Location.of(home), "bronze").delta
    delta.restore(1)
    with pytest.raises(ConfigError, match="has 3 rows and should have 6: another program has changed or restored it"):
        Table.open(Location.of(home), "bronze")
    delta.update_incremental()
    delta.restore(2)
    assert Table.open(Location.of(home), "bronze").mark.rows == 6
    (home / "bronze/_delta_log" / f"{0:020d}.json").write_text("[]")
    with pytest.raises(CorruptRecord, match="bronze cannot be read as a Delta table"):
        Table.open(Location.of(home), "bronze")
    with pytest.raises(ConfigError, match="cannot be kept under a path with"):
        Table.open(Location.of(tmp_path / "a%20b"), "bronze")
    with pytest.raises(ConfigError, match="'ruins' is no table of a history: .*runs"):
        table("ruins", tmp_path, "q")
    with pytest.raises(ConfigError, match="holds no runs of queue 'q'"):
        table("runs", tmp_path, "q")


def test_damaged_tasks_are_named_by_the_log_whatever_is_committed_after(tmp_path):
    """Merged, forgotten, by another program: the names stay; a log that has lost them is refused."""
    home = tmp_path / "q"
    commit(home, "bronze", 3, 5)
    opened = Table.open(Location.of(home), "bronze")
    opened.commit(staged(opened, 1, 6), replace(opened.mark, damaged=("a", "b")))
    assert Table.open(Location.of(home), "bronze").merge(few=2) == 2
    Table.open(Location.of(home), "bronze").delta.optimize.compact()
    Table.open(Location.of(home), "bronze").forget(date(2026, 1, 2))
    now = Table.open(Location.of(home), "bronze")
    assert (now.mark.damaged, now.mark.rows, now.files()) == (("a", "b"), 0, [])
    for path in (home / "bronze/_delta_log").glob("*.json"):
        path.write_text(path.read_text().replace('"airflow-provider-zkmq/mark":', '"others":'))
    with pytest.raises(ConfigError, match="no longer names the 2 damaged tasks"):
        Table.open(Location.of(home), "bronze")


@given(st.lists(st.none() | st.text("ab\U0010ffff", min_size=60, max_size=70), min_size=1))
def test_the_bounds_of_a_files_texts_hold(texts):
    """They are cut, and yet none is above or below them; what has no value has no bounds."""
    told = json.loads(statistics(pa.table({"text": pa.array(texts, pa.string())})))
    known = [text for text in texts if text is not None]
    assert (told["numRecords"], told["nullCount"]["text"]) == (len(texts), len(texts) - len(known))
    if not known:
        assert told["minValues"] == told["maxValues"] == {}
        return
    assert told["minValues"]["text"] <= min(known)
    assert max(known) <= told["maxValues"]["text"]
    assert len(told["minValues"]["text"]) <= SIGNS


def test_the_bounds_of_a_files_times_and_numbers_hold():
    """Times are told in whole milliseconds, below and above; maps and payloads have no order."""
    rows = pa.table(
        {
            "at": pa.array([1_500, 999_001], pa.timestamp("us", tz="UTC")),
            "number": [3, 1],
            "real": [0.5, None],
            "data": [b"x", b"y"],
            "map": pa.array([[("a", "b")], []], pa.map_(pa.string(), pa.string())),
        }
    )
    told = json.loads(statistics(rows))
    assert told["minValues"] == {"at": "1970-01-01T00:00:00.001Z", "number": 1, "real": 0.5}
    assert told["maxValues"] == {"at": "1970-01-01T00:00:01.000Z", "number": 3, "real": 0.5}
    assert told["nullCount"] == {"at": 0, "number": 0, "real": 1}


def test_a_retention_of_no_day_is_refused():
    """A number of days is 1 or more."""
    with pytest.raises(ConfigError, match="no number of days"):
        Retention(bronze=0)
