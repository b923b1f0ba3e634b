"""What a failed test says: the promise it proves, and how to see it again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.promises import TOP, promises

FAILING = '''
import pytest


@pytest.mark.xdist_group("some")
def test_it_is_so(subtests):
    """One is one."""
    for number in (1, 2):
        with subtests.test(number=number):
            assert number == 1
'''


def test_a_failure_names_what_the_test_proves_and_how_to_run_it_again(tmp_path: Path) -> None:
    """A test that proves no row of the page says its docstring; a seeded order is told with its seed."""
    (tmp_path / "test_one.py").write_text(FAILING)
    command = [sys.executable, "-m", "pytest", "-c", str(TOP / "pyproject.toml"), "-p", "tests.promises", "--rootdir"]
    order = ["-n1", "--dist=loadgroup", "--random-order-bucket=global", "--random-order-seed=7"]
    done = subprocess.run(
        [*command, str(tmp_path), *order, str(tmp_path / "test_one.py")],
        cwd=TOP, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    for said in (
        "What this test proves",
        "One is one.",
        "test_one.py::test_it_is_so'\n",
        "test_one.py::test_it_is_so@some",  # else xdist knows no groups
        "--random-order-seed=7",
        "(number=",
    ):
        assert said in done.stdout, done.stdout


def test_the_promise_of_a_test_is_its_row() -> None:
    """Each row of the page is told by each test that it names."""
    told = promises()
    assert len(told) > 200
    assert all(rows and all(row for row in rows) for rows in told.values())
