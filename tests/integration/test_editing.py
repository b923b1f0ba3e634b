"""Editing: an export is readable, edited by hand, and imported so that only what is still as it was is touched."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_zkmq.editing import export_queue, import_file
from airflow_provider_zkmq.editing.file_format import spell, understand
from airflow_provider_zkmq.engine import ConfigError, Queue, Unavailable, Zkmq
from tests.integration.letters import blocks, die, edit, letters, mark, new_queue, queue, sub, told, zk

__all__ = ["queue", "zk"]  # fixtures

TASKS = int(os.environ.get("ZKMQ_EDITING_TASKS", "400"))

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


# --- the round trip


def test_many_tasks_there_and_back(queue: Queue, zookeeper: str, tmp_path: Path) -> None:
    """Edited and imported, while others redrive, drop and claim some: applied is exactly what nobody else touched."""
    payloads = {f"t{n}": PAYLOADS[n % len(PAYLOADS)] for n in range(TASKS)}
    path = letters(queue, tmp_path, *payloads.values())
    signs = {task_id: "!-=-"[n % 4] for n, task_id in enumerate(payloads)}
    new = {task_id: b"fixed\n-" + task_id.encode() for task_id in list(payloads)[3::4]}
    header, *messages = blocks(path)
    named = [re.search(rb"(?m)^\\id=(.*)$", it)[1].decode() for it in messages]  # type: ignore[index]
    changed = [mark(signs[name], new.get(name))(it) for name, it in zip(named, messages, strict=True)]
    path.write_bytes(b"".join([header, *changed]))
    touched = list(payloads)[::7]
    for at, task_id in enumerate(touched):
        queue.redrive(task_id) if at % 3 else queue.drop(task_id)
    queue.worker(die, threads=4).run(until_empty=True)
    with Zkmq.connect(zookeeper, root=queue._context.root, gc=False) as other:
        done = import_file(other.queue(queue.name), path)
    assert {it.id for it in done.refused} == set(touched)
    wanted = {task_id for task_id in payloads if signs[task_id] != "!"} - set(touched)
    assert {it.id for it in done.applied} == wanted
    assert done.unchanged == TASKS - len(wanted) - len(touched)
    states = {"!": "dead", "-": "inserted"}
    assert {task.id: (task.state, task.data) for task in queue.tasks() if task.id not in touched} == {
        task_id: (states[signs[task_id]], new.get(task_id, payload))
        for task_id, payload in payloads.items()
        if task_id not in touched and signs[task_id] != "="
    }


def test_an_export_can_be_read(queue: Queue, tmp_path: Path) -> None:
    """The header says what it is, from where, and what may be done; a message its text, id, error and filters."""
    path = letters(queue, tmp_path, b"first\n\n  second")
    assert export_queue(queue, path, selector="region==eu", force=True) == 1
    header, message = (block.decode() for block in blocks(path))
    assert header.startswith("# The dead tasks of a zkmq queue, to be edited and given back with: zkmq import FILE\n")
    assert f"\\queue={queue.name}\n\\root=/" in header
    assert "\\state=dead\n\\selector=region==eu\n\\tasks=1 " in header
    assert re.search(r"\\exported=2\d\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC\n", header)
    assert message == (
        "!first\n \n   second\n\\id=t0\n\\attempts=1\n\\error=ValueError: no\\nway\n"
        f"\\filters=region=eu\n\\blank=1\n\\version={queue.task('t0').version}\n"
    )
    assert export_queue(queue, tmp_path / "none.tq", selector="region==us") == 0
    assert export_queue(queue, tmp_path / "few.tq", limit=0) == 0


def test_an_untouched_export_changes_nothing(queue: Queue, tmp_path: Path) -> None:
    """Nor do changed line ends or stripped spaces; what lost empty lines that way is refused, not changed."""
    path = letters(queue, tmp_path, *PAYLOADS, signs="-")
    plain = path.read_bytes()
    stripped = b"\n".join(line.rstrip() for line in plain.split(b"\n"))
    empty = {f"t{n}" for n, payload in enumerate(PAYLOADS) if b"\n\n" in payload}
    for data in (plain, plain.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + plain, stripped):
        path.write_bytes(data)
        done = import_file(queue, path, dry_run=True)
        lost = empty if data is stripped else set()
        assert {it.id for it in done.refused} == lost
        assert told(done) == {f"t{n}": "redrive" for n in range(len(PAYLOADS)) if f"t{n}" not in lost}
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
    """With `encoding=text`, or without encoding, text is text; where only the encoding was lost it is refused."""
    path = letters(queue, tmp_path, b"\xff0", b"\xff1", b"\xff2", b"\xff\xfe")
    edit(path, "t0", mark("-", b"no encoding"))
    edit(path, "t1", lambda it: sub(rb"=base64", b"=text")(it).replace(b"/zE=", b"said"))
    edit(path, "t2", sub(rb"/zI=", b"/z\n  M="))
    edit(path, "t3", sub(rb"\\encoding=base64\n", b""))
    done = import_file(queue, path)
    assert told(done) == dict.fromkeys(("t0", "t1", "t2"), "redrive new")
    assert [queue.task(f"t{n}").data for n in range(3)] == [b"no encoding", b"said", b"\xff3"]
    assert [(it.id, "base64 still" in it.reason) for it in done.refused] == [("t3", True)]


# --- what a person may ask for


def test_each_sign_does_what_the_header_says(queue: Queue, tmp_path: Path) -> None:
    """`!` leaves alone, `-` redrives, `=` deletes, as the dry run says; what is not named is left alone."""
    path = letters(queue, tmp_path, *(b"%d" % n for n in range(8)))
    changes: list[Callable[[bytes], bytes]] = [
        mark("-"),
        mark("-", b"new\n-line"),
        lambda it: b"# seen to\n\n" + mark("=", b"x")(it),
        lambda _: b"",
        mark("#"),
        mark("!", b"z"),
        mark("-"),
    ]
    for n, change in enumerate(changes, 1):
        edit(path, f"t{n}", change)
    queue.redrive("t7")
    data, before = path.read_bytes(), {task.id: (task.version, task.data) for task in queue.tasks()}
    plan = import_file(queue, path, dry_run=True)
    assert {task.id: (task.version, task.data) for task in queue.tasks()} == before
    done = import_file(queue, path)
    assert plan.as_dict() == done.as_dict() | {"dry_run": True}
    assert told(done) == {"t1": "redrive", "t2": "redrive new", "t3": "drop"}
    assert ([it.id for it in done.refused], done.unchanged) == (["t6", "t7"], 1)
    assert {task.id: (str(task.state), task.attempt, task.data) for task in queue.tasks()} == {
        "t1": ("inserted", 0, b"1"), "t2": ("inserted", 0, b"new\n-line"), "t7": ("inserted", 0, b"7"),
    } | {f"t{n}": ("dead", 1, b"%d" % n) for n in (0, 4, 5, 6)}  # fmt: skip
    assert path.read_bytes() == data
    again = import_file(queue, path)
    assert (again.applied, {it.id for it in again.refused}) == ([], {"t1", "t2", "t3", "t6", "t7"})


def test_cancelled_and_queued_tasks(zk: Zkmq, tmp_path: Path) -> None:
    """Cancelled ones as dead ones; of queued ones, also scheduled, `-` replaces text, `=` deletes, `!` is refused."""
    refusal = [("c", True)]
    for state, verb, refused in (("cancelled", "redrive", []), ("inserted", "replace", refusal)):
        queue, path = new_queue(zk), tmp_path / state
        for name in ("a", "b", "c", "d"):
            queue.enqueue("x", task_id=name, delay=60 if name == "a" else None)
            if state == "cancelled":
                queue.cancel(name)
        assert export_queue(queue, path, state) == 4
        for name, change in {"a": mark("-", b"y"), "b": mark("="), "c": mark("!")}.items():
            edit(path, name, change)
        due = queue.task("a").due_ms
        done = import_file(queue, path)
        assert told(done) == {"a": f"{verb} new", "b": "drop"}
        assert {task.id: (task.state, task.data) for task in queue.tasks()} == {
            "a": ("inserted", b"y"), "c": (state, b"x"), "d": (state, b"x"),
        }  # fmt: skip
        assert [(it.id, "only - (leave it) and = (drop it)" in it.reason) for it in done.refused] == refused
        assert done.unchanged == 2 - len(refused)
        assert state == "cancelled" or queue.task("a").due_ms == due
    for state in ("claimed", "finished", "no such"):
        with pytest.raises(ConfigError, match="dead, cancelled"):
            export_queue(queue, tmp_path / "a.tq", state)
    assert not (tmp_path / "a.tq").exists()


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


@pytest.mark.full
def test_one_message_is_refused_and_the_others_are_not(zk: Zkmq, tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Whatever is wrong with a message, it is named by line, byte, id and reason; the next one is carried out."""
    for case, (change, reason) in REFUSALS.items():
        with subtests.test(case):
            queue = new_queue(zk)
            path = letters(queue, tmp_path, b"not-base-64", b"other")
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


def test_what_does_not_belong_to_one_message_is_refused(queue: Queue, zk: Zkmq, tmp_path: Path) -> None:
    """Without an id, with the one after it; text pasted without its spaces; a new task, which `enqueue` adds."""
    path = letters(queue, tmp_path, b"0", b"1", b"2", signs="=")
    edit(path, "t0", lambda it: re.sub(rb"\\id=.*\n", b"", it))
    path.write_bytes(path.read_bytes() + b"-a new task\n")
    done = import_file(queue, path)
    assert (told(done), [it.id for it in done.refused]) == ({"t2": "drop"}, [None, "t1", None])
    assert "zkmq enqueue" in done.refused[-1].reason
    assert queue.counts()["inserted"] == 0
    pasted = new_queue(zk)
    path = letters(pasted, tmp_path, b"0", b"1", b"2", b"3", b"4")
    for n, line in enumerate((b"- item", b"= heading", b"# comment", b"\\section", b"plain")):
        edit(path, f"t{n}", lambda it, line=line, n=n: b"-%d\n%s\n" % (n, line) + it.split(b"\n", 1)[1])
    done = import_file(pasted, path)
    assert (done.applied, done.unchanged, pasted.counts()["dead"]) == ([], 0, 5)
    assert any("put a space in front of it" in it.reason for it in done.refused)


def test_what_others_did_meanwhile_is_refused_by_name(queue: Queue, tmp_path: Path) -> None:
    """Redriven, claimed, finished, dropped, cancelled, of another payload: each is told as it is now, and kept."""
    path = letters(queue, tmp_path, *[b"%d" % n for n in range(5)], signs="-")
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


def test_what_happens_during_an_import(zk: Zkmq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others take or change at the last moment is refused; after an outage another import goes on."""

    def begun(meanwhile: Callable[[str], object]) -> tuple[Queue, Path]:
        """A queue in which something happens before each redrive."""
        queue = new_queue(zk)
        path, redrive = letters(queue, tmp_path, b"0", b"1", b"2", signs="-"), queue.redrive
        edit(path, "t2", mark("!"))
        edit(path, "t1", mark("-", b"new1"))

        def late(task_id: str, **options: Any) -> None:
            meanwhile(task_id)
            redrive(task_id, **options)

        monkeypatch.setattr(queue, "redrive", late)
        return queue, path

    queue, path = begun(lambda task_id: task_id == "t1" and zk.queue(queue.name).redrive("t1"))
    done = import_file(queue, path)
    assert (told(done), [it.id for it in done.refused]) == ({"t0": "redrive"}, ["t1"])
    assert "has changed since" in done.refused[0].reason  # by the engine's own check of its version

    queue, path = begun(lambda _: path.write_bytes(path.read_bytes().replace(b"new1", b"more")))
    done = import_file(queue, path)
    assert told(done) == {"t0": "redrive"}
    assert [it.reason for it in done.refused] == ["the file was changed while it was read; import it again"]

    def outage(task_id: str) -> None:
        if task_id == "t1":
            raise Unavailable("gone")

    queue, path = begun(outage)
    with pytest.raises(Unavailable, match=r"gone; 1 message\(s\) were applied before"):
        import_file(queue, path)
    done = import_file(zk.queue(queue.name), path)
    assert (told(done), [it.id for it in done.refused]) == ({"t1": "redrive new"}, ["t0"])


def test_a_file_that_was_cut_off_asks_for_nothing_else(queue: Queue, tmp_path: Path) -> None:
    """Wherever a copy broke off, its last message is refused or whole: never half a payload, or base64 as text."""
    path, cut = letters(queue, tmp_path, b"\xffbinary", b"two\nlines"), tmp_path / "cut.tq"
    edit(path, "t0", mark("-"))
    edit(path, "t1", mark("-", b"new\ntext"))
    whole = path.read_bytes()
    wanted = told(import_file(queue, path, dry_run=True))
    for size in range(whole.index(b"\n-"), len(whole)):
        cut.write_bytes(whole[:size])
        done = import_file(queue, cut, dry_run=True)
        assert told(done).items() <= wanted.items(), whole[:size]
