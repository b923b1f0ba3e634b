"""Files that people write and edit, and what they find in them."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from airflow_provider_zkmq.engine import ClaimLost, ConsumeTimes, CorruptRecord, String, Unavailable, Zkmq
from airflow_provider_zkmq.filequeue import FileClient, FileQueue
from airflow_provider_zkmq.filequeue.task_store import FileConf, QueueFile
from airflow_provider_zkmq.textqueue import Status, TextQueue
from airflow_provider_zkmq.textqueue.text_queue import ALL
from tests.filequeue.conftest import taken


def trim(path: Path) -> None:
    """What many editors do on saving: no line keeps its trailing spaces."""
    path.write_bytes(re.sub(rb"[ ]+$", b"", path.read_bytes(), flags=re.MULTILINE))


def test_a_task_is_a_message_that_people_can_read(q: FileQueue) -> None:
    """The text as it is, then its variables; what is done to it is done in place, its first byte telling its state."""
    q.enqueue("do this\nand that", {"performance_class": "low"}, task_id="a", metadata={"k": 1})
    before = q.path.read_bytes()
    lines = [line.rstrip() for line in before.decode().splitlines() if not line.startswith("\\enqueued=")]
    assert lines == [
        "-do this", " and that", "\\id=a", "\\attempts=0", "\\claims=0", "\\due=", "\\error=", "\\result=", "\\mutex=",
        '\\filters={"performance_class":"low"}', '\\metadata={"k":1}',
    ]  # fmt: skip
    taken(q).complete("it went well")
    after = q.path.read_bytes()
    assert len(after) == len(before)
    assert after.startswith(b"=do this\n and that\n\\id=a\n\\attempts=1 ")
    assert b'\n\\result="it went well" ' in after
    assert b"\n\\mutex=  " in after


def test_a_plain_line_is_a_task(q: FileQueue) -> None:
    """It has an id by its place; its claim makes a comment of it and a message with all the variables of it."""
    q.path.write_text("# things to do\n-do this\n and that\n\\from=me\n=was done\n-second")
    tasks = {task.id: (task.data, str(task.state)) for task in q.tasks()}
    assert tasks == {
        "line-15": (b"do this\nand that", "inserted"),
        "line-43": (b"was done", "finished"),
        "line-53": (b"second", "inserted"),
    }
    claim = taken(q)
    assert (claim.task.id, claim.task.attempt, claim.task.data) == ("line-15", 1, b"do this\nand that")
    taken(q).fail("no", retry=False)
    claim.complete("yes")
    assert q.wait(["line-15"])[0].result == b"yes"
    assert {task.id: str(task.state) for task in q.tasks()} == {
        "line-15": "finished", "line-43": "finished", "line-53": "dead",
    }  # fmt: skip
    text = q.path.read_text()
    assert text.startswith("# things to do\n#do this\n and that\n\\from=me\n=was done\n#second\n")
    assert text.count("\\from=me\n") == 2
    assert q.claim() is None


def test_a_plain_line_may_have_variables_of_ours(q: FileQueue) -> None:
    """An id, filters and a time that a person wrote count; what is not understood counts as not being there."""
    q.path.write_text(
        '-a\n\\id=mine\n\\filters={"performance_class":"low"}\n\\due=2000-01-01\n'
        "-b\n\\id=not a name\n\\attempts=many\n\\filters=[]\n\\metadata={\n\\due=soon\n\\policy=none\n\\lock=long\n"
        "\\error=oops\n\\MUTEX=\n\\encoding=base64\n"
    )
    claim = taken(q, selector="performance_class==low")
    assert (claim.task.id, claim.task.filters) == ("mine", {"performance_class": "low"})
    other = taken(q)
    assert (other.task.attempt, other.task.filters, other.task.metadata, other.task.error) == (1, {}, {}, "oops")
    assert [str(task.state) for task in q.tasks()] == ["claimed", "claimed"]
    other.complete()
    claim.complete()


def test_an_editor_that_trims_lines_loses_nothing(q: FileQueue) -> None:
    """Ids, attempts, claims and results stay; a message whose rooms are gone is moved to the end when it is changed."""
    for name in ("done", "held", "left"):
        q.enqueue(name, task_id=name)
    taken(q).complete("r")
    claim = taken(q)
    trim(q.path)
    assert {task.id: (str(task.state), task.attempt) for task in q.tasks()} == {
        "done": ("finished", 1), "held": ("claimed", 1), "left": ("inserted", 0),
    }  # fmt: skip
    claim.fail("busy", backoff=0)
    trim(q.path)
    for name in ("left", "held"):
        again = taken(q)
        assert again.task.id == name
        again.complete("r")
    assert {task.id: (task.attempt, task.result) for task in q.tasks()} == {
        "done": (1, b"r"), "left": (1, b"r"), "held": (2, b"r"),
    }  # fmt: skip


def test_a_copy_is_a_task_of_its_own(q: FileQueue) -> None:
    """A queued message that was copied has an id by its place and begins anew; a finished task's is another run."""
    q.enqueue("x", task_id="a", policy=ConsumeTimes(3))
    taken(q).fail("busy", backoff=0)
    block = q.path.read_text()
    with q.path.open("a") as file:
        file.write(block)
    name = f"line-{len(block)}"
    assert [task.id for task in q.tasks()] == ["a", name]
    taken(q).complete()
    copy = taken(q)
    assert (copy.task.id, copy.task.attempt, copy.task.error) == (name, 1, None)
    copy.complete()
    with q.path.open("a") as file:
        file.write(block)
    claim = taken(q)
    assert (claim.task.id, [task.id for task in q.tasks()]) == ("a", [name, "a"])


def test_a_move_that_was_cut_off_is_carried_on_with(files: FileClient) -> None:
    """A crash between the steps of a move leaves one task, not two, and not none."""
    for step in ("appended", "commented-out"):
        q = files.queue(step)
        q.path.write_text("-do this\n-and this\n")
        offset = q.path.stat().st_size
        with TextQueue.open(q.path) as file:
            with file.locked():
                book = QueueFile(file, FileConf())
                book._end_move = lambda *_: None  # type: ignore[method-assign]  # what a crash leaves
                with pytest.raises(AssertionError):
                    assert not book.whole(book.tasks["line-0"])
            if step == "commented-out":
                next(file.messages(ALL))._mark(Status.COMMENT)
        assert q.path.stat().st_size > offset
        claims = [taken(q), taken(q)]
        assert q.claim() is None
        assert sorted((it.task.id, it.task.data) for it in claims) == [("line-0", b"do this"), ("line-9", b"and this")]
        assert q.path.read_text().startswith("#do this\n")


def test_an_editor_may_replace_the_file_and_delete_lines(q: FileQueue) -> None:
    """Who waits sees another file of the same name; the claim of a deleted line is lost, and a worker goes on."""
    q.enqueue("x", task_id="a")
    claim, found = taken(q), list[bytes]()
    thread = threading.Thread(target=lambda: found.append(taken(q, timeout=30).task.data))
    thread.start()
    beside = q.path.with_name("saved")
    beside.write_bytes(q.path.read_bytes() + b"-one more\n")
    beside.replace(q.path)
    thread.join(30)
    assert found == [b"one more"]
    claim.complete("r")
    assert q.task("a").result == b"r"
    q.enqueue("x", task_id="b")
    claim = taken(q)
    q.path.write_text("-other\n")
    with pytest.raises(ClaimLost, match="deleted"):
        claim.complete()
    assert q.path.read_text() == "-other\n"
    q.worker(lambda task: q.path.write_text("-next\n") and None if task.data == b"other" else None).run(
        until_empty=True
    )
    assert [(task.data, str(task.state)) for task in q.tasks()] == [(b"next", "finished")]


def test_lines_may_end_as_on_windows(q: FileQueue) -> None:
    """The tasks of such a file are claimed and settled, and its lines stay of one kind."""
    q.path.write_bytes(b"# todo\r\n-do this\r\n and that\r\n")
    q.enqueue("more\r\n", task_id="a")
    assert [taken(q).task.data for _ in range(2)] == [b"do this\nand that", b"more\r\n"]
    q.claim_handle("a", 1).complete("r\r\n")
    assert q.task("a").result == b"r\r\n"
    raw = q.path.read_bytes()
    assert raw.count(b"\n") == raw.count(b"\r\n")


def test_a_long_error_is_cut_and_a_long_result_has_a_file_of_its_own(q: FileQueue) -> None:
    """An error is cut between characters and ends with …; a result stands beside the file, which says so."""
    q.enqueue("x", task_id="a")
    claim, size, text = taken(q), q.path.stat().st_size, 'ä"\n' * 1000
    claim.fail(text, retry=False)
    error = q.task("a").error or ""
    assert (error[-1], text.startswith(error[:-1]), len(error) > 60) == ("…", True, True)
    assert q.path.stat().st_size == size
    beside = q.path.with_name("census.results") / "b"
    for result in (b"\xff\x00", b"x" * 500, "ö" * 120):
        raw = result if isinstance(result, bytes) else result.encode()
        q.enqueue("x", task_id="b")
        taken(q).complete(result)
        assert (q.task("b").result, beside.read_bytes()) == (raw, raw)
        assert b"\n\\result=@file " in q.path.read_bytes()
        beside.unlink()
        assert q.task("b").result is None


def test_the_configuration_is_a_file_that_people_may_edit(q: FileQueue, files: FileClient, tmp_path: Path) -> None:
    """What stands in it counts at once; what is not understood, or no file at all, is an error that names it."""
    conf = q.path.with_name("census.conf.json")
    conf.write_text('{"filters": {"size": {"type": "Integer"}}, "policy": {"attempts": 1}, "lock": 5}')
    q.enqueue("x", {"size": 3}, task_id="a")
    claim = taken(q, selector="size>=3")
    assert (claim.span, claim.fail("broken")) == (5.0, "dead")
    for broken in ("{", "[]", '{"filters": 5}', '{"policy": {"attempts": 0}}', '{"lock": "long"}'):
        conf.write_text(broken)
        with pytest.raises(CorruptRecord, match="census.conf.json"):
            q.counts()
    files.queue("plain").enqueue("x")
    assert not q.path.with_name("plain.conf.json").exists()
    files.queue("other").configure(filters={"kind": String()})
    assert files.queues() == ["census", "other", "plain"]
    q.path.with_name("a.tq").mkdir()
    with pytest.raises(Unavailable, match=r"a\.tq"):
        files.queue("a").counts()
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="file"):
        Zkmq.connect(f"textqueue://{tmp_path}/file")


def test_the_last_claim_that_expires_ends_the_task(q: FileQueue) -> None:
    """It is dead, and the next claim marks it so; one that has failed gets one more try by hand: a `-` for its `!`."""
    q.enqueue("x", task_id="a", policy=ConsumeTimes(1), lock=0.3)
    claim = taken(q)
    assert str(q.wait(["a"], timeout=20)[0].state) == "dead"
    with pytest.raises(ClaimLost):
        claim.complete()
    assert (q.counts()["dead"], q.path.read_bytes()[:1]) == (1, b"-")
    assert (q.claim(), q.path.read_bytes()[:1]) == (None, b"!")
    assert "not extended" in (q.task("a").error or "")
    q.path.write_bytes(b"")
    q.enqueue("x", task_id="a", policy=ConsumeTimes(1))
    taken(q).fail("broken")
    q.path.write_bytes(b"-" + q.path.read_bytes()[1:])
    assert str(q.task("a").state) == "inserted"
    claim = taken(q)
    assert (claim.task.attempt, claim.fail("again")) == (2, "dead")
