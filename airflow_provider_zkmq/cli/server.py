"""``zkmq server``: run a ZooKeeper for development until told to stop."""

from __future__ import annotations

import signal
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from .connection import Cli
from .options import UsageError, option
from .output import warn
from .stop_signals import STOP_SIGNALS, on_stop_signals
from .verbs import verb

if TYPE_CHECKING:
    from types import FrameType

    from ..embedded import ServerTls

_CHECK_S = 0.5
_tls = partial(option, rich_help_panel="TLS, on --port; a port without it is then on loopback alone")


@verb("server", example="zkmq server --port 2181", connects=False)
def server(
    cli: Cli,
    port: int = option("client port of the first node, 0 = any (2181)", "PORT", 2181),
    data_dir: Path = option("folder of the data, made if missing (.zkmq/zookeeper)", "FOLDER", Path(".zkmq/zookeeper")),
    ensemble: int = option("number of nodes (1)", "N", 1),
    host: str = option("address to listen on (127.0.0.1)", "HOST", "127.0.0.1"),
    max_connections: int | None = option("clients from one address, 0 = any number (on loopback any, else 60)", "N"),
    tls_cert: str | None = _tls("PEM file of the server's certificate, with its chain", "FILE"),
    tls_key: str | None = _tls("PEM file of its private key: PKCS #8, not encrypted", "FILE"),
    tls_ca: str | None = _tls("let in only clients whose certificates these sign", "FILE"),
) -> int:
    """Run a ZooKeeper for development until SIGTERM or SIGINT.

    One line on standard output says when it is ready.
    """
    # Call it in the main thread. Raises `ConfigError` for an option that is out of its range, `ServerError` where the
    # server cannot be started, or one of its nodes died.
    from ..embedded import EmbeddedServer, ServerTls

    tls = None
    if tls_cert is not None and tls_key is not None:
        tls = ServerTls(tls_cert, tls_key, tls_ca)
    elif (tls_cert, tls_key, tls_ca) != (None, None, None):
        raise UsageError("a server that speaks TLS needs --tls-cert and --tls-key")
    embedded = EmbeddedServer(data_dir, port, ensemble, host, tls=tls, max_connections=max_connections)
    _warn(host, tls)
    with on_stop_signals(_interrupt):
        try:
            embedded.start()
            speaks_tls = embedded.plain_hosts != embedded.hosts
            hosts = {"hosts": embedded.hosts, **({"plain_hosts": embedded.plain_hosts} if speaks_tls else {})}
            value = {"ready": True, **hosts, "data_dir": str(embedded.data_dir), "pids": embedded.pids}
            where = f"{embedded.hosts} with TLS, {embedded.plain_hosts} without" if speaks_tls else embedded.hosts
            cli.say(value, f"ZooKeeper is ready on {where} (data in {embedded.data_dir}); Ctrl-C stops it")
            while True:  # until one of the nodes is dead, or a signal interrupts
                embedded.check()
                time.sleep(_CHECK_S)
        except KeyboardInterrupt:
            return 0
        finally:
            embedded.stop()


def _warn(host: str, tls: ServerTls | None) -> None:
    """Say whom a server lets in that others than this machine reach."""
    from ..embedded import is_loopback

    if is_loopback(host) or (tls is not None and tls.ca is not None):
        return
    who = "without TLS, so anyone who can listen in reads everything" if tls is None else "whoever they are"
    warn(
        f"warning: this server is meant for development and lets in anyone who reaches {host}, {who}; "
        "clients must give credentials for their queues to be theirs (docs/security.md)"
    )


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    # The stop that follows takes a bounded time; a second signal must not cut it short.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
