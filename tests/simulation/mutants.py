"""Known bugs, put into the engine one at a time, to see that the simulator finds each of them.

A mutant replaces a piece of a module's source when the module is imported. The piece must stand there exactly once, so
that a mutant that no longer means anything is noticed. ``python -m tests.simulation.mutants`` runs them all.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

CORE: Final = "airflow_provider_zkmq.engine.core."
#: Each is found within so many schedules.
SCHEDULES: Final = 20_000


@dataclass(frozen=True)
class Mutant:
    """A bug: in a module of the core, one piece of source replaced by another."""

    name: str
    module: str
    old: str
    new: str
    also: tuple[str, str] | None = None
    """What makes the bug strike more often, harmless by itself: here, that a burial has to be taken up again."""
    test: str = ""
    """The test that finds it, where no schedule can show it, or too few do."""


MUTANTS: Final = (
    Mutant("no fence", "read.claim_status", "claim is None or claim.stat.czxid != token or", "claim is None or"),
    Mutant("the order of producers' clocks", "client_state", "now << 16", "self.wall_ms() << 16"),
    Mutant("clean-up takes the members of a batch that is written", "maintenance.collect", "record.state.batch in rules.batches", "False"),
    Mutant("blind retry of a multi", "transaction_retries", "return mine or outcome", "return outcome"),
    Mutant(
        "unknown outcome resolved by reading only",
        "transaction_retries",
        "            outcome = yield multi\n            if outcome.committed:",
        "            outcome = (yield from proven(proof)) or zk.Outcome(committed=False, failure=zk.Failure.BAD_VERSION)\n            if outcome.committed:",
    ),
    Mutant(
        "a claim's lost reply ignored", "claim.take", "plan.changes[0].proof = standing(context.paths, claims)", "plan.changes[0].proof = None"
    ),
    Mutant("what a cancelled claim took is kept", "maintenance.due_work", "handover is not None and handover.caller.left:", "False:"),
    Mutant(
        "entry before task",
        "write.commit",
        "    outcomes: list[zk.Outcome] = yield zk.Pipeline(tuple(multis))",
        '    for multi in multis:\n        yield zk.Multi(tuple(op for op in multi.ops if "/queue/" in op.path))\n'
        '    multis = [zk.Multi(tuple(op for op in multi.ops if "/queue/" not in op.path)) for multi in multis]\n'
        "    outcomes: list[zk.Outcome] = yield zk.Pipeline(tuple(multis))",
    ),
    Mutant("attempt counted after the hand-out", "write.transitions", "attempt=before.attempt + 1", "attempt=before.attempt"),
    Mutant(
        "watch not re-armed", "client_state",
        '"""Whether the value still stands."""\n        return self.watch is not None and not self.watch.fired',
        '"""Whether the value still stands."""\n        return self.watch is not None',
    ),
    Mutant("wake-up dropped", "zk_operations", "        self.fired = True\n        self.signal.notify()", "        self.fired = True"),
    Mutant("seat left without a word", "claim.claim", "deferred.close()\n        if place.kept:", "deferred.close()\n        if False:"),
    Mutant("who has looked leaves without a word", "claim.wait_until_ready", "        return False\n    finally:\n        if place.kept:", "        return False\n    finally:\n        if False:"),
    Mutant("who looks heeds no delays", "claim.wait_until_ready", "    yield from maintain(context, schedule)\n    if conf.paused:\n        return False\n", "    if conf.paused:\n        return False\n"),
    Mutant(
        "listing reused although spent",
        "claim.candidates",
        "        if usable or current:\n            if not usable and names:\n                look.schedule.no_later_than(SOON)",
        "        if True:\n            if False:\n                look.schedule.no_later_than(SOON)",
    ),
    Mutant(
        "gc without version check",
        "maintenance.collect",
        "            refusal = None if sent.outcome.committed else (yield from commit(plan)).refusal\n",
        "            plan.changes[0].ops = [zk.Delete(ops[0].path), *ops[1:-1]]\n"
        "            refusal = None if sent.outcome.committed else (yield from commit(plan)).refusal\n",
        test="tests/unit/test_clean_up.py::test_a_task_that_runs_anew_after_it_was_judged_is_kept",
    ),
    Mutant("lost requeue", "tasks.settle", "        if state.requeue:\n", "        if False:\n"),
    Mutant("token reuse", "client_state", "claimed.token = token", "claimed.token = claimed.version"),
    Mutant(
        "burial not retried",
        "maintenance.due_work",
        "        context.retry_times.retry_later(path, schedule)\n    return count\n\n\ndef expire_leases",
        "        context.known_consumers.unrescued = [one for one in context.known_consumers.unrescued if one != consumer]\n    return count\n\n\ndef expire_leases",
        ("    for task_id in current or ():", "    for task_id in (current or [])[:1]:"),
    ),
    Mutant("heartbeat lost", "tasks.settle", '    span = seconds("lease", lease)\n    if claimed.lost:', "    return\n    if claimed.lost:"),
    Mutant("a run anew forgets the run before", "tasks.enqueue", "    return (yield from transitions.with_history(context, current, plan))", "    return plan"),
    Mutant("a run in escrow forgets the run before", "write.next_run", "    return (yield from with_ending(context, current, after, now, written, plan))", "    return plan"),
    Mutant("trimmed without telling", "maintenance.collect", "    if rules.conf.follow:\n", "    if False:\n"),
    Mutant(
        "what has left is read first",
        "read.completion_log",
        "    found = yield from _standing(context, after)\n    left = yield from list_history(context, after)\n",
        "    left = yield from list_history(context, after)\n    found = yield from _standing(context, after)\n",
    ),
    Mutant("the torn reading of a run", "read.completion_log", "== versions[task_id] and (torn or whole)", "== versions[task_id]",
           test="tests/unit/test_log.py::test_a_run_whose_id_runs_anew_while_it_is_read_is_read_as_it_ended"),
    Mutant("what had not begun is counted", "tasks.interventions", "now, begun=begun)", "now, begun=True)"),
    Mutant("a mark that is not sent", "tasks.settle", "    if not claimed.prefetched:\n", "    claimed.prefetched = False\n    if True:\n"),
    Mutant("a lost mark is forgotten", "tasks.settle", "    context.pending.unmarked_starts[claimed.task_id, claimed.token] = claimed\n", "    pass\n"),
    Mutant("the first in line that is cut off keeps its turn", "write.commit", "            if member.is_leader:", "            if False:"),
    Mutant("what goes together is refused together", "write.commit", "if len(parts) > 1 and outcome.failed is not None:", "if False:"),
    Mutant("a settlement and the claim after it are refused together", "write.commit", "    if outcome.failed is None:\n", "    if True:\n"),
    Mutant("what was handled is forgotten by a call that is cut off", "client_state", "self.sender is None or self.sender.over", "self.sender is None"),
    Mutant("what is put down waits for the next claim", "maintenance.due_work", "    if has_overdue(context):\n", "    if False:\n"),
    Mutant("what a loop had ready is kept when it is left", "claim.claim_iterator", "        for claimed in ready:\n", "        for claimed in ():\n"),
    Mutant("a bound that nobody guards", "claim.take", "        guards.append(guard)\n", "        pass\n"),
    Mutant("a limit off by one", "claim.limits", "        most = numbers = self.limit.concurrency or 0\n", "        return (self.limit.concurrency or 0) + 1\n        most = numbers = 0\n"),
    Mutant("a slot leaked by a crash", "write.transitions", "slot = [] if current.state.slot is None else", "slot = [] if current.state.slot is None or current.claim_gone else"),
    Mutant(
        "a slot freed twice", "write.transitions", "    same = [] if current.state.state is State.CLAIMED else",
        '    same = [zk.Delete(context.paths.at("slots", slot)) for slot in [current.state.slot] if slot] if current.state.state is State.CLAIMED else',
    ),
    Mutant("a rate off by one", "claim.limits", "left = max(0, self.limit.rate - sum", "left = max(0, 1 + self.limit.rate - sum"),
    Mutant("claims counted without a version", "claim.limits", "dump(record), known.version)", "dump(record))"),
    Mutant("claims of late forgotten too soon", "claim.limits", "if until >= since)", "if until >= since + 300)"),
    Mutant("a freed slot that nobody hears of", "claim.limits", "return None if known.watch.fired else 0", "return 0"),
    Mutant("a period that nobody waits for", "claim.limits", "        if left == 0:\n", "        if False:\n"),
    Mutant("a slot that is being taken is waited for", "claim.limits", "        if free == 0:\n", "        if False:\n"),
    Mutant("begun by token and not marked", "read.claim_status", "prefetched=prefetched, claim=plain", "claim=plain"),
    Mutant("results of commit unchecked", "claim.take", "        if refusal is None:\n", "        if True:\n"),
    Mutant("a take-over by id alone", "claim.claim", "if claimed is None or claimed.token != token:", "if claimed is None:"),
    Mutant("what follows a refused one of a group is claimed", "claim.take", "([] if in_order else parts[at + 1 :])", "parts[at + 1 :]"),
    Mutant("a redriven task keeps its rank", "write.transitions", "ended=None, was_due=None, rank=None", "ended=None, was_due=None"),
    Mutant("the archive judged by the record's creation", "maintenance.collect", "record.stat.mzxid > rules.conf.archive:", "record.stat.czxid > rules.conf.archive:"),
    Mutant("an unsure clock taken as sure", "client_state", "return now if self.last is None else now - math.ceil(self.last.span * 1000)", "return now",
           test="tests/unit/test_times.py::test_a_deadline_is_judged_by_the_earliest_time_that_an_unsure_clock_allows"),
    Mutant("extending a session-bound claim checks nothing", "tasks.settle", '        yield from claim_status.current_claim(context, claimed.task_id, claimed.token, claimed.claim.get("nonce"))\n        return', "        return"),
    Mutant("an operator's version ignored", "tasks.interventions", "if version is not None and mzxid != version:", "if False:"),
    Mutant("a redriven member stays failed", "write.transitions", "[] if failed is None else [zk.Delete(paths[3])]", "[]"),
    Mutant("a cancelled member has not failed", "write.transitions", "failed = after.state in FAILED", "failed = after.state is State.DEAD"),
    Mutant("letters go before the archive has them", "maintenance.collect", "    if conf.archive is not None:\n", "    if False:\n"),
    Mutant("a batch is given up while it is written", "maintenance.collect", "marker is not None and marker.stat.mtime <= cutoff:", "marker is not None:",
           test="tests/unit/test_enqueue_new.py::test_a_batch_that_clean_up_gave_up_takes_no_members"),
    Mutant("another's lock is taken for one's own", "maintenance.due_work", '(context.maintenance.content or "").encode()),))', 'b""),))',
           test="tests/unit/test_clean_up.py::test_two_that_look_at_the_same_time_make_one_run"),
    Mutant("nobody hears of a cancel", "maintenance.consumer_registry", '(consumer.id, "current"), watch)', '(consumer.id, "current"))'),
    Mutant("what comes back from a delay has lost its place", "maintenance.due_work", "has_place = current.state.rank is not None and current.state.placed", "has_place = False",
           test="tests/unit/test_updates.py::test_a_task_that_leaves_its_lane_for_a_time_comes_back_to_its_place"),
    Mutant("listings of several moments are taken for one", "claim.candidates", "heads = lowest if stands else", "heads = lowest if True else"),
    Mutant("claims under a bound do not see each other", "claim.take", 'SetData(path, b"", node.stat.version)', 'SetData(path, b"", -1)'),
    Mutant("a delayed task is claimed by id before its time", "claim.claim", "state.due is not None and state.due >", "False and state.due >"),
    Mutant("any entry of a task is taken for its place", "claim.take", "state.index is None and context.paths.entry(state.place) == entry", "state.index is None",
           test="tests/unit/test_groups.py::test_what_cannot_be_claimed_keeps_no_group_from_the_others"),
    Mutant("two calls take the same mark over", "client_state", "self.marks.pop(name, None)", "self.marks.get(name)",
           test="tests/unit/test_in_doubt.py::test_an_unknown_enqueue_made_again_is_one_task"),
    Mutant("an enqueue made again is not known", "client_state", "mark.said == said", "False"),
    Mutant("another message passes for the same enqueue", "client_state", "mark.said == said", "True",
           test="tests/unit/test_in_doubt.py::test_what_is_remembered_ends"),
    Mutant("members that failed and are gone are loaded again", "write.new_task", "[Check(failed, drops), ", "[",
           test="tests/unit/test_enqueue_new.py::test_a_task_of_another_batch_is_no_member_and_one_that_was_dropped_is_not_written_again"),
    Mutant("a failed member is forgotten by another run of its id", "write.transitions", "if failed and after.batch is None:", "if False:",
           test="tests/unit/test_enqueue_new.py::test_a_failed_member_stays_one_though_another_task_has_its_id"),
    Mutant("a cancelled member is forgotten by another run of its id", "tasks.enqueue", "state.batch if state.state in FAILED and", "state.batch if False and",
           test="tests/unit/test_enqueue_new.py::test_a_failed_member_stays_one_though_another_task_has_its_id"),
    Mutant("a tightened policy binds nothing that is pending", "tasks.settle", "return state.retry(conf.policy).exhausted(state.attempt)", "return False",
           test="tests/unit/test_updates.py::test_a_tightened_policy_buries_what_used_up_its_attempts"),
    Mutant("a server that lags is believed", "read.watch_tasks", "    if None in nodes:  #", "    if False:  #",
           test="tests/unit/test_batches.py::test_a_batch_and_its_tasks_are_looked_for_again_before_they_are_not_found"),
    Mutant("who stops waiting ends the watch of others", "read.watch_cache", "            if not entry.subscribers:\n", "            if True:\n"),
    Mutant("any settlement of ours passes for this one", "tasks.settle", "return state if claimed.nonces.get(verb) in state.settled else None", "return state if {*claimed.nonces.values()} & set(state.settled) else None",
           test="tests/unit/test_in_doubt.py::test_settling_again_after_an_unknown_outcome_tells_what_happened"),
    Mutant("a batch is sealed while members come", "tasks.batches", '(zk.Delete(f"{base}/open/{WRITING}", version),', '(zk.Delete(f"{base}/open/{WRITING}"),',
           test="tests/unit/test_enqueue_new.py::test_a_member_that_comes_while_the_batch_is_sealed_is_counted_or_refused"),
    Mutant("a record written once more is another end", "write.transitions", "version=state.ended_zxid or record.stat.mzxid,", "version=record.stat.mzxid,",
           test="tests/unit/test_log.py::test_a_run_in_escrow_that_waits_for_a_window_leaves_the_run_before_it"),
    Mutant("a commit of unknown outcome is planned anew", "tasks.transaction", "plan = transaction.sent if transaction.sent is not None else (yield from _plan(transaction, data))", "plan = yield from _plan(transaction, data)"),
    Mutant("what was sent elsewhere tells of others", "tasks.enqueue", "self.doubted = self.doubted or not any(new.uncertain for new in self.new_tasks)", "self.doubted = True",
           test="tests/unit/test_enqueue_new.py::test_what_was_sent_elsewhere_tells_nothing_of_others"),
    Mutant("one member of a batch stands for all of a transaction", "tasks.enqueue", "            if len(self.new_tasks) > 1:\n", "            if False:\n",
           test="tests/unit/test_enqueue_new.py::test_a_batch_beside_its_repeat_is_written_to_its_last_member"),
)  # fmt: skip
BY_NAME: Final = {mutant.name: mutant for mutant in MUTANTS}


class _Loader(SourceFileLoader):
    """Loads a module with the mutant in it, past any cache of compiled code."""

    mutant: Mutant

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002  its signature is importlib's
        source = Path(self.path).read_text(encoding="utf-8")
        return compile(mutated(self.mutant, source), self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != CORE + self.mutant.module:
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert spec.origin is not None
        loader = _Loader(name, spec.origin)
        loader.mutant = self.mutant
        return importlib.util.spec_from_file_location(name, spec.origin, loader=loader)


def mutated(mutant: Mutant, source: str) -> str:
    """The source with the bug in it. Raises `ValueError` where the piece does not stand there exactly once."""
    for old, new in ((mutant.old, mutant.new), *((mutant.also,) if mutant.also else ())):
        if source.count(old) != 1:
            msg = f"mutant {mutant.name!r}: a piece stands {source.count(old)} times in {mutant.module}"
            raise ValueError(msg)
        source = source.replace(old, new)
    return source


def install(name: str) -> None:
    """Have the engine imported with a bug; to be called before anything of it is."""
    mutant = BY_NAME[name]
    assert CORE + mutant.module not in sys.modules, "too late: the module is there already"
    sys.meta_path.insert(0, _Finder(mutant))


@dataclass(frozen=True)
class Verdict:
    """How long it took to find a mutant, and by which oracle; None: it was not found."""

    mutant: Mutant
    schedules: int
    seconds: float
    oracle: str | None


def hunt(mutant: Mutant, schedules: int = SCHEDULES) -> Verdict:
    """Run so many schedules with the mutant, or until one finds it."""
    command = [
        *(sys.executable, "-m", "tests.simulation", "--mutant", mutant.name),
        *("--schedules", str(schedules)),
    ]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"^(\d+) schedules, [\d.]+ s: ([^:]+):", done.stdout, re.MULTILINE)
    if done.returncode not in {0, 1} or (done.returncode == 1 and found is None):
        raise RuntimeError(done.stdout[-2_000:] + done.stderr[-2_000:])
    count: Any = found[1] if found else (re.findall(r"^(\d+) schedules in", done.stdout, re.MULTILINE) or ["0"])[-1]
    return Verdict(mutant, int(count), time.monotonic() - began, found[2] if found else None)


def caught(mutant: Mutant) -> bool:
    """Whether the test of a mutant fails with it."""
    steps = f"import pytest; from tests.simulation import mutants; mutants.install({mutant.name!r}); "
    steps += f"raise SystemExit(pytest.main(['-q', '-n0', {mutant.test!r}]))"
    return subprocess.run([sys.executable, "-c", steps], capture_output=True, check=False).returncode == 1


def main() -> int:
    """Hunt every mutant; a table, and exit code 1 if one was not found."""
    names = sys.argv[1:] or list(BY_NAME)
    missed = 0
    print("| known bug | found after | by |\n|---|---|---|")
    for name in names:
        if test := BY_NAME[name].test:
            found = caught(BY_NAME[name])
            missed += not found
            print(f"| {name} | a test | `{test}`{'' if found else ': **not found**'} |", flush=True)
            continue
        verdict = hunt(BY_NAME[name])
        missed += verdict.oracle is None
        print(f"| {name} | {verdict.schedules} schedules | {verdict.oracle or '**not found**'} |", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
