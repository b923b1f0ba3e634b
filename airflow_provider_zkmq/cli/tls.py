"""TLS and what goes with it on the command line: no password stands there, where others could see it."""

from __future__ import annotations

import argparse
from typing import Final

from airflow_provider_zkmq.environment import KEY_PASSWORD

_FILES: Final = {
    "ca": "PEM file of those who sign the servers' certificates; nobody else is trusted",
    "cert": "PEM file of your certificate, which is then your identity",
    "key": "PEM file of its private key",
}


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
        help=f"the variable that holds the key's password (else {KEY_PASSWORD})",
    )
    group.add_argument(
        "--tls-key-password-file",
        dest=f"{prefix}tls_key_password_file",
        metavar="FILE",
        help=f"the file whose first line is the key's password (env {KEY_PASSWORD}_FILE)",
    )
    group.add_argument(
        "--allow-open",
        dest=f"{prefix}allow_open",
        action="store_true",
        default=None,
        help="with credentials: use znodes, too, that anyone may use (env ZKMQ_ALLOW_OPEN=1)",
    )
