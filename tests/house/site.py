"""Hooks of the site (`.mkdocs.yml`): links to the repository and to the reference, and folders in the nav."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from tests.house.package import TOP

DOCS = TOP / "docs"
LINK = re.compile(r"\[(?P<text>[^]]*)\]\((?![a-z]+:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
#: A name in code, such as `ClaimLost` or `Queue.claim`, and what is left as it is: links, headings, blocks of code.
NAMED = re.compile(r"<(a|h[1-6]|pre|autoref)\b.*?</\1>|<code>(?P<name>[A-Z]\w+)(?P<member>\.\w+)?</code>", re.DOTALL)
#: How much more than others search likes the pages of a part of the nav: what people ask for is mostly how to do it.
BOOST = {"Start": 2.0, "Tutorials": 1.5, "How-to": 1.5, "Reference": 1.0, "Explanation": 0.5}


def title(page: Path) -> str:
    """The first heading of a page."""
    found = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise ValueError(f"{page} has no title")
    return found[1]


def short(heading: str) -> str:
    """A title as the nav shows it: what comes before a colon or a parenthesis, of a tutorial what comes after."""
    words = heading.removeprefix("Tutorial: ")
    return re.split(r": | \(", words[0].upper() + words[1:])[0]


def unfolded(nav: list[Any]) -> list[Any]:
    """The nav, each name of a folder in it replaced by that folder's pages, by their titles."""
    whole: list[Any] = []
    for item in nav:
        if isinstance(item, dict):
            whole.append({name: unfolded(part) if isinstance(part, list) else part for name, part in item.items()})
        elif item.endswith("/"):
            pages = sorted((DOCS / item).glob("*.md"), key=lambda page: (page.name != "index.md", title(page)))
            whole += [{short(title(page)): str(page.relative_to(DOCS))} for page in pages]
        else:
            whole.append(item)
    return whole


@cache
def described() -> dict[str, str]:
    """The classes of the reference by their short names, each with its whole name; of two the engine's comes first."""
    pages = sorted((DOCS / "reference").glob("*.md"))
    names = [name for page in pages for name in re.findall(r"(?m)^::: ([\w.]+)$", page.read_text(encoding="utf-8"))]
    first = sorted(names, key=lambda name: ".engine." not in name)
    return {name.rpartition(".")[2]: name for name in reversed(first)}


def on_config(config: Any) -> Any:
    """Put the pages of folders into the nav, and the repository's address where nobody asks GitHub about it."""
    config.nav = unfolded(config.nav)
    config.extra["repository"] = config.repo_url.rstrip("/")
    config.repo_url = config.edit_uri = None
    config.extra["social"] = [{"icon": "material/source-repository", "link": config.extra["repository"]}]
    return config


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Have links to files outside of `docs`, and to folders, lead to the repository; name pages by their titles."""
    home = (DOCS / page.file.src_uri).parent
    part = page.ancestors[-1].title if page.ancestors else page.title
    page.meta.setdefault("search", {})["boost"] = BOOST.get(part, 1.0)

    def led(link: re.Match[str]) -> str:
        target = (home / link["path"]).resolve()
        known, inside = target.is_relative_to(TOP) and target.exists(), target.is_relative_to(DOCS)
        if known and (target.is_dir() or not inside):
            kind = "tree" if target.is_dir() else "blob"
            address = f"{config.extra['repository']}/{kind}/main/{target.relative_to(TOP)}{link['anchor'] or ''}"
            return f"[{link['text']}]({address})"
        if known and link["text"].endswith(".md"):  # the file's name, where pages are read in the repository
            return link[0].replace(f"[{link['text']}]", f"[{title(target)}]", 1)
        return link[0]

    return LINK.sub(led, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Have each name of a class or an error lead to its place in the reference."""

    def led(found: re.Match[str]) -> str:
        name = described().get(found["name"] or "")
        if name is None:
            return found[0]
        return f'<autoref identifier="{name}{found["member"] or ""}" optional>{found[0]}</autoref>'

    return NAMED.sub(led, html)
