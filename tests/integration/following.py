"""A process that follows queues into a Parquet table, for tests that end it: says what it does in lines of JSON.

Its argument is JSON: `options` of the data source, `checkpoint` and `table` (folders), `master`, `conf` of Spark,
`until_empty`: end with what has ended by now.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from airflow_provider_zkmq.spark import register, spark_session


def follow(spark: SparkSession, told: dict[str, Any]) -> StreamingQuery:
    """Start the query."""
    frame = spark.readStream.format("zkmq").options(**told["options"]).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", told["checkpoint"])
    trigger = {"availableNow": True} if told.get("until_empty") else {"processingTime": "0 seconds"}
    return writer.option("path", told["table"]).trigger(**trigger).start()


def say(**what: Any) -> None:
    """A line for the test."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Follow until the query ends, or the process."""
    told = json.loads(sys.argv[1])
    small = {"spark.driver.memory": "800m"}
    spark = spark_session("zkmq-following", told.get("master", "local[2]"), **small | told.get("conf", {}))
    register(spark)
    query, seen = follow(spark, told), -1
    say(started=True)
    while query.isActive:
        query.awaitTermination(0.2)
        progress = query.lastProgress
        if progress is not None and progress["batchId"] > seen:
            seen = progress["batchId"]
            say(batch=seen, rows=progress["numInputRows"])
    query.awaitTermination()
    say(ended=True, executors=spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1)
    spark.stop()


if __name__ == "__main__":
    main()
