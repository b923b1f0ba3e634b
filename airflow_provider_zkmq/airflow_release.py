"""The oldest Airflow that operators, sensors, triggers and notifiers work with.

Importing this raises `ImportError` where Airflow is older, or missing.
"""

from __future__ import annotations

from typing import Final

OLDEST: Final = "3.3.1"
_REMEDY: Final = f"needs Airflow {OLDEST} or newer: pip install 'airflow-provider-zkmq[airflow]'"


def check(release: str) -> None:
    """Raise `ImportError` for a release of Airflow that is too old."""
    from packaging.version import Version  # comes with Airflow

    if Version(release) < Version(OLDEST):
        raise ImportError(f"airflow-provider-zkmq {_REMEDY}; this is {release}")


try:
    from airflow import __version__
except ImportError as error:  # of a mere folder of this name, too, which Airflow's home often is
    if error.name != "airflow":
        raise
    raise ImportError(f"airflow-provider-zkmq {_REMEDY}; there is none") from error
check(__version__)
