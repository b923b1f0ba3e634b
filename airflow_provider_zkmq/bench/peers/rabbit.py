"""RabbitMQ: a quorum queue of one node, publishers' confirms, and acknowledgements by hand, driven by pika.

``python -m airflow_provider_zkmq.bench.peers.rabbit`` is an agent, which reads the lines that those of ours read. What
is confirmed is on the disk. An acknowledgement is not answered: the last of them are known to have arrived by the
answer to another question, which is measured, too. The task of a consumer that dies comes back with its connection.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from airflow_provider_zkmq.bench.jobs import PAYLOAD, SkippedError
from airflow_provider_zkmq.bench.lines import serve
from airflow_provider_zkmq.bench.peers.guarded import expect, start
from airflow_provider_zkmq.bench.peers.threaded import Agent, Connect
from airflow_provider_zkmq.embedded.ports import free_ports

#: Where Debian has what its own command runs as another user.
_DEBIAN: Final = Path("/usr/lib/rabbitmq/lib")
_QUEUE, _HOST = "tasks", "127.0.0.1"
# The Erlang port mapper would outlive its node otherwise.
_NODE: Final = 'epmd -port "$ERL_EPMD_PORT" & exec "$0"'


def rabbit_agent(_hosts: str, _root: str) -> list[str]:
    """The command line of an agent."""
    return [sys.executable, "-m", "airflow_provider_zkmq.bench.peers.rabbit"]


class Connection:
    """A connection with a channel that confirms, and another that does not."""

    def __init__(self, pika: Any, port: int) -> None:
        self._pika = pika
        self._connection = pika.BlockingConnection(pika.ConnectionParameters(_HOST, port, heartbeat=0))
        self._channel = self._connection.channel()
        self._confirming = self._connection.channel()
        self._confirming.confirm_delivery()

    def clear(self) -> None:
        """The queue is made anew."""
        self._channel.queue_delete(_QUEUE)
        self._channel.queue_declare(_QUEUE, durable=True, arguments={"x-queue-type": "quorum"})

    def put(self, tasks: int) -> int:
        """Each message is waited for until it is confirmed."""
        for _ in range(tasks):
            self._publish(self._confirming)
        return tasks

    def put_many(self, tasks: int) -> int:
        """None is, but for the last, which comes after the others; a channel's messages stay in order."""
        for _ in range(tasks - 1):
            self._publish(self._channel)
        self._channel.confirm_delivery()
        self._publish(self._channel)
        return tasks

    def _publish(self, channel: Any) -> None:
        lasting = self._pika.BasicProperties(delivery_mode=2)
        channel.basic_publish("", _QUEUE, PAYLOAD, lasting, mandatory=True)

    def consume(self, tasks: int) -> int:
        """Get one, acknowledge it."""
        done = 0
        while done < tasks:
            method, _, _ = self._channel.basic_get(_QUEUE)
            if method is None:
                break
            self._channel.basic_ack(method.delivery_tag)
            done += 1
        self._channel.queue_declare(_QUEUE, passive=True)
        return done

    def close(self) -> None:
        """Say goodbye."""
        with suppress(self._pika.exceptions.AMQPError):
            self._connection.close()


@contextmanager
def _connected(pika: Any, port: int) -> Iterator[Connection]:
    connection = Connection(pika, port)
    try:
        yield connection
    finally:
        connection.close()


def _program() -> str:
    """The server's command. Raises `SkippedError` where something is missing."""
    newest = sorted(_DEBIAN.glob("rabbitmq_server-*/sbin/rabbitmq-server"))
    program = str(newest[-1]) if newest else shutil.which("rabbitmq-server")
    if program is None or shutil.which("epmd") is None:
        raise SkippedError(
            "rabbitmq-server is not installed: RabbitMQ is measured where it is (apt install rabbitmq-server)"
        )
    if importlib.util.find_spec("pika") is None:
        raise SkippedError("RabbitMQ is measured where its client is installed (pip install pika)")
    return program


def _environment(folder: Path, ports: list[int]) -> list[str]:
    """Nothing of the system's own node is used, nor is it met."""
    node, nodes, mapper = ports
    rabbit = {
        "NODENAME": f"zkmq{node}@localhost",
        "NODE_IP_ADDRESS": _HOST,
        "NODE_PORT": node,
        "DIST_PORT": nodes,
        "MNESIA_BASE": folder / "mnesia",
        "LOG_BASE": folder / "logs",
        "LOGS": "-",
        "ENABLED_PLUGINS_FILE": folder / "plugins",
        "CONFIG_FILE": folder / "settings",
        "CONF_ENV_FILE": folder / "environment",
        "PID_FILE": folder / "pid",
    }
    erlang = {"ERL_EPMD_PORT": mapper, "ERL_EPMD_ADDRESS": _HOST, "HOME": folder}
    return [
        f"{name}={value}" for name, value in ({f"RABBITMQ_{key}": of for key, of in rabbit.items()} | erlang).items()
    ]


@contextmanager
def running() -> Iterator[Connect]:
    """A node of the benchmark's own. Raises `SkippedError` where none can be had."""
    program = _program()
    pika = importlib.import_module("pika")
    with tempfile.TemporaryDirectory(prefix="zkmq-rabbit-", ignore_cleanup_errors=True) as made:
        folder, ports = Path(made), free_ports(_HOST, 3)
        (folder / "plugins").write_text("[].", encoding="ascii")
        node = ["env", *_environment(folder, ports), "/bin/sh", "-c", _NODE, program]
        server = start(node, folder, "KILL")
        try:
            expect(server, folder, "RabbitMQ", lambda: "completed with" in (folder / "log").read_text(errors="replace"))
            yield partial(_connected, pika, ports[0])
        finally:
            server.communicate()  # closes its guard's input, and waits for its end


def main() -> None:
    """Answer until the input ends."""
    with ExitStack() as stack:
        serve(Agent(stack, running).answer)


if __name__ == "__main__":
    main()
