"""The same on a terminal: nothing that disturbs it, style for what stands out, and how far something has come."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

#: What stands out on a terminal: the head of a table, and the words of trouble.
_STYLES: Final = ((r"(?m)^[A-Z][A-Z ]+$", "bold"), (r"\b(dead|cancelled|paused|hung|ended its lease)\b", "red"))


def print_in_color(text: str) -> None:
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
