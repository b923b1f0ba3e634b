"""The site of the documentation: built without a warning, whole, and searched from files in Debian's chromium."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mkdocstrings import Inventory
from playwright.sync_api import Browser, Page, expect, sync_playwright

from airflow_provider_zkmq import engine
from tests.promises import TOP

CHROMIUM = shutil.which("chromium")
#: Generous: the machine may be busy with other tests.
SOON = 60_000
pytestmark = [pytest.mark.full, pytest.mark.xdist_group("site")]
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not here: apt-get install chromium")
#: What is looked for, and a page that must be among the first five found.
#: What somebody looks for, and the page that has the answer: it is among the first five found.
SEARCHED = {
    "retry only ConnectionErrors": "how-to/retries.html",
    "hold a task until Monday": "how-to/delays.html",
    "which error killed most tasks yesterday": "how-to/dead-letters.html",
    "rate limit": "how-to/limits.html",
    "cron": "how-to/delays.html",
    "exactly once": "how-to/idempotency.html",
    "fan-in": "how-to/fan-out.html",
    "GPU": "how-to/filters.html",
    "visibility timeout": "how-to/long-tasks.html",
    "restore from a snapshot": "runbook.html",
    "redrive": "how-to/dead-letters.html",
    "Kubernetes": "how-to/workers-without-airflow.html",
    "OutcomeUnknown": "reference/errors.html",
    "ZkmqTaskSensor": "reference/airflow.html",
    "certificate": "how-to/secured-zookeeper.html",
}


def build(folder: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a checkout, as `make docs` does."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", ".mkdocs.yml"]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(folder)}
    return subprocess.run(
        [*command, "--site-dir", str(target)], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built."""
    target = tmp_path_factory.mktemp("site") / "site"
    done = build(TOP, target)
    said = done.stdout + done.stderr
    assert (done.returncode, "WARNING" in said) == (0, False), said
    return target


@pytest.fixture
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def visit(browser: Browser, file: Path, scheme: str) -> tuple[Page, list[str]]:
    """A page opened as a file, in a tab that is light or dark, and all that goes wrong or asks another server."""
    page = browser.new_context(color_scheme=scheme).new_page()
    page.set_default_timeout(SOON)
    wrong: list[str] = []
    page.on(
        "request", lambda each: None if each.url.startswith(("file:", "data:", "blob:")) else wrong.append(each.url)
    )
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(file.as_uri())
    return page, wrong


def test_every_public_name_of_the_engine_has_its_place(site: Path) -> None:
    """By the inventory of the site: what stands in the lazy package's stub is resolved to where it is defined."""
    with (site / "objects.inv").open("rb") as file:
        known = Inventory.parse_sphinx(file)
    names = {f"airflow_provider_zkmq.engine.{name}" for name in engine.__all__}
    assert not names - known.keys()
    assert "airflow_provider_zkmq.engine.Queue.enqueue" in known


def test_a_page_that_nobody_finds_and_a_link_that_leads_nowhere_fail_the_build(tmp_path: Path) -> None:
    """So do an anchor that is not there and a name of the reference that is none: each is named."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in (".mkdocs.yml", "docs", "tests", "airflow_provider_zkmq", "README.md", "CHANGELOG.md"):
        path = TOP / name
        kept = shutil.ignore_patterns("node_modules", "__pycache__")
        shutil.copytree(path, checkout / name, ignore=kept) if path.is_dir() else shutil.copy(path, checkout)
    (checkout / "docs" / "lost.md").write_text("# Lost\n")
    with (checkout / "docs" / "quickstart.md").open("a") as page:
        page.write("\n[nowhere](nothing.md), [no place](guide.md#nothing-of-the-kind)\n")
    with (checkout / "docs" / "scale.md").open("a") as page:
        page.write("\n::: airflow_provider_zkmq.engine.NoSuchName\n")
    done = build(checkout, tmp_path / "site")
    assert done.returncode != 0
    first = done.stdout + done.stderr
    assert "NoSuchName" in first
    (checkout / "docs" / "scale.md").write_text("# Scale\n")
    said = (done := build(checkout, tmp_path / "site")).stdout + done.stderr
    assert done.returncode != 0
    assert ("lost.md" in said, "nothing.md" in said, "#nothing-of-the-kind" in said) == (True, True, True)


def test_a_name_leads_to_its_place_in_the_reference_and_a_file_to_the_repository(site: Path) -> None:
    """From whichever page; a link to another page has that page's title."""
    lost, architecture = ((site / name).read_text() for name in ("how-to/lost-connections.html", "architecture.html"))
    assert 'href="../reference/errors.html#airflow_provider_zkmq.engine.OutcomeUnknown"' in lost
    assert ">Inside the engine</a>" in architecture
    assert "/blob/main/CHANGELOG.md" in (site / "contributing.html").read_text()
    assert not [path for path in site.rglob("*.html") if "<autoref" in path.read_text()]


@needs_chromium
def test_search_works_from_files_and_asks_nobody(site: Path, chromium: Browser, subtests: pytest.Subtests) -> None:
    """What is looked for is found without a server, and no page asks another one for anything."""
    for words, wanted in SEARCHED.items():
        with subtests.test(words=words):
            page, wrong = visit(chromium, site / "index.html", "light")
            page.get_by_role("textbox", name="Search").fill(words)
            results = page.locator(".md-search-result__item > a")
            expect(results.first).to_be_visible(timeout=SOON)
            found = [each.get_attribute("href") or "" for each in results.all()[:5]]
            assert any(wanted in link for link in found), found
            assert wrong == []


@needs_chromium
def test_the_start_page_leads_on_and_follows_the_reader_s_light(site: Path, chromium: Browser) -> None:
    """Light or dark as the system says; each link of the page leads to a file that is there; pictures are shown."""
    grounds = {}
    for scheme in ("light", "dark"):
        page, wrong = visit(chromium, site / "index.html", scheme)
        grounds[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        links = page.locator("article a[href]").evaluate_all("each => each.map(it => it.href)")
        assert len(links) > 30
        assert all(Path(link.removeprefix("file://").partition("#")[0]).exists() for link in links)
        assert page.locator("article img").evaluate_all("each => each.every(it => it.naturalWidth > 0)")
        assert wrong == []
    assert grounds["light"] == "rgb(255, 255, 255)" != grounds["dark"]
