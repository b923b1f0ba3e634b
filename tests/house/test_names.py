"""The names in the code are the field's: a word that a stranger would have to be taught is none of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import airflow_provider_zkmq

PACKAGE: Final = Path(airflow_provider_zkmq.__file__).parent

#: Words that were left, by the folder in which they are not to be used, each with what is used for it.
LEFT: Final = {
    "": {
        "debts, debt, owed, owe, owing, orphans": "pending operations, unsettled claims",
        "giveback, left_behind": "release_undelivered",
        "departing, departure, leaving, journey": "deferred completions",
        "letters, letter, departed": "history entries (dead letters are the field's word)",
        "ask, asked, asking": "request",
        "taken_ahead, took_ahead": "prefetched",
        "heart, quicken, beat": "heartbeat",
        "crowd, step_back, take_turns": "contention, stagger, back_off",
        "seats, seat, pass_on, nudge": "wait queue, notify_one",
        "tell, told, telling": "warn_once, notify, report, log",
        "tend, look_after, upkeep": "maintain, maintenance",
        "ownerless, bury, unburied, census, strike_off, heed": "rescue, known consumers, deregister",
        "patience, farewell": "deadline, timeout",
        "dialing, outbox, posting, bell": "connecting, send queue, notifier, fairness",
        "looping, twins": "claim loop, sync and async",
        "homes, either, ours, based_on, afterwards": "parents, upsert, proof, preconditions, on_commit",
        "reuse, meet, unresolved, exhaust, used_up": "on_conflict, unknown outcomes, attempts_exhausted",
        "agenda, postponed, quarantine, stock": "schedule, retry times, ignored paths, cached entries",
        "trimmed, upto": "truncated_at",
        "aside": "in a thread",
        "softly, unmapped": "soft_fail, not mappable",
        "awake, notices": "waiting, warnings",
    },
    "engine": {
        "fronts, front, verbs, rounds": "api, methods, fairness",
        "verdict, verdicts": "CommitResult, DeliveryResult",
        "letter, draft, tree": "history entry, NewTask",
        "slots, pick": "segments, entry",
    },
    "filequeue": {"several, book, folder, items": "claim_many, queue file, directory, task lines"},
    "spark": {"losses, taking, shipping, sink, receipts, answers": "data loss, run selection, py_files, report"},
    "operators": {"memory, once, verdict, verdicts": "task state, idempotent enqueue, settle result"},
    "triggers": {"keeping": "lease keeper"},
}
#: Names that hold such a word and are meant: of the field, of Python, Airflow or kazoo, or read as a word by users.
MEANT: Final = {
    "dead_letters", "ZkmqDeadLetterNotifier",
    "ZooKeeperClient",
    "__slots__",
    "read_tree", "tree",
}  # fmt: skip


def names_in(path: Path) -> Iterator[str]:
    """What a module defines: itself, classes, functions, parameters, variables and attributes."""
    yield path.stem
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def words(name: str) -> str:
    """The words of a name in small letters, each between two `_`."""
    return f"_{re.sub(r'(?<=[a-z0-9])(?=[A-Z])', '_', name).lower().strip('_')}_"


def left_words(folder: str) -> dict[str, str]:
    """Each word that is not to be used below a folder, with what is used for it."""
    return {word: use for group, use in LEFT[folder].items() for word in group.split(", ")}


@pytest.mark.parametrize("folder", LEFT)
def test_no_left_word_is_a_name(folder: str, subtests: pytest.Subtests) -> None:
    """A name that holds one is found with its module, and with what to use for it."""
    left = left_words(folder)
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        with subtests.test(module=str(path.relative_to(PACKAGE))):
            names = set(names_in(path)) - MEANT
            found = {name: use for name in names for word, use in left.items() if f"_{word}_" in words(name)}
            assert not found


def test_a_left_word_would_be_found(tmp_path: Path) -> None:
    """In whichever case a name is spelled, and in the middle of it, but not inside of another word."""
    path = tmp_path / "debts.py"
    path.write_text("class TheDebts: ...\ndef _pay_debts(owed): it.debts_of = debtor = 1\n")
    left = left_words("")
    assert {name for name in names_in(path) if any(f"_{word}_" in words(name) for word in left)} == {
        "debts", "TheDebts", "_pay_debts", "owed", "debts_of",
    }  # fmt: skip
