"""The simulator itself: the same seed is the same schedule, and known bugs are found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_zkmq.engine import core
from tests.simulation import mutants, schedule
from tests.simulation.mutants import MUTANTS

SEEDS = ("alpha", "beta", "gamma", "delta")
#: Those that a few schedules find; `make mutants` hunts all of them.
EASY = (
    "blind retry of a multi",
    "a claim's lost reply ignored",
    "entry before task",
    "attempt counted after the hand-out",
    "wake-up dropped",
    "token reuse",
    "results of commit unchecked",
)


def _trace(seed: str, hash_seed: str) -> str:
    command = [sys.executable, "-m", "tests.simulation", "--replay", seed]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONHASHSEED": hash_seed}
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    return done.stdout


def test_the_same_seed_is_the_same_schedule_in_every_process() -> None:
    """Nothing of a process gets in: neither the order of sets, nor its clock, nor its source of chance."""
    for seed in SEEDS[:2]:
        assert _trace(seed, "1") == _trace(seed, "2")


def test_two_runs_of_a_plan_take_the_same_steps() -> None:
    """Nor is anything left over from the run before."""
    for seed in SEEDS:
        once, again = (schedule.run(schedule.plan(seed), trace=True) for _ in range(2))
        assert once.steps == again.steps
        assert once.trace == again.trace


def test_each_known_bug_still_has_its_place_in_the_source(subtests: pytest.Subtests) -> None:
    """A mutant whose piece of source is gone would be no bug any more, and its hunt no test."""
    for mutant in MUTANTS:
        with subtests.test(mutant.name):
            path = Path(core.__file__).parent / f"{mutant.module.replace('.', '/')}.py"
            source = path.read_text(encoding="utf-8")
            assert mutants.mutated(mutant, source) != source
            file, _, test = mutant.test.partition("::")
            assert f"def {test.partition('[')[0]}(" in (Path(file).read_text(encoding="utf-8") if file else "def (")


@pytest.mark.full
@pytest.mark.parametrize("name", EASY)
def test_a_known_bug_is_found(name: str) -> None:
    """With the bug in, some schedule breaks a promise; what it prints says how to run it again."""
    verdict = mutants.hunt(mutants.BY_NAME[name])
    assert verdict.oracle is not None, f"not found in {verdict.schedules} schedules"


def test_a_failing_schedule_is_made_shorter() -> None:
    """What is printed beside a failing seed breaks the same oracle with no more actors and faults."""
    command = [sys.executable, "-m", "tests.simulation"]
    command += ["--mutant", "attempt counted after the hand-out", "--seed", "s"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "replay it: python -m tests.simulation --replay s-" in done.stdout
    lines = done.stdout.splitlines()
    short = lines[lines.index("a short one near it:") + 1]
    assert short.count("Actor(") <= 2
    assert "Fault(" not in short
    assert "VIOLATION the attempt is counted before the hand-out" in lines[-1]
