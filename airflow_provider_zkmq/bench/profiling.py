"""Where an agent's processor time goes: a profile of all its threads, kazoo's included, by folders of the source."""

from __future__ import annotations

import contextlib
import cProfile
import threading
import time
from collections import defaultdict
from functools import cache
from itertools import chain
from pathlib import Path
from types import CodeType
from typing import Any, Final

import kazoo

import airflow_provider_zkmq

_OURS: Final = Path(airflow_provider_zkmq.__file__).parent
_KAZOO: Final = Path(kazoo.__file__).parent
_PYTHON: Final = Path(threading.__file__).parent


class Profile:
    """Counts from its making on, in this thread and in those that are started afterwards.

    The clock is each thread's own processor time: what waits costs nothing.
    """

    def __init__(self) -> None:
        self._profiles: list[cProfile.Profile] = []
        threading.setprofile(self._meet)
        self._count_here()

    def _meet(self, *_event: Any) -> None:
        """The first event of a new thread: from now on its own profile is told."""
        self._count_here()

    def _count_here(self) -> None:
        profile = cProfile.Profile(time.thread_time)
        with contextlib.suppress(ValueError):  # from Python 3.12 on the first one is told of all threads
            profile.enable()
            self._profiles.append(profile)

    def entries(self) -> list[Any]:
        """What was counted so far, for `shares` to reckon with afterwards: that takes time, which is counted, too."""
        return list(chain.from_iterable(profile.getstats() for profile in self._profiles))


def _totals(entries: list[Any]) -> dict[str, float]:
    """Seconds by where the code is that took them; what is built in counts for its callers."""
    seconds: dict[str, float] = defaultdict(float)
    for entry in entries:
        if isinstance(entry.code, CodeType):
            seconds[home(entry.code.co_filename)] += entry.inlinetime + _built_in(entry)
    return seconds


def _built_in(entry: Any) -> float:
    """What functions without a source took when this one called them."""
    return float(sum(each.inlinetime for each in entry.calls or () if isinstance(each.code, str)))


@cache
def home(file: str) -> str:
    """The folder of ours that a file is in, or whose else it is; of the standard library, the module."""
    path = Path(file)
    if path.is_relative_to(_OURS):
        return path.parent.relative_to(_OURS.parent).as_posix().removeprefix(f"{_OURS.name}/")
    if path.is_relative_to(_KAZOO):
        return "kazoo"
    return (
        f"Python's {path.relative_to(_PYTHON).parts[0].removesuffix('.py')}"
        if path.is_relative_to(_PYTHON)
        else "others"
    )


def shares(before: list[Any], after: list[Any]) -> dict[str, float]:
    """What came on top, as parts of one, the greatest first; without the benchmark's own."""
    old, new = _totals(before), _totals(after)
    spent = {name: new[name] - old[name] for name in new if not name.startswith("bench")}
    whole = sum(spent.values()) or 1.0
    return {name: part / whole for name, part in sorted(spent.items(), key=lambda item: -item[1]) if part > 0}
