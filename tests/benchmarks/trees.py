"""Two trees of this repository side by side: the working tree, and a revision in a work tree made for the occasion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

TOP = Path(__file__).parents[2]
AGENT = Path(__file__).with_name("agent.py")
PATIENCE = 30.0


class BenchmarkError(Exception):
    """A measurement is not possible; the text says why."""


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(TOP), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def describe(revision: str) -> str:
    """A revision's short name and subject. Raises `BenchmarkError` for what git does not know."""
    return _git("log", "-1", "--format=%h %s", revision, "--")


@contextmanager
def tree_of(revision: str) -> Iterator[Path]:
    """A folder with the files of a revision; git forgets it afterwards, however the body ends."""
    with tempfile.TemporaryDirectory(prefix="zkmq-benchmark-") as folder:
        tree = Path(folder, "tree")
        try:
            _git("worktree", "add", "--quiet", "--detach", str(tree), revision)
            yield tree
        finally:
            _remove(tree)


def _remove(tree: Path) -> None:
    """Take a work tree off git's list, also one that was only half made."""
    removed = subprocess.run(
        ["git", "-C", str(TOP), "worktree", "remove", "--force", "--force", str(tree)],
        capture_output=True,
        check=False,
    )
    if removed.returncode and str(tree) in _git("worktree", "list", "--porcelain"):
        raise BenchmarkError(f"{tree} could not be removed: remove it, then call `git worktree prune`")


class Agent:
    """A process of its own that runs `agent` with the package of one tree; ends with the block.

    It is in a session of its own, so that an interrupt at a terminal reaches the benchmark only, which ends it. Where
    the benchmark is killed, the agent's input ends, and the agent with it.
    """

    def __init__(self, tree: Path, hosts: str, root: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(AGENT), hosts, root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            start_new_session=True,
        )
        self._tree = tree

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(0 if kind else PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def check(self) -> None:
        """Wait until it is connected. Raises `BenchmarkError` if it has imported another tree's package."""
        package = Path(self.answer()["package"])
        if not package.is_relative_to(self._tree):
            raise BenchmarkError(f"the agent of {self._tree} works with {package}")

    def ask(self, row: str, queue: str, tasks: int) -> None:
        """Have it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"row": row, "queue": queue, "tasks": tasks}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """What it measured. Raises `BenchmarkError` if it has ended; its standard error says why."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchmarkError(f"the agent of {self._tree} ended with exit code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer
