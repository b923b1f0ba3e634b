"""Answers in JSON or in words, warnings, and how far something has come."""

from __future__ import annotations

import inspect
import json as json_text
import os
import sys
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import urlencode

from ..inspection import terminal, wording
from .options import flag

PANEL: Final = "Connection and output (before or after the verb)"


@dataclass(repr=False)  # which would show passwords
class Output:
    """How a verb answers: its fields are options, which may stand before or after the verb."""

    json: bool = flag("--json", "answer in JSON", rich_help_panel=PANEL)
    verbose: bool = flag("-v, --verbose", "show tracebacks", rich_help_panel=PANEL)

    @classmethod
    def of(cls, ctx: Any) -> Self:
        """By a command line, of which what stands later wins. `ctx`: Typer's, of the verb."""
        given: dict[str, Any] = {}
        while ctx is not None:
            said = {name: value for name, value in ctx.params.items() if value is not None and value is not False}
            given = said | given
            ctx = ctx.parent
        fields: dict[str, Any] = {name: given.get(name) for name in inspect.signature(cls).parameters}
        return cls(**fields)

    def say(self, value: object, text: str, code: int = 0) -> int:
        """Print `value` in JSON, or `text` for people, and see it out of this process; returns the exit code."""
        shown = "\n".join(map(wording.one_line, text.split("\n")))
        if self.json:
            print(json_text.dumps(value, allow_nan=False), flush=True)
        elif text and sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
            terminal.print_in_color(shown)
        elif text:
            print(shown, flush=True)
        return code

    def say_where(self, **about: str) -> None:
        """Name the page in Airflow's UI that shows the same, where `airflow zkmq` knows its address."""
        if (page := os.environ.get("ZKMQ_PAGE")) and not self.json:
            warn(f"see {page}&{urlencode(about)}")

    def close(self) -> None:
        """Close what was opened for the verb."""


def warn(text: str) -> None:
    """Print one line on standard error."""
    print(f"zkmq: {wording.one_line(text)}", file=sys.stderr, flush=True)
