"""The figures on a page: what stands between two marks is replaced, the rest is its author's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from airflow_provider_zkmq.engine import ConfigError

MARKS: Final = ("<!-- bench: begin -->", "<!-- bench: end -->")


def check_page(page: Path) -> None:
    """Raise `ConfigError` unless the page is there and has both marks, once and in order."""
    if not page.is_file():
        raise ConfigError(f"{page} is no file: make it first, with {' and '.join(MARKS)}, each on a line of its own")
    found = re.findall("|".join(map(re.escape, MARKS)), page.read_text(encoding="utf-8"))
    if found != list(MARKS):
        raise ConfigError(f"{page} must have {' and '.join(MARKS)}, once and in this order")


def write_page(page: Path, text: str) -> None:
    """Put the text between the marks. Raises `ConfigError` for a page without them."""
    check_page(page)
    before, rest = page.read_text(encoding="utf-8").split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    page.write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}", encoding="utf-8")
