"""What the README and the documentation show is executed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import fresh_root

TOP = Path(__file__).parents[2]


def blocks(name: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (TOP / name).read_text(), re.DOTALL | re.MULTILINE)


def environment(hosts: str) -> dict[str, str]:
    """The test's ZooKeeper, and this interpreter's commands first on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "ZKMQ_HOSTS": hosts, "ZKMQ_ROOT": fresh_root(), "PATH": path}


def test_the_quickstart_s_shell_commands_run(zookeeper: str) -> None:
    """Every line of the shell section succeeds, and the task ends as the page says."""
    (script,) = blocks("docs/quickstart.md", "sh")
    done = subprocess.run(
        ["sh", "-eu", "-c", script],
        env=environment(zookeeper),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"finished"' in done.stdout


def test_the_quickstart_s_python_runs(zookeeper: str) -> None:
    """The Python section runs as it stands."""
    (code,) = blocks("docs/quickstart.md", "python")
    code = code.replace("/quickstart", fresh_root())
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(zookeeper),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("done-awaiting-gc")


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md", "docs/architecture.md", "docs/tree.md"])
def test_links_lead_somewhere(page: str) -> None:
    """Every relative link of a page names a file of the repository."""
    text = (TOP / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert all((TOP / page).parent.joinpath(link).exists() for link in links), links


def test_tests_named_in_the_architecture_exist() -> None:
    """A claim that names its test names one that is there."""
    names = re.findall(r"`(test_[a-z0-9_]+)`", (TOP / "docs/architecture.md").read_text())
    tests = "\n".join(path.read_text() for path in (TOP / "tests").rglob("test_*.py"))
    assert names
    assert all(f"def {name}(" in tests for name in names)


def test_the_readme_s_first_dag_is_a_dag() -> None:
    """The DAG of the README parses with the installed Airflow and has the tasks it shows."""
    (code,) = blocks("README.md", "python")
    code += "print(sorted(send.dag.task_ids))\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("['send', 'wait']")
