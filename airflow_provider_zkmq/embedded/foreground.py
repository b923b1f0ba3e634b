"""A server in the foreground of a process: it runs until a signal stops it, and says whom it lets in."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final, NoReturn

from .configuration import ServerTls
from .server import EmbeddedServer, is_loopback

_CHECK_SECONDS: Final = 0.5
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def serve_until_stopped(server: EmbeddedServer, on_ready: Callable[[], object]) -> None:
    """Run a server, in the main thread, until SIGTERM or SIGINT; `on_ready` is called once it serves requests.

    Raises `ServerError` where it cannot be started, or one of its nodes died.
    """
    with _interrupted_by_signals():
        try:
            server.start()
            on_ready()
            while True:  # until one of the nodes is dead, or a signal interrupts
                server.check()
                time.sleep(_CHECK_SECONDS)
        except KeyboardInterrupt:
            return
        finally:
            server.stop()


@contextlib.contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """The signals raise KeyboardInterrupt, also where a shell in the background ignores SIGINT."""
    before = {number: signal.signal(number, _interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    # The stop that follows takes a bounded time; a second signal must not cut it short.
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def warning(host: str, tls: ServerTls | None) -> str | None:
    """Whom a server lets in besides this machine; None: nobody, or those with a certificate of its authority."""
    if is_loopback(host) or (tls is not None and tls.ca is not None):
        return None
    who = "without TLS, so anyone who can listen in reads everything" if tls is None else "whoever they are"
    return (
        f"warning: this server is meant for development and lets in anyone who reaches {host}, {who}; "
        "clients must give credentials for their queues to be theirs (docs/security.md)"
    )


def ready(server: EmbeddedServer) -> tuple[dict[str, object], str]:
    """What a server that serves requests says of itself: to programs, and to people."""
    plain = {"plain_hosts": server.plain_hosts} if server.plain_hosts != server.hosts else {}
    where = f"{server.hosts} with TLS, {server.plain_hosts} without" if plain else server.hosts
    value = {"ready": True, "hosts": server.hosts, **plain, "data_dir": str(server.data_dir), "pids": server.pids}
    return value, f"ZooKeeper is ready on {where} (data in {server.data_dir}); Ctrl-C stops it"
