"""Queue files are for those who may read them, and nothing leads out of their folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_zkmq.bridge import export_queue, exported_from, import_file
from airflow_provider_zkmq.engine import ConfigError, CorruptRecord, Zkmq, ZkmqError
from airflow_provider_zkmq.filequeue import FileClient, FileQueue

LARGE = b"x" * 500


@pytest.fixture(autouse=True)
def nothing_is_masked() -> Iterator[None]:
    """A umask that takes nothing away: what is closed is closed by us."""
    old = os.umask(0)
    yield
    os.umask(old)


def finish_one(q: FileQueue, result: bytes = LARGE) -> None:
    claim = q.claim()
    assert claim is not None
    claim.complete(result)


def modes(folder: Path) -> dict[str, int]:
    """Who may do what, by the names of the files and folders."""
    return {path.name: path.stat().st_mode & 0o777 for path in sorted(folder.rglob("*"))}


def test_what_is_made_is_its_owner_s(q: FileQueue, folder: Path) -> None:
    """The queue, its configuration, the results, and the folder where it was not there."""
    q.enqueue("x", task_id="a")
    finish_one(q)
    assert modes(folder) == {"census.tq": 0o600, "census.conf.json": 0o600, "census.results": 0o700, "a": 0o600}
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_queue_that_is_shared_stays_so(q: FileQueue, folder: Path) -> None:
    """The mode of an existing file is kept, and what is made beside it is for the same people."""
    q.path.chmod(0o660)
    q.enqueue("x", task_id="a")
    q.configure(lock=5)
    finish_one(q)
    assert modes(folder) == {"census.tq": 0o660, "census.conf.json": 0o660, "census.results": 0o770, "a": 0o660}


def test_a_file_that_everybody_may_read_is_told_of_once(q: FileQueue, caplog: pytest.LogCaptureFixture) -> None:
    """The log warns of it with its mode, once for a connection; the file is as good as any."""
    q.path.chmod(0o644)
    with caplog.at_level(logging.WARNING, "airflow_provider_zkmq"):
        q.enqueue("x", task_id="a")
        finish_one(q)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "census.tq is open to every user of this machine (mode 644)" in told[0]
    assert modes(q.path.parent)["census.tq"] == 0o644


CALLS: dict[str, Callable[[FileQueue], object]] = {
    "enqueue": lambda q: q.enqueue("x"),
    "configure": lambda q: q.configure(lock=5),
    "claim": lambda q: q.claim(),
    "counts": lambda q: q.counts(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("there", [True, False])
def test_a_queue_that_is_a_link_is_refused(
    folder: Path, files: FileClient, tmp_path: Path, call: str, there: bool
) -> None:
    """Neither is its target read, written or made, nor is it among the queues; the next queue is as good as ever."""
    target = tmp_path / "target.tq"
    if there:
        target.write_bytes(b"-a secret\n")
    (folder / "link.tq").symlink_to(target)
    with pytest.raises(CorruptRecord, match=r"link\.tq is a symbolic link, which is not followed"):
        CALLS[call](files.queue("link"))
    assert (target.read_bytes() if target.exists() else None) == (b"-a secret\n" if there else None)
    assert [path.name for path in folder.iterdir()] == ["link.tq"]
    files.queue("next").enqueue("x")
    assert files.queues() == ["next"]


def test_a_configuration_that_is_a_link_is_refused(q: FileQueue, tmp_path: Path) -> None:
    """What it leads to is not read; a configuration is not written through it."""
    conf, target = q.path.with_name("census.conf.json"), tmp_path / "target"
    target.write_text('{"lock": 5}')
    conf.unlink()
    conf.symlink_to(target)
    for call in (lambda: q.enqueue("x"), lambda: q.configure(lock=7)):
        with pytest.raises(CorruptRecord, match="symbolic link"):
            call()
    assert target.read_text() == '{"lock": 5}'


def test_a_configuration_is_no_pipe_and_not_endless(q: FileQueue) -> None:
    """A pipe in its place does not hang anybody; one of megabytes is refused."""
    conf = q.path.with_name("census.conf.json")
    conf.unlink()
    os.mkfifo(conf)
    with pytest.raises(CorruptRecord, match="no plain file"):
        q.counts()
    conf.unlink()
    conf.write_bytes(b" " * 2_000_000)
    with pytest.raises(CorruptRecord, match="more than"):
        q.counts()


@pytest.mark.parametrize("part", ["folder", "file"])
def test_results_that_lead_elsewhere_are_not_followed(
    q: FileQueue, tmp_path: Path, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    """A link in place of the results' folder, or of one: nothing is written or read there; the tasks are listed."""
    elsewhere, results = tmp_path / "elsewhere", q.path.with_name("census.results")
    elsewhere.mkdir()
    (elsewhere / "a").write_bytes(b"a secret")
    if part == "folder":
        results.symlink_to(elsewhere)
    else:
        results.mkdir()
        (results / "a").symlink_to(elsewhere / "a")
    q.enqueue("x", task_id="a")
    if part == "folder":
        with pytest.raises(ZkmqError, match="symbolic link"):
            finish_one(q)
        assert str(q.task("a").state) == "claimed"
    else:  # a link is replaced by the result
        finish_one(q)
        (results / "a").unlink()
        (results / "a").symlink_to(elsewhere / "a")
        assert q.task("a").result is None
        assert "symbolic link" in caplog.text
    assert len(q.tasks()) == 1
    assert (elsewhere / "a").read_bytes() == b"a secret"
    assert len(list(elsewhere.iterdir())) == 1


def test_a_link_that_takes_the_place_of_new_results_opens_nothing(
    q: FileQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may write to the folder, and is quick, changes nobody's mode elsewhere."""
    elsewhere, make = tmp_path / "elsewhere", Path.mkdir
    make(elsewhere, 0o700)
    q.path.chmod(0o666)

    def make_and_lose(path: Path, *arguments: int, **options: bool) -> None:
        make(path, *arguments, **options)
        path.rmdir()
        path.symlink_to(elsewhere)

    q.enqueue("x", task_id="a")
    monkeypatch.setattr(Path, "mkdir", make_and_lose)
    with pytest.raises(ZkmqError, match="symbolic link"):
        finish_one(q)
    assert elsewhere.stat().st_mode & 0o777 == 0o700
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("name", ["../out", "a/b", "..", "/etc/passwd", "a\0b", ""])
def test_a_name_that_leads_out_is_refused(files: FileClient, folder: Path, tmp_path: Path, name: str) -> None:
    """Neither a queue's name nor a task's leads out of the folder."""
    with pytest.raises(ConfigError, match="not allowed"):
        files.queue(name)
    with pytest.raises(ConfigError, match="not allowed"):
        files.queue("a").enqueue("x", task_id=name)
    assert [path.name for path in tmp_path.iterdir()] == ["queues"]


def test_a_name_that_a_person_wrote_leads_nowhere(q: FileQueue, tmp_path: Path) -> None:
    """An `id=` with slashes is no id: the result of the task stands in the folder of the results."""
    q.path.write_bytes(b"-x\n\\id=../../out\n")
    finish_one(q)
    assert modes(q.path.parent.parent) == {"queues": 0o700} | modes(q.path.parent)
    assert [task.result for task in q.tasks()] == [LARGE]


def test_an_export_is_its_owner_s_and_no_link_is_followed(q: FileQueue, tmp_path: Path) -> None:
    """An export has mode 0600 and replaces a link, if it is told to; an import follows one only within its folder."""
    q.enqueue("secret", task_id="a")
    target, link = tmp_path / "target", tmp_path / "link.tq"
    target.write_text("mine")
    link.symlink_to(target)
    with pytest.raises(FileExistsError):
        export_queue(q, link, "inserted")
    export_queue(q, link, "inserted", force=True)
    assert (target.read_text(), link.is_symlink(), link.stat().st_mode & 0o777) == ("mine", False, 0o600)
    link.rename(target)
    inbox, circle = tmp_path / "inbox", tmp_path / "circle"
    inbox.mkdir()
    (inbox / "out.tq").symlink_to(target)
    circle.symlink_to(circle)
    for bad in (inbox / "out.tq", circle):
        for call in (lambda path=bad: import_file(q, path), lambda path=bad: exported_from(path)):
            with pytest.raises(ConfigError, match="symbolic link"):
                call()
    link.symlink_to(target)
    assert import_file(q, link).unchanged == 1
    dangling = tmp_path / "dangling.tq"
    dangling.symlink_to(tmp_path / "not there")
    with pytest.raises(FileExistsError):
        export_queue(q, dangling, "inserted")
    assert not (tmp_path / "not there").exists()


def test_a_folder_may_be_a_link(folder: Path, tmp_path: Path) -> None:
    """Whoever connects names the folder: it is theirs to say where that is."""
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    with Zkmq.connect(f"textqueue://{tmp_path}/link") as zk:
        zk.queue("a").enqueue("x")
    assert (folder / "a.tq").exists()
