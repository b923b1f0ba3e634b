"""Files go both ways between this library and the PyPI package ``textqueue`` 1.1, with every construct it handles."""

from __future__ import annotations

from pathlib import Path

import pytest
import textqueue as theirs
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_zkmq.textqueue import Status, TextQueue

NAMES = {
    theirs.MessageStatus.queued: "queued",
    theirs.MessageStatus.cleared: "processed",
    theirs.MessageStatus.critical: "error",
    theirs.MessageStatus.comment: "comment",
}
FILE = (
    b"# a comment\n of two lines\n\\with a variable\n"
    b"-one\n"
    b"=done\n more\n"
    b"!broken\n"
    b"-  padded  \n\n"
    b"-two\n lines\n\\first\n\\second   \n"
    b"-last"
)


def by_theirs(path: Path) -> list[tuple[str, str, tuple[str, ...]]]:
    queue = theirs.TextQueue()
    queue.add_input(str(path))
    found = []
    try:
        while (item := queue.get_next_in_file(0, True, True, True)) is not None:
            found.append((NAMES[item.status], item.value, item.get_variables()))
    finally:
        queue.close()
    return found


def by_ours(path: Path) -> list[tuple[str, str, tuple[str, ...]]]:
    with TextQueue.open(path) as queue:
        return [(str(it.status), it.text, it.variables) for it in queue.messages("all")]


def test_they_see_our_edits_and_we_see_theirs(tmp_path: Path) -> None:
    """Both read every construct the same; marks and variables written by one are read by the other: the same bytes."""
    ours, others = tmp_path / "ours.tq", tmp_path / "others.tq"
    for path in (ours, others):
        path.write_bytes(FILE)
        assert by_ours(path) == by_theirs(path)
    with TextQueue.open(ours) as queue:
        one, _, two, last = queue.messages()
        one.mark_processed()
        two.set_variable(1, "new")
        last.mark_error()
    queue_of_theirs = theirs.TextQueue()
    queue_of_theirs.add_input(str(others))
    items = [queue_of_theirs.get_next() for _ in range(4)]
    items[0].mark_as_cleared()
    items[2].set_variable(1, "new")
    items[3].mark_as_critical_error()
    queue_of_theirs.close()
    assert ours.read_bytes() == others.read_bytes()
    assert by_ours(others) == by_theirs(ours)


TEXT = st.text(st.sampled_from("ab -=#!\\\n"), max_size=12)
VARIABLE = st.text(st.sampled_from("ab =-"), max_size=6)


@given(messages=st.lists(st.tuples(st.sampled_from(list(Status)), TEXT, st.lists(VARIABLE, max_size=3)), max_size=6))
@settings(deadline=None)
def test_what_we_write_they_read(tmp_path_factory: pytest.TempPathFactory, messages) -> None:
    """Any texts and variables that we append, they read as they were given."""
    path = tmp_path_factory.mktemp("tq") / "a.tq"
    with TextQueue.open(path) as queue:
        for status, text, variables in messages:
            queue.append(text, variables, status=status)
    given_ = [(str(status), text, tuple(variables)) for status, text, variables in messages]
    assert by_theirs(path) == by_ours(path) == given_
