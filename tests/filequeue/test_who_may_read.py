"""Queue files are for those who may read them, and nothing leads out of their folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_zkmq.editing import export_queue, import_file, queue_named_in
from airflow_provider_zkmq.engine import ConfigError, CorruptRecord, Zkmq, ZkmqError
from airflow_provider_zkmq.filequeue import FileClient, FileQueue
from tests.filequeue.conftest import taken

LARGE = b"x" * 500


@pytest.fixture(autouse=True)
def nothing_is_masked() -> Iterator[None]:
    """A umask that takes nothing away: what is closed is closed by us."""
    old = os.umask(0)
    yield
    os.umask(old)


def modes(folder: Path) -> dict[str, int]:
    """Who may do what, by the names of the files and folders."""
    return {path.name: path.stat().st_mode & 0o777 for path in sorted(folder.rglob("*"))}


def test_what_is_made_is_for_those_who_may_read_the_queue(
    files: FileClient, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its owner, or those who share its file already; of one that everybody may read the log warns once."""
    with caplog.at_level(logging.WARNING, "airflow_provider_zkmq"):
        for mode, of_folder in ((0o600, 0o700), (0o660, 0o770), (0o644, 0o755)):
            name = f"q{mode:o}"
            q = files.queue(name)
            if mode != 0o600:
                q.path.write_text("")
                q.path.chmod(mode)
            q.configure(lock=5)
            q.enqueue("x", task_id=f"of-{name}")
            taken(q).complete(LARGE)
            made = {it: found for it, found in modes(folder).items() if name in it}
            assert made == {
                f"{name}.tq": mode, f"{name}.conf.json": mode, f"{name}.results": of_folder, f"of-{name}": mode,
            }  # fmt: skip
    assert folder.stat().st_mode & 0o777 == 0o700
    (told,) = (record.getMessage() for record in caplog.records)
    assert "q644.tq is open to every user of this machine (mode 644)" in told


def test_a_link_in_place_of_a_queue_or_its_configuration_is_refused(
    q: FileQueue, folder: Path, files: FileClient, tmp_path: Path
) -> None:
    """Neither is its target read, written or made, nor is it among the queues; the next queue is as good as ever."""
    target, linked = tmp_path / "target.tq", files.queue("link")
    linked.path.symlink_to(target)
    for there in (None, b"-a secret\n"):
        if there:
            target.write_bytes(there)
        for call in (lambda: linked.enqueue("x"), lambda: linked.configure(lock=5), linked.claim, linked.counts):
            with pytest.raises(CorruptRecord, match=r"link\.tq is a symbolic link, which is not followed"):
                call()
        assert (target.read_bytes() if target.exists() else None) == there
    conf = q.path.with_name("census.conf.json")
    conf.unlink()
    conf.symlink_to(target)
    for call in (lambda: q.enqueue("x"), lambda: q.configure(lock=7)):
        with pytest.raises(CorruptRecord, match="symbolic link"):
            call()
    assert target.read_bytes() == b"-a secret\n"
    conf.unlink()
    os.mkfifo(conf)  # does not hang anybody
    with pytest.raises(CorruptRecord, match="no plain file"):
        q.counts()
    conf.unlink()
    conf.write_bytes(b" " * 2_000_000)
    with pytest.raises(CorruptRecord, match="more than"):
        q.counts()
    files.queue("next").enqueue("x")
    assert files.queues() == ["census", "next"]
    assert {path.name for path in folder.iterdir()} == {"census.tq", "census.conf.json", "link.tq", "next.tq"}


def test_results_that_lead_elsewhere_are_not_followed(
    q: FileQueue, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link in place of their folder, at whatever moment, or of one: nothing is read or written there."""
    elsewhere, results, make = tmp_path / "elsewhere", q.path.with_name("census.results"), Path.mkdir
    elsewhere.mkdir(0o700)
    (elsewhere / "a").write_bytes(b"a secret")
    q.path.chmod(0o666)
    q.enqueue("x", task_id="a")
    claim = taken(q)

    def make_and_lose(path: Path, *arguments: int, **options: bool) -> None:
        make(path, *arguments, **options)
        path.rmdir()
        path.symlink_to(elsewhere)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", make_and_lose)
        for _ in range(2):  # it is made, and it is there
            with pytest.raises(ZkmqError, match="symbolic link"):
                claim.complete(LARGE)
    assert [str(task.state) for task in q.tasks()] == ["claimed"]
    results.unlink()
    results.mkdir()
    (results / "a").symlink_to(elsewhere / "a")
    claim.complete(LARGE)  # the link is replaced by the result
    assert q.task("a").result == LARGE
    (results / "a").unlink()
    (results / "a").symlink_to(elsewhere / "a")
    assert [task.result for task in q.tasks()] == [None]
    assert "symbolic link" in caplog.text
    assert [(path.name, path.read_bytes()) for path in elsewhere.iterdir()] == [("a", b"a secret")]
    assert elsewhere.stat().st_mode & 0o777 == 0o700


def test_a_name_that_leads_out_is_refused(q: FileQueue, files: FileClient, tmp_path: Path) -> None:
    """A queue's name or a task's; an `id=` with slashes, by a person, is no id. The folder itself may be a link."""
    for name in ("../out", "a/b", "..", "/etc/passwd", "a\0b", ""):
        for call in (lambda name=name: files.queue(name), lambda name=name: q.enqueue("x", task_id=name)):
            with pytest.raises(ConfigError, match="not allowed"):
                call()
    q.path.write_bytes(b"-x\n\\id=../../out\n")
    taken(q).complete(LARGE)
    assert modes(tmp_path) == {"queues": 0o700} | modes(q.path.parent)
    assert [task.result for task in q.tasks()] == [LARGE]
    (tmp_path / "link").symlink_to(q.path.parent)
    with Zkmq.connect(f"textqueue://{tmp_path}/link") as zk:
        assert zk.queues() == ["census"]


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
        for call in (lambda path=bad: import_file(q, path), lambda path=bad: queue_named_in(path)):
            with pytest.raises(ConfigError, match="symbolic link"):
                call()
    link.symlink_to(target)
    assert import_file(q, link).unchanged == 1
    dangling = tmp_path / "dangling.tq"
    dangling.symlink_to(tmp_path / "not there")
    with pytest.raises(FileExistsError):
        export_queue(q, dangling, "inserted")
    assert not (tmp_path / "not there").exists()
