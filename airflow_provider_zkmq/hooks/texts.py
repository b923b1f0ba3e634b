"""What others said of their errors, in the form that XComs and logs bear."""

from __future__ import annotations

from typing import Final

#: Stands for a character that cannot be kept or shown.
_UNKNOWN: Final = "\ufffd"
_NUL: Final = "\0"


def storable(text: str) -> str:
    """Return a text as an XCom may hold it: PostgreSQL refuses the whole XCom for a NUL or half a surrogate pair.

    U+FFFD stands for the one, the other is spelt out, as where a queue keeps it.
    """
    return text.encode("utf-8", "backslashreplace").decode().replace(_NUL, _UNKNOWN)


def one_line(text: str, most: int) -> str:
    """Return a text in one line of `most` characters at the most, such as an XCom and a log may hold.

    U+FFFD stands for what is not printable: an escape sequence would reach the terminal of whoever reads the log.
    """
    line = "".join(each if each.isprintable() else _UNKNOWN for each in " ".join(storable(text).split()))
    return clipped(line, most)


def clipped(text: str, most: int) -> str:
    """Return a text, cut where it is longer than `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
