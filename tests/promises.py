"""A failed test says which promise is broken and how to see it again.

Promises are the rows of two pages; each row names its tests. Of any other test, its docstring is shown.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
from collections import defaultdict
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import pytest

TOP = Path(__file__).parents[1]
#: The pages whose rows are promises.
PAGES = ("docs/semantics.md", "docs/reference/promises.md")


def rows(page: str) -> list[list[str]]:
    """The cells of a page's tables, without heads and rules."""
    lines = re.findall(r"^\|(.*)\|$", (TOP / page).read_text(encoding="utf-8"), re.MULTILINE)
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    return [row for row, after in zip(cells, [*cells[1:], [""]], strict=True) if "---" not in row + after]


@cache
def promises() -> dict[tuple[str, str], list[str]]:
    """The rows of the pages that each test proves, by its module's path below `tests` and its name."""
    found = defaultdict(list)
    for page in PAGES:
        for *statement, tests in rows(page):
            for named in re.findall(r"`([\w/]+\.py)::(\w+)`", tests):
                found[named].append(f"{page}: {' | '.join(statement)}")
    return dict(found)


def _proves(item: pytest.Item) -> Iterator[str]:
    """What a test proves: its rows, else what it says of itself."""
    path, name = os.path.relpath(item.path, TOP / "tests"), getattr(item, "originalname", item.name)
    yield from promises().get((path, name), ())
    doc = inspect.getdoc(getattr(item, "obj", None)) or inspect.getdoc(getattr(item, "module", None))
    if doc:
        yield doc


def _replay(item: pytest.Item) -> Iterator[str]:
    """The command that runs the test again; a test of chance prints its seed itself, which `ZKMQ_SEED` gives it."""
    nodeid = item.nodeid
    if group := item.get_closest_marker("xdist_group"):
        nodeid = nodeid.removesuffix(f"@{group.args[0]}")  # which a process of xdist adds to the name
    given = f"ARGS=-n0 {shlex.quote(nodeid)}".replace("$", "$$")  # make takes one of the two away
    yield f"make test-all {shlex.quote(given)}"
    if item.config.pluginmanager.hasplugin("random_order"):
        from random_order.config import Config

        if (order := Config(item.config)).is_enabled:
            given = f"--random-order-bucket={order.bucket_type} --random-order-seed={order.seed}"
            yield f"all that ran, in the same order: {given}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a failure's report what the test proves, and how to run it again."""
    report = yield
    if report.failed and item.path.name != "test_schedules.py":  # it names the broken promise and the command itself
        report.sections.append(("What this test proves", "\n".join(_proves(item))))
        report.sections.append(("How to see it again", "\n".join(_replay(item))))
    return report
