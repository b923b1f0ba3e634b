"""Files for editing: where they are from, how they appear, what is refused as a whole; and the verbs."""

from __future__ import annotations

import itertools
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zkmq.cli import main
from airflow_provider_zkmq.editing import BadFile, export_queue, exporting, file_format, import_file, queue_named_in
from airflow_provider_zkmq.engine import ConfigError, Queue, Zkmq
from airflow_provider_zkmq.textqueue import TextQueue
from tests.integration.letters import blocks, die, edit, letters, mark, new_queue, queue, told, zk
from tests.support import fresh_root, python

__all__ = ["queue", "zk"]  # fixtures

# --- where a file is from


def test_another_queue_or_root_must_be_said_explicitly(queue: Queue, zk: Zkmq, zookeeper: str, tmp_path: Path) -> None:
    """The header's queue and root, of which there is one, must be those of a queue that is there, else it is said."""
    path, other = letters(queue, tmp_path, b"0", signs="="), new_queue(zk)
    with pytest.raises(BadFile, match=f"/{queue.name}: to import it into .*/{other.name}, say so"):
        import_file(other, path)
    with Zkmq.connect(zookeeper, root=fresh_root(), gc=False) as elsewhere:
        away = elsewhere.queue(queue.name)
        away.configure()
        with pytest.raises(BadFile, match="say so explicitly"):
            import_file(away, path)
    assert [it.reason[:26] for it in import_file(other, path, elsewhere=True).refused] == ["the task is not in the que"]

    both, absent = tmp_path / "both.tq", zk.queue("absent")
    export_queue(other, both)
    both.write_bytes(path.read_bytes() + both.read_bytes())
    with pytest.raises(BadFile, match="two origins"):
        import_file(queue, both)
    with pytest.raises(ConfigError, match="does not exist"):
        export_queue(absent, tmp_path / "a.tq")
    with pytest.raises(ConfigError, match="does not exist"):
        import_file(absent, path, elsewhere=True)
    assert zk.queues() == sorted([queue.name, other.name])
    assert {it.name for it in tmp_path.iterdir()} == {path.name, "both.tq"}

    path.write_bytes(b"".join(blocks(path)[1:]))
    with pytest.raises(ConfigError, match="does not say which queue"):
        queue_named_in(path)
    with pytest.raises(BadFile, match="does not say where its tasks are from"):
        import_file(queue, path)
    assert told(import_file(queue, path, elsewhere=True)) == {"t0": "drop"}


# --- the file itself


def test_an_export_appears_whole_and_for_its_owner(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mode 0600; one that fails leaves nothing; what is there is replaced by `force` alone, also without links."""
    path = letters(queue, tmp_path, b"0", b"1")
    path.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(exporting, "_MOST_TASKS", 1)
        with pytest.raises(BadFile, match="export fewer"):
            export_queue(queue, path)
    with monkeypatch.context() as patch:
        patch.setattr(file_format, "note_count", die)
        with pytest.raises(TypeError):
            export_queue(queue, path)
        assert not list(tmp_path.iterdir())

        def appear(file: TextQueue, count: int) -> None:
            path.write_text("somebody's")

        patch.setattr(file_format, "note_count", appear)  # between the first look and the end
        with pytest.raises(FileExistsError, match="exists already"):
            export_queue(queue, path)
    with pytest.raises(FileExistsError, match="somebody's edits"):
        export_queue(queue, path)
    assert ([it.name for it in tmp_path.iterdir()], path.read_text()) == ([path.name], "somebody's")
    path.chmod(0o644)
    assert export_queue(queue, path, force=True) == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def no_links(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", no_links)
    assert export_queue(queue, tmp_path / "unlinked.tq") == 2
    assert {it.name for it in tmp_path.iterdir()} == {path.name, "unlinked.tq"}


@pytest.mark.full
def test_the_largest_payloads_go_there_and_back(queue: Queue, tmp_path: Path) -> None:
    """Near a megabyte: binary, which base64 makes longer, and text of short lines, which doubles."""
    payloads = (os.urandom(1_000_000), b"x" * 1_000_000, b"a\n" * 499_999 + b"a")
    path = letters(queue, tmp_path, *payloads)
    assert import_file(queue, path).unchanged == 3
    edit(path, "t1", mark("-", payloads[2]))
    assert told(import_file(queue, path)) == {"t1": "redrive new"}
    assert queue.task("t1").data == payloads[2]


_BOUNDED = """
import resource, sys
from airflow_provider_zkmq.editing import BadFile, import_file
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (64 << 20),) * 2)
for path in sys.argv[1:]:
    try:
        import_file(None, path)  # there is no queue: the file is refused before one is needed
    except BadFile as error:
        print("refused:", error, flush=True)
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


@pytest.mark.full
def test_a_hostile_file_is_refused_as_a_whole(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """One line says why, within 64 MB of memory more than the bare process has, before a queue is so much as needed."""
    for case, (make, _) in HOSTILE.items():
        make(tmp_path / case)
    with python(_BOUNDED, *(str(tmp_path / case) for case in HOSTILE)) as process:
        output, _ = process.communicate(timeout=300)
    for (case, (_, reason)), line in itertools.zip_longest(HOSTILE.items(), output.splitlines()):
        with subtests.test(case):
            assert line.startswith("refused: ")
            assert reason in line
    assert process.returncode == 0


# --- the command line


@pytest.fixture
def zkmq(queue: Queue, zookeeper: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any, str]]:
    """The command line in this process: exit code, standard output (None: of JSON, decoded) and error."""

    def run(*argv: object, as_json: bool = True) -> tuple[int, Any, str]:
        words = [*map(str, argv), *["--json"] * as_json, "--hosts", zookeeper, "--root", queue._context.root]
        capsys.readouterr()
        code, (out, err) = main.main(words), capsys.readouterr()
        return code, json.loads(out) if as_json else out, err

    return run


def test_the_verbs_export_and_import(zkmq: Callable[..., Any], queue: Queue, tmp_path: Path) -> None:
    """0 when all was applied, 1 when a message was refused, and why on standard error; JSON tells it all."""
    path = letters(queue, tmp_path, b"0", b"1", b"2")
    path.unlink()
    export = ("export", queue.name, path)
    answer = {"queue": queue.name, "path": str(path), "state": "dead", "count": 3}
    assert zkmq(*export, "--selector", "region==eu", "--limit", "5") == (0, answer, "")
    code, answer, err = zkmq(*export)
    assert (code, err) == (2, f"zkmq: {answer['message']}\n")
    assert answer["message"].endswith("add --force to replace it")
    assert zkmq(*export, "--force", as_json=False) == (0, f"3 dead task(s) in {path}\n", "")
    edit(path, "t0", mark("-", b"new"))
    edit(path, "t1", mark("!", b"changed"))
    code, plan, _ = zkmq("import", path, "--dry-run")
    assert (code, queue.counts()["dead"]) == (1, 3)
    (refused,) = plan["refused"]
    reason = f"line {refused['line']} (byte {refused['offset']}), task 't1': {refused['reason']}"
    done = "redriven t0, with new text\n1 applied, 1 refused, 1 unchanged\n"
    assert zkmq("import", path, as_json=False) == (1, done, f"zkmq: {reason}\n")
    assert set(refused) == {"id", "offset", "line", "reason"}
    assert plan == {
        "queue": queue.name, "dry_run": True, "unchanged": 1, "refused": [refused],
        "applied": [{"id": "t0", "action": "redrive", "new_data": True}],
    }  # fmt: skip
    export_queue(queue, path, force=True)
    code, done, _ = zkmq("import", path)
    assert (code, done["unchanged"]) == (0, 2)
    assert zkmq("import", path, "--dry-run", as_json=False)[1].endswith("2 unchanged; a dry run: nothing was written\n")


def test_what_the_verbs_refuse_as_a_whole(
    zkmq: Callable[..., Any], queue: Queue, zk: Zkmq, zookeeper: str, tmp_path: Path
) -> None:
    """Bad input is 2, a file that cannot be opened 1; another queue is imported into with --queue alone."""
    path, new, other = letters(queue, tmp_path, b"0"), tmp_path / "a.tq", new_queue(zk)
    bare, hostile, away = tmp_path / "bare.tq", tmp_path / "hostile.tq", tmp_path / "root.tq"
    bare.write_bytes(blocks(path)[1])
    _sparse(hostile)
    with Zkmq.connect(zookeeper, root=fresh_root(), gc=False) as elsewhere:
        elsewhere.queue(queue.name).configure()
        export_queue(elsewhere.queue(queue.name), away)
    for words, wanted, key, said in (
        (("import", hostile), 2, "error", "BadFile"),
        (("import", tmp_path / "absent.tq"), 1, "error", "FileNotFoundError"),
        (("export", "absent", new), 2, "error", "QueueNotFound"),
        (("export", queue.name, new, "--selector", "colour==red"), 2, "message", "colour"),
        (("export", queue.name, new, "--limit", "-1"), 2, "message", "limit"),
        (("export", queue.name, new, "--state", "claimed"), 2, "message", "claimed"),
        (("import", bare), 2, "message", "add --queue"),
        (("import", away), 2, "message", "say so explicitly"),
    ):
        code, answer, err = zkmq(*words)
        assert (code, err) == (wanted, f"zkmq: {answer['message']}\n"), words
        assert said in answer[key]
    code, answer, _ = zkmq("import", path, "--queue", other.name)
    assert (code, answer["refused"][0]["id"]) == (1, "t0")
    assert zkmq("import", bare, "--queue", queue.name)[1]["unchanged"] == 1
