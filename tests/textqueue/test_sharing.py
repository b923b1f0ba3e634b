"""One file, several who use it: mutexes, appends meanwhile, and what is followed; this library and the seed's.

Processes that are killed are in `tests/filequeue/test_chaos.py`.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import textqueue as theirs
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_zkmq.textqueue import StaleMessage, Status, TextQueue, TextQueueError, read_all
from tests.support import eventually


def test_a_message_s_mutex_has_an_owner_and_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Held, it is another's neither to lock nor to settle; expired, it is taken over and its late owner is refused."""
    later = time.time() + 3600
    with TextQueue.open(tmp_path / "a.tq") as queue:
        queue.append("x", ["note"], mutex=True)
        first, second = next(queue.messages()), next(queue.messages())
        assert first.try_lock("ann", 60) is True
        assert first.try_lock("ann", 60) is True
        assert second.try_lock("bob", 60) is False
        with pytest.raises(StaleMessage, match="bob does not have"):
            second.settle("bob", Status.PROCESSED)
        with monkeypatch.context() as patch:
            patch.setattr("airflow_provider_zkmq.textqueue.message.time.time", lambda: later)
            assert second.try_lock("bob", 60) is True
        with pytest.raises(StaleMessage, match="ann does not have"):
            first.settle("ann", Status.PROCESSED)
        assert queue.claim("bob", 60) is None
        second.settle("bob", None)
        assert second.variables[1].strip() == "mutex="
        assert first.try_lock("ann", 60) is True
        first.settle("ann", Status.PROCESSED)
        assert second.try_lock("bob", 60) is False
        queue.append("no mutex")
        with pytest.raises(TextQueueError, match="no mutex"):
            next(queue.messages()).try_lock("ann", 1)
        assert queue.claim("ann", 1) is None


def test_a_mutex_without_room_is_stepped_over(tmp_path: Path) -> None:
    """The seed's own mutexes, in any letters, hold no owner unless they have room: reported, and left as they are."""
    path = tmp_path / "a.tq"
    seed = b"-Hello World\n\\mutex=      \n-How are you today\n\\MUTEX\n-Goodbye World\n\\MUTEX\n"
    path.write_bytes(seed)
    with TextQueue.open(path) as queue:
        assert queue.claim("ann", 60) is None
        with pytest.raises(ValueError, match="room"):
            next(queue.messages()).try_lock("ann", 60)
        queue.append("after them", mutex=True)
        message = queue.claim("ann", 60)
        assert message is not None
        assert message.text == "after them"
        assert sorted(queue.reports) == [0, seed.index(b"-How"), seed.index(b"-Goodbye")]
        assert all("no room for an owner" in why for why in queue.reports.values())
        assert queue.claim("bob", 60) is None
        message.settle("ann", Status.PROCESSED)
        assert path.read_bytes().startswith(seed)
        path.write_bytes(b"-roomy\n\\MUTEX=" + b" " * 40 + b"\n")
        assert next(queue.messages()).try_lock("ann", 60)


def test_an_owner_is_a_name_that_fits(tmp_path: Path) -> None:
    """What cannot be read back or has no room is refused; what names no owner with an end holds nothing."""
    path = tmp_path / "a.tq"
    with TextQueue.open(path) as queue:
        queue.append("x", mutex=True)
        before = path.read_bytes()
        for owner in ("", " ann", "a\nb", "x" * 60):
            with pytest.raises(ValueError, match=r"owner|room"):
                queue.claim(owner, 60)
        assert (path.read_bytes(), queue.reports) == (before, {})
        assert queue.claim("a name of two words", 60) is not None
        for said in ("bob", "bob soon", "bob nan", "bob 1e999", " 99999999999"):
            path.write_text(f"-x\n\\mutex={said.ljust(56)}\n")
            message = queue.claim("ann", 60)
            assert message is not None, said
            assert message.holds("ann")


def test_retries_are_counted_down_in_a_variable(tmp_path: Path) -> None:
    """`retries=10` becomes 9 in place, and never less than 0; without the variable there is one clear error."""
    with TextQueue.open(tmp_path / "a.tq") as queue:
        queue.append("x", ["retries=10"])
        message = next(queue.messages())
        assert [message.count_down() for _ in range(11)] == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0]
        assert message.variables == ("retries=0 ",)
        with pytest.raises(TextQueueError, match="no variable 'tries'"):
            message.count_down("tries")
        for damaged in ("²", "9" * 5_000, "-1", "many"):
            queue.append("y", [f"retries={damaged}"])
            *_, last = queue.messages()
            assert last.count_down() == 0


def test_a_line_that_a_shell_appends_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shells know no lock: what one adds between the look at the file and the write stands there afterwards, too."""
    path = tmp_path / "a.tq"
    path.write_bytes(b"-one\n")

    def meanwhile(self: TextQueue, size: int) -> bool:
        with path.open("ab") as shell:
            shell.write(b"-a person's\n")
        return self.read(1, size - 1) == b"\n"

    monkeypatch.setattr(TextQueue, "_ends_whole", meanwhile)
    with TextQueue.open(path) as queue:
        offset = queue.append("ours")
        assert [it.text for it in queue.messages()] == ["one", "a person's", "ours"]
        assert path.read_bytes()[offset:] == b"-ours\n"


def test_a_reader_beside_an_appender_leaves_out_the_final_message(tmp_path: Path) -> None:
    """`final=False`: what may still be incomplete is not given; `read_all` marks each in the file it came from."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.tq").write_bytes(b"-whole\n more\n-half")
    with TextQueue.open(tmp_path / "a.tq") as queue:
        assert [it.text for it in queue.messages(final=False)] == ["whole\nmore"]
    with read_all(sorted(tmp_path.glob("*.tq"))) as messages:
        for message in messages:
            message.mark_processed()
    assert {path.read_bytes() for path in tmp_path.glob("*.tq")} == {b"=whole\n more\n=half"}


def test_new_messages_are_followed(tmp_path: Path) -> None:
    """`watch` gives what is there, then what is appended, until it is told to stop."""
    seen, stop = list[str](), threading.Event()
    with TextQueue.open(tmp_path / "a.tq") as queue, TextQueue.open(tmp_path / "a.tq") as reader:
        queue.append("one")
        follower = threading.Thread(target=lambda: seen.extend(message.text for message in reader.watch(stop)))
        follower.start()
        eventually(lambda: seen == ["one"])
        queue.append("two\nlines")
        eventually(lambda: seen == ["one", "two\nlines"])
        stop.set()
        follower.join(20)
    assert not follower.is_alive()


# --- files go both ways between this library and PyPI's ``textqueue`` 1.1, with every construct it handles

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
