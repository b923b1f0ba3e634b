"""The tests of the Airflow classes by several Pythons and releases of Airflow: ``make test-matrix``.

Each pair has a virtual environment of its own under ``.venv-matrix``, which is kept for the next time. A Python that is
not on this machine (``python3.13`` on the path, or one of pyenv's) is told of and left out; ``newest`` is the newest
release of Airflow that the package allows and the index has. Spark is installed for the jars of ZooKeeper alone.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

TOP: Final = Path(__file__).parents[1]
HOME: Final = TOP / ".venv-matrix"
NEWEST: Final = "newest"
TOOLS: Final = ("pytest>=9,<9.2", "pytest-asyncio>=1", "pytest-timeout>=2.3", "hypothesis>=6", "psutil")


def interpreter(version: str) -> str | None:
    """Where a Python of this version is; None where there is none. A shim that cannot start one is none."""
    folder = Path.home() / ".pyenv" / "versions"
    candidates = [shutil.which(f"python{version}"), *map(str, sorted(folder.glob(f"{version}.*/bin/python")))]
    return next((path for path in candidates if path is not None and _starts(path)), None)


def _starts(path: str) -> bool:
    return subprocess.run([path, "-c", "import venv"], capture_output=True, check=False).returncode == 0


def environment(version: str, python: str, airflow: str) -> Path:
    """Make the environment, or find it; returns its Python. Raises `CalledProcessError`."""
    home = HOME / f"python{version}-airflow{airflow}"
    made = home / "bin" / "python"
    ready = home / ".ready"
    if not ready.exists():
        subprocess.run([python, "-m", "venv", "--clear", str(home)], check=True)
        wanted = "apache-airflow" if airflow == NEWEST else f"apache-airflow=={airflow}"
        install = [str(made), "-m", "pip", "install", "--quiet", "--editable", ".[messaging,spark]", wanted, *TOOLS]
        subprocess.run(install, cwd=TOP, check=True)
        ready.touch()
    return made


def passes(python: Path, tests: Sequence[str]) -> bool:
    """Run tests by a Python; whether all passed."""
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", "-q", *tests]
    return subprocess.run(command, cwd=TOP, check=False).returncode == 0


def told_versions(python: Path) -> str:
    """What the environment has, as it is told."""
    code = (
        "import sys, importlib.metadata as m; print(sys.version.split()[0], 'and Airflow', m.version('apache-airflow'))"
    )
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    """Try each pair; 1 where a test failed, or nothing was tried."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pythons", nargs="+", default=["3.11", "3.13"], metavar="VERSION")
    parser.add_argument("--airflows", nargs="+", default=["3.3.1", NEWEST], metavar="VERSION")
    parser.add_argument("tests", nargs="*", default=["tests/airflow"], metavar="TEST")
    arguments = parser.parse_args()
    lines: list[str] = []
    good: list[bool] = []
    for version in arguments.pythons:
        python = interpreter(version)
        if python is None:
            lines.append(f"Python {version}: not on this machine, left out")
            continue
        for airflow in arguments.airflows:
            made = environment(version, python, airflow)
            good.append(passes(made, arguments.tests))
            lines.append(f"Python {told_versions(made)}: {'passed' if good[-1] else 'FAILED'}")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0 if good and all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
