"""How many system calls processes make meanwhile, counted by strace, which makes them several times as slow."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from airflow_provider_zkmq.bench.jobs import BenchError
from airflow_provider_zkmq.engine import ConfigError


class Count:
    """How many there were: known after the block."""

    calls = 0


def check_tracing() -> None:
    """Raise `ConfigError` where strace is not installed."""
    if shutil.which("strace") is None:
        raise ConfigError("system calls are counted by strace, which is not installed: apt install strace")


@contextmanager
def counting(pids: Sequence[int]) -> Iterator[Count]:
    """Count what these processes call in all their threads. Raises `BenchError` where strace may not look at them."""
    count = Count()
    with tempfile.TemporaryDirectory(prefix="zkmq-strace-") as folder:
        files = [Path(folder, str(pid)) for pid in pids]
        with ExitStack() as stack:
            for pid, file in zip(pids, files, strict=True):
                stack.enter_context(_attached(pid, file))
            yield count
        count.calls = sum(map(_total, files))


@contextmanager
def _attached(pid: int, file: Path) -> Iterator[None]:
    command = ["strace", "-f", "-c", "-o", str(file), "-p", str(pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:  # noqa: S603  a fixed command
        said = tracer.stderr.readline() if tracer.stderr is not None else ""
        if "attached" not in said:
            raise BenchError(f"strace cannot count: {said.strip()}")
        try:
            yield
        finally:
            tracer.send_signal(signal.SIGINT)


def _total(file: Path) -> int:
    """What the last line of a summary says, such as ``100.00    0.000203    1    115    2 total``."""
    total = re.search(r"^\s*[\d.]+\s+[\d.]+\s+\d*\s+(\d+).*\btotal$", file.read_text(encoding="ascii"), re.MULTILINE)
    return int(total[1]) if total else 0
