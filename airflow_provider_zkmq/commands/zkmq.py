"""``airflow zkmq``: `zkmq` on the queues of an Airflow connection."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import Any, Final

from airflow.exceptions import AirflowNotFoundException

from ..cli.main import USAGE, main

#: Verbs that connect to nothing, or to servers of their own.
_WITHOUT: Final = frozenset({"server", "report", "examples"})
_HELP: Final = frozenset({"help", "--help", "-h", "--version"})
#: What the environment may say of a connection; all of it is said by the Airflow connection instead.
_VARIABLES: Final = (
    "ZKMQ_HOSTS",
    "ZKMQ_ROOT",
    "ZKMQ_PAGE",
    "ZKMQ_AUTH",
    "ZKMQ_ALLOW_OPEN",
    "ZKMQ_TLS",
    "ZKMQ_TLS_CA",
    "ZKMQ_TLS_CERT",
    "ZKMQ_TLS_KEY",
    "ZKMQ_TLS_KEY_PASSWORD",
    "ZKMQ_TLS_KEY_PASSWORD_FILE",
)
_TIMEOUTS: Final = ("session_timeout", "connect_timeout", "request_timeout")


def run(args: argparse.Namespace) -> None:
    """Run the command and end with its exit code."""
    sys.exit(run_words(args.conn_id, args.words))


def run_words(conn_id: str, words: list[str]) -> int:
    """Run a command line of ``zkmq`` with a connection; returns its exit code, as there."""
    if not words or words[0] in _HELP:
        return main(["--version"] if words[:1] == ["--version"] else ["--help"])
    most = words.index("--") if "--" in words else len(words)  # what comes after it is no option
    if words[0] in _WITHOUT or {"--help", "-h"}.intersection(words[:most]):
        return main(words)
    from ..engine import ConfigError

    try:
        options = _options(conn_id)
    except (AirflowNotFoundException, ConfigError) as error:
        print(f"airflow zkmq: {error}", file=sys.stderr)  # noqa: T201  as zkmq tells what it cannot do
        return USAGE
    # Where `zkmq` looks for it: secrets are on no command line, which others could see.
    for name in _VARIABLES:
        os.environ.pop(name, None)
    os.environ["ZKMQ_HOSTS"] = options["hosts"]
    tls = options.get("tls")
    said = {
        "ZKMQ_ROOT": options.get("root"),
        "ZKMQ_AUTH": ":".join(options["auth"]) if "auth" in options else None,
        "ZKMQ_ALLOW_OPEN": "1" if options.get("allow_open") else None,
        "ZKMQ_TLS": None if tls is None else "1",
        "ZKMQ_PAGE": _page(conn_id),
        **{f"ZKMQ_TLS_{name.upper()}": value for name, value in (tls or {}).items()},
    }
    os.environ.update({name: value for name, value in said.items() if value is not None})
    limits = [f"--{name.replace('_', '-')}={options[name]}" for name in _TIMEOUTS if name in options]
    return main([*limits, *words])


def _page(conn_id: str) -> str | None:
    """The address of the page of queues, for verbs to name; None where Airflow does not know its own."""
    from ..hooks.task_instance import page_of

    return page_of(conn_id)


def _options(conn_id: str) -> dict[str, Any]:
    """Look the connection up as Airflow's own commands do. Raises AirflowNotFoundException, `ConfigError`."""
    from airflow.models.connection import Connection

    from ..engine import ConnectionConfig, Unavailable, Zkmq
    from ..environment import FILES
    from ..hooks.connection_options import connection_options

    conn: Any = Connection.get_connection_from_secrets(conn_id)
    options = connection_options(conn)
    # What the hook would refuse is refused here, too: in the environment some of it would be passed over.
    named = {name: value for name, value in options.items() if name != "queue"}
    if not named["hosts"].startswith(FILES):
        ConnectionConfig.of(**named)
        return options
    with contextlib.suppress(Unavailable):  # the command tells of it, by its own exit code
        Zkmq.connect(**named).close()
    return options
