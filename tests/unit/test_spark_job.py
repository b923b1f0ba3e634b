"""The pipeline as a program, and what of its tables needs no Spark to be told."""

from __future__ import annotations

import json
import pickle

import pytest

pytest.importorskip("pyspark")

from airflow_provider_zkmq import spark
from airflow_provider_zkmq.engine import ConfigError, CorruptRecord
from airflow_provider_zkmq.spark import job, session
from airflow_provider_zkmq.spark.history import pipeline
from airflow_provider_zkmq.spark.history.compaction import FEW, LARGE, chosen
from airflow_provider_zkmq.spark.history.manifest import Manifest, Part, exclusive, publish, read_manifest
from airflow_provider_zkmq.spark.history.retention import Retention


@pytest.fixture
def asked(monkeypatch):
    """What the program asks of the pipeline, which prints a line."""
    calls = {}

    def run(connect, queues, directory, _session, *, progress, **rest):
        calls.update(rest, connect=connect, queues=queues, directory=directory)
        progress("queue a: mark: done, 0.0 s")

    monkeypatch.setattr(pipeline, "run_pipeline", run)
    monkeypatch.setattr(session, "spark_session", lambda name, master=None: calls.setdefault("session", (name, master)))
    return calls


def test_the_job_hands_its_options_on_and_takes_no_password(asked, capsys):
    """Executors can be given the way to connect, and it holds no credentials; progress goes to the output."""
    line = "pipeline --directory /archive --conn-id zk --root /r --queues a,,b --lifetime 0 --keep-bronze 7 --delta"
    assert job.main(line.split()) == 0
    assert (asked["queues"], asked["directory"], asked["session"]) == (["a", "b"], "/archive", ("zkmq-pipeline", None))
    assert (asked["lifetime"], asked["keep"], asked["delta"]) == (0.0, Retention(bronze=7), True)
    assert dict(pickle.loads(pickle.dumps(asked["connect"])).values) == {"conn_id": "zk", "root": "/r"}  # noqa: S301  our own
    assert capsys.readouterr().out == "queue a: mark: done, 0.0 s\n"
    with pytest.raises(SystemExit):
        job.main(["pipeline", "--directory", "/archive", "--auth", "user:secret"])


def test_the_job_says_in_one_line_what_is_wrong(asked, monkeypatch, capsys):
    def fail(*_arguments, **_rest):
        raise ConfigError("queue 'a' does not exist")

    monkeypatch.setattr(pipeline, "run_pipeline", fail)
    assert job.main(["pipeline", "--directory", "/archive"]) == 1
    assert capsys.readouterr().err == "error: queue 'a' does not exist\n"


def test_the_job_reports(asked, monkeypatch, tmp_path, capsys):
    """The report's text goes to the output, its page to a file."""

    class Report:
        def text(self):
            return "all is well"

        def write_html(self, path):
            (tmp_path / path).write_text("<html>")

    monkeypatch.setattr(spark, "report", lambda *_a, **_k: Report(), raising=False)
    assert job.main(["report", "--directory", "/archive", "--html", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text() == "<html>"
    assert capsys.readouterr().out == "all is well\n"


def test_of_an_error_of_spark_the_line_is_told_that_says_what_is_wrong():
    """Ours first, from a worker's traceback; else what Java was caused by; never a walk through Java alone."""
    walk = "An error occurred while calling o55.parquet.\n: org.apache.spark.SparkException: Job aborted\n\tat a.b(c)\n"
    worker = (
        walk + '  File "rows.py", line 3\nairflow_provider_zkmq.engine.errors.Unavailable: no server\n\tat d.e(f)\n'
    )
    assert pipeline.said(Exception(worker)) == "Unavailable: no server"
    full = walk + "Caused by: java.io.IOException: No space left on device\n\tat g.h(i)\n"
    assert pipeline.said(Exception(full)) == "java.io.IOException: No space left on device"
    assert (pipeline.said(ConfigError("plain")), pipeline.said(ConfigError())) == ("plain", "")


def parts(*rows: int) -> tuple[Part, ...]:
    return tuple(Part(f"runs/{n}", count, n, n + 1, ()) for n, count in enumerate(rows))


def test_rows_are_merged_a_few_times_however_many_parts_come():
    """A hundred rows a thousand times: the parts stay few, and a row is written again about as often as they double."""
    stored, merges, written = [], 0, 0
    for n in range(1_000):
        stored.append(Part(f"runs/{n}", 100, n, n + 1, ()))
        group = chosen(tuple(stored))
        if group:
            merges += 1
            written += sum(part.rows for part in group)
            merged = Part(f"runs/m{n}", sum(part.rows for part in group), group[0].first, group[-1].last, ())
            stored = [part for part in stored if part not in group] + [merged]
    assert sum(part.rows for part in stored) == 100_000
    assert len(stored) <= 3 * FEW
    assert written <= 10 * 100_000
    assert merges <= 1_000 / (FEW - 2)


def test_large_parts_and_few_are_left_as_they_are():
    assert chosen(parts(*[10] * (FEW - 1))) == []
    assert chosen(parts(LARGE, *[10] * (FEW - 1))) == []
    assert chosen(parts(LARGE, *[10] * FEW)) == list(parts(LARGE, *[10] * FEW)[1:])


def test_a_manifest_of_the_first_version_is_read_and_a_broken_one_named(tmp_path):
    """The archives of earlier versions go on; what is none is `CorruptRecord` with its path."""
    home = tmp_path / "q"
    home.mkdir()
    run = {"path": "runs/0-7", "rows": 3, "from": 0, "to": 7}
    (home / "MANIFEST.json").write_text(json.dumps({"watermark": 7, "runs": [run]}))
    old = read_manifest(home)
    assert old == Manifest(7, (Part("runs/0-7", 3, 0, 7, None),))
    publish(home, old)
    assert read_manifest(home) == old
    (home / "MANIFEST.json").write_text('{"watermark": "x"}')
    with pytest.raises(CorruptRecord, match="MANIFEST.json"):
        read_manifest(home)
    with exclusive(home), pytest.raises(ConfigError, match="in use"), exclusive(home):
        pass
