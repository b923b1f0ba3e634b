"""The page of queues: what is committed is what its sources build, and these pass their own checks."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.house.package import PACKAGE, TOP

PAGE = TOP / PACKAGE / "plugins" / "page"
STATIC = PAGE.parent / "static"
NPM = shutil.which("npm")


def test_the_lock_file_names_no_place_of_download() -> None:
    """Whoever installs takes the packages from where his own npm is set to, and knows them by their sums."""
    locked = (PAGE / "package-lock.json").read_text(encoding="utf-8")
    assert not re.search(r'"resolved"|https?://(?!opencollective|github|tidelift|www\.patreon|feross)', locked)
    assert locked.count('"integrity"') > 5


def test_the_page_is_small_and_loads_nothing_from_elsewhere() -> None:
    """Its script and style sheet have 250 kB at the most; no address but the SVG namespace stands in them."""
    built = {path.name: path.read_text(encoding="utf-8") for path in STATIC.iterdir()}
    assert sum(len(built[name].encode()) for name in ("app.js", "app.css")) <= 250_000
    assert set(re.findall(r"https?://[\w./-]+", built["app.js"] + built["app.css"])) <= {
        "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml", "http://www.w3.org/1998/Math/MathML",
    }  # fmt: skip
    assert "<script>" not in built["index.html"]
    assert "style=" not in built["index.html"]


@pytest.mark.full
@pytest.mark.skipif(NPM is None, reason="npm is not here: what is committed cannot be built anew")
def test_the_sources_pass_their_checks_and_build_what_is_committed(tmp_path: Path) -> None:
    """Types, lint and format; and the same bytes."""
    copy = tmp_path / "plugins" / "page"
    shutil.copytree(PAGE, copy, ignore=shutil.ignore_patterns("node_modules"))
    (copy.parent / "static").mkdir()
    for command in ("ci --no-audit --no-fund", "run check", "run build"):
        done = subprocess.run(
            [NPM or "npm", *command.split()], cwd=copy, capture_output=True, text=True, timeout=500, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    made = {path.name: path.read_bytes() for path in (copy.parent / "static").iterdir()}
    assert made == {path.name: path.read_bytes() for path in STATIC.iterdir()}
