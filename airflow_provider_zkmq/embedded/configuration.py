"""What a node's files and its Java command line say, TLS included."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..engine import ConfigError, ZkmqError


class ServerError(ZkmqError):
    """The embedded ZooKeeper or the Java it needs cannot be used; the text names the remedy."""


# --- TLS of a server: its certificate and key, and whose clients it lets in.

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
            raise ConfigError(
                f"tls key {str(self.key)!r} must be PKCS #8 without a password (openssl pkcs8 -topk8 -nocrypt)"
            )
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
        raise ConfigError(f"tls {name} {str(path)!r} cannot be read: {error.strerror}") from error


def _write(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        os.fchmod(file.fileno(), 0o600)  # it may be there from before
        file.write(data)


# --- What a node's files and its Java command line say.

# Every path is relative to the node's folder, which is Java's working folder. So no name of a folder, with
# whatever characters, has to survive the escapes of a properties file or Java's idea of the locale.
CONFIGURATION = "./zoo.cfg"
LOGGING = "log4j2.properties"
LOOPBACK = "127.0.0.1"
SERVER_LOG = "zookeeper.log"
JAVA_LOG = "java.log"
_DATA = "data"
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

_LOGGING = f"""\
status = error
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {SERVER_LOG}
appender.file.filePattern = {SERVER_LOG}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %-5p [%t] %c{{1}}: %m%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 5MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 1
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
"""


@dataclass(frozen=True)
class Settings:
    """What all nodes of a server share.

    ``tick_time`` is ZooKeeper's unit of time in milliseconds; ``force_sync`` says whether a write is on
    the disk before it is acknowledged; ``heap_mb`` bounds each Java heap, in MiB; ``connections`` the connections
    from one address, 0: any number. With ``tls`` the plain port is on loopback alone, for the server's own probes.
    """

    host: str
    force_sync: bool
    tick_time: int
    heap_mb: int
    connections: int = 0
    tls: ServerTls | None = None

    @property
    def plain_host(self) -> str:
        """The address on which the port without TLS listens."""
        return self.host if self.tls is None else LOOPBACK

    def zoo_cfg(self, port: int, peers: list[tuple[int, int]], secure_port: int = 0) -> str:
        """Return the ``zoo.cfg`` of a node: its client ``port``, and each node's (quorum port, election port).

        The nodes talk to each other on loopback wherever clients are served: they share one machine.
        """
        servers = [f"server.{number}={LOOPBACK}:{quorum}:{vote}" for number, (quorum, vote) in enumerate(peers, 1)]
        lines = [
            f"dataDir=./{_DATA}",
            f"clientPort={port}",
            f"clientPortAddress={self.plain_host}",
            f"tickTime={self.tick_time}",
            "initLimit=20",
            "syncLimit=6",
            # Clients get the session timeout they ask for, between two ticks and a minute.
            f"minSessionTimeout={2 * self.tick_time}",
            f"maxSessionTimeout={max(60_000, 2 * self.tick_time)}",
            f"maxClientCnxns={self.connections}",
            # Its HTTP server needs jars that are not on the class path.
            "admin.enableServer=false",
            "extendedTypesEnabled=true",
            "4lw.commands.whitelist=srvr,mntr,ruok,stat,cons,conf,wchs",
            "autopurge.snapRetainCount=3",
            "autopurge.purgeInterval=1",
            *(servers if len(servers) > 1 else []),
            *([] if self.tls is None else self.tls.lines(self.host, secure_port)),
        ]
        return "\n".join(lines) + "\n"

    def java_arguments(self, class_path: str) -> list[str]:
        """Return the arguments of ``java``: quick to start and small rather than fast for hours."""
        return [
            f"-Xmx{self.heap_mb}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:-UsePerfData",
            "-XX:+ExitOnOutOfMemoryError",
            f"-Dzookeeper.forceSync={'yes' if self.force_sync else 'no'}",
            f"-Dlog4j2.configurationFile={LOGGING}",
            "-cp",
            class_path,
            _MAIN,
            CONFIGURATION,
        ]


def write_node(folder: Path, number: int, zoo_cfg: str) -> None:
    """Write the files of node ``number`` (from 1) into ``folder``; its data, if any, stay."""
    data = folder / _DATA
    data.mkdir(parents=True, exist_ok=True)
    (data / "myid").write_text(f"{number}\n")
    (folder / CONFIGURATION).write_text(zoo_cfg)
    (folder / LOGGING).write_text(_LOGGING)
