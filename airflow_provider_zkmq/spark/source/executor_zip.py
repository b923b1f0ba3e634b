"""What executors need that have nothing of this installed: one zip for ``spark.submit.pyFiles``."""

from __future__ import annotations

import importlib
import os
import zipfile
from pathlib import Path

from ... import __version__
from .errors import SourceError


def py_files(folder: str | os.PathLike[str]) -> str:
    """Write a zip with this package and kazoo into `folder`, for ``spark.submit.pyFiles``; returns its path.

    Executors need besides what PySpark's own data sources need: pyarrow. Nothing of the zip imports pendulum, which is
    no pure Python, unless it is asked for; Airflow has to be there only where the option ``connId`` is used.
    Raises `SourceError` where a package is not installed as files, and for an address instead of a folder.
    """
    if "://" in str(folder):
        raise SourceError(f"the code for executors goes into a folder, not to {folder}")
    target = Path(folder).absolute() / f"zkmq-{__version__}.zip"
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in ("airflow_provider_zkmq", "kazoo"):
            where = importlib.import_module(package).__file__
            home = None if where is None else Path(where).parent
            if home is None or not home.is_dir():
                raise SourceError(f"{package} is at {where}, not in a folder: it cannot be put into a zip")
            for path in sorted(home.rglob("*")):
                if path.is_file() and {"__pycache__", "tests"}.isdisjoint(path.relative_to(home).parts):
                    archive.write(path, Path(package, path.relative_to(home)))
    temporary.replace(target)
    return str(target)
