"""The two servers that are compared: a real ZooKeeper behind the engine's blocking driver, and the in-memory one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_provider_zkmq.engine.connection_config import ConnectionConfig
from airflow_provider_zkmq.engine.core.zk_operations import (
    Create,
    CreateContainer,
    Delete,
    Exists,
    Multi,
    Op,
    Pipeline,
    Post,
    Sync,
)
from airflow_provider_zkmq.engine.zk.procedure_drivers import open_session, run
from airflow_provider_zkmq.engine.zk.session import Session
from tests.simulation.zookeeper import Ensemble
from tests.support import eventually


def _single(op: Op) -> Iterator[Any]:
    return (yield op)


class _RealClient:
    def __init__(self, hosts: str) -> None:
        self._session = Session(ConnectionConfig.of(hosts, "/unused", session_timeout=20))
        open_session(self._session)
        self.session = self._session.id

    def perform(self, op: Op) -> Any:
        return run(self._session, _single(op))  # type: ignore[arg-type]

    def end(self) -> None:
        self._session.close()


class RealServer:
    """A server that looks for containers to reap every second or so, or `reap` takes long."""

    def __init__(self, hosts: str) -> None:
        self._hosts = hosts
        self._clients: list[_RealClient] = []
        self._canaries = 0

    def connect(self) -> _RealClient:
        made = _RealClient(self._hosts)
        self._clients.append(made)
        return made

    def reap(self) -> None:
        """Two rounds of the server's: what was there before the first canary was is judged when the second has gone."""
        client = self.connect()
        for _ in range(2):
            self._canaries += 1
            path = f"/canary-{self._canaries}"
            client.perform(CreateContainer(path))
            client.perform(Multi((Create(f"{path}/x"), Delete(f"{path}/x"))))
            eventually(lambda path=path: client.perform(Exists(path)) is None, within=90)

    def close(self) -> None:
        for client in self._clients:
            client.end()


class _MemoryClient:
    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble
        self.session = ensemble.connect()

    def perform(self, op: Op) -> Any:
        match op:
            case Pipeline(ops):
                return [self.perform(one) for one in ops]
            case Sync():
                return self._ensemble.sync(self.session)
            case Post(multi, lost):
                if not self._ensemble.perform(self.session, multi).committed:
                    lost()
                return True
            case _:
                return self._ensemble.perform(self.session, op)

    def end(self) -> None:
        self._ensemble.end(self.session)


class MemoryServer:
    """The in-memory server, with one node."""

    def __init__(self) -> None:
        self._ensemble = Ensemble()

    def connect(self) -> _MemoryClient:
        return _MemoryClient(self._ensemble)

    def reap(self) -> None:
        for _ in range(3):  # a container is emptied when the one in it was reaped
            self._ensemble.reap()

    def close(self) -> None:
        pass


Client = _RealClient | _MemoryClient
Server = RealServer | MemoryServer
