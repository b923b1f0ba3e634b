"""A worker where Airflow is not installed: by one file that a Python runs, or by pip with or without dependencies."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zkmq.engine import Zkmq
from tests.matrix import interpreter

TOP = Path(__file__).parents[2]
PYTHONS = {version: path for version in ("3.11", "3.12", "3.13") if (path := interpreter(version))}
#: What a worker may take: bytes on disk with the bytecode that it has written, kilobytes of memory when idle. The list
#: of what the file holds, which Python keeps, and what unpacks it take a megabyte and a half more.
MOST_BYTES = 40_000_000
MOST_KILOBYTES = 35 * 1024
MOST_KILOBYTES_OF_FILE = 36 * 1024
#: What a handler sees of the process that it runs in.
HANDLER = """
import json, sys

def look(task):
    heavy = sorted({"airflow", "pyspark", "pandas", "pyarrow", "pydantic"} & set(sys.modules))
    return json.dumps({"python": "%d.%d" % sys.version_info[:2], "heavy": heavy}).encode()
"""
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file, as the release has it."""
    file = tmp_path_factory.mktemp("pyz") / "zkmq.pyz"
    made = subprocess.run(["make", f"PYZ={file}", str(file)], cwd=TOP, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The package, as it is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=TOP, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return str(wheel)


@contextmanager
def working(command: list[str], queue: str, folder: Path, environment: dict[str, str]) -> Iterator[int]:
    """A worker with `HANDLER` while the block runs, by the number of its process."""
    (folder / "handlers.py").write_text(HANDLER)
    with subprocess.Popen([*command, "worker", queue, "--handler", "handlers:look"], cwd=folder, env=environment) as it:
        try:
            yield it.pid
        finally:
            it.terminate()
            it.wait(60)


def clean_environment(home: Path, zookeeper: str, root: str) -> dict[str, str]:
    return {"HOME": str(home), "PATH": "/usr/bin:/bin", "ZKMQ_HOSTS": zookeeper, "ZKMQ_ROOT": root}


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def what_a_worker_takes(command: list[str], home: Path, zookeeper: str, root: str) -> tuple[dict[str, Any], int]:
    """What the handler of a task saw, and the kilobytes of the worker's process that waits for the next."""
    environment, queue = clean_environment(home, zookeeper, root), f"q{home.name}"
    subprocess.run([*command, "configure", queue], env=environment, check=True, timeout=60)
    with Zkmq.connect(zookeeper, root=root, gc=False) as client, working(command, queue, home, environment) as pid:
        task = client.queue(queue).enqueue(b"x")
        (done,) = client.queue(queue).wait([task], timeout=60)
        (kilobytes,) = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return json.loads(done.result), int(kilobytes)


def test_one_file_is_a_worker_for_each_python(pyz, zookeeper, root, tmp_path, subtests) -> None:
    """It needs no Airflow, no Spark and no pandas, 40 MB of disk and 36 MB of memory; nothing else is installed."""
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in PYTHONS
    for version, python in PYTHONS.items():
        with subtests.test(version):
            home = tmp_path / version
            home.mkdir()
            seen, kilobytes = what_a_worker_takes([python, "-E", "-s", str(pyz)], home, zookeeper, root)
            assert seen == {"python": version, "heavy": []}
            assert kilobytes <= MOST_KILOBYTES_OF_FILE
            assert pyz.stat().st_size + size(home) <= MOST_BYTES


def test_one_file_has_what_utc_needs_where_the_machine_has_no_time_zones(pyz, tmp_path) -> None:
    """And for `--help`, of which the file has less than Rich brings."""
    environment = clean_environment(tmp_path, "localhost:1", "/none") | {"PYTHONTZPATH": ""}
    for words in (["worker", "--help"], ["--hosts", f"textqueue://{tmp_path}", "queue", "create", "q"]):
        subprocess.run([sys.executable, "-E", "-s", str(pyz), *words], env=environment, check=True, timeout=60)
    (unpacked,) = (tmp_path / ".shiv").glob("*/site-packages")
    code = "import pendulum; print(pendulum.now('UTC').tzname())"
    shown = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env=environment | {"PYTHONPATH": str(unpacked)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert shown.stdout == "UTC\n"


def test_what_pip_installs_without_dependencies_is_enough(wheel, zookeeper, root, tmp_path, subtests) -> None:
    """With the release's list of requirements `pip check` misses nothing, 40 MB of disk and `MOST_KILOBYTES`."""
    for version, python in PYTHONS.items():
        with subtests.test(version):
            home = tmp_path / version
            made = installed(python, home, "--no-deps", wheel, "-r", str(TOP / "docs/worker-requirements.txt"))
            seen, kilobytes = what_a_worker_takes([made, "-m", "airflow_provider_zkmq"], home, zookeeper, root)
            assert seen == {"python": version, "heavy": []}
            assert kilobytes <= MOST_KILOBYTES
            assert size(home / "lib") <= MOST_BYTES


def test_what_pip_installs_with_dependencies_is_a_worker_without_airflow(wheel, zookeeper, root, tmp_path) -> None:
    """The newest release of each; `pip check` misses nothing."""
    made = installed(sys.executable, tmp_path / "plain", wheel)
    seen, _ = what_a_worker_takes([made, "-m", "airflow_provider_zkmq"], tmp_path / "plain", zookeeper, root)
    assert not {"airflow", "pyspark", "pandas", "pyarrow"} & set(seen["heavy"])


def installed(python: str, home: Path, *what: str) -> str:
    """The Python of a new environment in which that is installed, and nothing that pip finds wrong."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(home)], check=True)
    made = str(home / "bin/python")
    pip = [sys.executable, "-m", "pip", "--python", made]
    subprocess.run([*pip, "install", "--quiet", *what], check=True, capture_output=True)
    checked = subprocess.run([*pip, "check"], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "No broken requirements found.\n")
    return made
