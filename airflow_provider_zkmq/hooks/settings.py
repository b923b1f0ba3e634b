"""The options of the section ``[zkmq]`` of Airflow's configuration, as the code reads them."""

from __future__ import annotations

import functools
import logging
from typing import Final

from airflow.sdk import conf

from ..engine import ConfigError

#: By name, with what holds where nobody sets one: the same as in the provider's metadata.
DEFAULTS: Final = {"archive_directory": "", "dead_letters_shown": "5", "stats": "True"}
_SECTION: Final = "zkmq"
_LOG: Final = logging.getLogger(__name__)


def setting(name: str) -> str:
    """Return an option, or its default. Raises KeyError for one that there is not."""
    return str(conf.get(_SECTION, name, fallback=DEFAULTS[name]))


def how_many(name: str, named: object = None) -> int:
    """Return what was given, or an option that says how many. Raises `ConfigError` for what is no number of things."""
    value = setting(name) if named is None else named
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    where = f"[{_SECTION}] {name}" if named is None else name
    raise ConfigError(f"{where} = {value!r} is not allowed: a whole number, 0 or more")


def switched_on(name: str) -> bool:
    """Return an option that is yes or no; of what is neither a warning is logged, and the default holds."""
    default = DEFAULTS[name] == "True"
    try:
        return bool(conf.getboolean(_SECTION, name, fallback=default))
    except Exception as error:  # noqa: BLE001  Airflow's own, which has no public name
        _warn(name, default, str(error))
        return default


@functools.cache
def _warn(name: str, default: bool, why: str) -> None:
    """Log it once in a process."""
    _LOG.warning("[%s] %s is taken for %s: %s", _SECTION, name, default, why)
