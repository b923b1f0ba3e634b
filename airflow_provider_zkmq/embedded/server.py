"""A ZooKeeper server or a whole ensemble on this machine, as one object to start and stop."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import os
import random
import signal
import socket
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ..engine import ConfigError
from . import configuration, java
from .configuration import ServerError, ServerTls
from .node import PortLostError, ServerNode, check_alive

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

# --- Addresses and TCP ports for servers that start a moment later.

# Below the ports that Linux (from 32768) and macOS (from 49152) give to outgoing connections: a node that
# is down for a moment must not lose its port to one, nor a client that reconnects meet itself there.
_FREE_PORTS = range(20000, 32000)
_TRIES = 200
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared with, not bound


def reachable(host: str) -> str:
    """Return the address to connect to for a server that listens on ``host``."""
    return _ANY_ADDRESS.get(host, host)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens on ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def connect_string(host: str, ports: list[int]) -> str:
    """Return ``host:port,…`` as ZooKeeper clients take it, an IPv6 address in brackets."""
    name = reachable(host)
    name = f"[{name}]" if ":" in name else name
    return ",".join(f"{name}:{port}" for port in ports)


def free_ports(host: str, count: int) -> list[int]:
    """Return ``count`` different ports of ``host`` that nothing listens on now.

    Nothing holds them until the server does: a caller must cope with losing one in between. Raises `ServerError`:
    ``host`` is not an address of this machine, or too few ports are free.
    """
    tried = random.sample(_FREE_PORTS, _TRIES)
    free = list(islice((port for port in tried if is_free(host, port)), count))
    if len(free) < count:
        raise ServerError(f"found no {count} free ports on {host}: name one with --port")
    return free


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen on ``port`` of ``host`` now. Raises ServerError where we never may."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # As ZooKeeper does: connections of a server that just stopped do not make its port taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        if error.errno == errno.EACCES:
            why = f"port {port} on {host} needs more rights: choose one from 1024 up (0 = any free one)"
        else:
            why = f"cannot listen on {host} ({error.strerror}): choose an address of this machine, such as 127.0.0.1"
        raise ServerError(why) from error
    return True


# --- The data folder: made, locked against a second server, and kept to one size of ensemble.

# Java processes of a server that was killed hold the lock until they are gone too, a moment later.
_LOCK_TIMEOUT_S = 1.0
_LOCK_POLL_S = 0.02
_FIRST_SAFE_DESCRIPTOR = 10


class Folder:
    """A data folder held by this server.

    ``lock`` is a descriptor to pass on to the Java processes: the lock holds until the last holder closes
    it, so a folder is free only when no server writes to it any more, however its owner died.
    """

    def __init__(self, path: Path, nodes: int) -> None:
        """Make and lock ``path`` for so many nodes. Raises `ServerError`: not writable, in use, another size."""
        self.path = path
        with self.usable():
            self.path.mkdir(0o700, parents=True, exist_ok=True)  # Java writes payloads there for all to read
            low = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                # The shell that starts Java uses the descriptors below 10.
                self.lock = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _FIRST_SAFE_DESCRIPTOR)
            finally:
                os.close(low)
        try:
            self._take_lock()
            with self.usable():
                # Two empty new nodes could outvote the one that holds the data.
                record = self.path / "ensemble"
                if not record.exists():
                    record.write_text(f"{nodes}\n")
                recorded = record.read_text().strip()
            if recorded != str(nodes):
                raise ServerError(
                    f"{self.path} holds the data of an ensemble of {recorded}, not of {nodes}: "
                    f"start it with {recorded}, or choose another folder"
                )
        except BaseException:
            os.close(self.lock)
            raise

    def release(self) -> None:
        """Let the folder go. Unlocks for all holders at once: call it when every node is gone."""
        fcntl.flock(self.lock, fcntl.LOCK_UN)
        os.close(self.lock)

    @contextlib.contextmanager
    def usable(self) -> Iterator[None]:
        """Turn an operating system error inside the block into one that names the folder."""
        try:
            yield
        except OSError as error:
            raise ServerError(
                f"cannot keep ZooKeeper's data in {self.path} ({error.strerror}): choose another folder"
            ) from error

    def _take_lock(self) -> None:
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > deadline:
                owner = os.pread(self.lock, 32, 0).decode(errors="replace").strip()
                raise ServerError(
                    f"{self.path} is in use by the ZooKeeper server of process {owner}: "
                    "stop that one, or choose another folder"
                )
            time.sleep(_LOCK_POLL_S)
        os.ftruncate(self.lock, 0)
        os.pwrite(self.lock, f"{os.getpid()}\n".encode(), 0)


# --- A ZooKeeper server or a whole ensemble on this machine, as one object to start and stop.

_POLL_S = 0.02
_STARTS = 3
_HIGHEST_PORT = 65535
_CONNECTIONS = 60


class EmbeddedServer:
    """Apache ZooKeeper from PySpark's jars: one node, or an ensemble of several.

    Each node is a Java process of its own. They end with :meth:`stop`, with the context, and also when
    this process dies in any way, ``kill -9`` included; processes that this one forked without exec must
    be gone too. Keep a reference: dropping a started server kills its nodes. Nodes are numbered from 0,
    in the order of ``ports``. Not for use by several threads at once.
    """

    def __init__(
        self,
        data_dir: Path | str,
        port: int = 0,
        ensemble: int = 1,
        host: str = "127.0.0.1",
        *,
        tls: ServerTls | None = None,
        max_connections: int | None = None,
        force_sync: bool = True,
        tick_time: int = 500,
        heap_mb: int = 1_024,
        start_timeout: float = 60.0,
        stop_timeout: float = 5.0,
    ) -> None:
        """Describe the server; :meth:`start` runs it.

        Args:
            data_dir: the folder of the data, made if missing; what it holds is served again.
            port: the first node's client port, the others follow it; 0 means free ones.
            ensemble: how many nodes.
            host: the address to listen on. Without `tls` there is no authentication: think before leaving loopback.
            tls: serve TLS on `port` and those that follow. Ports without TLS are then on loopback alone.
            max_connections: how many clients from one address; 0 for any number, which is the default on loopback,
                where all of them come from one. Elsewhere the default is 60.
            force_sync: whether a write is on the disk before it is acknowledged. Off for throw-away data.
            tick_time: ZooKeeper's tick in milliseconds; the shortest session timeout is two ticks.
            heap_mb: the bound of each Java heap, in MiB; all znodes are kept in it.
            start_timeout: how long all nodes together may take to serve requests, in seconds.
            stop_timeout: how long they may take to end before they are killed, in seconds.

        Raises:
            ConfigError: a number is out of its range.
        """
        connections = max_connections if max_connections is not None else 0 if is_loopback(host) else _CONNECTIONS
        least = {"ensemble": 1, "tick_time": 1, "heap_mb": 16, "max_connections": 0}
        for (name, bound), value in zip(least.items(), (ensemble, tick_time, heap_mb, connections), strict=True):
            if value < bound:
                raise ConfigError(f"{name} must be at least {bound}, not {value}")
        highest = _HIGHEST_PORT + 1 - ensemble
        if not 0 <= port <= highest:
            raise ConfigError(f"port must be between 0 and {highest}, not {port}")
        self.data_dir = Path(data_dir).absolute()
        self.ports = [port + number for number in range(ensemble)] if port else []
        self._fixed_ports = bool(port)
        self._size = ensemble
        self._settings = configuration.Settings(host, force_sync, tick_time, heap_mb, connections, tls)
        self._plain_ports: list[int] = []
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._folder: Folder | None = None
        self._nodes: list[ServerNode] = []

    @property
    def hosts(self) -> str:
        """The connect string of all nodes, such as ``127.0.0.1:2181``."""
        return connect_string(self._settings.host, self.ports)

    @property
    def plain_hosts(self) -> str:
        """The connect string of the ports without TLS, which are on loopback alone where there is TLS."""
        return connect_string(self._settings.plain_host, self._plain_ports)

    @property
    def pids(self) -> list[int]:
        """The process id of each node's latest Java, dead or alive, in the order of ``ports``."""
        return [node.pid for node in self._nodes]

    def __enter__(self) -> Self:
        """Start the server."""
        self.start()
        return self

    def __exit__(self, *_of_error: object) -> None:
        """Stop the server."""
        self.stop()

    def start(self) -> None:
        """Start all nodes and return when each serves requests.

        Raises `ServerError`: it runs already; there is no usable Java or no jars; a port is taken; the folder cannot
        be written or is in use; a node died or was too slow, then with its last log lines.
        """
        if self._folder is not None:
            raise ServerError(f"the ZooKeeper server in {self.data_dir} is started already: stop it first")
        class_path = java.class_path(tls=self._settings.tls is not None)
        command = [str(java.find_java().executable), *self._settings.java_arguments(class_path)]
        self._folder = Folder(self.data_dir, self._size)
        try:
            for left in reversed(range(_STARTS)):
                try:
                    self._start_nodes(self._folder, command)
                    break
                except PortLostError:  # again, on other ports
                    self._end_nodes()
                    if not left:
                        raise
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop all nodes: ask, then kill what is left after ``stop_timeout``. Harmless if none runs.

        Raises `ServerError` where a process survives even being killed.
        """
        self._end_nodes()
        if self._folder is not None:
            self._folder.release()
            self._folder = None

    def kill(self, node: int) -> None:
        """End a node with SIGKILL, as a crash would, and wait until it is gone."""
        self._nodes[node].kill()

    def pause(self, node: int) -> None:
        """Freeze a node (SIGSTOP): its connections stay open and silent."""
        self._nodes[node].send(signal.SIGSTOP)

    def resume(self, node: int) -> None:
        """Let a paused node go on (SIGCONT)."""
        self._nodes[node].send(signal.SIGCONT)

    def restart(self, node: int, *, wait: bool = True) -> None:
        """Kill a node if it runs and start it again on its port and data.

        Returns when it serves requests; with ``wait=False`` at once, as is needed while the rest of the ensemble has
        no majority. Raises `ServerError`: the server is not started; the node died or was too slow.
        """
        if self._folder is None:
            raise ServerError(f"the ZooKeeper server in {self.data_dir} is not started: start it first")
        self._nodes[node].kill()
        self._nodes[node].start(self._folder.lock)
        if wait:
            self._await_ready([self._nodes[node]])

    def leader(self) -> int | None:
        """Return the number of the node that leads (or is the only one); None while none does."""
        return next((n for n, node in enumerate(self._nodes) if node.mode() in {"leader", "standalone"}), None)

    def check(self) -> None:
        """Raise ServerError, with the last log lines, if the Java process of a node has ended."""
        check_alive(self._nodes)

    def _start_nodes(self, folder: Folder, command: list[str]) -> None:
        peers = self._choose_ports()
        self._nodes = []
        with folder.usable():
            for number, (port, secure) in enumerate(zip(self._plain_ports, self.ports, strict=True), 1):
                home = folder.path / f"node-{number}"
                configuration.write_node(home, number, self._settings.zoo_cfg(port, peers, secure))
                if self._settings.tls is not None:
                    self._settings.tls.write(home)
                node = ServerNode(home, command, reachable(self._settings.plain_host), port)
                self._nodes.append(node)
                node.start(folder.lock)
        self._await_ready(self._nodes)

    def _choose_ports(self) -> list[tuple[int, int]]:
        """Settle the client ports and return each node's ports for its peers."""
        host = self._settings.host
        if self._fixed_ports:
            for port in self.ports:
                if not is_free(host, port):
                    raise ServerError(
                        f"port {port} on {host} is taken: stop what listens there, or choose another (0 = any free one)"
                    )
        else:
            self.ports = free_ports(host, self._size)
        free = [port for port in free_ports(configuration.LOOPBACK, 4 * self._size) if port not in self.ports]
        quorum, election, plain = (free[at * self._size : (at + 1) * self._size] for at in range(3))
        self._plain_ports = self.ports if self._settings.tls is None else plain
        return list(zip(quorum, election, strict=True))

    def _await_ready(self, nodes: list[ServerNode]) -> None:
        deadline = time.monotonic() + self._start_timeout
        for node in nodes:
            while node.mode() is None:
                check_alive(nodes)
                if time.monotonic() > deadline:
                    limit = f"{self._start_timeout:g} s"
                    raise ServerError(
                        f"ZooKeeper on port {node.port} served no request within {limit}{node.last_words()}"
                    )
                time.sleep(_POLL_S)

    def _end_nodes(self) -> None:
        for node in self._nodes:
            node.send(signal.SIGTERM)
            node.send(signal.SIGCONT)
        deadline = time.monotonic() + self._stop_timeout
        for node in self._nodes:
            if not node.wait(max(0.0, deadline - time.monotonic())):
                node.kill()
