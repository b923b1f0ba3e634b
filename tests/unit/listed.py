"""Workers of both fronts over a queue in a list, each called in the blocking way; handlers are plain functions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from airflow_provider_zkmq.engine import AsyncWorker, Worker
from tests.integration.fronts import Awaited, event_loop
from tests.unit.test_verdicts import ListClaim

Made = Callable[..., Any]


def _awaited(call: Callable[..., Any]) -> Callable[..., Any]:
    async def carried_out(*given: Any, **options: Any) -> Any:
        result = await asyncio.to_thread(call, *given, **options)
        return [_claim(each) for each in result] if isinstance(result, list) else _claim(result)

    return carried_out


def _claim(result: Any) -> Any:
    if isinstance(result, ListClaim):
        for verb in ("settle", "begin", "extend", "progress"):
            setattr(result, verb, _awaited(getattr(result, verb)))
    return result


class OnALoop:
    """A queue in a list whose verbs are awaited; each is carried out in a thread, where it may wait."""

    def __init__(self, listed: Any) -> None:
        self._listed = listed

    def __internals__(self) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._listed, name)
        verbs = ("claim", "claim_many", "check_wanted", "pending", "exists", "run_maintenance")
        return _awaited(value) if name in verbs else value


@contextmanager
def workers(kind: str) -> Iterator[Made]:
    """Makes workers of one of the two fronts."""
    if kind == "blocking":
        yield Worker
        return
    with event_loop() as loop:

        def made(queue: Any, handler: Callable[[Any], Any], **options: Any) -> Any:
            async def handle(task: Any) -> Any:
                return await asyncio.to_thread(handler, task)

            return Awaited(None, loop)._on_the_loop(lambda: AsyncWorker(OnALoop(queue), handle, **options))  # type: ignore[arg-type]

        yield made
