"""Curator's DistributedQueue: a small source of ours, compiled where a JDK is, against the jars that PySpark ships."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from airflow_provider_zkmq.bench.jobs import SkippedError
from airflow_provider_zkmq.embedded import ServerError, find_java, spark_jars

_SOURCE: Final = Path(__file__).with_name("CuratorQueues.java")
#: Java's own file of a class, kept as long as the benchmark runs.
_folders: list[tempfile.TemporaryDirectory[str]] = []


def curator_agent(hosts: str, root: str) -> list[str]:
    """The command line of an agent in Java. Raises `SkippedError` without a JDK, or without PySpark's jars."""
    compiler = _compiler()
    jars = _jars()
    classes = _compiled(compiler, jars)
    java, path = str(compiler.with_name("java")), os.pathsep.join([classes, jars])
    # A queue that is closed logs that its thread was interrupted, with a stack.
    return [java, "-Dorg.apache.logging.log4j.level=OFF", "-cp", path, _SOURCE.stem, hosts, root]


def _jars() -> str:
    try:
        return str(spark_jars() / "*")
    except ServerError as error:
        raise SkippedError(f"Curator's jars come with PySpark, which is not installed ({error})") from error


def _compiler() -> Path:
    """The compiler of the Java that runs the embedded server, or that of the path."""
    try:
        homes = [find_java().home / "bin" / "javac"]
    except ServerError:
        homes = []
    on_path = shutil.which("javac")
    there = [path for path in [*homes, *([Path(on_path)] if on_path else [])] if path.exists()]
    if not there:
        raise SkippedError("there is no javac: Curator is measured where a JDK is installed")
    return there[0].resolve()


@cache
def _compiled(compiler: Path, jars: str) -> str:
    folder = tempfile.TemporaryDirectory(prefix="zkmq-bench-")
    _folders.append(folder)
    command = [str(compiler), "-nowarn", "-d", folder.name, "-cp", jars, str(_SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  the user's own JDK
    if done.returncode:
        raise SkippedError(f"{compiler} refuses {_SOURCE.name}: {done.stderr.strip().splitlines()[0]}")
    return folder.name
