"""One file, several who use it: mutexes, appends meanwhile, and what is followed.

Processes that are killed are in `tests/filequeue/test_chaos.py`.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

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
