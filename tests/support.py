"""Small things that several tests need."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable

_numbers = itertools.count()


def fresh_root() -> str:
    """A root of the test's own on a server that others use too."""
    return f"/t{os.getpid()}x{time.time_ns():x}x{next(_numbers)}"


def eventually(condition: Callable[[], bool], within: float = 20.0, pause: float = 0.02) -> None:
    """Return when `condition` holds, asked after each pause; fail when it does not within a generous bound."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come about"
        time.sleep(pause)  # looks again; nothing is assumed to have happened by then


def python(code: str, *args: str) -> subprocess.Popen[str]:
    """A Python process that runs `code`, its output readable."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *args], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
