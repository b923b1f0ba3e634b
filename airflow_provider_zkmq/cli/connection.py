"""What a verb works with: the common options of its command line, a connection, and a way to answer."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from ..environment import FILES, environment_options
from .options import COMMON, PATIENT, QUICK, UsageError, operand, read_file, starting
from .output import one_line, say, warn

if TYPE_CHECKING:
    from ..engine import AnyClient, AnyQueue


@dataclass(slots=True)
class Cli:
    """How to reach ZooKeeper and how to answer. It connects when a queue or the client is wanted, and once."""

    hosts: str
    root: str
    as_json: bool
    connect_timeout: float | None
    options: Mapping[str, Any] = field(repr=False)
    """What else `Zkmq.connect` is given; it may hold passwords."""
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
            hosts=options.pop("hosts"),
            root=options.pop("root"),
            as_json=bool(given.get("json")),
            connect_timeout=given.get("connect_timeout"),
            options=options | {name: given.get(name) for name in ("session_timeout", "request_timeout")},
            secret=frozenset(filter(None, [given.get("tls_key_password_env")])),
            hosts_given="hosts" in given,
        )

    def client(self, *, gc: bool = False, seconds: float = QUICK) -> AnyClient:
        """The connection; by default one that takes no part in clean-up.

        `seconds`: for how many seconds a server is waited for where the command line does not say it; one that listens,
        and may just be slow, for longer. After the first second in vain people are told. Raises what `Zkmq.connect`
        does.
        """
        if self._client is None:
            self._client = self._connect(gc=gc, seconds=seconds)
        return self._client

    def _connect(self, *, gc: bool, seconds: float) -> AnyClient:
        from ..engine import Unavailable, Zkmq

        connect = partial(Zkmq.connect, self.hosts, self.root, gc=gc, **self.options)
        longest = self.connect_timeout
        if self.hosts.startswith(FILES) or (longest is not None and longest <= QUICK):
            return connect(connect_timeout=longest)
        try:
            return connect(connect_timeout=QUICK)
        except Unavailable as error:
            if type(error) is not Unavailable:  # others do not mend by waiting
                raise
            if longest is None:
                longest = seconds if error.nobody_listens else PATIENT
            if longest <= QUICK:
                raise Unavailable(f"{error}; --timeout waits longer") from None
            until = time.strftime("%H:%M:%S", time.localtime(time.time() + longest))
            warn(f"no answer yet: {error.met or self.hosts}; trying until {until} ({longest:g} s)")
        return connect(connect_timeout=longest)

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

    def confirm(self, what: str, answer: str, *, yes: bool) -> None:
        """Go on if the command line says so, or whoever sits at the terminal. Raises `UsageError`."""
        if yes:
            return
        if not sys.stdin.isatty():
            raise UsageError(f"{what} is for good: add --yes to do so")
        print(f"{one_line(what)} is for good.\nType {answer} to do so: ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip() != answer:
            raise UsageError(f"that is not {answer!r}: nothing was done")


def _queue_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of queues that complete a word; none where they cannot be read, as a shell shows no errors."""
    try:
        cli = Cli.of(ctx)
        cli.connect_timeout = None if cli.hosts.startswith(FILES) else QUICK
        names = starting(cli.client().queues(), incomplete)
        cli.close()
    except Exception:  # noqa: BLE001  whatever it is, the shell completes nothing
        return []
    return names


QUEUE = operand("QUEUE", autocompletion=_queue_names)
OPTIONAL_QUEUE = operand("[QUEUE]", default=None, autocompletion=_queue_names)
