"""Run schedules from the command line: many new ones, one seed again with its trace, or with a known bug put in.

``python -m tests.simulation --schedules 20000``, ``--forever``, ``--replay SEED``, ``--mutant NAME``.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator

from tests.simulation import mutants

REPORT_SECONDS = 30.0


def main() -> int:
    """Exit code 0: nothing was found; 1: something was."""
    given = _arguments()
    if given.list_mutants:
        print("\n".join(mutants.BY_NAME))
        return 0
    if given.mutant:
        mutants.install(given.mutant)
    if given.replay is not None:
        return _replay(given.replay, shrink=given.shrink)
    if given.jobs > 1:
        return _in_processes(given)
    return _explore(given)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, default=1_000, help="how many (default %(default)s)")
    parser.add_argument("--forever", action="store_true", help="until interrupted, or until something is found")
    parser.add_argument("--seconds", type=float, help="at most so long")
    parser.add_argument("--seed", default=f"{time.time_ns():x}", help="what the seeds begin with; a new one each time")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--replay", metavar="SEED", help="run one schedule again, and print its trace")
    parser.add_argument("--shrink", action="store_true", help="with --replay: look for a shorter one")
    parser.add_argument("--mutant", help="with a known bug put in; see --list-mutants")
    parser.add_argument("--list-mutants", action="store_true")
    return parser.parse_args()


def _replay(seed: str, *, shrink: bool) -> int:
    from tests.simulation import schedule

    result = schedule.run(schedule.plan(seed), trace=True)
    if shrink and result.violation is not None:
        result = schedule.shrink(result)
    print(result.plan)
    print("\n".join(result.trace))
    print(result.violation or "nothing is wrong")
    return int(result.violation is not None)


def _explore(given: argparse.Namespace) -> int:
    from tests.simulation import schedule

    began, count = time.monotonic(), 0
    told = began
    for seed in _seeds(given):
        try:
            result = schedule.run(schedule.plan(seed))
        except BaseException:
            print(f"the schedule ended by an error; replay it: python -m tests.simulation --replay {seed}", flush=True)
            raise
        count += 1
        if result.violation is not None:
            print(f"{count} schedules, {time.monotonic() - began:.1f} s: {result.violation}")
            print(schedule.report(result))
            return 1
        now = time.monotonic()
        if given.seconds is not None and now - began > given.seconds:
            break
        if now - told > REPORT_SECONDS:
            told = now
            print(f"{count} schedules in {now - began:.0f} s, nothing found", flush=True)
    print(f"{count} schedules in {time.monotonic() - began:.1f} s, nothing found")
    return 0


def _seeds(given: argparse.Namespace) -> Iterator[str]:
    numbers = itertools.count() if given.forever else range(given.schedules)
    return (f"{given.seed}-{number}" for number in numbers)


def _in_processes(given: argparse.Namespace) -> int:
    """The same in several processes, each with seeds of its own; ended as soon as one has found something."""
    share = -(-given.schedules // given.jobs)
    running = []
    for job in range(given.jobs):
        command = [sys.executable, "-m", "tests.simulation", "--seed", f"{given.seed}{'abcdefghij'[job % 10]}{job}"]
        command += ["--forever"] if given.forever else ["--schedules", str(share)]
        command += ["--seconds", str(given.seconds)] if given.seconds is not None else []
        command += ["--mutant", given.mutant] if given.mutant else []
        running.append(subprocess.Popen(command, env=os.environ))
    try:
        while any(one.poll() is None for one in running) and not any(one.poll() for one in running):
            time.sleep(0.2)  # looks again
    except KeyboardInterrupt:
        print("stopped")
    codes = [one.poll() for one in running]  # those that had not ended have been told to
    for one in running:
        one.terminate()
        one.wait()
    return max((abs(code) for code in codes if code is not None), default=0)


if __name__ == "__main__":
    sys.exit(main())
