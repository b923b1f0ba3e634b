"""Curator's DistributedQueue: a source of ours, which a JDK compiles and runs, against the jars that PySpark ships."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from airflow_provider_zkmq.embedded import ServerError, spark_jars
from tests.benchmarks.compare.jobs import SkippedError

_SOURCE: Final = Path(__file__).with_name("CuratorQueues.java")


def curator_agent(hosts: str, root: str) -> list[str]:
    """The command line of an agent in Java. Raises `SkippedError` without a JDK, or without PySpark's jars."""
    compiler = shutil.which("javac")
    if compiler is None:
        raise SkippedError("there is no javac: Curator is measured where a JDK is installed")
    try:
        jars = spark_jars()
    except ServerError as error:
        raise SkippedError(f"Curator's jars come with PySpark, which is not installed ({error})") from error
    java = Path(compiler).resolve().with_name("java")
    # A queue that is closed logs that its thread was interrupted, with a stack.
    return [str(java), "-Dorg.apache.logging.log4j.level=OFF", "-cp", str(jars / "*"), str(_SOURCE), hosts, root]
