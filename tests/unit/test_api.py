"""Both fronts have the same methods, and show them to whoever looks: people, editors, type checkers, mocks."""

from __future__ import annotations

import asyncio
import inspect
import os
import pydoc
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints
from unittest.mock import AsyncMock, create_autospec

import pytest

from airflow_provider_zkmq import engine, spark
from airflow_provider_zkmq.engine import (
    AsyncClaim,
    AsyncQueue,
    AsyncUnitOfWork,
    AsyncWorker,
    AsyncZkmq,
    Claim,
    ConfigError,
    Queue,
    Running,
    RunningAsync,
    UnitOfWork,
    Worker,
    Zkmq,
)
from airflow_provider_zkmq.engine.api.internal_methods import AsyncQueueInternals, QueueInternals
from airflow_provider_zkmq.engine.connection_config import ConnectionConfig
from airflow_provider_zkmq.engine.core.tasks import admin

NOWHERE = ConnectionConfig.of("127.0.0.1:1")
TOP = Path(__file__).parents[2]
FRONTS: list[tuple[Any, Any]] = [
    (Zkmq, AsyncZkmq), (Queue, AsyncQueue), (QueueInternals, AsyncQueueInternals), (Claim, AsyncClaim),
    (UnitOfWork, AsyncUnitOfWork),
]  # fmt: skip
#: What makes the one front usable in ``await`` and ``async with`` is not its caller's.
PAIRS = [*FRONTS, (Worker, AsyncWorker), (Running, RunningAsync)]


def public(kind: type) -> dict[str, Any]:
    """What a caller may use of a class, by name."""
    return {name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_")}


def shape(function: Any) -> list[tuple[str, Any, Any]]:
    """The names, kinds and defaults of a function's parameters."""
    return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]


def methods(kind: type) -> dict[str, Any]:
    """The public methods of a class, by name."""
    return {name: it for name, it in public(kind).items() if inspect.isfunction(it)}


def test_both_fronts_show_the_same_of_each_method(subtests: pytest.Subtests) -> None:
    """Name, parameters and documentation of a call; one is a function, the other a coroutine function."""
    for blocking, awaited in FRONTS:
        for name, mine in methods(blocking).items():
            with subtests.test(front=blocking.__name__, method=name):
                theirs = methods(awaited)[name]
                assert mine.__name__ == theirs.__name__ == name
                assert mine.__qualname__.endswith(f".{name}")
                shown, awaited_shown = inspect.signature(mine), inspect.signature(theirs)
                assert shown.parameters == awaited_shown.parameters
                awaited_result = str(awaited_shown.return_annotation).replace("working.", "").replace("Async", "")
                assert str(shown.return_annotation) == awaited_result
                assert next(iter(shown.parameters)) == "self"
                assert "Procedure" not in str(shown)
                assert mine.__doc__
                assert mine.__doc__ == theirs.__doc__ or name in {"start", "worker"}
                assert not inspect.iscoroutinefunction(mine)


@pytest.mark.parametrize("kind", [kind for pair in FRONTS for kind in pair])
def test_the_types_of_each_method_can_be_read(kind: type, subtests: pytest.Subtests) -> None:
    """Each parameter and the result has its type, also at run time: for documentation, validation and serialization."""
    for name, function in methods(kind).items():
        with subtests.test(method=name):
            hints, shown = get_type_hints(function), inspect.signature(function)
            assert hints.keys() == {*shown.parameters, "return"} - {"self"}
            assert "AsyncClaim" in str(hints["return"]) or kind is not AsyncQueue or not name.startswith("claim")


@pytest.mark.parametrize("kind", [kind for pair in FRONTS for kind in pair])
def test_a_mock_takes_what_each_method_takes(kind: type, subtests: pytest.Subtests) -> None:
    """`create_autospec` refuses arguments that the method would refuse, and is awaited where the method is."""
    mock = create_autospec(kind, instance=True)
    for name, function in methods(kind).items():
        with subtests.test(method=name):
            required = [each for each in inspect.signature(function).parameters.values() if each.default is each.empty]
            fitting = {each.name: None for each in required[1:] if each.kind is not each.VAR_KEYWORD}
            answer = getattr(mock, name)(**fitting)
            assert inspect.iscoroutine(answer) is inspect.iscoroutinefunction(function)
            if inspect.iscoroutine(answer):
                answer.close()
            with pytest.raises(TypeError):
                getattr(mock, name)(*range(99))


def test_both_fronts_have_the_same_public_names() -> None:
    """And the same parameters, with the same defaults and in the same order; so has what makes them."""
    for blocking, awaited in PAIRS:
        mine, theirs = public(blocking), public(awaited)
        assert mine.keys() == theirs.keys()
        for name in mine:
            one, other = getattr(blocking, name), getattr(awaited, name)
            assert callable(one) is callable(other), name
            if callable(one):
                assert shape(one) == shape(other), name
        if blocking in {Worker, Zkmq}:
            assert shape(blocking.__init__) == shape(awaited.__init__)

    async def make() -> AsyncWorker:
        return AsyncZkmq(NOWHERE).queue("q").worker(AsyncMock())

    both = Zkmq(NOWHERE).queue("q").worker(print), asyncio.run(make())  # what stands in the objects, too
    assert len({frozenset(name for name in dir(each) if not name.startswith("_")) for each in both}) == 1
    assert not any(each.stopping for each in both)


def test_signatures_are_those_of_the_procedures() -> None:
    """Less what the front provides; a bound method has no `self`. Claims are shown as what their caller gets."""
    returned = {Queue.claim: "Claim | None", AsyncQueue.claim: "AsyncClaim | None"}
    returned |= dict.fromkeys([UnitOfWork.try_take, AsyncUnitOfWork.try_take], "Task | None")
    assert all(inspect.signature(method).return_annotation == each for method, each in returned.items())
    names = lambda method: list(inspect.signature(method).parameters)
    assert str(inspect.signature(Queue.pause)) == "(self) -> 'bool'"
    assert names(Queue.configure)[1:] == names(admin.configure)[1:]
    assert names(AsyncQueue.claim_handle) == ["self", "task_id", "token", "lease"]
    assert names(AsyncClaim.fail) == ["self", "error", "retry", "backoff"]
    queue = Zkmq(NOWHERE).queue("q")
    assert str(inspect.signature(queue.pause)) == "() -> 'bool'"
    assert names(queue.enqueue)[:2] == ["data", "filters"]
    with pytest.raises(TypeError, match="task_id"):
        queue.task()


def test_the_surface_of_a_queue_stays_small() -> None:
    """At most 40 names, as the design says; what only this package calls is not among them."""
    for queue, own in ((Queue, QueueInternals), (AsyncQueue, AsyncQueueInternals)):
        assert len(public(queue)) <= 40
        assert not public(queue).keys() & public(own).keys()


@pytest.mark.parametrize("queue", [Queue, AsyncQueue])
def test_help_shows_verbs(queue: type) -> None:
    """As methods, with their parameters and what they do."""
    shown = pydoc.plain(pydoc.render_doc(queue))
    assert "enqueue(self, data: 'bytes | str', filters:" in shown
    assert "Hand out nothing until `resume`" in shown
    assert "Take the first task that fits" in shown


def test_type_checkers_see_both_fronts() -> None:
    """`typed_api` says what they see; it is checked strictly, refusals and all."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "tests/unit/typed_api.py"],
        cwd=TOP,
        env={**os.environ, "MYPYPATH": str(TOP)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_transaction_settles_only_what_it_adopted() -> None:
    """Asked to settle a claim that never entered it, a transaction says so and sends nothing."""
    unit = Zkmq(ConnectionConfig.of("127.0.0.1:1")).transaction()
    with pytest.raises(Exception, match="adopted no claim"):
        unit.settle(None, None)  # type: ignore[arg-type]


def test_what_connects_chooses_by_the_address(tmp_path: Path) -> None:
    """Files where the address says so, for one front only."""
    with Zkmq.connect(f"textqueue://{tmp_path}") as files:
        assert not isinstance(files, Zkmq)
        assert files.queue("q").enqueue(b"x")
    with pytest.raises(ConfigError, match="no asynchronous use"):
        AsyncZkmq.connect(f"textqueue://{tmp_path}")


def test_public_names_are_where_the_stub_says() -> None:
    """Each is found at its first use; an unknown name is an attribute error."""
    for package, some in ((engine, "Zkmq"), (spark, "report")):
        assert some in package.__all__
        assert all(getattr(package, name) is not None for name in package.__all__)
        with pytest.raises(AttributeError, match="'nonsense'"):
            _ = package.nonsense  # type: ignore[attr-defined]
