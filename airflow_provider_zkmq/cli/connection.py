"""What a verb works with: the common options of its command line, a connection, and a way to answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import typer

from ..environment import FILES, environment_options
from .options import COMMON, PATIENT, QUICK, operand, read_file, starting
from .output import say

if TYPE_CHECKING:
    from ..engine import AnyClient, AnyQueue

_LOOK = 0.3


@dataclass(slots=True)
class Cli:
    """How to reach ZooKeeper and how to answer. It connects when a queue or the client is wanted, and once."""

    hosts: str
    root: str
    auth: str | None = field(repr=False)
    as_json: bool
    session_timeout: float | None
    connect_timeout: float | None
    request_timeout: float | None = None
    access: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The options ``tls``, which may hold a password, and ``allow_open``."""
    secret: frozenset[str] = frozenset()
    """The variables of the environment that the command line names as holding a password."""
    hosts_given: bool = False
    """Whether the command line names the hosts."""
    _client: AnyClient | None = field(default=None, repr=False)

    @classmethod
    def of(cls, ctx: Any) -> Cli:
        """By a command line, of which what stands later wins, and the environment. `ctx`: Typer's, of the verb."""
        given: dict[str, Any] = {}
        while ctx is not None:
            values = {name: ctx.params.get(name) for name in COMMON}
            given = {name: value for name, value in values.items() if value is not None and value is not False} | given
            ctx = ctx.parent
        options = environment_options(given.get, read_file)
        return cls(
            hosts=options["hosts"],
            root=options["root"],
            auth=options["auth"],
            as_json=bool(given.get("json")),
            session_timeout=given.get("session_timeout"),
            connect_timeout=given.get("connect_timeout"),
            request_timeout=given.get("request_timeout"),
            access={name: options[name] for name in ("tls", "allow_open")},
            secret=frozenset(filter(None, [given.get("tls_key_password_env")])),
            hosts_given="hosts" in given,
        )

    def client(self, *, gc: bool = False, seconds: float = QUICK) -> AnyClient:
        """The connection; by default one that takes no part in clean-up.

        `seconds`: for how many seconds a server is waited for where the command line does not say it; one that listens,
        and may just be slow, for longer. Raises what `Zkmq.connect` does.
        """
        if self._client is None:
            self._client = self._connect(gc=gc, seconds=seconds)
        return self._client

    def _connect(self, *, gc: bool, seconds: float) -> AnyClient:
        from ..engine import ConnectionConfig, Unavailable, Zkmq

        spans = {"session_timeout": self.session_timeout, "request_timeout": self.request_timeout}
        connect = partial(Zkmq.connect, self.hosts, self.root, gc=gc, auth=self.auth, **spans, **self.access)
        if self.hosts.startswith(FILES) or self.connect_timeout is not None:
            return connect(connect_timeout=self.connect_timeout)
        try:
            return connect(connect_timeout=seconds)
        except Unavailable as error:
            if type(error) is not Unavailable:  # others do not mend by waiting
                raise
            if seconds < PATIENT and anybody_listens(ConnectionConfig.of(self.hosts).hosts, _LOOK):
                return connect(connect_timeout=PATIENT)
            raise Unavailable(f"{error}; --timeout waits longer") from None

    def queue(self, name: str) -> AnyQueue:
        """A queue."""
        return self.client().queue(name)

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._client is not None:
            self._client.close()

    def say(self, value: object, text: str, code: int = 0) -> int:
        """Answer with `value` in JSON, or with `text` for people; returns the exit code."""
        say(value, text, as_json=self.as_json)
        return code


def anybody_listens(hosts: str, seconds: float) -> bool:
    """Whether one of ``host:port,host:port`` takes connections, as far as that is known within so many seconds."""
    answers, deadline = SimpleQueue[bool](), time.monotonic() + seconds
    servers = hosts.split(",")

    def look(server: str) -> None:
        host, _, port = server.strip().rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), seconds).close()
        except (OSError, ValueError):
            answers.put(False)
        else:
            answers.put(True)

    for server in servers:  # each in a thread: nothing bounds how long the system looks a name up
        threading.Thread(target=look, args=(server,), daemon=True).start()
    try:
        return any(answers.get(timeout=max(0.0, deadline - time.monotonic())) for _ in servers)
    except Empty:
        return False


def _queue_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of queues that complete a word; none where they cannot be read, as a shell shows no errors."""
    try:
        cli = Cli.of(ctx)
        names = starting(cli.client().queues(), incomplete)
        cli.close()
    except Exception:  # noqa: BLE001  whatever it is, the shell completes nothing
        return []
    return names


QUEUE = operand("QUEUE", autocompletion=_queue_names)
OPTIONAL_QUEUE = operand("[QUEUE]", default=None, autocompletion=_queue_names)
