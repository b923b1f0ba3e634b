"""Loops over claims on the in-memory ZooKeeper, as a front carries them out."""

from __future__ import annotations

from typing import Any

from airflow_provider_zkmq.engine.core.claim.claim_iterator import Loop, go_on, request_loop
from airflow_provider_zkmq.engine.core.client_state import Caller, Claimed
from airflow_provider_zkmq.engine.core.model.new_message import Message
from airflow_provider_zkmq.engine.core.tasks import enqueue
from tests.unit.world import Client, new_queue


def loop_of(client: Client, **options: Any) -> Loop:
    return request_loop(client.context, **({"timeout": 0} | options))


def handed_out(loop: Loop) -> Claimed:
    """The next one, for the body."""
    loop.result = None
    loop.current, loop.ready = loop.ready[0], loop.ready[1:]
    return loop.current


def following(client: Client, loop: Loop, *fault: Any) -> Claimed | None:
    """One step of the loop."""
    return handed_out(loop) if client.do(go_on(loop, Caller()), *fault) else None


def rest(client: Client, loop: Loop) -> list[str]:
    """The body settles nothing: the ids in order."""
    ids = []
    while (claimed := following(client, loop)) is not None:
        ids.append(claimed.task_id)
    return ids


def filled(order: str = "default", names: str = "abcde", **conf: Any) -> Client:
    """A client that knows its queue: it has worked there before."""
    client = new_queue(order=order, **conf)
    client.put(task_id="0")
    client.work()
    client.do(enqueue.enqueue_many(client.context, [Message(b"x", task_id=name) for name in names]))
    return client
