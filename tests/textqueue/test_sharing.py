"""One file, several processes: the mitigations that the seed names."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_zkmq.textqueue import StaleMessage, Status, TextQueue, TextQueueError
from tests.support import eventually


def process(*args: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tests.textqueue.worker", *map(str, args)], start_new_session=True)


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for one in started:
        one.kill()
        one.wait()


def test_two_appenders_never_garble(tmp_path: Path, processes) -> None:
    """Two processes append at the same time: every message is whole, each one's own in its order."""
    path = tmp_path / "a.tq"
    processes += [process("append", path, name, 300) for name in ("a", "b")]
    assert [one.wait(60) for one in processes] == [0, 0]
    with TextQueue.open(path) as queue:
        found = [(it.text, it.variables[0]) for it in queue.messages()]
        assert queue.reports == {}
    for name in ("a", "b"):
        mine = [it for it in found if it[0].startswith(name)]
        assert mine == [(f"{name}-{n}\n{'x' * (n % 50)}", "v" * (n % 7)) for n in range(300)]


def test_four_claimers_killed_at_random_handle_every_message(tmp_path: Path, processes) -> None:
    """Every message is processed once; none is begun while another has it: a second begin follows a killed owner."""
    path, log, rng = tmp_path / "a.tq", tmp_path / "log", random.Random(5)
    with TextQueue.open(path) as queue:
        for number in range(200):
            queue.append(f"m{number}", mutex=True)
        processes += [process("claim", path, log) for _ in range(4)]
        killed: set[int] = set()

        def left() -> int:
            return sum(1 for _ in queue.messages())

        def one_more_dies() -> bool:
            victim = rng.randrange(4)
            one = processes[victim]
            os.killpg(one.pid, signal.SIGKILL)
            one.wait()
            killed.add(one.pid)
            processes[victim] = process("claim", path, log)
            return True

        for bound in (170, 120, 70, 30):
            eventually(lambda bound=bound: left() <= bound, within=60)
            one_more_dies()
        eventually(lambda: left() == 0, within=60)
    begun: dict[str, list[int]] = {}
    ended: list[str] = []
    for line in log.read_text().splitlines():
        what, name, pid = line.split()
        if what == "begin":
            assert set(begun.get(name, [])) <= killed, f"{name} was begun by two that lived"
            begun.setdefault(name, []).append(int(pid))
        elif what == "end":
            ended.append(name)
    assert set(begun) == {f"m{number}" for number in range(200)}
    assert len(ended) == len(set(ended))


def test_a_message_s_mutex_has_an_owner_and_an_end(tmp_path: Path) -> None:
    """Held, it is another's neither to lock nor to settle; expired, it is taken over and its late owner is refused."""
    with TextQueue.open(tmp_path / "a.tq") as queue:
        queue.append("x", ["note"], mutex=True)
        first, second = next(queue.messages()), next(queue.messages())
        assert first.try_lock("ann", 60) is True
        assert first.try_lock("ann", 60) is True
        assert second.try_lock("bob", 60) is False
        with pytest.raises(StaleMessage, match="bob does not have"):
            second.settle("bob", Status.PROCESSED)
        assert first.try_lock("ann", 0.001) is True
        eventually(lambda: second.try_lock("bob", 60))
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


def test_the_seed_s_own_mutexes_are_understood(tmp_path: Path) -> None:
    """In small or large letters; one whose room is too small for an owner is an error, not a broken file."""
    path = tmp_path / "a.tq"
    path.write_bytes(b"-Hello World\n\\mutex=" + b" " * 40 + b"\n-Bye\n\\MUTEX=      \n")
    with TextQueue.open(path) as queue:
        hello, bye = queue.messages()
        assert hello.try_lock("ann", 60)
        before = path.read_bytes()
        with pytest.raises(ValueError, match="room"):
            bye.try_lock("ann", 60)
        assert path.read_bytes() == before


def test_a_mutex_without_room_is_stepped_over(tmp_path: Path) -> None:
    """The seed's own mutexes hold no owner: each is reported, the other messages are claimed, nothing is changed."""
    path = tmp_path / "a.tq"
    seed = b"-Hello World\n\\mutex=      \n-How are you today\n\\MUTEX\n-Goodbye World\n\\MUTEX\n"
    path.write_bytes(seed)
    with TextQueue.open(path) as queue:
        assert queue.claim("ann", 60) is None
        queue.append("after them", mutex=True)
        message = queue.claim("ann", 60)
        assert message is not None
        assert message.text == "after them"
        assert sorted(queue.reports) == [0, seed.index(b"-How"), seed.index(b"-Goodbye")]
        assert all("no room for an owner" in why for why in queue.reports.values())
        assert queue.claim("bob", 60) is None
        message.settle("ann", Status.PROCESSED)
    assert path.read_bytes().startswith(seed)


def test_an_owner_is_a_name_that_fits(tmp_path: Path) -> None:
    """One that cannot be read back, or is too long for the room that an append leaves, is refused, unwritten."""
    path = tmp_path / "a.tq"
    with TextQueue.open(path) as queue:
        queue.append("x", mutex=True)
        before = path.read_bytes()
        for owner in ("", " ann", "a\nb", "x" * 60):
            with pytest.raises(ValueError, match=r"owner|room"):
                queue.claim(owner, 60)
        assert (path.read_bytes(), queue.reports) == (before, {})
        assert queue.claim("a name of two words", 60) is not None


@pytest.mark.parametrize("said", ["bob", "bob soon", "bob nan", "bob 1e999", " 99999999999"])
def test_a_mutex_that_is_not_understood_is_free(tmp_path: Path, said: str) -> None:
    """What names no owner with an end holds nothing."""
    path = tmp_path / "a.tq"
    path.write_text(f"-x\n\\mutex={said.ljust(56)}\n")
    with TextQueue.open(path) as queue:
        message = queue.claim("ann", 60)
        assert message is not None
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
    """`final=False`: what may still be incomplete is not given."""
    path = tmp_path / "a.tq"
    path.write_bytes(b"-whole\n more\n-half")
    with TextQueue.open(path) as queue:
        assert [it.text for it in queue.messages(final=False)] == ["whole\nmore"]


def test_several_files_are_read_as_one(tmp_path: Path) -> None:
    """Writers with a file each: `read_all` gives every file's messages, marked in the file they came from."""
    from airflow_provider_zkmq.textqueue import read_all

    for name in ("a", "b"):
        with TextQueue.open(tmp_path / f"{name}.tq") as queue:
            queue.append(f"of {name}")
    with read_all(sorted(tmp_path.glob("*.tq"))) as messages:
        for message in messages:
            message.mark_processed()
    assert [path.read_bytes()[:1] for path in sorted(tmp_path.glob("*.tq"))] == [b"=", b"="]


def test_new_messages_are_followed(tmp_path: Path) -> None:
    """`watch` gives what is there, then what is appended, until it is told to stop."""
    path = tmp_path / "a.tq"
    seen: list[str] = []
    stop = threading.Event()
    with TextQueue.open(path) as queue:
        queue.append("one")

        def follow() -> None:
            with TextQueue.open(path) as reader:
                seen.extend(message.text for message in reader.watch(stop))

        thread = threading.Thread(target=follow)
        thread.start()
        eventually(lambda: seen == ["one"])
        queue.append("two\nlines")
        eventually(lambda: seen == ["one", "two\nlines"])
        stop.set()
        thread.join(20)
    assert not thread.is_alive()


def test_mutex_times_are_this_machine_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutex ends by the clock of who looks: an hour later anybody may take it."""
    with TextQueue.open(tmp_path / "a.tq") as queue:
        queue.append("x", mutex=True)
        message = next(queue.messages())
        assert message.try_lock("ann", 60)
        later = time.time() + 3600
        monkeypatch.setattr("airflow_provider_zkmq.textqueue.message.time.time", lambda: later)
        assert message.try_lock("bob", 60)
