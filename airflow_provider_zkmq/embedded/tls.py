"""TLS of a server: its certificate and key, and whose clients it lets in."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_zkmq.engine import ConfigError

_KEY_STORE = "keystore.pem"
_TRUST_STORE = "truststore.pem"


@dataclass(frozen=True, slots=True)
class ServerTls:
    """Paths to PEM files: ``cert`` (with its chain) and ``key`` of the server, ``ca`` of those that it lets in.

    Without ``ca`` any client is let in, and has no identity. ``key``: PKCS #8, not encrypted.
    """

    cert: Path | str
    key: Path | str
    ca: Path | str | None = None

    def write(self, folder: Path) -> None:
        """Put what ZooKeeper reads into a node's folder, readable by its owner alone. Raises `ConfigError`."""
        key = _read("key", self.key)
        if b"-----BEGIN PRIVATE KEY-----" not in key:
            msg = f"tls key {str(self.key)!r} must be PKCS #8 without a password (openssl pkcs8 -topk8 -nocrypt)"
            raise ConfigError(msg)
        _write(folder / _KEY_STORE, _read("cert", self.cert).rstrip() + b"\n" + key)
        if self.ca is not None:
            _write(folder / _TRUST_STORE, _read("ca", self.ca))

    def lines(self, host: str, port: int) -> list[str]:
        """What ``zoo.cfg`` says of it; the paths are relative to the node's folder."""
        trust = [f"ssl.trustStore.location={_TRUST_STORE}", "ssl.trustStore.type=PEM"] if self.ca is not None else []
        return [
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
            f"secureClientPort={port}",
            f"secureClientPortAddress={host}",
            f"ssl.keyStore.location={_KEY_STORE}",
            "ssl.keyStore.type=PEM",
            *trust,
            f"ssl.clientAuth={'need' if trust else 'none'}",
        ]


def _read(name: str, path: Path | str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        msg = f"tls {name} {str(path)!r} cannot be read: {error.strerror}"
        raise ConfigError(msg) from error


def _write(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        os.fchmod(file.fileno(), 0o600)  # it may be there from before
        file.write(data)
