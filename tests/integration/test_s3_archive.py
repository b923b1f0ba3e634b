"""An archive in S3: the pipeline, its readers and the report, by keys of the environment or of a connection."""

from __future__ import annotations

from datetime import date

import pytest

pytest.importorskip("pyspark")

from airflow_provider_zkmq.delta_tables import FEW, FOLDERS, Table
from airflow_provider_zkmq.engine import ConfigError
from airflow_provider_zkmq.engine.queue_internals import internals
from airflow_provider_zkmq.history import table
from airflow_provider_zkmq.spark import Retention, read, report, run_pipeline
from airflow_provider_zkmq.spark.history import stage_and_load
from tests.integration.ended import finish
from tests.integration.spark_programs import shown

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.full
def test_small_runs_into_s3_and_who_reads_them(where, q, bucket) -> None:
    """Polars, DuckDB and pandas read each table; files are merged, days are kept; the znode has the address."""
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    for count in (3, *[1] * FEW):
        finish(q, count, retried=1)
        run_pipeline(where, ["census"], str(bucket), lifetime=0, keep=Retention(bronze=7))
    assert internals(q).archive().directory == str(bucket)
    assert internals(q).ids() == [], "clean-up has deleted what the archive holds"
    assert len(Table.open(bucket / "census", "runs").pieces) < FEW
    for kind in FOLDERS:
        found = table(kind, bucket, "census")
        counts = {len(found.to_pandas()), polars.read_delta(found).height}
        counts.add(len(duckdb.from_arrow(found.to_pyarrow_dataset()).fetchall()))
        assert len(counts) == 1
        assert kind in {"hourly", "consumers"} or counts == {20 if kind == "deliveries" else 11}
    real = {"s3://bucket/archive": bucket.address}
    exec(compile(shown("Location(", real), "docs/spark-history.md", "exec"), {})  # noqa: S102
    told = report(bucket, "census")
    assert told.section("overview").tables[0].rows[0]["runs"] == 11
    assert told.write_html(bucket / "report.html") == f"{bucket}/report.html"
    assert b"</html>" in (bucket / "report.html").files().open_input_file(f"{bucket.path}/report.html").read()
    for call in (lambda: report(bucket, "cencus"), lambda: table("runs", bucket, "cencus")):
        with pytest.raises(ConfigError, match=f"{bucket} holds no (archive|runs) of queue 'cencus'"):
            call()


@pytest.mark.full
@pytest.mark.xdist_group("spark")
def test_spark_reads_and_writes_s3_without_jars_for_it(spark, where, q, bucket, monkeypatch) -> None:
    """Arrow does it in Spark's workers, also of some days only."""
    monkeypatch.setattr(stage_and_load, "FEW", 0)
    finish(q, 6, dead=1, retried=2)
    run_pipeline(where, ["census"], bucket, spark, lifetime=0)
    for kind in FOLDERS:
        rows = table(kind, bucket, "census").to_pyarrow_table()
        frame = read(spark, bucket, kind, "census")
        assert set(frame.columns) == set(rows.column_names) - {"watermark"}
        assert frame.count() == rows.num_rows > 0
    days = {"since": date(2026, 1, 1), "until": date(2026, 1, 2)}
    assert read(spark, bucket, "runs", "census", **days).count() == 0
    whole = read(spark, bucket, "bronze", "census").select("id", "data", "history").collect()
    assert {bytes(row.data) for row in whole} == {f"data {n}".encode() for n in range(6)}
    assert sorted(len(row.history or ()) for row in whole) == [1, 1, 1, 1, 2, 2]
