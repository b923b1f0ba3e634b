"""What a release consists of, built so that everybody gets the same bytes: ``make dist``.

The sdist and the wheel are built from the last commit, whatever else lies in the working tree, and twice: once the
wheel from the sdist, as pip does it, and once both from the commit's files. Their dates are that of the commit, or
``SOURCE_DATE_EPOCH``. Another hatchling or zlib may make other bytes of the same contents. The folder ``dist`` gets
them, an SBOM (CycloneDX) of what the wheel holds and brings, and ``SHA256SUMS`` of all three.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

TOP: Final = Path(__file__).parents[1]
NAME: Final = "airflow-provider-zkmq"
#: A line of the licences of what the page's bundle holds: package, version, licence.
_BUNDLED: Final = re.compile(r"^(\S+) (\d\S*) \(([\w.-]+)\)$", re.MULTILINE)


def epoch() -> str:
    """The dates of what is built: seconds since 1970."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return given or _ran("git", "log", "-1", "--format=%ct", folder=TOP).strip()


def committed(source: Path, into: Path) -> Path:
    """Write the files of a repository's last commit into a new folder, which is returned.

    Raises `CalledProcessError`.
    """
    into.mkdir()
    packed = subprocess.run(["git", "archive", "HEAD"], cwd=source, check=True, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x"], cwd=into, check=True, input=packed.stdout)
    return into


def build(source: Path, into: Path, *targets: str) -> list[Path]:
    """Build by the hatchling of this environment; without ``targets`` the sdist, and the wheel from it.

    Raises `CalledProcessError`.
    """
    into.mkdir(parents=True, exist_ok=True)
    command = (sys.executable, "-m", "build", "--no-isolation", "--outdir", str(into), *targets, str(source))
    _ran(*command, folder=source, SOURCE_DATE_EPOCH=epoch())
    return sorted(into.iterdir())


def digests(files: list[Path]) -> dict[str, str]:
    """The SHA-256 of each file, by its name."""
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def bill_of_materials(version: str, python: Path, source: Path) -> dict[str, Any]:
    """The SBOM of this version: of an environment in which the wheel alone was installed, and of the page's bundle.

    It names the releases that pip chose for that environment, and says neither when nor where it was made. Raises
    `CalledProcessError`.
    """
    made = _ran(
        *(sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--mc-type", "library"),
        *("--pyproject", str(source / "pyproject.toml"), str(python)),
        SOURCE_DATE_EPOCH=epoch(),
    )
    bill = json.loads(made)
    bill["metadata"]["component"] |= {"version": version, "purl": f"pkg:pypi/{NAME}@{version}"}
    licences = (source / "airflow_provider_zkmq/plugins/static/LICENSES.txt").read_text()
    for name, release, licence in _BUNDLED.findall(licences):
        purl = f"pkg:npm/{name.replace('@', '%40')}@{release}"
        license_ = {"license": {"id": licence}}
        bundled = {"type": "library", "bom-ref": purl, "name": name, "version": release, "purl": purl}
        bill["components"].append(bundled | {"licenses": [license_]})
        bill["dependencies"].append({"ref": purl})
        _main(bill)["dependsOn"].append(purl)
    return bill


def _main(bill: dict[str, Any]) -> dict[str, Any]:
    """What the package itself depends on."""
    ours = bill["metadata"]["component"]["bom-ref"]
    return next(each for each in bill["dependencies"] if each["ref"] == ours)


def installed(wheel: Path, home: Path) -> Path:
    """The Python of a new environment in which that wheel is installed with what it needs, and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    made = home / "bin" / "python"
    _ran(sys.executable, "-m", "pip", "--python", str(made), "install", "--quiet", str(wheel))
    return made


def main() -> int:
    """Fill `dist`; 1 where the two builds differ, or there is no commit to build."""
    if not (TOP / ".git").exists():
        sys.stderr.write("a release is built from a commit: this folder is no repository\n")
        return 1
    dist = TOP / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    if _ran("git", "status", "--porcelain", folder=TOP):
        sys.stderr.write("what is not committed is left out\n")
    with tempfile.TemporaryDirectory() as folder:
        source = committed(TOP, Path(folder) / "source")
        first = digests(build(source, dist))
        second = digests(build(source, Path(folder) / "again", "--sdist", "--wheel"))
        if first != second:
            sys.stderr.write(f"the builds differ: {first} and {second}\n")
            return 1
        (wheel,) = dist.glob("*.whl")
        name, version = wheel.name.split("-")[:2]
        bill = bill_of_materials(version, installed(wheel, Path(folder) / "environment"), source)
    (dist / f"{name}-{version}.cdx.json").write_text(json.dumps(bill, indent=2) + "\n")
    _ran(sys.executable, "-m", "twine", "check", "--strict", *map(str, [wheel, *dist.glob("*.tar.gz")]))
    sums = "".join(f"{digest}  {name}\n" for name, digest in digests(sorted(dist.iterdir())).items())
    (dist / "SHA256SUMS").write_text(sums)
    sys.stdout.write(sums)
    return 0


def _ran(*command: str, folder: Path | None = None, **variables: str) -> str:
    return subprocess.run(
        command, cwd=folder, env=os.environ | variables, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


if __name__ == "__main__":
    sys.exit(main())
