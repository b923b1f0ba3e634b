"""What all threads of a client need at the same moment is asked for once: when they begin, and when it has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure, Signal, Wait

T = TypeVar("T")


def once(
    context: Context, what: str, is_done: Callable[[], object], procedure: Callable[[], Procedure[T]]
) -> Procedure[T | None]:
    """Carry a procedure out, unless another thread of this client is at it and that will do: None then.

    Who has waited for another in vain, which was refused or cut off, does it by itself, beside whoever else does.
    """
    busy: Signal | None = context.shared.get(what)
    if busy is not None:
        yield Wait(busy, 0, turn=True)
        if is_done():
            return None
    mine = context.run.new_signal()
    try:
        context.shared.setdefault(what, mine)
        return (yield from procedure())
    finally:  # without a call before it is taken off, at which an interrupt could come: all others would wait for ever
        if what in context.shared and context.shared[what] is mine:
            del context.shared[what]
        mine.fire()
