"""``zkmq server``: run a ZooKeeper for development until told to stop."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ..embedded import EmbeddedServer, ServerTls, is_loopback
from .options import UsageError
from .stop_signals import STOP_SIGNALS, on_stop_signals

if TYPE_CHECKING:
    import argparse
    from types import FrameType

_CHECK_S = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``zkmq server`` to ``parser``."""
    parser.add_argument("--port", type=int, default=2181, help="client port of the first node, 0 = any (%(default)s)")
    data = Path(".zkmq", "zookeeper")
    parser.add_argument("--data-dir", type=Path, default=data, help="folder of the data, made if missing (%(default)s)")
    parser.add_argument("--ensemble", type=int, default=1, metavar="N", help="number of nodes (%(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    clients = "clients from one address, 0 = any number (on loopback any, else 60)"
    parser.add_argument("--max-connections", type=int, metavar="N", help=clients)
    group = parser.add_argument_group("TLS, on --port; a port without it is then on loopback alone")
    group.add_argument("--tls-cert", metavar="FILE", help="PEM file of the server's certificate, with its chain")
    group.add_argument("--tls-key", metavar="FILE", help="PEM file of its private key: PKCS #8, not encrypted")
    group.add_argument("--tls-ca", metavar="FILE", help="let in only clients whose certificates these sign")
    parser.add_argument("--json", action="store_true", help="say that it is ready as one line of JSON")


def run(args: argparse.Namespace) -> int:
    """Run the server until SIGTERM or SIGINT, then stop it and return 0. Call it in the main thread.

    One line on standard output says when it is ready. Raises `ConfigError` for an option that is out of its range,
    `ServerError` where the server cannot be started, or one of its nodes died.
    """
    tls = None
    if args.tls_cert is not None and args.tls_key is not None:
        tls = ServerTls(args.tls_cert, args.tls_key, args.tls_ca)
    elif (args.tls_cert, args.tls_key, args.tls_ca) != (None, None, None):
        raise UsageError("a server that speaks TLS needs --tls-cert and --tls-key")
    server = EmbeddedServer(
        args.data_dir, args.port, args.ensemble, args.host, tls=tls, max_connections=args.max_connections
    )
    _warn(args.host, tls)
    with on_stop_signals(_interrupt):
        try:
            server.start()
            speaks_tls = server.plain_hosts != server.hosts
            if args.json:
                hosts = {"hosts": server.hosts, **({"plain_hosts": server.plain_hosts} if speaks_tls else {})}
                ready = json.dumps({"ready": True, **hosts, "data_dir": str(server.data_dir), "pids": server.pids})
            else:
                where = f"{server.hosts} with TLS, {server.plain_hosts} without" if speaks_tls else server.hosts
                ready = f"ZooKeeper is ready on {where} (data in {server.data_dir}); Ctrl-C stops it"
            print(ready, flush=True)
            while True:  # until one of the nodes is dead, or a signal interrupts
                server.check()
                time.sleep(_CHECK_S)
        except KeyboardInterrupt:
            return 0
        finally:
            server.stop()


def _warn(host: str, tls: ServerTls | None) -> None:
    """Say whom a server lets in that others than this machine reach."""
    if is_loopback(host) or (tls is not None and tls.ca is not None):
        return
    who = "without TLS, so anyone who can listen in reads everything" if tls is None else "whoever they are"
    print(
        f"zkmq: warning: this server is meant for development and lets in anyone who reaches {host}, {who}; "
        "clients must give credentials for their queues to be theirs (docs/security.md)",
        file=sys.stderr,
    )


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    # The stop that follows takes a bounded time; a second signal must not cut it short.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
