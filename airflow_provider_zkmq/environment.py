"""What the environment says of a connection to ZooKeeper: the variables ``ZKMQ_*``, for whoever is not told otherwise.

Passwords stand there, or in a file that is named there, and not where others could see them. Nothing but the standard
library is imported here: the command line reads this before it knows what it is to do.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

#: Hosts that begin so are a folder of queue files on this machine; see `airflow_provider_zkmq.filequeue`.
FILES: Final = "textqueue://"
DEFAULT_HOSTS: Final = "127.0.0.1:2181"
DEFAULT_ROOT: Final = "/zkmq"
#: The files of TLS; each may be named by a variable ``ZKMQ_TLS_<NAME>``.
TLS_FILES: Final = ("ca", "cert", "key")
KEY_PASSWORD: Final = "ZKMQ_TLS_KEY_PASSWORD"  # noqa: S105  a variable's name
_TRUE: Final = frozenset({"1", "true", "yes", "on"})


def _not_given(_name: str) -> None:
    return None


def environment_options(
    pick: Callable[[str], Any] = _not_given, read: Callable[[Path], bytes] = Path.read_bytes
) -> dict[str, Any]:
    """The arguments of `Zkmq.connect` that the environment has, but for what `pick` says by the argument's name.

    What the environment says of servers is not about queue files. It holds a password: never to be shown.
    """
    hosts = _first(pick("hosts"), os.environ.get("ZKMQ_HOSTS") or DEFAULT_HOSTS)
    ambient = {} if hosts.startswith(FILES) else os.environ
    root = _first(pick("root"), ambient.get("ZKMQ_ROOT") or DEFAULT_ROOT)
    auth = _first(pick("auth"), ambient.get("ZKMQ_AUTH") or None)
    return {"hosts": hosts, "root": root, "auth": auth, **_tls_options(pick, read)}


def _first(chosen: Any, default: Any) -> Any:
    return default if chosen is None else chosen


def _tls_options(pick: Callable[[str], Any], read: Callable[[Path], bytes]) -> dict[str, Any]:
    """The options ``tls`` and ``allow_open`` of a connection.

    `pick`: the value that somebody gave, or None; what is not given comes from the environment.
    """
    files = {name: pick(f"tls_{name}") or os.environ.get(f"ZKMQ_TLS_{name.upper()}") or None for name in TLS_FILES}
    tls = {name: path for name, path in files.items() if path is not None}
    password = _password(pick, read)
    if tls and password:
        tls["key_password"] = password
    return {"tls": tls or (_flag(pick, "tls") or None), "allow_open": _flag(pick, "allow_open") or None}


def _flag(pick: Callable[[str], Any], name: str) -> bool:
    return bool(pick(name) or os.environ.get(f"ZKMQ_{name.upper()}", "").lower() in _TRUE)


def _password(pick: Callable[[str], Any], read: Callable[[Path], bytes]) -> str | None:
    variable, file = pick("tls_key_password_env"), pick("tls_key_password_file")
    if variable is None and file is None:
        file = os.environ.get(f"{KEY_PASSWORD}_FILE") or None
    if file is not None:
        return next(iter(read(Path(file)).decode(errors="replace").splitlines()), None)
    return os.environ.get(variable or KEY_PASSWORD) or None
