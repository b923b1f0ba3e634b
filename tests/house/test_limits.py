"""The limits of the code hold, without exceptions: of imports and of private members.

Complexity and long lines are ruff's; the direction of imports is import-linter's, whose contracts stand in
`pyproject.toml`.
"""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

from tests.house.package import PACKAGE, TOP, circles, modules


def test_nobody_reaches_into_another_s_private_members() -> None:
    """Neither by an exception on a line, nor by one for a folder: what is needed from outside is public."""
    offenders = {module.path for module in modules() if re.search(r"noqa:[^#\n]*\bSLF001\b", module.text)}
    assert not offenders, "SLF001 is switched off"
    lint = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    exempt = [folder for folder, rules in lint["per-file-ignores"].items() if "SLF001" in rules]
    assert exempt == ["tests/**"]
    assert "SLF001" not in lint["ignore"]


def test_no_modules_import_each_other() -> None:
    """No circle, be it through imports inside functions or for type checkers: each module can be read before others."""
    short = [sorted(name.removeprefix(f"{PACKAGE}.") for name in circle) for circle in circles()]
    assert not short, "these import each other:\n" + "\n".join(" ".join(circle) for circle in short)


def test_imports_go_down(capsys: pytest.CaptureFixture[str]) -> None:
    """Every contract of import-linter holds: the layers of the engine and of its core, and who may import what."""
    loggers = [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    enabled = [each for each in loggers if not each.disabled]
    status = lint_imports(config_filename=str(TOP / "pyproject.toml"), no_cache=True)
    for logger in enabled:  # it configures logging for itself, which silences everybody else's loggers
        logger.disabled = False
    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out


def test_the_wheel_has_the_whole_package_and_the_examples(tmp_path: Path) -> None:
    """Also what is no Python, such as a template or the built page; neither the page's sources nor tests."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=TOP, check=True, capture_output=True)
    (wheel,) = tmp_path.iterdir()
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    page = TOP / PACKAGE / "plugins" / "page"
    own = {
        str(path.relative_to(TOP))
        for path in (TOP / PACKAGE).rglob("*")
        if path.is_file() and path.suffix != ".pyc" and page not in path.parents
    }
    assert f"{PACKAGE}/plugins/static/app.js" in own
    examples = {f"{PACKAGE}/{path.relative_to(TOP)}" for path in (TOP / "example_dags").glob("*.py")}
    assert f"{PACKAGE}/spark/reporting/report.html.jinja" in own
    assert held - {f"{PACKAGE}/example_dags/.airflowignore"} == own | examples
