"""One scenario for both fronts: what `AsyncZkmq` returns is called like `Zkmq`, and carried out on an event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from airflow_provider_zkmq.engine import AsyncZkmq, Zkmq

KINDS = ("blocking", "asynchronous")


class Awaited:
    """An object of the asynchronous front with the verbs of the blocking one, each awaited on the event loop."""

    def __init__(self, there: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.__dict__.update(there=there, loop=loop)

    def _on_the_loop(self, call: Callable[[], Any]) -> Any:
        async def carried_out() -> Any:
            result = call()
            return await result if inspect.isawaitable(result) else result

        return self._told(asyncio.run_coroutine_threadsafe(carried_out(), self.loop).result(300))

    def _told(self, result: Any) -> Any:
        """What has verbs to be awaited is wrapped as well."""
        if isinstance(result, list):
            return [self._told(each) for each in result]
        return Awaited(result, self.loop) if type(result).__name__.startswith("Async") else result

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.there, name)
        if not inspect.isroutine(value):
            return self._told(value)
        return lambda *args, **options: self._on_the_loop(lambda: value(*args, **options))

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.there, name, value)

    def __enter__(self) -> Self:
        self._on_the_loop(self.there.__aenter__)
        return self

    def __exit__(self, *error: object) -> None:
        self._on_the_loop(lambda: self.there.__aexit__(*error))

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return self._on_the_loop(lambda: anext(self.there))
        except StopAsyncIteration:
            raise StopIteration from None


@contextmanager
def event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that runs in a thread of its own, as long as the block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


@contextmanager
def connected(kind: str, hosts: str, **options: Any) -> Iterator[Any]:
    """A client of one of the two fronts, to be called as the blocking one."""
    if kind == "blocking":
        with Zkmq.connect(hosts, **options) as client:
            yield client
    else:
        with event_loop() as loop, Awaited(AsyncZkmq.connect(hosts, **options), loop) as client:
            yield client
