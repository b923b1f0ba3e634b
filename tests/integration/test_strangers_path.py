"""What the README says of the way from nothing to a first DAG, walked as it stands there."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests import release

SECTION = re.compile(r"^## Install and first DAG\n(.*?)^## ", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LIMIT_S = 500
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not os.environ.get("ZKMQ_SCALE"), reason="installs Airflow and Spark's jars: ZKMQ_SCALE=1"),
]


def steps() -> tuple[str, list[str]]:
    """The section as one script of the shell, and its commands."""
    (section,) = SECTION.findall((release.TOP / "README.md").read_text())
    (dag,) = re.findall(r"`(\./airflow/dags/\w+\.py)`", section)
    script, commands = "", []
    for language, text in BLOCK.findall(section):
        if language == "sh":
            commands += [line for line in text.splitlines() if line.strip()]
            script += text
        else:
            script += f"cat > {dag} <<'END'\n{text}END\n"
    return script, commands


def bare_environment(folder: Path, wheels: Path) -> dict[str, str]:
    """A machine with a Python and an empty home, whose pip finds our wheel beside what an index has."""
    programs = folder / "programs"
    programs.mkdir()
    (programs / "python3").symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    pip = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_")) or "_proxy" in name}
    links = f"{wheels} {pip.get('PIP_FIND_LINKS', '')}".strip()
    usual = {"HOME": str(folder), "PATH": f"{programs}:/usr/bin:/bin", "PIP_FIND_LINKS": links}
    return pip | usual | {"PIP_NO_COMPILE": "1"}  # Python compiles what is imported, which is little of it


def digests(record: str) -> dict[str, str]:
    """What a wheel says of its modules, which is what is installed of them."""
    lines = (line.split(",") for line in record.splitlines())
    return {name: digest for name, digest, _ in lines if name.endswith(".py")}


def taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.xdist_group("port 2181")
def test_a_stranger_sees_the_result_of_a_first_dag(tmp_path: Path) -> None:
    """From a Python and an empty home, by at most twelve commands, each as the README has it."""
    if taken(2181):
        pytest.skip("another server listens on ZooKeeper's usual port, which the README's commands use")
    script, commands = steps()
    assert len(commands) <= 12
    (wheel,) = release.build(release.TOP, tmp_path / "wheels", "--wheel")
    output = tmp_path / "output"
    with output.open("wb") as file:
        walk = subprocess.Popen(
            ["bash", "-eu", "-c", script],
            cwd=tmp_path,
            env=bare_environment(tmp_path, wheel.parent),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = walk.wait(LIMIT_S)
        finally:
            os.killpg(walk.pid, signal.SIGTERM)
    told = output.read_text()
    assert code == 0, told[-5_000:]
    shown = told[told.rindex("DagRun Finished") :]
    assert (len(re.findall(r"\bHELLO\b", shown)), len(re.findall(r"\bWORLD\b", shown))) == (1, 1), shown
    (record,) = tmp_path.glob("first/lib/*/site-packages/airflow_provider_zkmq-*/RECORD")
    with zipfile.ZipFile(wheel) as ours:
        assert digests(record.read_text()) == digests(ours.read(f"{record.parent.name}/RECORD").decode())
