"""Printing: an answer in JSON or in words, warnings, and how far something has come."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

#: What stands out on a terminal: the head of a table, and the words of trouble.
_STYLES: Final = ((r"(?m)^[A-Z][A-Z ]+$", "bold"), (r"\b(dead|cancelled|paused|hung|ended its lease)\b", "red"))


def say(value: object, text: str, *, as_json: bool) -> None:
    """Print `value` as JSON, or `text` for people, and see it out of this process."""
    if as_json:
        print(json.dumps(value, allow_nan=False), flush=True)
    elif text:
        shown = "\n".join(map(one_line, text.split("\n")))
        if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
            _print_in_color(shown)
        else:
            print(shown, flush=True)


def warn(text: str) -> None:
    """Print one line on standard error."""
    print(f"zkmq: {one_line(text)}", file=sys.stderr, flush=True)


def one_line(text: str) -> str:
    """Text without line ends and control characters, each of which is shown as its escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _print_in_color(text: str) -> None:
    """Print on a terminal. The text is never markup, and is not wrapped."""
    from rich.console import Console
    from rich.text import Text

    shown = Text(text)
    for pattern, style in _STYLES:
        shown.highlight_regex(pattern, style)
    Console(highlight=False, emoji=False, markup=False).print(shown, soft_wrap=True)
    sys.stdout.flush()


@contextmanager
def progress(what: str, total: int | None = None, done: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Show on a terminal how far the block has come, with rate and rest, when it takes longer than a second.

    `done`: how much of `total` is done, asked from another thread; without a total it shows for how long it goes on.
    """
    over = threading.Event()
    thread = threading.Thread(target=_draw, args=(what, total, done, over), daemon=True)
    if sys.stderr.isatty():
        thread.start()
    try:
        yield
    finally:
        over.set()
        if thread.ident is not None:
            thread.join()


def _draw(what: str, total: int | None, done: Callable[[], int], over: threading.Event) -> None:
    if over.wait(1.0):
        return
    from rich import progress as bars
    from rich.console import Console

    counted = (bars.MofNCompleteColumn(), bars.TextColumn("{task.fields[rate]}/s, rest"), bars.TimeRemainingColumn())
    columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), bars.TimeElapsedColumn())
    began = time.monotonic() - 1.0
    with bars.Progress(*columns, *(counted if total else ()), console=Console(stderr=True), transient=True) as shown:
        bar = shown.add_task(what, total=total, rate="-")
        while not over.wait(0.25):
            with suppress(Exception):  # where it cannot be counted just now, it is shown as it was
                count = done()
                shown.update(bar, completed=count, rate=f"{count / (time.monotonic() - began):.0f}")
