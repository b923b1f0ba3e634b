"""Addresses and TCP ports for servers that start a moment later."""

from __future__ import annotations

import errno
import ipaddress
import random
import socket
from itertools import islice

from airflow_provider_zkmq.embedded.errors import ServerError

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


def check_free(host: str, port: int) -> None:
    """Raise ServerError unless a server could listen on ``port`` of ``host`` now."""
    try:
        _bind(host, port)
    except OSError as error:
        raise ServerError(_why_not(host, port, error)) from error


def free_ports(host: str, count: int) -> list[int]:
    """Return ``count`` different ports of ``host`` that nothing listens on now.

    Nothing holds them until the server does: a caller must cope with losing one in between.

    Raises:
        ServerError: ``host`` is not an address of this machine, or too few ports are free.
    """
    tried = random.sample(_FREE_PORTS, _TRIES)
    free = list(islice((port for port in tried if _is_free(host, port)), count))
    if len(free) < count:
        raise ServerError(f"found no {count} free ports on {host}: name one with --port")
    return free


def _is_free(host: str, port: int) -> bool:
    try:
        _bind(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise ServerError(_why_not(host, port, error)) from error
    return True


def _bind(host: str, port: int) -> None:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        # As ZooKeeper does: connections of a server that just stopped do not make its port taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def _why_not(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is taken: stop what listens there, or choose another (0 = any free one)"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} needs more rights: choose one from 1024 up (0 = any free one)"
    return f"cannot listen on {host} ({error.strerror}): choose an address of this machine, such as 127.0.0.1"
