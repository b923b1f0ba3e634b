"""Hooks of the site of the documentation (`.mkdocs.yml`): links out of `docs`, and folders in the nav."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.house.package import TOP

DOCS = TOP / "docs"
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s]+)(?=\))")


def title(page: Path) -> str:
    """The first heading of a page."""
    found = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise ValueError(f"{page} has no title")
    return found[1]


def unfolded(nav: list[Any]) -> list[Any]:
    """The nav, each name of a folder in it replaced by that folder's pages, by their titles."""
    whole: list[Any] = []
    for item in nav:
        if isinstance(item, dict):
            whole.append({name: unfolded(part) if isinstance(part, list) else part for name, part in item.items()})
        elif item.endswith("/"):
            pages = sorted((DOCS / item).glob("*.md"), key=lambda page: (page.name != "index.md", title(page)))
            whole += [str(page.relative_to(DOCS)) for page in pages]
        else:
            whole.append(item)
    return whole


def on_config(config: Any) -> Any:
    """Put the pages of folders into the nav."""
    config.nav = unfolded(config.nav)
    return config


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Have links to files outside of `docs`, and to folders, lead to the repository."""
    home = (DOCS / page.file.src_uri).parent

    def led(link: re.Match[str]) -> str:
        path, mark, anchor = link[1].partition("#")
        target = (home / path).resolve()
        if (
            (target.is_relative_to(DOCS) and not target.is_dir())
            or not target.is_relative_to(TOP)
            or not target.exists()
        ):
            return link[1]
        kind = "tree" if target.is_dir() else "blob"
        return f"{config.repo_url.rstrip('/')}/{kind}/main/{target.relative_to(TOP)}{mark}{anchor}"

    return LINK.sub(led, markdown)
