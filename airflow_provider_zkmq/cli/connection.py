"""What a verb works with: the common options of its command line, a connection, and a way to answer."""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from .. import environment
from ..inspection.wording import one_line
from . import options, output
from .options import flag, option, span

if TYPE_CHECKING:
    from ..engine import AnyClient, AnyQueue

#: For how many seconds a server is waited for by default where nobody listens, and where somebody does, or by a worker.
QUICK, PATIENT = 1.0, 10.0
_HOSTS, _ROOT, _PASSWORD = environment.DEFAULT_HOSTS, environment.DEFAULT_ROOT, environment.KEY_PASSWORD
_common, _common_span = (partial(each, rich_help_panel=output.PANEL) for each in (option, span))
_TLS_PANEL = "TLS and access (before or after the verb)"
_access, _access_flag = (partial(each, rich_help_panel=_TLS_PANEL) for each in (option, flag))
_WAITED = f"how long a server is waited for ({QUICK:g}s where nobody listens, else {PATIENT:g}s)"
#: Of the verbs whose ``--timeout`` is about something else than the connection.
CONNECT_TIMEOUT_ALONE: Final = _common_span(_WAITED, names=("--connect-timeout",))


@dataclass(repr=False)
class Cli(output.Output):
    """How to reach ZooKeeper and how to answer. It connects when a queue or the client is wanted, and once."""

    hosts: str = _common(f"host:port,host:port (env ZKMQ_HOSTS, else {_HOSTS})", "HOSTS")
    root: str = _common(f"znode of the queues (env ZKMQ_ROOT, else {_ROOT})", "ROOT")
    auth: str | None = _common("credentials; prefer env ZKMQ_AUTH, which other users cannot see", "USER:PASSWORD")
    session_timeout: float | None = _common_span("how long (10s)")
    request_timeout: float | None = _common_span("how long (30s)")
    connect_timeout: float | None = _common_span(_WAITED, names=("--connect-timeout", "--timeout"))
    tls: bool = _access_flag("--tls", "speak TLS (env ZKMQ_TLS=1); the files below imply it")
    tls_ca: str | None = _access("PEM file of those who sign the servers' certificates (env ZKMQ_TLS_CA)", "FILE")
    tls_cert: str | None = _access("PEM file of your certificate, which is your identity (env ZKMQ_TLS_CERT)", "FILE")
    tls_key: str | None = _access("PEM file of its private key (env ZKMQ_TLS_KEY)", "FILE")
    tls_key_password_env: str | None = _access(f"variable with the key's password (else {_PASSWORD})", "NAME")
    tls_key_password_file: str | None = _access(f"file that begins with it (env {_PASSWORD}_FILE)", "FILE")
    allow_open: bool = _access_flag("--allow-open", "with credentials: use znodes that anyone may use, too")

    def __post_init__(self) -> None:
        self._client: AnyClient | None = None
        #: Whether the command line names the hosts.
        self.hosts_given = self.hosts is not None
        #: What else `Zkmq.connect` is given; it may hold passwords.
        self.options: dict[str, Any] = environment.environment_options(vars(self).get, Path.read_bytes)
        self.options |= {"session_timeout": self.session_timeout, "request_timeout": self.request_timeout}
        self.hosts, self.root = self.options.pop("hosts"), self.options.pop("root")

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
        if self.hosts.startswith(environment.FILES) or (longest is not None and longest <= QUICK):
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
            output.warn(f"no answer yet: {error.met or self.hosts}; trying until {until} ({longest:g} s)")
        return connect(connect_timeout=longest)

    def queue(self, name: str) -> AnyQueue:
        """A queue."""
        return self.client().queue(name)

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._client is not None:
            self._client.close()

    def confirm(self, what: str, answer: str, *, yes: bool) -> None:
        """Go on if the command line says so, or whoever sits at the terminal. Raises `UsageError`."""
        if yes:
            return
        if not sys.stdin.isatty():
            raise options.UsageError(f"{what} is for good: add --yes to do so")
        print(f"{one_line(what)} is for good.\nType {answer} to do so: ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip() != answer:
            raise options.UsageError(f"that is not {answer!r}: nothing was done")


@dataclass(repr=False)
class Watching(Cli):
    """The same for a verb that may be carried out again and again."""

    watch: bool = flag("--watch", "again and again; in a pipe one answer after the other")
    interval: float = span("with --watch: how long between two answers (2s)", 2.0)

    def pause(self) -> None:
        """Wait until the next answer is due, for which a terminal is cleared. From now on a lost connection is told."""
        logging.basicConfig(format="zkmq: %(message)s", level=logging.INFO)  # the engine tells it at once
        time.sleep(self.interval)
        if sys.stdout.isatty():
            print("\x1b[H\x1b[2J", end="")


def _queue_names(ctx: Any) -> list[str]:
    """The names of queues; none where they cannot be read, as a shell shows no errors."""
    try:
        cli = Cli.of(ctx)
        cli.connect_timeout = None if cli.hosts.startswith(environment.FILES) else QUICK
        names = cli.client().queues()
        cli.close()
    except Exception:  # noqa: BLE001  whatever it is, the shell completes nothing
        return []
    return names


QueueName = Annotated[str, options.operand("QUEUE", autocompletion=_queue_names)]
OPTIONAL_QUEUE = options.operand("[QUEUE]", default=None, autocompletion=_queue_names)
