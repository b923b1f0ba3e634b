"""The format: what the seed says of each construct, and that nothing else is touched."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_provider_zkmq.textqueue import HostileFile, Limits, StaleMessage, TextQueue, line_reader
from airflow_provider_zkmq.textqueue.message import decode

SEED = rb"""-A queued message begins with a '-' dash control character
=A processed message begins with an '=' equals sign control character
!A message that encountered a critical error begins with an `!` exclamation mark control character
-Any message can have multiple lines
 where each sequential line begins with a ' ' space
# A comment begins with a '#' sign
# Multiline comments are possible using a space as the starting character on
  each sequential line.
-  I have space padding  

-Message Variables
\Message variables are attached after a message
\Additional space can be reserved for the message variable with trailing spaces   
# Comment Variables
\Comments can also have message variables
-Last line without a newline"""  # noqa: W291  the format keeps what stands at the end of a line


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def read(path: Path, include: str = "all", *, raw: bool = False) -> list[tuple[str, Any, tuple[str, ...]]]:
    with TextQueue.open(path) as queue:
        return [(str(it.status), it.data if raw else it.text, it.variables) for it in queue.messages(include)]


def test_the_seed_s_example_reads_as_it_says(tmp_path: Path) -> None:
    """Statuses, continuations, padding, variables with their padding, comments, a last line without its newline."""
    path = written(tmp_path / "a.tq", SEED)
    found = read(path)
    statuses = "queued processed error queued comment comment queued queued comment queued"
    assert [status for status, _, _ in found] == statuses.split()
    texts = {
        3: "Any message can have multiple lines\nwhere each sequential line begins with a ' ' space",
        5: " Multiline comments are possible using a space as the starting character on\n each sequential line.",
        6: "  I have space padding  ",
        9: "Last line without a newline",
    }
    assert {at: found[at][1] for at in texts} == texts
    assert found[7][2][1].endswith("spaces   ")
    assert found[8][2] == ("Comments can also have message variables",)
    assert path.read_bytes() == SEED


def test_what_is_asked_for_is_read_and_nothing_ends_a_message_but_the_next(tmp_path: Path) -> None:
    """By default what is queued; a continuation after a blank line or a variable belongs to the message before."""
    path = written(tmp_path / "a.tq", b"-a\n\n b\n\\v\n c\n=d\n!e\n#f\n")
    assert read(path, "queued") == [("queued", "a\nb\nc", ("v",))]
    with TextQueue.open(path) as queue:
        assert [it.text for it in queue.messages(["error", "processed"])] == ["d", "e"]
        with pytest.raises(ValueError, match="include"):
            list(queue.messages("dead"))


def test_what_is_unknown_is_kept_stepped_over_and_reported(tmp_path: Path) -> None:
    """A control byte of a later version hides its own lines only; the file is not touched; the offset is told."""
    data = b" stray\n-a\nT2024\n of T\n\\of T\n-b\n>x\n"
    path = written(tmp_path / "a.tq", data)
    with TextQueue.open(path) as queue:
        messages = list(queue.messages())
        assert [it.text for it in messages] == ["a", "b"]
        messages[1].mark_processed()
        assert sorted(queue.reports) == [0, data.index(b"T2024"), data.index(b">x")]
    assert path.read_bytes() == data.replace(b"-b", b"=b")


def test_marks_returns_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    """A byte order mark, line ends of either kind, a lone return, invalid UTF-8 and control bytes are handled."""
    for data, texts in (
        (b"\xef\xbb\xbf-a\n-b\n", ["a", "b"]),
        (b"-a\r\n b\r\n\r\n-c\r\n", ["a\nb", "c"]),
        (b"-a\n-b\rc\r\n", ["a", "b\rc\r"]),
        (b"-" + b"x" * 200_000 + b"\r\n-b\r\n", ["x" * 200_000, "b"]),
        (b"-\xff\xfe\n", ["\udcff\udcfe"]),
        (b"-\x00\x01\n", ["\x00\x01"]),
        (b"", []),
        (b"\n\n", []),
        (b"-", [""]),
        ("-é☃🎉\n".encode(), ["é☃🎉"]),
    ):
        path = written(tmp_path / "a.tq", data)
        assert [text for _, text, _ in read(path)] == texts
        with TextQueue.open(path) as queue:
            for message in list(queue.messages()):
                message.mark_error()
        assert path.read_bytes() == data.replace(b"-", b"!")


def test_a_mark_changes_one_byte_and_only_of_what_is_still_queued(tmp_path: Path) -> None:
    """A processed message is never marked again, nor one that changed, moved or whose file was replaced."""
    path = written(tmp_path / "a.tq", b"-a\n-b\n#c\n")
    with TextQueue.open(path) as queue:
        a, b, c = queue.messages("all")
        a.mark_processed()
        assert (path.read_bytes(), a.status) == (b"=a\n-b\n#c\n", "processed")
        for again in (a.mark_processed, a.mark_error, c.mark_processed):
            with pytest.raises(StaleMessage):
                again()
        path.write_bytes(b"=a\n-x\n#c\n")
        with pytest.raises(StaleMessage, match="something else"):
            b.mark_processed()
        path.rename(tmp_path / "old.tq")
        path.write_bytes(b"=a\n-b\n#c\n")
        with pytest.raises(StaleMessage, match="replaced"):
            b.mark_processed()
    assert path.read_bytes() == b"=a\n-b\n#c\n"


def test_a_variable_is_written_in_place_in_bytes(tmp_path: Path) -> None:
    """Padded to its room; refused, and nothing written, when too long in bytes, on two lines, not there, or changed."""
    path = written(tmp_path / "a.tq", "-a\n\\éé=ab  \n\\x\n-b".encode())
    with TextQueue.open(path) as queue:
        message, stale = next(queue.messages()), next(queue.messages())
        message.set_variable(0, "zzzzz")
        assert message.variables == ("zzzzz    ", "x")
        with pytest.raises(ValueError, match="room for 9"):
            message.set_variable(0, "ééééé")
        for bad in ("a\nb", "\n"):
            with pytest.raises(ValueError, match="newline"):
                message.set_variable(0, bad)
        with pytest.raises(IndexError):
            message.set_variable(2, "a")
        message.set_variable(0, "éééé")
        with pytest.raises(StaleMessage):
            stale.set_variable(0, "new")
        message.set_variable(1, "=")
    assert path.read_bytes() == "-a\n\\éééé \n\\=\n-b".encode()


def test_appends_end_the_last_line_first_and_keep_the_file_s_line_ends(tmp_path: Path) -> None:
    """What is appended stands on lines of its own, ended as the file ends its lines; else it is refused."""
    path = tmp_path / "a.tq"
    for before, after in (
        (b"", b"-x\n y\n\\v\n"),
        (b"-a", b"-a\n-x\n y\n\\v\n"),
        (b"-a\r\n", b"-a\r\n-x\r\n y\r\n\\v\r\n"),
        (b"-a\r", b"-a\r\r\n-x\r\n y\r\n\\v\r\n"),  # a return at the end of the only line is text
        (b"\xef\xbb\xbf", b"\xef\xbb\xbf-x\n y\n\\v\n"),
    ):
        with TextQueue.open(written(path, before)) as queue:
            offset = queue.append("x\ny", ["v"])
            assert [it.offset for it in queue.messages() if it.text == "x\ny"] == [offset]
        assert path.read_bytes() == after
    for before, text, variables, why in (
        (b"-a\r\n", "x\r\ny", [], "carriage"),
        (b"-a\r\r\n", "x\r", [], "carriage"),
        (b"", "x\r", [], "carriage"),
        (b"", "x", ["a\nb"], "newline"),
    ):
        with TextQueue.open(written(path, before)) as queue, pytest.raises(ValueError, match=why):
            queue.append(text, variables)
        assert path.read_bytes() == before


BYTES = st.binary(max_size=60) | st.lists(
    st.sampled_from([b"-", b"=", b"\\", b" ", b"#", b"a", b"\r", b"\n", b"\r\n", b"\xef\xbb\xbf", b"\xef", b"\xff"]),
    max_size=12,
).map(b"".join)


@given(before=BYTES, text=BYTES, variables=st.lists(BYTES.map(decode), max_size=2))
@example(before=b"-a\r", text=b"x", variables=[])
@example(before=b"\xef\xbb\xbf-a\r", text=b"x\ny", variables=["v"])
@example(before=b"\r", text=b"x\r", variables=[])
@example(before=b"-a", text=b"x\r", variables=[])
@settings(max_examples=300, deadline=None)
def test_an_append_never_changes_what_was_there(
    tmp_path_factory: pytest.TempPathFactory, before: bytes, text: bytes, variables: list[str]
) -> None:
    """Whatever bytes a file holds, every message reads as before and the new one as given; else nothing is written."""
    path = written(tmp_path_factory.mktemp("tq") / "a.tq", before)
    messages = read(path, raw=True)
    with TextQueue.open(path) as queue:
        try:
            offset = queue.append(text, variables)
        except ValueError:
            assert b"\r" in text or any("\n" in it or "\r" in it for it in variables)
            assert path.read_bytes() == before
            return
        assert [it.offset for it in queue.messages("all")][-1] == offset
    assert path.read_bytes().startswith(before)
    assert read(path, raw=True) == [*messages, ("queued", text, tuple(variables))]


def test_what_is_too_large_is_neither_read_nor_appended(tmp_path: Path) -> None:
    """A line, a message, its variables, the file: each has a limit that one error names; the file stays as it was."""
    path = tmp_path / "a.tq"
    small = Limits(line=100, lines=8, message=200, variables=3, file=400)
    for data, why in (
        (b"-" + b"x" * 101, "line at byte"),
        (b"-a\n-" + b"x" * 100 + b"\n-a\n", "line at byte 3"),
        (b"\n" * 9, "more than 8 lines"),
        (b"-a\n" + b" %s\n" % (b"x" * 90) * 3, "message"),
        (b"-a\n" + b"\\\n" * 4, "variables"),
    ):
        with TextQueue.open(written(path, data), limits=small) as queue, pytest.raises(HostileFile, match=why):
            list(queue.messages())
    with pytest.raises(HostileFile, match="401"):
        TextQueue.open(written(path, b"\n" * 401), limits=small)
    before = written(path, b"-a\n" * 4 + b"#" + b" " * 90 + b"\n").read_bytes()
    with TextQueue.open(path, limits=small) as queue:
        for text, variables, why in (
            ("x" * 101, [], "line"),
            ("\n".join(["x" * 90] * 3), [], "bytes"),
            ("x", ["v"] * 4, "variables"),
            ("\n\n\n\n", [], "more than 8 lines"),
        ):
            with pytest.raises(HostileFile, match=why):
                queue.append(text, variables)
        assert path.read_bytes() == before
        queue.append("x" * 90)
        queue.append("y" * 90)
        with pytest.raises(HostileFile, match="bytes"):
            queue.append("z" * 90 + "\n" + "z" * 90)
        assert len(list(queue.messages())) == 6


def test_appending_costs_by_what_is_appended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long file the lines are counted once; the last one that its limit allows is appended, the next refused."""
    reads, read = list[int](), TextQueue.read
    monkeypatch.setattr(TextQueue, "read", lambda *at: reads.append(len(found := read(*at))) or found)
    with TextQueue.open(written(tmp_path / "a.tq", b"-a\n" * 10_000), limits=Limits(lines=10_101)) as queue:
        queue.append("first")
        reads.clear()
        for _ in range(99):
            queue.append("b")
        assert max(reads) <= 512
        with pytest.raises(HostileFile, match="more than 10,101 lines"):
            queue.append("c")
        os.ftruncate(queue._descriptor, 3)
        queue.append("d")
        assert len(list(queue.messages())) == 2


def test_reading_is_bounded_and_linear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many lines are refused before any is looked at; blank ones are passed together; a long one is read once."""
    reads, looked_at = list[int](), list[object]()
    read, line = TextQueue.read, line_reader.Line

    def counted_read(queue: TextQueue, size: int, offset: int) -> bytes:
        data = read(queue, size, offset)
        reads.append(len(data))
        return data

    monkeypatch.setattr(TextQueue, "read", counted_read)
    monkeypatch.setattr(line_reader, "Line", lambda *given: looked_at.append(given) or line(*given))
    path = tmp_path / "a.tq"
    for data, count in (
        *((end * 6_000_000, 0) for end in (b"\n", b"\r\n", b"-\n", b" \n")),
        (b"\n" * 4_900_000 + b"-x", 1),
        (b"\r\n" * 4_900_000 + b"-x", 1),
        (b"-" + b"x" * ((4 << 20) - 1) + b"\n-x", 2),
    ):
        with TextQueue.open(written(path, data)) as queue:
            reads.clear()
            looked_at.clear()
            if count:
                assert [it.text for it in queue.messages()][-1].endswith("x")
            else:
                for call in (lambda: next(queue.messages()), lambda: queue.append("x")):
                    with pytest.raises(HostileFile, match=r"more than 5,000,000 lines"):
                        call()
            assert len(looked_at) == count
            assert sum(reads) <= 4 * len(data)
            assert len(reads) <= 3 * len(data) // line_reader.CHUNK + 20


def test_a_file_is_its_owner_s_and_no_link(tmp_path: Path) -> None:
    """One that is made has mode 0600, whatever the umask; one that is there keeps its own; a link is not followed."""
    old = os.umask(0)
    try:
        with TextQueue.open(tmp_path / "new.tq") as queue:
            queue.append("secret")
    finally:
        os.umask(old)
    assert (tmp_path / "new.tq").stat().st_mode & 0o777 == 0o600
    shared = written(tmp_path / "shared.tq", b"-a\n")
    shared.chmod(0o660)
    with TextQueue.open(shared) as queue:
        queue.append("b")
        assert shared.stat().st_mode & 0o777 == 0o660
        elsewhere = shared.rename(tmp_path / "elsewhere")
        shared.symlink_to(elsewhere)  # a link that takes the file's place meanwhile is not written through
        with pytest.raises(StaleMessage, match="replaced"):
            queue.append("c")
    (tmp_path / "dangling.tq").symlink_to(tmp_path / "not there")
    for link, options in itertools.product((shared, tmp_path / "dangling.tq"), ({}, {"write": False})):
        with pytest.raises(HostileFile, match="symbolic link"):
            TextQueue.open(link, **options)
    assert not (tmp_path / "not there").exists()
    assert elsewhere.read_bytes() == b"-a\n-b\n"


def test_a_file_may_be_opened_to_be_read_only(tmp_path: Path) -> None:
    """`write=False` reads what may not be written, makes no file, and marks nothing; a pipe is refused at once."""
    path = written(tmp_path / "a.tq", b"-a\n")
    path.chmod(0o444)
    with TextQueue.open(path, write=False) as queue:
        (message,) = queue.messages()
        with pytest.raises(OSError, match=r"descriptor"):
            message.mark_processed()
    assert path.read_bytes() == b"-a\n"
    for options in ({"write": False}, {"create": False}):
        with pytest.raises(FileNotFoundError):
            TextQueue.open(tmp_path / "none.tq", **options)
    with pytest.raises((HostileFile, OSError)):
        TextQueue.open(tmp_path)
    os.mkfifo(tmp_path / "pipe.tq")
    for options in ({}, {"write": False}):
        with pytest.raises(HostileFile, match="no plain file"):
            TextQueue.open(tmp_path / "pipe.tq", **options)


@given(data=st.binary(max_size=200) | st.text(st.sampled_from("-=!# \\\nab\r\u00e9"), max_size=60).map(str.encode))
@settings(max_examples=200, deadline=None)
def test_random_bytes_are_read_and_only_marks_change_them(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    """No bytes break the reader, which writes none; marking all that is queued changes those bytes alone."""
    path, expected = written(tmp_path_factory.mktemp("tq") / "a.tq", data), bytearray(data)
    with TextQueue.open(path) as queue:
        queued = [it for it in queue.messages("all") if it.status == "queued"]
        assert path.read_bytes() == data
        for message in queued:
            assert expected[message.offset : message.offset + 1] == b"-"
            expected[message.offset : message.offset + 1] = b"="
            message.mark_processed()
    assert path.read_bytes() == bytes(expected)
