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


def environment_options(pick: Callable[[str], Any], read: Callable[[Path], bytes]) -> dict[str, Any]:
    """The arguments of `Zkmq.connect` by the environment, but for what `pick` says. They hold a password."""
    given = {name: pick(name) for name in ("hosts", "root", "auth")}
    hosts = (os.environ.get("ZKMQ_HOSTS") or DEFAULT_HOSTS) if given["hosts"] is None else given["hosts"]
    # What the environment says of servers is not about queue files.
    ambient = {} if hosts.startswith(FILES) else os.environ
    options: dict[str, Any] = {
        "hosts": hosts,
        "root": ambient.get("ZKMQ_ROOT") or DEFAULT_ROOT,
        "auth": ambient.get("ZKMQ_AUTH") or None,
    }
    options |= {name: value for name, value in given.items() if value is not None}
    files = {name: pick(f"tls_{name}") or os.environ.get(f"ZKMQ_TLS_{name.upper()}") for name in TLS_FILES}
    tls = {name: path for name, path in files.items() if path}
    variable, file = pick("tls_key_password_env"), pick("tls_key_password_file")
    if variable is None and file is None:
        file = os.environ.get(f"{KEY_PASSWORD}_FILE") or None
    if file is None:
        password = os.environ.get(variable or KEY_PASSWORD)
    else:
        password = next(iter(read(Path(file)).decode(errors="replace").splitlines()), None)
    if tls and password:
        tls["key_password"] = password
    flags = {
        name: pick(name) or os.environ.get(f"ZKMQ_{name.upper()}", "").lower() in _TRUE
        for name in ("tls", "allow_open")
    }
    return options | {"tls": tls or bool(flags["tls"]) or None, "allow_open": bool(flags["allow_open"]) or None}
