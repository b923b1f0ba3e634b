"""A worker where Airflow is not installed: by one file that a Python runs, or by pip without dependencies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_provider_zkmq.engine import Zkmq
from tests.matrix import interpreter

TOP = Path(__file__).parents[2]
PYTHONS = {version: path for version in ("3.11", "3.12", "3.13") if (path := interpreter(version))}
#: What a handler sees of the process that it runs in.
HANDLER = """
import json, sys

def look(task):
    heavy = sorted({"airflow", "pyspark", "pandas", "pyarrow"} & set(sys.modules))
    status = open("/proc/self/status").read()
    kilobytes = int(status.split("VmRSS:")[1].split()[0])
    return json.dumps({"python": "%d.%d" % sys.version_info[:2], "heavy": heavy, "kilobytes": kilobytes}).encode()
"""
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file, as the release has it."""
    file = tmp_path_factory.mktemp("pyz") / "zkmq.pyz"
    made = subprocess.run(["make", f"PYZ={file}", str(file)], cwd=TOP, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return file


@contextmanager
def working(command: list[str], queue: str, folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """A worker with `HANDLER` while the block runs."""
    (folder / "handlers.py").write_text(HANDLER)
    with subprocess.Popen([*command, "worker", queue, "--handler", "handlers:look"], cwd=folder, env=environment) as it:
        try:
            yield
        finally:
            it.terminate()
            it.wait(60)


def test_one_file_is_a_worker_for_each_python(pyz, zookeeper, root, tmp_path, subtests) -> None:
    """It needs no Airflow, no Spark and no pandas, 40 MB of disk and 42 MB of memory; nothing else is installed."""
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in PYTHONS
    for version, python in PYTHONS.items():
        with subtests.test(version), Zkmq.connect(zookeeper, root=root, gc=False) as client:
            home = tmp_path / version
            home.mkdir()
            environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "ZKMQ_HOSTS": zookeeper, "ZKMQ_ROOT": root}
            command, queue = [python, "-E", "-s", str(pyz)], f"q{version}"
            subprocess.run([*command, "configure", queue], env=environment, check=True, timeout=60)
            with working(command, queue, home, environment):
                task = client.queue(queue).enqueue(b"x")
                (done,) = client.queue(queue).wait([task], timeout=60)
            seen = json.loads(done.result)
            assert (seen["python"], seen["heavy"]) == (version, [])
            assert seen["kilobytes"] <= 42 * 1024
            unpacked = sum(path.stat().st_size for path in home.rglob("*") if path.is_file())
            assert pyz.stat().st_size + unpacked <= 40_000_000


def test_what_pip_installs_without_dependencies_is_enough(zookeeper, root, tmp_path) -> None:
    """With the release's list of requirements; pip misses Airflow alone."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=TOP, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv/bin/python")
    requirements = str(TOP / "docs/worker-requirements.txt")
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", str(wheel), "-r", requirements]
    subprocess.run(install, check=True, capture_output=True)
    checked = subprocess.run([python, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    missing = [line for line in checked.stdout.splitlines() if "apache-airflow" not in line]
    assert missing in ([], ["No broken requirements found."])
    environment = {**os.environ, "ZKMQ_HOSTS": zookeeper, "ZKMQ_ROOT": root}
    environment.pop("PYTHONPATH", None)
    with Zkmq.connect(zookeeper, root=root, gc=False) as client:
        client.queue("q").configure()
        with working([python, "-m", "airflow_provider_zkmq"], "q", tmp_path, environment):
            task = client.queue("q").enqueue(b"x")
            (done,) = client.queue("q").wait([task], timeout=60)
    assert json.loads(done.result)["heavy"] == []
