"""``zkmq server``: run a ZooKeeper for development until told to stop."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from airflow_provider_zkmq.embedded import EmbeddedServer

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
    parser.add_argument("--json", action="store_true", help="say that it is ready as one line of JSON")


def run(args: argparse.Namespace) -> int:
    """Run the server until SIGTERM or SIGINT, then stop it and return 0.

    One line on standard output says when it is ready. Call it in the main thread.

    Raises:
        ConfigError: an option is out of its range.
        ServerError: the server cannot be started, or one of its nodes died.
    """
    server = EmbeddedServer(args.data_dir, args.port, args.ensemble, args.host)
    with _stop_signals_interrupt():
        try:
            server.start()
            print(_announcement(server, as_json=args.json), flush=True)
            _watch(server)
        except KeyboardInterrupt:
            return 0
        finally:
            server.stop()


def _watch(server: EmbeddedServer) -> NoReturn:
    """Look after the nodes until one of them is dead; a signal interrupts."""
    while True:
        server.check()
        time.sleep(_CHECK_S)


def _announcement(server: EmbeddedServer, *, as_json: bool) -> str:
    if as_json:
        folder = str(server.data_dir)
        return json.dumps({"ready": True, "hosts": server.hosts, "data_dir": folder, "pids": server.pids})
    return f"ZooKeeper is ready on {server.hosts} (data in {server.data_dir}); Ctrl-C stops it"


@contextlib.contextmanager
def _stop_signals_interrupt() -> Iterator[None]:
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
