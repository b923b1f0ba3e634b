"""What every test has: a log as it found it, its place in the run, and a failure that says what to do."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator

import pytest

# A shell has what it starts in the background ignore Ctrl-C, and so would every command that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# And so does `nohup` with the signal that has a worker begin anew.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

pytest_plugins = ["tests.zookeeper", "tests.s3", "tests.promises"]

#: Folders whose tests take longest come first, so that no process is left alone with one of them at the end.
_FIRST = ("e2e", "integration", "airflow", "filequeue")
#: Many small pieces of equal length: they fill what is left.
_LAST = "tests/simulation/test_schedules.py"


@pytest.fixture(autouse=True)
def _kazoo_s_log() -> Iterator[None]:
    """Airflow's classes thin out what kazoo logs in their process, the command line all of it; other tests follow."""
    logger = logging.getLogger("airflow_provider_zkmq.kazoo")
    before, logger.disabled = list(logger.filters), False
    yield
    logger.filters[:] = before


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Deal the tests out: the long ones first, each module to one process unless a test has a group of its own.

    The long unit tests share no server, so that each may go to any process.
    """
    items.sort(key=_place)
    for item in items:
        if item.path.parent.name == "e2e":
            item.add_marker(pytest.mark.timeout(1500))
        if item.get_closest_marker("xdist_group") is None:
            alone = item.get_closest_marker("full") and item.nodeid.startswith("tests/unit/")
            item.add_marker(pytest.mark.xdist_group(item.nodeid if alone else item.nodeid.partition("::")[0]))


def _place(item: pytest.Item) -> tuple[int, bool]:
    """Where a test's module stands in the run; modules keep their order otherwise."""
    path = item.path.relative_to(item.config.rootpath)
    folder = path.parts[1] if len(path.parts) > 2 else ""
    if path.as_posix() == _LAST:
        return len(_FIRST) + 1, False
    return (_FIRST.index(folder) if folder in _FIRST else len(_FIRST)), item.get_closest_marker("full") is None
