"""The bridge: an export is readable, edited by hand, and imported so that only what is still as it was is touched."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_zkmq.bridge import BadFile, Imported, export_queue, exported_from, exporting, import_file
from airflow_provider_zkmq.bridge.payload import spell, understand
from airflow_provider_zkmq.engine import ConfigError, ConsumeOnce, Message, Queue, String, Unavailable, Zkmq
from airflow_provider_zkmq.textqueue import TextQueue
from tests.integration.test_cli import Cli
from tests.support import fresh_root, python

TASKS = int(os.environ.get("ZKMQ_BRIDGE_TASKS", "1000"))

PAYLOADS = [
    b"plain",
    b"",
    b"two\nlines",
    b"  leading\n\ttabs\n   and spaces",
    b"-\n=\n!\n#\n\\\n ends with a sign -",
    b"-= !#\\ in column 0",
    "\N{PILE OF POO} \N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN} ä\n日本".encode(),
    b"\xff\x00\xfe binary",
    b"an empty\n\n\nline or two",
    b"\nfirst line empty",
    b"trailing space \nor tab\t",
    b"trailing newline\n",
    b"carriage\r\nreturns\r\n",
    b"\x1b[31mred\x07",
    "\ufeffmark".encode(),
    "line\u2028separator \u202eturned".encode(),
    b"\xed\xa0\x80 lone surrogate",
    b"long " * 400 + b"\x00",
    b'{"json": true,\n "of": ["several", "lines"]}',
]


@pytest.fixture
def zk(zookeeper: str) -> Iterator[Zkmq]:
    with Zkmq.connect(zookeeper, root=fresh_root(), session_timeout=4, gc=False) as client:
        yield client


@pytest.fixture
def queue(zk: Zkmq) -> Queue:
    made = zk.queue("q")
    made.configure(filters={"region": String()}, policy=ConsumeOnce())
    return made


def die(_task: Any) -> None:
    raise ValueError("no\nway")


def dead(queue: Queue, *payloads: bytes, prefix: str = "t") -> list[str]:
    """Dead tasks with these payloads, called t0, t1 and so on."""
    messages = [Message(data, {"region": "eu"}, task_id=f"{prefix}{n}") for n, data in enumerate(payloads)]
    ids = queue.enqueue_many(messages)
    queue.worker(die, threads=8).run(until_empty=True)
    return ids


def blocks(path: Path) -> list[bytes]:
    """The messages and comments of a file, each with its lines."""
    return re.split(rb"(?m)^(?=[-=!#])", path.read_bytes())[1:]


def edit(path: Path, task_id: str, change: Callable[[bytes], bytes]) -> None:
    """Change the lines of one task's message, as in an editor."""
    said = b"\\id=%s\n" % task_id.encode()
    path.write_bytes(b"".join(change(it) if said in it else it for it in blocks(path)))


def mark(sign: str, text: bytes | None = None) -> Callable[[bytes], bytes]:
    """Give a message another sign, and other text."""

    def change(block: bytes) -> bytes:
        body, variables = re.split(rb"(?m)^(?=\\)", block, maxsplit=1)
        if text is None:
            return sign.encode() + body[1:] + variables
        plain = re.sub(rb"(?m)^\\(encoding|blank)=.*\n", b"", variables)
        return sign.encode() + text.replace(b"\n", b"\n ") + b"\n" + plain

    return change


def sub(pattern: bytes, to: bytes) -> Callable[[bytes], bytes]:
    """Replace something in a message, and mark it to be redriven."""

    def change(block: bytes) -> bytes:
        changed = re.sub(pattern, lambda _: to, b"-" + block[1:])
        assert changed != b"-" + block[1:]
        return changed

    return change


def told(done: Imported) -> dict[str, str]:
    return {it.id: f"{it.action}{' new' if it.new_data else ''}" for it in done.applied}


# --- the round trip


def test_thousands_of_tasks_there_and_back(queue: Queue, zookeeper: str, tmp_path: Path) -> None:
    """Dead letters of all kinds are exported, edited and imported, while others redrive, drop and claim some of them.

    Exactly those are applied that nobody else touched, with the payloads they had or were given.
    """
    payloads = [PAYLOADS[n % len(PAYLOADS)] for n in range(TASKS)]
    ids = dead(queue, *payloads)
    path = tmp_path / "dead.tq"
    assert export_queue(queue, path) == TASKS
    signs = {task_id: "!-=-"[n % 4] for n, task_id in enumerate(ids)}
    new = {task_id: b"fixed\n-%d" % n for n, task_id in enumerate(ids) if n % 4 == 3}
    changed = []
    for block in blocks(path):
        found = re.search(rb"(?m)^\\id=(.*)$", block)
        name = found.group(1).decode() if found else None
        changed.append(block if name is None else mark(signs[name], new.get(name))(block))
    path.write_bytes(b"".join(changed))
    touched = _meddle(queue, ids[::7])
    with Zkmq.connect(zookeeper, root=queue._context.root, gc=False) as other:
        done = import_file(other.queue("q"), path)
    assert {it.id for it in done.refused} == touched
    wanted = {task_id for task_id in ids if signs[task_id] != "!"} - touched
    assert {it.id for it in done.applied} == wanted
    assert done.unchanged == TASKS - len(wanted) - len(touched)
    tasks = {task.id: task for task in queue.tasks()}
    for task_id, payload in zip(ids, payloads, strict=True):
        if task_id in touched:
            continue
        assert (task_id in tasks) == (signs[task_id] != "=")
        if task := tasks.get(task_id):
            assert task.state == ("dead" if signs[task_id] == "!" else "inserted")
            assert task.data == new.get(task_id, payload)


def _meddle(queue: Queue, ids: list[str]) -> set[str]:
    """Redrive every one, drop a third, claim and kill again what can be claimed of the rest."""
    for at, task_id in enumerate(ids):
        if at % 3:
            queue.redrive(task_id)
        else:
            queue.drop(task_id)
    queue.worker(die, threads=4).run(until_empty=True)
    return set(ids)


def test_an_export_can_be_read(queue: Queue, tmp_path: Path) -> None:
    """The header says what it is, from where, and what may be done; a message its text, id, error and filters."""
    dead(queue, b"first\n\n  second")
    path = tmp_path / "dead.tq"
    assert export_queue(queue, path, selector="region==eu") == 1
    header, message = (block.decode() for block in blocks(path))
    task = queue.task("t0")
    assert header.startswith("# The dead tasks of a zkmq queue, to be edited and given back with: zkmq import FILE\n")
    assert "\\queue=q\n\\root=/" in header
    assert "\\state=dead\n\\selector=region==eu\n\\tasks=1 " in header
    assert re.search(r"\\exported=2\d\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC\n", header)
    assert message == (
        "!first\n \n   second\n\\id=t0\n\\attempts=1\n\\error=ValueError: no\\nway\n"
        f"\\filters=region=eu\n\\blank=1\n\\version={task.version}\n"
    )
    assert export_queue(queue, tmp_path / "none.tq", selector="region==us") == 0
    assert export_queue(queue, tmp_path / "few.tq", limit=0) == 0


def test_an_untouched_export_changes_nothing(queue: Queue, tmp_path: Path) -> None:
    """Whatever the payloads, each is found as it was; an editor that changes line ends or strips spaces is no harm.

    What lost empty lines that way is refused, not changed.
    """
    ids = dead(queue, *PAYLOADS)
    path = tmp_path / "dead.tq"
    export_queue(queue, path)
    plain = path.read_bytes()
    stripped = b"\n".join(line.rstrip() for line in plain.split(b"\n"))
    for data in (plain, plain.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + plain, stripped):
        path.write_bytes(re.sub(rb"(?m)^!", b"-", data))
        done = import_file(queue, path, dry_run=True)
        lost = {ids[n] for n, payload in enumerate(PAYLOADS) if b"\n\n" in payload} if data is stripped else set()
        assert {it.id for it in done.refused} == lost
        assert set(told(done)) == set(ids) - lost
        assert set(told(done).values()) == {"redrive"}
        assert all("empty line" in it.reason for it in done.refused)


@settings(max_examples=200, deadline=None)
@given(st.binary() | st.text(alphabet=st.sampled_from("-=!#\\ \t\n\r\x0baé\x85\u2028\ufeff\u3000")).map(str.encode))
def test_any_payload_is_spelled_so_that_editors_keep_it(payload: bytes) -> None:
    """What is spelled reads back; stripped of spaces at the ends of its lines, too, unless it has empty lines."""
    spelled = spell(payload)
    assert understand(spelled.data, spelled.encoding) == payload
    assert max(map(len, spelled.data.split(b"\n"))) <= 76 or spelled.encoding == "text"
    if not spelled.blank:
        lines = [b"-" + spelled.data.replace(b"\n", b"\n ")][0].split(b"\n")
        assert all(line.decode() == line.decode().rstrip() for line in lines)


def test_base64_may_be_replaced_by_text(queue: Queue, tmp_path: Path) -> None:
    """With `encoding=text`, or without that line, the text stands for itself; other base64 is decoded."""
    dead(queue, b"\xff0", b"\xff1", b"\xff2")
    path = tmp_path / "dead.tq"
    export_queue(queue, path)
    edit(path, "t0", mark("-", b"no encoding"))
    edit(path, "t1", lambda it: sub(rb"=base64", b"=text")(it).replace(b"/zE=", b"said"))
    edit(path, "t2", sub(rb"/zI=", b"/z\n  M="))
    done = import_file(queue, path)
    assert (done.refused, set(told(done).values())) == ([], {"redrive new"})
    assert [queue.task(f"t{n}").data for n in range(3)] == [b"no encoding", b"said", b"\xff3"]


# --- what a person may ask for


def test_each_sign_does_what_the_header_says(queue: Queue, tmp_path: Path) -> None:
    """`!` leaves alone, `-` redrives with the text that stands there, `=` deletes; the file itself is not changed."""
    dead(queue, b"0", b"1", b"2", b"3")
    path = tmp_path / "dead.tq"
    export_queue(queue, path)
    edit(path, "t1", mark("-"))
    edit(path, "t2", mark("-", b"new\n-line"))
    edit(path, "t3", lambda it: b"# seen to\n\n" + mark("=")(it))
    data = path.read_bytes()
    done = import_file(queue, path)
    assert told(done) == {"t1": "redrive", "t2": "redrive new", "t3": "drop"}
    assert (done.refused, done.unchanged) == ([], 1)
    tasks = {task.id: task for task in queue.tasks()}
    assert {name: (str(it.state), it.attempt, it.data) for name, it in tasks.items()} == {
        "t0": ("dead", 1, b"0"), "t1": ("inserted", 0, b"1"), "t2": ("inserted", 0, b"new\n-line"),
    }  # fmt: skip
    assert path.read_bytes() == data
    again = import_file(queue, path)
    assert (again.applied, {it.id for it in again.refused}) == ([], {"t1", "t2", "t3"})


def test_a_message_that_is_commented_out_or_removed_asks_for_nothing(queue: Queue, tmp_path: Path) -> None:
    """A task that the file does not name any more, or in a comment only, is left alone."""
    dead(queue, b"0", b"1", b"2")
    path = tmp_path / "dead.tq"
    export_queue(queue, path)
    edit(path, "t0", lambda _: b"")
    edit(path, "t1", mark("#"))
    edit(path, "t2", mark("="))
    done = import_file(queue, path)
    assert (told(done), done.refused, done.unchanged) == ({"t2": "drop"}, [], 0)


def test_cancelled_tasks(queue: Queue, tmp_path: Path) -> None:
    """They are exported, redriven and dropped as dead ones are."""
    for name in ("a", "b", "c"):
        queue.enqueue("x", task_id=name)
        queue.cancel(name)
    path = tmp_path / "cancelled.tq"
    assert export_queue(queue, path, "cancelled") == 3
    edit(path, "a", mark("-", b"y"))
    edit(path, "b", mark("="))
    assert told(import_file(queue, path)) == {"a": "redrive new", "b": "drop"}
    assert {task.id: (task.state, task.data) for task in queue.tasks()} == {
        "a": ("inserted", b"y"), "c": ("cancelled", b"x"),
    }  # fmt: skip


def test_queued_tasks(queue: Queue, tmp_path: Path) -> None:
    """`-` with other text replaces the payload in place, `=` deletes, `!` is refused; scheduled ones are among them."""
    for name in ("a", "b", "c", "d"):
        queue.enqueue("x", task_id=name, delay=60 if name == "a" else None)
    path = tmp_path / "inserted.tq"
    assert export_queue(queue, path, "inserted") == 4
    edit(path, "a", mark("-", b"y"))
    edit(path, "b", mark("="))
    edit(path, "c", mark("!"))
    due = queue.task("a").due_ms
    done = import_file(queue, path)
    assert (told(done), done.unchanged) == ({"a": "replace new", "b": "drop"}, 1)
    assert [(it.id, "only - (leave it) and = (drop it)" in it.reason) for it in done.refused] == [("c", True)]
    assert {task.id: task.data for task in queue.tasks(state="inserted")} == {"a": b"y", "c": b"x", "d": b"x"}
    assert queue.task("a").due_ms == due


@pytest.mark.parametrize("state", ["claimed", "finished", "no such"])
def test_other_states_are_not_exported(queue: Queue, tmp_path: Path, state: str) -> None:
    """What a consumer holds or has done is no matter for edits."""
    with pytest.raises(ConfigError, match="dead, cancelled"):
        export_queue(queue, tmp_path / "a.tq", state)
    assert not list(tmp_path.iterdir())


# --- what is refused, message by message


def _twice(block: bytes) -> bytes:
    return block + mark("=")(block)


REFUSALS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty id": (sub(rb"\\id=.*\n", b"\\id=\n"), "task id '' is not allowed"),
    "path-like id": (sub(rb"\\id=.*\n", b"\\id=../../x\n"), "task id '../../x' is not allowed"),
    "absolute id": (sub(rb"\\id=.*\n", b"\\id=/zookeeper/config\n"), "is not allowed"),
    "huge id": (sub(rb"\\id=.*\n", b"\\id=" + b"x" * 1_000_000 + b"\n"), "is not allowed"),
    "id twice in a message": (sub(rb"\\id=.*\n", b"\\id=t0\n\\id=t1\n"), "id= stands twice"),
    "id of nobody": (sub(rb"\\id=.*\n", b"\\id=nobody\n"), "not in the queue"),
    "id twice in the file": (_twice, "stands in the file before"),
    "no version": (sub(rb"\\version=.*\n", b""), "no version="),
    "garbled version": (sub(rb"\\version=.*\n", b"\\version=12x\n"), "version=12x is no number"),
    "endless version": (sub(rb"\\version=.*\n", b"\\version=" + b"9" * 50 + b"\n"), "is no number"),
    "another version": (sub(rb"\\version=.*\n", b"\\version=1\n"), "has changed since it was exported: it is dead"),
    "unknown encoding": (sub(rb"\\version", b"\\encoding=rot13\n\\version"), "encoding=rot13 is not known"),
    "broken base64": (sub(rb"\\version", b"\\encoding=base64\n\\version"), "broken base64"),
    "text changed on !": (mark("!", b"other"), "mark it - to redrive with the new text"),
    "too large": (mark("-", b"x" * 1_100_000), "1,100,000 bytes; ZooKeeper takes"),
    "other filters": (sub(rb"region=eu", b"region=us"), "changes no filters; they are 'region=eu'"),
    "unknown variable": (sub(rb"\\version", b"\\alpha\n\\version"), r"\alpha is no variable"),
    "unknown sign": (lambda it: b"+" + it[1:], "unknown control byte"),
    "control character": (mark("-", b"bell\x07"), "'\\x07' at its character 4"),
    "lone carriage return": (mark("-", b"a\rb"), "which editors damage"),
    "not UTF-8": (mark("-", b"caf\xe9"), "no UTF-8"),
    "garbled blank": (sub(rb"\\version", b"\\blank=x\n\\version"), "blank=x is no number"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_one_message_is_refused_and_the_others_are_not(case: str, queue: Queue, tmp_path: Path) -> None:
    """Whatever is wrong with a message, it is named by line, byte, id and reason; the next one is carried out."""
    change, reason = REFUSALS[case]
    dead(queue, b"not-base-64", b"other")
    path = tmp_path / "dead.tq"
    export_queue(queue, path)
    edit(path, "t0", change)
    edit(path, "t1", mark("="))
    before = queue.task("t0")
    done = import_file(queue, path)
    assert told(done) == {"t1": "drop"}
    (refused,) = done.refused
    assert reason in refused.reason
    assert len(refused.reason) < 600
    data = path.read_bytes()
    assert data[refused.offset : refused.offset + 1] in b"-=!+"
    assert refused.line == data[: refused.offset].count(b"\n") + 1
    assert queue.task("t0") == before


def test_base64_without_its_line_is_not_taken_for_text(queue: Queue, tmp_path: Path) -> None:
    """Where only the line that says base64 was lost, the message is refused."""
    dead(queue, b"\xff\xfe")
    path = tmp_path / "dead.tq"
    export_queue(queue, path)
    edit(path, "t0", sub(rb"\\encoding=base64\n", b""))
    (refused,) = import_file(queue, path).refused
    assert "base64 still" in refused.reason


def test_lines_without_their_space_do_not_become_a_payload(queue: Queue, tmp_path: Path) -> None:
    """Of text pasted without the space in front of its lines, nothing is applied: not what looks like a message."""
    dead(queue, b"0", b"1", b"2", b"3", b"4")
    path = tmp_path / "dead.tq"
    export_queue(queue, path)
    for n, line in enumerate((b"- item", b"= heading", b"# comment", b"\\section", b"plain")):
        edit(path, f"t{n}", lambda it, line=line, n=n: b"-%d\n%s\n" % (n, line) + it.split(b"\n", 1)[1])
    done = import_file(queue, path)
    assert (done.applied, done.unchanged) == ([], 0)
    assert queue.counts()["dead"] == 5
    assert any("put a space in front of it" in it.reason for it in done.refused)


def test_a_message_added_by_hand_is_refused(queue: Queue, tmp_path: Path) -> None:
    """An import adds no tasks, and says which verb does."""
    dead(queue, b"0", b"1")
    path = tmp_path / "dead.tq"
    export_queue(queue, path)
    path.write_bytes(path.read_bytes() + b"-a new task\n")
    (refused,) = import_file(queue, path).refused
    assert (refused.id, "zkmq enqueue" in refused.reason) == (None, True)
    assert queue.counts()["inserted"] == 0


def test_the_message_after_one_without_an_id_is_refused(queue: Queue, tmp_path: Path) -> None:
    """It may be a part of that one, whose variables it would have."""
    dead(queue, b"0", b"1", b"2")
    path = tmp_path / "dead.tq"
    export_queue(queue, path)
    edit(path, "t0", sub(rb"\\id=.*\n", b""))
    path.write_bytes(re.sub(rb"(?m)^!", b"=", path.read_bytes()))
    done = import_file(queue, path)
    assert (told(done), [it.id for it in done.refused]) == ({"t2": "drop"}, [None, "t1"])


def test_what_others_did_meanwhile_is_refused_by_name(queue: Queue, tmp_path: Path) -> None:
    """Redriven, claimed, finished, dropped, cancelled, of another payload: each is told as it is now, and kept."""
    dead(queue, *[b"%d" % n for n in range(5)])
    path = tmp_path / "dead.tq"
    export_queue(queue, path)
    path.write_bytes(re.sub(rb"(?m)^!", b"-", path.read_bytes()))
    for name in ("t0", "t1", "t2", "t4"):
        queue.redrive(name)
    queue.cancel("t4")
    queue.drop("t3")
    claimed = {claim.task.id: claim for claim in filter(None, (queue.claim() for _ in range(2)))}
    assert set(claimed) == {"t0", "t1"}
    claimed["t1"].complete()
    done = import_file(queue, path)
    assert done.applied == []
    assert {it.id: it.reason.partition(": ")[2] for it in done.refused} == {
        "t0": "it is claimed by now, attempt 1", "t1": "it is finished by now, attempt 1",
        "t2": "it is inserted by now, attempt 0", "t3": "", "t4": "it is cancelled by now, attempt 0",
    }  # fmt: skip
    edit(path, "t0", lambda it: re.sub(rb"version=.*", b"version=%d" % queue.task("t0").version, it))
    assert "is claimed: an import is about" in import_file(queue, path).refused[0].reason


def test_a_change_between_the_look_and_the_write_is_refused(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that another takes at the last moment is refused by the engine's own check of its version."""
    dead(queue, b"0", b"1")
    path = tmp_path / "dead.tq"
    export_queue(queue, path)
    path.write_bytes(re.sub(rb"(?m)^!", b"-", path.read_bytes()))
    redrive = queue.redrive

    def late(task_id: str, **options: Any) -> None:
        if task_id == "t1":
            redrive("t1")
        redrive(task_id, **options)

    monkeypatch.setattr(queue, "redrive", late)
    done = import_file(queue, path)
    assert (told(done), [it.id for it in done.refused]) == ({"t0": "redrive"}, ["t1"])
    assert "has changed since" in done.refused[0].reason


def test_an_outage_says_how_far_it_came(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When ZooKeeper goes away the error counts what was applied; a second import goes on with the rest."""
    dead(queue, b"0", b"1", b"2")
    path = tmp_path / "dead.tq"
    export_queue(queue, path)
    path.write_bytes(re.sub(rb"(?m)^!", b"-", path.read_bytes()))
    redrive = queue.redrive

    def outage(task_id: str, **options: Any) -> None:
        if task_id == "t2":
            raise Unavailable("gone")
        redrive(task_id, **options)

    with monkeypatch.context() as patch:
        patch.setattr(queue, "redrive", outage)
        with pytest.raises(Unavailable, match=r"gone; 2 message\(s\) were applied before"):
            import_file(queue, path)
    done = import_file(queue, path)
    assert (told(done), [it.id for it in done.refused]) == ({"t2": "redrive"}, ["t0", "t1"])


def test_a_file_that_is_written_to_during_the_import(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New text is only taken where it is still what was read and judged."""
    dead(queue, b"0", b"1")
    path = tmp_path / "dead.tq"
    export_queue(queue, path)
    edit(path, "t0", mark("-", b"new0"))
    edit(path, "t1", mark("-", b"new1"))
    redrive = queue.redrive

    def save(task_id: str, **options: Any) -> None:
        path.write_bytes(path.read_bytes().replace(b"new1", b"more"))
        redrive(task_id, **options)

    monkeypatch.setattr(queue, "redrive", save)
    done = import_file(queue, path)
    assert (told(done), [it.reason for it in done.refused]) == (
        {"t0": "redrive new"}, ["the file was changed while it was read; import it again"],
    )  # fmt: skip


def test_a_file_that_was_cut_off_asks_for_nothing_else(queue: Queue, tmp_path: Path) -> None:
    """Wherever a copy broke off, its last message is refused or whole: never half a payload, or base64 as text."""
    dead(queue, b"\xffbinary", b"two\nlines")
    path, cut = tmp_path / "dead.tq", tmp_path / "cut.tq"
    export_queue(queue, path)
    edit(path, "t0", mark("-"))
    edit(path, "t1", mark("-", b"new\ntext"))
    whole = path.read_bytes()
    wanted = told(import_file(queue, path, dry_run=True))
    for size in range(whole.index(b"\n-"), len(whole)):
        cut.write_bytes(whole[:size])
        done = import_file(queue, cut, dry_run=True)
        assert told(done).items() <= wanted.items(), whole[:size]


# --- dry runs


def test_a_dry_run_tells_the_same_and_writes_nothing(queue: Queue, tmp_path: Path) -> None:
    """Its report is that of the import that follows, and no task has another version afterwards."""
    dead(queue, b"0", b"1", b"2", b"3", b"4", b"5")
    path = tmp_path / "dead.tq"
    export_queue(queue, path)
    for n, change in enumerate([mark("-"), mark("=", b"x"), mark("-", b"y"), mark("!", b"z"), mark("-")]):
        edit(path, f"t{n}", change)
    queue.redrive("t4")
    before = {task.id: (task.version, task.data) for task in queue.tasks()}
    plan = import_file(queue, path, dry_run=True)
    assert {task.id: (task.version, task.data) for task in queue.tasks()} == before
    done = import_file(queue, path)
    assert plan.as_dict() == done.as_dict() | {"dry_run": True}
    assert (told(done), done.unchanged) == ({"t0": "redrive", "t1": "drop", "t2": "redrive new"}, 1)
    assert [it.id for it in done.refused] == ["t3", "t4"]


# --- where a file is from


def test_another_queue_or_root_must_be_said_explicitly(queue: Queue, zk: Zkmq, zookeeper: str, tmp_path: Path) -> None:
    """The header's queue and root must be the queue's, unless the caller says otherwise."""
    dead(queue, b"0")
    path = tmp_path / "dead.tq"
    export_queue(queue, path)
    edit(path, "t0", mark("="))
    other = zk.queue("other")
    other.configure()
    with pytest.raises(BadFile, match="/q: to import it into .*/other, say so"):
        import_file(other, path)
    with Zkmq.connect(zookeeper, root=fresh_root(), gc=False) as elsewhere:
        away = elsewhere.queue("q")
        away.configure()
        with pytest.raises(BadFile, match="say so explicitly"):
            import_file(away, path)
    assert [it.reason[:26] for it in import_file(other, path, elsewhere=True).refused] == ["the task is not in the que"]
    path.write_bytes(b"".join(blocks(path)[1:]))
    assert exported_from(path) is None
    with pytest.raises(BadFile, match="does not say where its tasks are from"):
        import_file(queue, path)
    assert told(import_file(queue, path, elsewhere=True)) == {"t0": "drop"}


def test_two_exports_in_one_file_are_refused(queue: Queue, zk: Zkmq, tmp_path: Path) -> None:
    """Files of different queues that were put together name two origins."""
    other = zk.queue("other")
    other.configure()
    export_queue(queue, tmp_path / "a.tq")
    export_queue(other, tmp_path / "b.tq")
    both = tmp_path / "both.tq"
    both.write_bytes((tmp_path / "a.tq").read_bytes() + (tmp_path / "b.tq").read_bytes())
    with pytest.raises(BadFile, match="two origins"):
        import_file(queue, both)


def test_a_queue_that_is_not_there(zk: Zkmq, queue: Queue, tmp_path: Path) -> None:
    """Neither is anything written for it, nor the queue made."""
    with pytest.raises(ConfigError, match="does not exist"):
        export_queue(zk.queue("absent"), tmp_path / "a.tq")
    export_queue(queue, tmp_path / "b.tq")
    with pytest.raises(ConfigError, match="does not exist"):
        import_file(zk.queue("absent"), tmp_path / "b.tq", elsewhere=True)
    assert (zk.queues(), [it.name for it in tmp_path.iterdir()]) == (["q"], ["b.tq"])


# --- the file itself


def test_an_export_appears_whole_and_for_its_owner(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mode 0600; an export that fails in the middle leaves nothing; what is there is replaced by `force` alone."""
    dead(queue, b"0", b"1")
    path = tmp_path / "dead.tq"
    with monkeypatch.context() as patch:
        patch.setattr(exporting, "note_count", die)
        with pytest.raises(TypeError):
            export_queue(queue, path)
        assert not list(tmp_path.iterdir())

        def appear(file: TextQueue, count: int) -> None:
            path.write_text("somebody's")

        patch.setattr(exporting, "note_count", appear)  # between the first look and the end
        with pytest.raises(FileExistsError, match="exists already"):
            export_queue(queue, path)
    with pytest.raises(FileExistsError, match="somebody's edits"):
        export_queue(queue, path)
    assert ([it.name for it in tmp_path.iterdir()], path.read_text()) == (["dead.tq"], "somebody's")
    path.chmod(0o644)
    assert export_queue(queue, path, force=True) == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [it.name for it in tmp_path.iterdir()] == ["dead.tq"]


def test_a_file_system_without_links(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There, too, the export appears, and not over another file."""

    def no_links(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", no_links)
    path = tmp_path / "dead.tq"
    assert export_queue(queue, path) == 0
    assert [it.name for it in tmp_path.iterdir()] == ["dead.tq"]


def test_what_an_import_would_not_read_is_not_exported(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More tasks than a file may have are an error that names the way out, and no file."""
    dead(queue, b"0", b"1")
    monkeypatch.setattr(exporting, "_MOST_TASKS", 1)
    with pytest.raises(BadFile, match="export fewer"):
        export_queue(queue, tmp_path / "dead.tq")
    assert not list(tmp_path.iterdir())


def test_the_largest_payloads_go_there_and_back(queue: Queue, tmp_path: Path) -> None:
    """Near a megabyte: binary, which base64 makes longer, and text of short lines, which doubles."""
    payloads = (os.urandom(1_000_000), b"x" * 1_000_000, b"a\n" * 499_999 + b"a")
    dead(queue, *payloads)
    path = tmp_path / "dead.tq"
    assert export_queue(queue, path) == 3
    assert import_file(queue, path).unchanged == 3
    edit(path, "t1", mark("-", payloads[2]))
    assert told(import_file(queue, path)) == {"t1": "redrive new"}
    assert queue.task("t1").data == payloads[2]


_BOUNDED = """
import resource, sys
from airflow_provider_zkmq.bridge import BadFile, import_file
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (64 << 20),) * 2)
try:
    import_file(None, sys.argv[1])  # there is no queue: the file is refused before one is needed
except BadFile as error:
    print("refused:", error)
"""


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 30)


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a sparse gigabyte": (_sparse, "1,073,741,824 bytes, more than"),
    "a line of 100 MB": (lambda it: it.write_bytes(b"-" + b"x" * 100_000_000), "line at byte 0 is longer"),
    "millions of variables": (lambda it: it.write_bytes(b"-x\n" + b"\\a=b\n" * 3_000_000), "more than 100 variables"),
    "millions of messages": (lambda it: it.write_bytes(b"-\n" * 3_000_000), "more than 200,000 messages"),
    "millions of comments": (lambda it: it.write_bytes(b"#\n" * 3_000_000), "more than 200,000 messages"),
    "millions of further lines": (lambda it: it.write_bytes(b"-\n" + b" \n" * 4_000_000), "larger than 4,194,304"),
    "millions of blank lines": (lambda it: it.write_bytes(b"\n" * 6_000_000), "more than 5,000,000 lines"),
    "millions of unknown lines": (lambda it: it.write_bytes(b"x\n" * 300_000), "not understood"),
    "NUL bytes": (lambda it: it.write_bytes(b"-x\n\\id=a\0b\n"), "NUL byte at byte 8"),
    "UTF-16": (lambda it: it.write_bytes("-x\n\\id=a\n".encode("utf-16")), "NUL byte"),
    "a pipe": (os.mkfifo, "no plain file"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused_as_a_whole(case: str, tmp_path: Path) -> None:
    """One line says why, within 64 MB of memory more than the bare process has, before a queue is so much as needed."""
    make, reason = HOSTILE[case]
    path = tmp_path / "hostile.tq"
    make(path)
    with python(_BOUNDED, str(path)) as process:
        output, _ = process.communicate(timeout=120)
    assert (process.returncode, output.count("\n")) == (0, 1)
    assert output.startswith("refused: ")
    assert reason in output


# --- the command line


@pytest.fixture
def cli(zookeeper: str, queue: Queue) -> Cli:
    return Cli(zookeeper, queue._context.root)


def test_the_verbs_export_and_import(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    """0 when all was applied, 1 when a message was refused, and why on standard error; JSON tells it all."""
    dead(queue, b"0", b"1", b"2")
    path = tmp_path / "dead.tq"
    answer = cli.ask("export", "q", str(path), "--selector", "region==eu", "--limit", "5")
    assert answer == {"queue": "q", "path": str(path), "state": "dead", "tasks": 3}
    assert cli.refused("export", "q", str(path), code=2)["message"].endswith("add --force to replace it")
    assert cli.run("export", "q", str(path), "--force").stdout == f"3 dead task(s) in {path}\n".encode()
    edit(path, "t0", mark("-", b"new"))
    edit(path, "t1", mark("!", b"changed"))
    plan = cli.ask("import", str(path), "--dry-run", code=1)
    assert queue.counts()["dead"] == 3
    ended = cli.run("import", str(path))
    assert (ended.returncode, ended.stdout) == (1, b"redriven t0, with new text\n1 applied, 1 refused, 1 unchanged\n")
    (refused,) = plan["refused"]
    reason = f"line {refused['line']} (byte {refused['offset']}), task 't1': {refused['reason']}"
    assert ended.stderr.decode() == f"zkmq: {reason}\n"
    assert set(refused) == {"id", "offset", "line", "reason"}
    assert plan == {
        "queue": "q", "dry_run": True, "unchanged": 1, "refused": [refused],
        "applied": [{"id": "t0", "action": "redrive", "new_data": True}],
    }  # fmt: skip
    export_queue(queue, path, force=True)
    assert cli.ask("import", str(path))["unchanged"] == 2
    assert cli.run("import", str(path), "--dry-run").stdout.endswith(b"2 unchanged; a dry run: nothing was written\n")


def test_what_the_verbs_refuse_as_a_whole(cli: Cli, queue: Queue, zk: Zkmq, tmp_path: Path) -> None:
    """Bad input is 2, a file that cannot be opened 1; another queue is imported into with --queue alone."""
    path = tmp_path / "dead.tq"
    dead(queue, b"0")
    export_queue(queue, path)
    zk.queue("other").configure()
    _sparse(tmp_path / "hostile.tq")
    assert cli.refused("import", str(tmp_path / "hostile.tq"), code=2)["error"] == "BadFile"
    assert cli.refused("import", str(tmp_path / "absent.tq"), code=1)["error"] == "FileNotFoundError"
    assert cli.refused("export", "absent", str(tmp_path / "a.tq"), code=2)["error"] == "QueueNotFound"
    assert cli.refused("export", "q", str(tmp_path / "a.tq"), "--selector", "colour==red", code=2)
    assert cli.refused("export", "q", str(tmp_path / "a.tq"), "--limit", "-1", code=2)
    assert cli.refused("export", "q", str(tmp_path / "a.tq"), "--state", "claimed", code=2)
    assert cli.ask("import", str(path), "--queue", "other", code=1)["refused"][0]["id"] == "t0"
    path.write_bytes(blocks(path)[1])
    assert "add --queue" in cli.refused("import", str(path), code=2)["message"]
    assert cli.ask("import", str(path), "--queue", "q")["unchanged"] == 1
    with Zkmq.connect(cli.hosts, root=fresh_root(), gc=False) as elsewhere:
        elsewhere.queue("q").configure()
        export_queue(elsewhere.queue("q"), tmp_path / "root.tq")
    assert "say so explicitly" in cli.refused("import", str(tmp_path / "root.tq"), code=2)["message"]
