"""``zkmq server``: run a ZooKeeper for development until told to stop."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from .options import option, refuse
from .output import Output, warn
from .verbs import verb

_tls = partial(option, rich_help_panel="TLS, on --port; a port without it is then on loopback alone")


@verb("server", example="zkmq server --port 2181")
def server(
    cli: Output,
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
    from .. import embedded

    wanted = (tls_cert, tls_key, tls_ca) != (None, None, None)
    tls = embedded.ServerTls(tls_cert, tls_key, tls_ca) if tls_cert and tls_key else None
    refuse((wanted and tls is None, "a server that speaks TLS needs --tls-cert and --tls-key"))
    running = embedded.EmbeddedServer(data_dir, port, ensemble, host, tls=tls, max_connections=max_connections)
    if whom := embedded.warning(host, tls):
        warn(whom)
    embedded.serve_until_stopped(running, lambda: cli.say(*embedded.ready(running)))
    return 0
