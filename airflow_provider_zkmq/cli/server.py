"""``zkmq server``: run a ZooKeeper for development until told to stop."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ..embedded import EmbeddedServer, ServerTls, is_loopback
from .options import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_CHECK_S = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``zkmq server`` to ``parser``."""
    parser.add_argument("--port", type=int, default=2181, help="client port of the first node, 0 = any (%(default)s)")
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=Path(".zkmq", "zookeeper"),
        help="folder of the data, made if missing (%(default)s)",
    )
    parser.add_argument("--ensemble", type=int, default=1, metavar="N", help="number of nodes (%(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument(
        "--max-connections",
        type=int,
        metavar="N",
        help="clients from one address, 0 = any number (on loopback any, else 60)",
    )
    group = parser.add_argument_group("TLS, on --port; a port without it is then on loopback alone")
    group.add_argument("--tls-cert", metavar="FILE", help="PEM file of the server's certificate, with its chain")
    group.add_argument("--tls-key", metavar="FILE", help="PEM file of its private key: PKCS #8, not encrypted")
    group.add_argument("--tls-ca", metavar="FILE", help="let in only clients whose certificates these sign")
    parser.add_argument("--json", action="store_true", help="say that it is ready as one line of JSON")


def run(args: argparse.Namespace) -> int:
    """Run the server until SIGTERM or SIGINT, then stop it and return 0.

    One line on standard output says when it is ready. Call it in the main thread.

    Raises:
        ConfigError: an option is out of its range.
        ServerError: the server cannot be started, or one of its nodes died.
    """
    tls = _tls(args)
    server = EmbeddedServer(
        args.data_dir, args.port, args.ensemble, args.host, tls=tls, max_connections=args.max_connections
    )
    _warn(args.host, tls)
    with stop_signals_interrupt():
        try:
            server.start()
            print(_announcement(server, as_json=args.json), flush=True)
            _watch(server)
        except KeyboardInterrupt:
            return 0
        finally:
            server.stop()


def _tls(args: argparse.Namespace) -> ServerTls | None:
    if args.tls_cert is None and args.tls_key is None and args.tls_ca is None:
        return None
    if args.tls_cert is None or args.tls_key is None:
        raise UsageError("a server that speaks TLS needs --tls-cert and --tls-key")
    return ServerTls(args.tls_cert, args.tls_key, args.tls_ca)


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


def _watch(server: EmbeddedServer) -> NoReturn:
    """Look after the nodes until one of them is dead; a signal interrupts."""
    while True:
        server.check()
        time.sleep(_CHECK_S)


def _announcement(server: EmbeddedServer, *, as_json: bool) -> str:
    tls = server.plain_hosts != server.hosts
    if as_json:
        folder, plain = str(server.data_dir), {"plain_hosts": server.plain_hosts} if tls else {}
        return json.dumps({"ready": True, "hosts": server.hosts, **plain, "data_dir": folder, "pids": server.pids})
    where = f"{server.hosts} with TLS, {server.plain_hosts} without" if tls else server.hosts
    return f"ZooKeeper is ready on {where} (data in {server.data_dir}); Ctrl-C stops it"


@contextlib.contextmanager
def stop_signals_interrupt() -> Iterator[None]:
    """Make both stop signals raise KeyboardInterrupt, once, inside the block.

    Also SIGINT: a shell that starts us in the background has it ignored.
    """
    before = {number: signal.signal(number, _interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    # The stop that follows takes a bounded time; a second signal must not cut it short.
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
