"""What clients do that enqueue in a simulated world, and how callers ask until they know."""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

from airflow_provider_zkmq.engine.core.model.filters import OrderedEnum
from airflow_provider_zkmq.engine.core.model.new_message import Message, OnConflict
from airflow_provider_zkmq.engine.core.read import watch_tasks
from airflow_provider_zkmq.engine.core.tasks import batches, enqueue
from airflow_provider_zkmq.engine.errors import TransportError
from tests.simulation.parts import Call, Client, Pause

TYPES: Final = {"c": OrderedEnum("low", "high")}
Program: TypeAlias = Generator[Call | Pause, Call | None, None]
Step: TypeAlias = Generator[Call | Pause, Call | None, Call]
TRIES: Final = 8


def told(make: Any) -> Step:
    """Ask until the outcome is known, as a caller does who must know: an enqueue with the ids that it has used."""
    ids: Sequence[str] = ()
    for _ in range(TRIES):
        call = yield make(ids) if ids else make()
        assert call is not None
        if call.cancelled or not isinstance(call.error, TransportError):
            return call
        ids = getattr(call.error, "task_ids", ()) or ids
        yield Pause(0.3)
    return call


def on_conflict(rand: random.Random) -> OnConflict:
    """Whether a task that has the id may be replaced, and whether the message may wait for its end."""
    replaces, requeues = rand.random() < 0.5, rand.random() < 0.5
    words: dict[tuple[bool, bool], OnConflict] = {
        (False, False): "raise", (True, False): "replace", (False, True): "requeue", (True, True): "replace-or-requeue",
    }  # fmt: skip
    return words[replaces, requeues]


def put(client: Client, rand: random.Random, number: int) -> Any:
    """An enqueue of some kind."""
    context = client.context()
    name = rand.choice([None, None, None, "a", "b"])
    payload = f"{rand.random()}-{number}".encode()
    message = Message(
        payload,
        rand.choice([None, {"c": "low"}, {"c": "high"}]),
        rand.choice([0, 0, 0, 1]),
        rand.choice([None, None, None, 0, 1, 3, 70]),
        name,
        on_conflict=on_conflict(rand) if name is not None else "raise",
        lock=rand.choice([None, None, None, 5]),
    )
    once = [payload] if name is None else []
    about = {"queue": "q", "once": once, "message": message}
    return lambda ids=(name,): Call("enqueue", enqueue.enqueue(context, replace(message, task_id=ids[0])), about)


def put_many(client: Client, rand: random.Random, number: int) -> Any:
    """Several at once, some with a key that other calls have, too; or a batch with a task that follows."""
    context = client.context()
    payloads = [f"{rand.random()}-{number}-{at}".encode() for at in range(rand.randint(2, 4))]
    messages = [Message(data, rand.choice([None, {"c": "low"}])) for data in payloads]
    name = rand.choice([None, f"batch-{rand.randrange(1 << 30)}"])
    then = Message(b"then", delay=rand.choice([None, 2, 100])) if name and rand.random() < 0.5 else None
    key = None if name else rand.choice([None, "key-1", "key-2"])
    about = {"queue": "q", "once": payloads, "batch": name}

    def make(ids: Sequence[str | None] = (None,) * len(messages)) -> Call:
        named = [replace(message, task_id=each) for message, each in zip(messages, ids, strict=True)]
        known = messages if name or key else named
        requested = enqueue.enqueue_each(context, known, batch=name, then=then, idempotency_key=key)
        return Call("enqueue", requested, about)

    return make


def producer(client: Client, rand: random.Random, rounds: int) -> Program:
    """Enqueues, and asks again where the outcome is unknown; now and then waits for what it enqueued."""
    for number in range(rounds):
        many = rand.random() < 0.25
        call = yield from told((put_many if many else put)(client, rand, number))
        if call.ok and rand.random() < 0.3:
            yield from wait_for(client, call, rand)
        yield Pause(rand.choice([0, 0, 0.005, 0.5]))


def loader(client: Client, rand: random.Random, rounds: int) -> Program:
    """Loads some of the same tasks as every other loader, each by itself or as the same batch."""
    context, name = client.context(), rand.choice([None, "load"])
    kind = "member" if name else "row"
    if name:
        yield from told(lambda: Call("open_batch", enqueue.open_shared(context, name)))
    for _ in range(rounds):
        ids = rand.sample([f"{kind}-{number}" for number in range(5)], 3)
        messages = [Message(b"x", delay=rand.choice([None, None, 3]), task_id=task_id) for task_id in ids]
        about = {"queue": "q", "batch": name}
        load = partial(enqueue.enqueue_new, context, messages, batch=name)
        yield from told(lambda _ids=(), load=load, about=about: Call("load", load(), about))
        yield Pause(rand.choice([0, 0.005, 8.0]))
    if name:
        yield from told(lambda: Call("seal_batch", enqueue.seal(context, name)))


def wait_for(client: Client, done: Call, rand: random.Random) -> Step:
    """Wait for tasks or a batch."""
    context, name = client.context(), done.about.get("batch")
    limit = rand.choice([1.0, 30.0, 200.0])
    if name:
        about = {"queue": "q", "batch": name}
        return (yield from told(lambda: Call("wait_batch", batches.wait_batch(context, name, limit), about, limit)))
    ids = done.value if isinstance(done.value, list) else [done.value]
    about = {"queue": "q", "ids": ids, "acknowledged": (client, client.restored)}
    return (yield from told(lambda: Call("wait", watch_tasks.wait(context, ids, timeout=limit), about, limit)))
