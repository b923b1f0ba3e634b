"""The Airflow that operators, sensors and triggers need. Importing this raises `ImportError` for another, or none."""

from __future__ import annotations

import re
from typing import Final

OLDEST: Final = "3.3.1"
_REMEDY: Final = f"needs Airflow {OLDEST} or newer: pip install 'airflow-provider-zkmq[airflow]'"


def check(release: str) -> None:
    """Raise `ImportError` for a release of Airflow that is too old."""
    numbers, oldest = (tuple(map(int, re.findall(r"\d+", text)[:3])) for text in (release, OLDEST))
    if numbers < oldest:
        raise ImportError(f"airflow-provider-zkmq {_REMEDY}; this is {release}")


try:
    from airflow import __version__
except ModuleNotFoundError as error:
    if error.name != "airflow":
        raise
    raise ImportError(f"airflow-provider-zkmq {_REMEDY}; there is none") from error
check(__version__)
