"""The options of the section ``[zkmq]`` of Airflow's configuration, as the code reads them."""

from __future__ import annotations

from typing import Final

from airflow.sdk import conf

#: By name, with what holds where nobody sets one: the same as in the provider's metadata.
DEFAULTS: Final = {"archive_directory": "", "dead_letters_shown": "5", "stats": "True"}
_SECTION: Final = "zkmq"


def setting(name: str) -> str:
    """Return an option, or its default. Raises KeyError for one that there is not."""
    return str(conf.get(_SECTION, name, fallback=DEFAULTS[name]))


def switched_on(name: str) -> bool:
    """Return an option that is yes or no. Raises KeyError for one that there is not."""
    return bool(conf.getboolean(_SECTION, name, fallback=DEFAULTS[name] == "True"))
