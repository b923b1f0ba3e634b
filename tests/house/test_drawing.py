"""What the pages say of the house is so: the drawing is of the folders as they are, and what is named exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.house.drawing import PAGE, drawn
from tests.house.package import PACKAGE, TOP

#: What paths on the pages are relative to.
BASES = (TOP, TOP / PACKAGE / "engine", TOP / PACKAGE, TOP / "tests", TOP / "docs")
PAGES = sorted([*TOP.glob("*.md"), *(TOP / "docs").rglob("*.md")])
#: What a page on one folder may leave out.
HOMES = {"simulator.md": TOP / "tests" / "simulation"}
#: Their words are those of their time, and of the reader's own files.
FREE = {"CHANGELOG.md", "quickstart.md", "guide.md", "textqueue.md"}


def named(page: Path) -> set[str]:
    """The modules and folders of ours that a page names: `folder/module.py`, `folder/module`, `module.py`."""
    spans = re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:\.py|/)?)`", re.sub(r"(?ms)^```.*?^```$", "", page.read_text()))
    return {span for span in spans if "/" in span or span.endswith(".py")}


def exists(name: str, page: Path) -> bool:
    """Whether there is such a file or folder; of tests the name is enough."""
    bases = (*BASES, HOMES.get(page.name, TOP), *((TOP / "tests").glob("*/") if name.startswith("test_") else ()))
    return any((base / name).exists() or (base / f"{name}.py").exists() for base in bases)


def test_the_drawing_is_of_the_house_as_it_is() -> None:
    """`python -m tests.house.drawing --write` mends it."""
    assert PAGE.read_text() == drawn()


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in FREE], ids=lambda page: page.name)
def test_modules_named_on_a_page_exist(page: Path) -> None:
    """A page that sends its reader somewhere sends them to something that is there."""
    missing = sorted(name for name in named(page) if not exists(name, page))
    assert not missing, f"{page.name} names what is not there: {', '.join(missing)}"
