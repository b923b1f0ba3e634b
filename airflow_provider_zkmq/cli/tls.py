"""TLS and what goes with it on the command line: no password stands there, where others could see it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_FILES: Final = {
    "ca": "PEM file of those who sign the servers' certificates; nobody else is trusted",
    "cert": "PEM file of your certificate, which is then your identity",
    "key": "PEM file of its private key",
}
_PASSWORD: Final = "ZKMQ_TLS_KEY_PASSWORD"  # noqa: S105  a variable's name
_TRUE: Final = frozenset({"1", "true", "yes", "on"})


def add_tls(parser: argparse.ArgumentParser, prefix: str) -> None:
    """Add the options of TLS; their values are kept under names that begin with `prefix`."""
    group = parser.add_argument_group("TLS and access (before or after the verb)")
    group.add_argument(
        "--tls",
        dest=f"{prefix}tls",
        action="store_true",
        default=None,
        help="speak TLS (env ZKMQ_TLS=1); the files below imply it",
    )
    for name, text in _FILES.items():
        variable = f"ZKMQ_TLS_{name.upper()}"
        group.add_argument(f"--tls-{name}", dest=f"{prefix}tls_{name}", metavar="FILE", help=f"{text} (env {variable})")
    group.add_argument(
        "--tls-key-password-env",
        dest=f"{prefix}tls_key_password_env",
        metavar="NAME",
        help=f"the variable that holds the key's password (else {_PASSWORD})",
    )
    group.add_argument(
        "--tls-key-password-file",
        dest=f"{prefix}tls_key_password_file",
        metavar="FILE",
        help=f"the file whose first line is the key's password (env {_PASSWORD}_FILE)",
    )
    group.add_argument(
        "--allow-open",
        dest=f"{prefix}allow_open",
        action="store_true",
        default=None,
        help="with credentials: use znodes, too, that anyone may use (env ZKMQ_ALLOW_OPEN=1)",
    )


def tls_options(pick: Callable[[str], Any], read: Callable[[Path], bytes]) -> dict[str, Any]:
    """The options ``tls`` and ``allow_open`` of a connection.

    `pick`: the value of an option of the command line, or None; what is not there comes from the environment.
    """
    files = {name: pick(f"tls_{name}") or os.environ.get(f"ZKMQ_TLS_{name.upper()}") or None for name in _FILES}
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
        file = os.environ.get(f"{_PASSWORD}_FILE") or None
    if file is not None:
        return next(iter(read(Path(file)).decode(errors="replace").splitlines()), None)
    return os.environ.get(variable or _PASSWORD) or None
