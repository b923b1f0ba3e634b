"""The format: what the seed says of each construct, and that nothing else is touched."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_provider_zkmq.textqueue import HostileFile, Limits, StaleMessage, TextQueue
from airflow_provider_zkmq.textqueue.write import decode

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


def read(path: Path, include: str = "all") -> list[tuple[str, str, tuple[str, ...]]]:
    with TextQueue.open(path) as queue:
        return [(str(it.status), it.text, it.variables) for it in queue.messages(include)]


def test_the_seed_s_example_reads_as_it_says(tmp_path: Path) -> None:
    """Statuses, continuations, padding, variables with their padding, comments, a last line without its newline."""
    path = written(tmp_path / "a.tq", SEED)
    found = read(path)
    assert [status for status, _, _ in found] == [
        "queued", "processed", "error", "queued", "comment", "comment", "queued", "queued", "comment", "queued",
    ]  # fmt: skip
    assert found[3][1] == "Any message can have multiple lines\nwhere each sequential line begins with a ' ' space"
    assert (
        found[5][1]
        == " Multiline comments are possible using a space as the starting character on\n each sequential line."
    )
    assert found[6][1] == "  I have space padding  "
    assert found[7][2][1].endswith("spaces   ")
    assert found[8][2] == ("Comments can also have message variables",)
    assert found[9][1] == "Last line without a newline"
    assert path.read_bytes() == SEED


def test_by_default_only_what_is_queued_is_read(tmp_path: Path) -> None:
    """Processed, failed and commented-out messages are left out; any set of statuses may be asked for."""
    path = written(tmp_path / "a.tq", b"-a\n=b\n!c\n#d\n")
    assert [text for _, text, _ in read(path, "queued")] == ["a"]
    with TextQueue.open(path) as queue:
        assert [it.text for it in queue.messages(["error", "processed"])] == ["b", "c"]
        with pytest.raises(ValueError, match="include"):
            list(queue.messages("dead"))


def test_blank_lines_and_variables_do_not_end_a_message(tmp_path: Path) -> None:
    """A continuation after a blank line or a variable belongs to the message before, as the format's regex allows."""
    path = written(tmp_path / "a.tq", b"-a\n\n b\n\\v\n c\n-d\n")
    assert read(path) == [("queued", "a\nb\nc", ("v",)), ("queued", "d", ())]


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


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        (b"\xef\xbb\xbf-a\n-b\n", ["a", "b"]),
        (b"-a\r\n b\r\n\r\n-c\r\n", ["a\nb", "c"]),
        (b"-a\n-b\rc\r\n", ["a", "b\rc\r"]),
        (b"-\xff\xfe\n", ["\udcff\udcfe"]),
        (b"-\x00\x01\n", ["\x00\x01"]),
        (b"", []),
        (b"\n\n", []),
        (b"-", [""]),
        ("-é☃🎉\n".encode(), ["é☃🎉"]),
    ],
)
def test_marks_returns_and_bytes_that_are_no_text(tmp_path: Path, data: bytes, texts: list[str]) -> None:
    """A byte order mark, line ends of either kind, a lone return, invalid UTF-8 and control bytes are handled."""
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
    """Padded to its room; refused, and nothing written, when too long in bytes, on two lines, or not there."""
    path = written(tmp_path / "a.tq", "-a\n\\éé=ab  \n\\x\n-b".encode())
    with TextQueue.open(path) as queue:
        message = next(queue.messages())
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
    assert path.read_bytes() == "-a\n\\éééé \n\\x\n-b".encode()


def test_a_variable_that_somebody_else_wrote_is_not_overwritten(tmp_path: Path) -> None:
    """The edit is refused when the file holds another value by now."""
    path = written(tmp_path / "a.tq", b"-a\n\\one\n")
    with TextQueue.open(path) as queue:
        message = next(queue.messages())
        path.write_bytes(b"-a\n\\two\n")
        with pytest.raises(StaleMessage):
            message.set_variable(0, "new")
    assert path.read_bytes() == b"-a\n\\two\n"


def test_appends_end_the_last_line_first_and_keep_the_file_s_line_ends(tmp_path: Path) -> None:
    """What is appended stands on lines of its own, ended as the file ends its lines."""
    for before, after in (
        (b"", b"-x\n y\n\\v\n"),
        (b"-a", b"-a\n-x\n y\n\\v\n"),
        (b"-a\r\n", b"-a\r\n-x\r\n y\r\n\\v\r\n"),
        (b"\xef\xbb\xbf", b"\xef\xbb\xbf-x\n y\n\\v\n"),
    ):
        path = written(tmp_path / "a.tq", before)
        with TextQueue.open(path) as queue:
            offset = queue.append("x\ny", ["v"])
            assert [it.offset for it in queue.messages() if it.text == "x\ny"] == [offset]
        assert path.read_bytes() == after
    with TextQueue.open(written(tmp_path / "a.tq", b"-a\r\n")) as queue, pytest.raises(ValueError, match="carriage"):
        queue.append("x\r\ny")
    with TextQueue.open(written(tmp_path / "b.tq", b"")) as queue:
        with pytest.raises(ValueError, match="carriage"):
            queue.append("x\r")
        with pytest.raises(ValueError, match="newline"):
            queue.append("x", ["a\nb"])


BYTES = st.binary(max_size=60) | st.lists(
    st.sampled_from([b"-", b"=", b"\\", b" ", b"#", b"a", b"\r", b"\n", b"\r\n", b"\xef\xbb\xbf", b"\xef", b"\xff"]),
    max_size=12,
).map(b"".join)


def everything(path: Path) -> list[tuple[str, bytes, tuple[str, ...]]]:
    with TextQueue.open(path) as queue:
        return [(str(it.status), it.data, it.variables) for it in queue.messages("all")]


@given(before=BYTES, text=BYTES, variables=st.lists(BYTES.map(decode), max_size=2))
@example(before=b"-a\r", text=b"x", variables=[])
@example(before=b"\xef\xbb\xbf-a\r", text=b"x\ny", variables=["v"])
@example(before=b"\r", text=b"x\r", variables=[])
@example(before=b"-a", text=b"x\r", variables=[])
@settings(max_examples=500, deadline=None)
def test_an_append_never_changes_what_was_there(
    tmp_path_factory: pytest.TempPathFactory, before: bytes, text: bytes, variables: list[str]
) -> None:
    """Whatever bytes a file holds: they stay, every message reads as before, and the new one as it was given.

    Else the append is refused, and nothing is written.
    """
    path = written(tmp_path_factory.mktemp("tq") / "a.tq", before)
    messages = everything(path)
    with TextQueue.open(path) as queue:
        try:
            offset = queue.append(text, variables)
        except ValueError:
            assert path.read_bytes() == before
            return
        assert [it.offset for it in queue.messages("all")][-1] == offset
    assert path.read_bytes().startswith(before)
    assert everything(path) == [*messages, ("queued", text, tuple(variables))]


def test_a_carriage_return_at_the_end_of_a_file_is_text(tmp_path: Path) -> None:
    r"""A single line without a newline that ends with a `\\r` keeps it: the lines that follow end with `\\r\\n`."""
    path = written(tmp_path / "a.tq", b"-a\r")
    with TextQueue.open(path) as queue:
        queue.append("b\nc", ["v"])
        assert [(it.text, it.variables) for it in queue.messages()] == [("a\r", ()), ("b\nc", ("v",))]
        with pytest.raises(ValueError, match="carriage"):
            queue.append("x\r")
    assert path.read_bytes() == b"-a\r\r\n-b\r\n c\r\n\\v\r\n"


def test_the_end_of_a_long_first_line_counts_too(tmp_path: Path) -> None:
    r"""Where a first line of any length ends with `\\r\\n`, the `\\r` is no text of any line."""
    path = written(tmp_path / "a.tq", b"-" + b"x" * 200_000 + b"\r\n-b\r\n")
    assert [text[-1:] for _, text, _ in read(path)] == ["x", "b"]


def test_what_could_not_be_read_is_not_appended(tmp_path: Path) -> None:
    """A message that is too large, or with which the file would be, is refused, and the file can be read as before."""
    limits = Limits(line=100, lines=8, message=200, variables=3, file=400)
    path = written(tmp_path / "a.tq", b"-a\n" * 4 + b"#" + b" " * 90 + b"\n")
    before = path.read_bytes()
    with TextQueue.open(path, limits=limits) as queue:
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
        next(queue.messages()).mark_processed()
    assert shared.stat().st_mode & 0o777 == 0o660
    elsewhere = written(tmp_path / "elsewhere", b"-not for queues\n")
    for target in (elsewhere, tmp_path / "not there"):
        link = tmp_path / f"{target.name}.tq"
        link.symlink_to(target)
        for options in ({}, {"write": False}):
            with pytest.raises(HostileFile, match="symbolic link"):
                TextQueue.open(link, **options)
    assert not (tmp_path / "not there").exists()
    assert elsewhere.read_bytes() == b"-not for queues\n"


def test_a_file_that_became_a_link_is_not_written(tmp_path: Path) -> None:
    """Whoever puts a link in the file's place meanwhile has nothing appended where it leads."""
    path, elsewhere = written(tmp_path / "a.tq", b"-a\n"), tmp_path / "elsewhere"
    with TextQueue.open(path) as queue:
        path.rename(elsewhere)
        path.symlink_to(elsewhere)
        with pytest.raises(StaleMessage, match="replaced"):
            queue.append("b")
    assert elsewhere.read_bytes() == b"-a\n"


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    """What is no plain file is not waited for, whoever is or is not at its other end."""
    os.mkfifo(tmp_path / "a.tq")
    for options in ({}, {"write": False}):
        with pytest.raises(HostileFile, match="no plain file"):
            TextQueue.open(tmp_path / "a.tq", **options)


def test_a_file_may_be_opened_to_be_read_only(tmp_path: Path) -> None:
    """`write=False` reads what may not be written, makes no file, and marks nothing."""
    path = written(tmp_path / "a.tq", b"-a\n")
    path.chmod(0o444)
    with TextQueue.open(path, write=False) as queue:
        (message,) = queue.messages()
        with pytest.raises(OSError, match=r"descriptor"):
            message.mark_processed()
    assert path.read_bytes() == b"-a\n"
    with pytest.raises(FileNotFoundError):
        TextQueue.open(tmp_path / "none.tq", write=False)


def test_what_is_too_large_is_refused(tmp_path: Path) -> None:
    """A line, a message, its variables, the file: each has a limit, and one error names it; no plain file is opened."""
    limits = Limits(line=100, lines=500, message=200, variables=3, file=10_000)
    cases = {
        b"-" + b"x" * 101: "line at byte",
        b"\n" * 501: "more than 500 lines",
        b"-a\n" + b" x\n" * 80: "message",
        b"-a\n" + b"\\\n" * 4: "variables",
    }
    for data, why in cases.items():
        with TextQueue.open(written(tmp_path / "a.tq", data), limits=limits) as queue:
            with pytest.raises(HostileFile, match=why):
                list(queue.messages())
    with pytest.raises(HostileFile, match=r"10,001"):
        TextQueue.open(written(tmp_path / "a.tq", b"\n" * 10_001), limits=limits)
    with pytest.raises((HostileFile, OSError)):
        TextQueue.open(tmp_path)
    with pytest.raises(FileNotFoundError):
        TextQueue.open(tmp_path / "none.tq", create=False)


@pytest.mark.parametrize("line", [b"\n", b"\r\n", b"-\n", b" \n"])
def test_too_many_lines_are_refused_before_any_is_read(tmp_path: Path, line: bytes) -> None:
    """A file of millions of blank or tiny lines is refused within a second, not after all but the last were parsed."""
    path = written(tmp_path / "a.tq", line * 6_000_000)
    with TextQueue.open(path) as queue:
        begun = time.process_time()
        with pytest.raises(HostileFile, match=r"more than 5,000,000 lines"):
            next(queue.messages())
        with pytest.raises(HostileFile, match=r"more than 5,000,000 lines"):
            queue.append("x")
        assert time.process_time() - begun < 1


@pytest.mark.parametrize("data", [b"\n" * 4_900_000, b"\r\n" * 4_900_000, b"-" + b"x" * (4 << 20) + b"\n-"])
def test_reading_is_linear(tmp_path: Path, data: bytes) -> None:
    """Blank lines are stepped over together, and a long line is looked through once: each takes well under a second."""
    path = written(tmp_path / "a.tq", data + b"-x")
    with TextQueue.open(path) as queue:
        begun = time.process_time()
        assert [it.text for it in queue.messages()][-1].endswith("x")
        assert time.process_time() - begun < 1


TEXT = st.text(st.sampled_from("ab -=#!\\\n\u00e9\U0001f389\t\x00"), max_size=12)
VARIABLE = st.text(st.sampled_from("ab =\u00e9 "), max_size=8)


@given(messages=st.lists(st.tuples(TEXT, st.lists(VARIABLE, max_size=3)), max_size=6))
@settings(deadline=None)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, messages) -> None:
    """Every text and variables come back as they were given, in order."""
    path = tmp_path_factory.mktemp("tq") / "a.tq"
    with TextQueue.open(path) as queue:
        for text, variables in messages:
            queue.append(text, variables)
        assert [(it.text, list(it.variables)) for it in queue.messages()] == messages


@given(data=st.binary(max_size=200) | st.text(st.sampled_from("-=!# \\\nab\r\u00e9"), max_size=60).map(str.encode))
@settings(max_examples=300, deadline=None)
def test_random_bytes_are_read_and_only_marks_change_them(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    """No bytes break the reader, which writes none; marking all that is queued changes those bytes alone."""
    path = tmp_path_factory.mktemp("tq") / "a.tq"
    path.write_bytes(data)
    with TextQueue.open(path) as queue:
        everything = list(queue.messages("all"))
        assert path.read_bytes() == data
        offsets = [it.offset for it in everything if it.status == "queued"]
        for message in everything:
            if message.status == "queued":
                message.mark_processed()
    expected = bytearray(data)
    for offset in offsets:
        assert expected[offset : offset + 1] == b"-"
        expected[offset : offset + 1] = b"="
    assert path.read_bytes() == bytes(expected)


@given(
    data=st.data(),
    messages=st.lists(st.tuples(TEXT, st.lists(VARIABLE, min_size=1, max_size=3)), min_size=1, max_size=4),
)
@settings(deadline=None)
def test_edits_change_only_the_bytes_they_may(tmp_path_factory: pytest.TempPathFactory, data, messages) -> None:
    """Any sequence of edits: each changes its control byte or its variable's room, and the length never changes."""
    path = tmp_path_factory.mktemp("tq") / "a.tq"
    with TextQueue.open(path) as queue:
        for text, variables in messages:
            queue.append(text, variables)
        found = list(queue.messages())
        for _ in range(5):
            before = path.read_bytes()
            message = data.draw(st.sampled_from(found))
            index = data.draw(st.integers(0, len(message.variables) - 1))
            room = message._record.variables[index]
            value = data.draw(VARIABLE)
            try:
                message.set_variable(index, value)
            except ValueError:
                assert len(value.encode()) > len(room[1])
                assert path.read_bytes() == before
                continue
            after = path.read_bytes()
            start, end = room[0], room[0] + len(room[1])
            assert (after[:start], after[end:]) == (before[:start], before[end:])
            assert after[start:end].rstrip(b" ") == value.encode().rstrip(b" ")
