"""The pipeline as a program, and what of its tables needs no Spark to be told."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

from airflow_provider_zkmq import spark
from airflow_provider_zkmq.engine import ConfigError, CorruptRecord
from airflow_provider_zkmq.spark import job, session
from airflow_provider_zkmq.spark.history import pipeline
from airflow_provider_zkmq.spark.history.silver import FEW, LARGE, chosen
from airflow_provider_zkmq.spark.history.tables import Manifest, Part, Retention, exclusive, publish, read_manifest


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

    monkeypatch.setattr(pipeline, "run_pipeline", run)
    monkeypatch.setattr(session, "spark_session", lambda name, master=None: requested.update(session=(name, master)))
    line = "pipeline --directory /archive --conn-id zk --root /r --queues a,,b --lifetime 0 --keep-bronze 7 --delta"
    assert job.main(line.split()) == 0
    assert (requested["queues"], requested["directory"], requested["session"]) == (
        ["a", "b"],
        "/archive",
        ("zkmq-pipeline", None),
    )
    assert (requested["lifetime"], requested["keep"], requested["delta"]) == (0.0, Retention(bronze=7), True)
    assert dict(pickle.loads(pickle.dumps(requested["connect"])).values) == {"conn_id": "zk", "root": "/r"}  # noqa: S301  our own
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
    monkeypatch.setattr(session, "spark_session", lambda *_arguments: None)
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


def test_rows_are_merged_a_few_times_however_many_parts_come():
    """A hundred rows a thousand times: the parts stay few, and a row is written again about as often as they double.

    Large parts, and few, are left as they are.
    """
    stored, merges, written = [], 0, 0
    for n in range(1_000):
        stored.append(Part(f"runs/{n}", 100, n, n + 1, ()))
        if group := chosen(tuple(stored)):
            merges += 1
            written += sum(part.rows for part in group)
            merged = Part(f"runs/m{n}", sum(part.rows for part in group), group[0].first, group[-1].last, ())
            stored = [part for part in stored if part not in group] + [merged]
    assert sum(part.rows for part in stored) == 100_000
    assert len(stored) <= 3 * FEW
    assert written <= 10 * 100_000
    assert merges <= 1_000 / (FEW - 2)

    large, *few = (Part(f"runs/{n}", 10 if n else LARGE, n, n + 1, ()) for n in range(FEW + 1))
    assert chosen(tuple(few[1:])) == chosen((large, *few[1:])) == []
    assert chosen((large, *few)) == few


def test_a_manifest_of_another_version_is_refused_and_a_broken_one_named(tmp_path):
    """What is none is `CorruptRecord` with its path; the error for another version names both."""
    home = tmp_path / "q"
    home.mkdir()
    manifest = Manifest(7, (Part("runs/0-7", 3, 0, 7, ("2026-01-01",)),), "q")
    publish(home, manifest)
    assert read_manifest(home) == manifest
    for text in ('{"watermark": "x"}', "{}", "[]"):
        (home / "MANIFEST.json").write_text(text)
        with pytest.raises(CorruptRecord, match=r"MANIFEST\.json"):
            read_manifest(home)
    (home / "MANIFEST.json").write_text(json.dumps({"version": 99, "watermark": 1, "runs": []}))
    with pytest.raises(ConfigError, match="version 99, this is version 1"):
        read_manifest(home)
    with exclusive(home), pytest.raises(ConfigError, match="in use"), exclusive(home):
        pass


def test_what_cannot_be_done_with_tables_is_refused(monkeypatch, tmp_path):
    """Retention of no day; Delta tables without their package, which is named."""
    with pytest.raises(ConfigError, match="no number of days"):
        Retention(bronze=0)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"airflow-provider-zkmq\[delta\]"):
        pipeline.export(tmp_path)
