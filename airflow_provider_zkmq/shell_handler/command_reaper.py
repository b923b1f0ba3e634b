"""What ends the commands of a worker that was killed: a process of its own, which outlives the worker for that.

A killed worker ends nothing that it has started, and its commands would go on beside the runs of those who take its
tasks over. So a worker tells this process over a pipe which commands it has started and which have ended; the end of
the pipe is the worker's end, however it came about. What a command has started belongs to it: its session and process
group, and, where there is ``/proc``, as on Linux, also what left both and still has a parent among them. A daemon that
gave up its parents is nobody's.

It is run as a file, by an interpreter without site-packages, and so imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

#: What it says when it has begun to listen.
READY = "ready"
TERMINATE_SECONDS = 2.0
_KILL_SECONDS = 0.5
_LOOK_SECONDS = 0.02
#: Each generation of what a command has started is seen in a round of its own.
_ROUNDS = 20
_ENDED = (b"Z", b"X")


@dataclass(frozen=True, slots=True)
class Process:
    """A process as ``/proc/<pid>/stat`` tells of it; ``started`` tells it from a later one with its number."""

    pid: int
    started: int
    parent: int = field(compare=False)
    group: int = field(compare=False)
    session: int = field(compare=False)


def end_commands(leaders: Collection[int], seconds: float = TERMINATE_SECONDS) -> None:
    """End all that the leaders of process groups have started: SIGTERM, after so many seconds SIGKILL for the rest."""
    known = _stopped(leaders)
    left = set(known)
    for number, span in ((signal.SIGTERM, seconds), (signal.SIGKILL, _KILL_SECONDS), (signal.SIGKILL, _KILL_SECONDS)):
        _send(number, leaders, left)
        _send(signal.SIGCONT, leaders, left)
        deadline = time.monotonic() + span
        while time.monotonic() < deadline:
            running = _processes()
            left = _started_by(leaders, known, running)
            known |= left
            if not (left if running else any(map(_lives, leaders))):
                return
            time.sleep(_LOOK_SECONDS)


def _stopped(leaders: Collection[int]) -> set[Process]:
    """Stop all that the leaders have started, and return them.

    Who is stopped starts nobody: a child that was not seen yet, whose parent is ended, would be nobody's afterwards.
    """
    known = set[Process]()
    for _ in range(_ROUNDS):
        _send(signal.SIGSTOP, leaders, known)
        found = _started_by(leaders, known, _processes())
        if found <= known:
            return found
        known = found | known  # as they are now: one may have left its group
    return known


def _send(number: signal.Signals, leaders: Iterable[int], processes: Iterable[Process]) -> None:
    """First to the groups, each at once, so that nobody in them starts another meanwhile."""
    for leader in leaders:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, number)
    for process in processes:
        if process.group not in leaders:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)


def _started_by(leaders: Collection[int], known: set[Process], running: set[Process]) -> set[Process]:
    """The processes of the leaders' groups and sessions, those that were known, and whoever has a parent among them.

    So are those of a group or a session that one of these has begun: a child that is started while its parent is ended
    has none of its parents any more when it is seen first.
    """
    begun = {*leaders, *(each.pid for each in known)}
    found = {each for each in running if each.group in begun or each.session in begun or each in known}
    more = found
    while more:
        parents = {each.pid for each in more}
        more = {each for each in running if each.parent in parents} - found
        found |= more
    return found


def _processes() -> set[Process]:
    """All that run, without zombies; nothing where there is no ``/proc``."""
    with contextlib.suppress(OSError):
        return set(filter(None, map(_process, Path("/proc").glob("[0-9]*"))))
    return set()


def _process(folder: Path) -> Process | None:
    try:
        fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()  # a name may hold anything
    except OSError:  # it ended meanwhile
        return None
    if fields[0] in _ENDED:
        return None
    parent, group, session = map(int, fields[1:4])
    return Process(int(folder.name), int(fields[19]), parent, group, session)


def _lives(leader: int) -> bool:
    try:
        os.killpg(leader, 0)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    print(READY, flush=True)
    leaders: set[int] = set()  # by ``+<leader>`` and ``-<leader>``, until the worker's end of the pipe is closed
    for line in sys.stdin.buffer:
        change = leaders.add if line.startswith(b"+") else leaders.discard
        change(int(line[1:]))
    if leaders:
        end_commands(leaders)
