"""Opening a session: names, connection, who else may come in, the root's layout; what is wrong is said at once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence

from airflow_provider_zkmq.engine.core.reading.roots import refuse_another_layout
from airflow_provider_zkmq.engine.errors import HostNotFound
from airflow_provider_zkmq.engine.zk.blocking import carry_out
from airflow_provider_zkmq.engine.zk.dialing import is_address
from airflow_provider_zkmq.engine.zk.drivers import run
from airflow_provider_zkmq.engine.zk.limits import Patience, left, over
from airflow_provider_zkmq.engine.zk.session import CLOSING_SECONDS, Session
from airflow_provider_zkmq.engine.zk.signals import ThreadSignal


def open_session(session: Session) -> None:
    """Connect within ``connect_timeout``, blocking.

    Raises `Unavailable` naming the hosts, as `HostNotFound` and `TlsRefused` at once; `AccessDenied`; `NotSecured`;
    `ConfigError` where what stands under the root has another layout.
    """
    limit = session.config.connect_timeout
    patience = Patience(limit, "connect_timeout")
    patience.within(limit, "connect_timeout", grace=0.0)
    patience.begin()
    try:
        _check_names(session, patience)
        session.open(patience)
        carry_out(session, session.access.look_around(), patience)
        run(session, refuse_another_layout(session.config.root), patience)
    except BaseException:
        session.close(patience=CLOSING_SECONDS)
        raise


class _Lookup:
    """The look-up of a server's name, in a thread of its own: nothing bounds how long the system takes."""

    def __init__(self, host: str, port: int, answered: ThreadSignal) -> None:
        self.host, self.port = host, port
        self.known = self.over = False
        self.error: OSError | None = None
        self._answered = answered
        threading.Thread(target=self._look, name="zkmq-names", daemon=True).start()

    def _look(self) -> None:
        try:
            self.known = bool(socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            self.error = error if isinstance(error, OSError) else OSError(str(error))
        finally:
            self.over = True
            self._answered.fire()

    def __str__(self) -> str:
        return f"{self.host} ({self.error and (self.error.strerror or self.error)})"


def _check_names(session: Session, patience: Patience) -> None:
    """Return when one of the servers can be looked for. Raises `HostNotFound` where none of their names is known."""
    hosts: Sequence[tuple[str, int]] = session.client.hosts
    if any(is_address(host) for host, _ in hosts):
        return
    answered = ThreadSignal()
    lookups = [_Lookup(host, port, answered) for host, port in hosts]
    while True:
        seen = answered.count
        if any(lookup.known for lookup in lookups):
            return
        if all(lookup.over for lookup in lookups):
            unknown = ", ".join(map(str, lookups))
            raise HostNotFound(f"no ZooKeeper server can be looked for: its name is not known here: {unknown}")
        if over(patience.deadline()):
            raise session.unavailable(patience.limit)
        answered.wait(seen, left(patience.deadline()))
