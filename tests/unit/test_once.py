"""What one thread reads for all: whoever is cut off while it does keeps nobody from doing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_zkmq.engine.core.protocol.ops import Get, Wait
from airflow_provider_zkmq.engine.core.reading.configuration import read_conf
from airflow_provider_zkmq.engine.core.reading.once import once
from tests.unit.test_awake import World


class Interrupted(dict[str, Any]):
    """A memory, one call of which meets an interrupt once it has done its work."""

    calls = 0

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        value = method(*arguments)
        self.calls += 1
        if self.calls == self._at:
            raise KeyboardInterrupt
        return value

    def get(self, *arguments: Any) -> Any:
        return self._call(super().get, *arguments)

    def setdefault(self, *arguments: Any) -> Any:
        return self._call(super().setdefault, *arguments)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_wherever_an_interrupt_comes_the_next_reads_by_itself(at: int) -> None:
    world = World()

    def read() -> Any:
        yield Get("/")

    world.context.shared = shared = Interrupted(at)
    try:
        world.do(once(world.context, "conf", lambda: False, read))
    except KeyboardInterrupt:
        pass
    else:
        assert shared.calls < at
    world.context.shared = dict(shared)
    stepper = world.stepper(once(world.context, "conf", lambda: False, read))
    assert isinstance(stepper.op, Get), "it waits for somebody who is gone"
    stepper.finish()
    assert not world.context.shared


@pytest.mark.parametrize("ending", ["done", "cut", "failed"])
def test_who_waited_reads_only_where_the_other_could_not(ending: str) -> None:
    world = World()
    _, context = world.client("fresh")
    first, second = world.stepper(read_conf(context)), world.stepper(read_conf(context))
    assert isinstance(second.op, Wait)
    if ending == "done":
        first.finish()
    elif ending == "cut":
        first.cut()
    else:
        with pytest.raises(ZeroDivisionError):
            first.fail(ZeroDivisionError())
    second.answer(True)
    assert second.over == (ending == "done")
    assert second.finish().order == "default"
    assert not context.shared
