"""Tutorials and how-to pages run as they stand."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from airflow_provider_zkmq.embedded.server import free_ports
from tests.integration.pages import Program, dag_files, pages
from tests.support import fresh_root

pytestmark = pytest.mark.full
WHOLE = pytest.mark.skipif(not os.environ.get("ZKMQ_SCALE"), reason="starts a whole Airflow: make acceptance")


@pytest.mark.parametrize("page", pages("how-to"))
def test_a_how_to_page_runs(page: str, zookeeper: str, tmp_path: Path) -> None:
    """Its blocks succeed in their order: those of Python are one program, in which those of the shell are steps."""
    root = fresh_root()
    program = Program(page, tmp_path / "page", zookeeper, root)
    assert program.python or dag_files(page), "it has no example"
    program.run(sys.executable, "-c", program.python, ZKMQ_HOSTS=zookeeper, ZKMQ_ROOT=root)


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[WHOLE] * page.endswith("event-driven-dag.md")) for page in pages("tutorials")]
)
def test_a_tutorial_runs(page: str, tmp_path: Path) -> None:
    """Its shell commands are one script, which starts its own ZooKeeper, runs the page's files and stops everything."""
    (port,) = free_ports("127.0.0.1", 1)
    program = Program(page, tmp_path / "page", f"127.0.0.1:{port}", "/zkmq")
    assert program.script
    airflow = {
        "API__PORT": program.ports["8080"],
        "CORE__EXECUTION_API_SERVER_URL": f"http://localhost:{program.ports['8080']}/execution/",
        "LOGGING__WORKER_LOG_SERVER_PORT": program.ports["8793"],
        "LOGGING__TRIGGER_LOG_SERVER_PORT": program.ports["8794"],
    }
    program.run("sh", "-eu", "-c", program.script, **{f"AIRFLOW__{name}": value for name, value in airflow.items()})
