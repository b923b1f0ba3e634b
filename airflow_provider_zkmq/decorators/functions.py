"""The function under `@task.zkmq`: what of its signature is TaskFlow's, and how a worker calls it."""

from __future__ import annotations

import contextvars
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from airflow.sdk.bases.decorator import KeywordParameters, is_async_callable
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_zkmq.engine import ConfigError, Error, Retry, Snooze, Success
from airflow_provider_zkmq.operators.results import as_result

_BY_POSITION: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
#: What settles a task by itself.
_OUTCOMES: Final = (Success, Error, Retry, Snooze)
#: So many failures of a function are logged with their tracebacks.
_TRACEBACKS: Final = 3
#: What the function skips is not delivered again for so many seconds: the same run would take it again and again.
_SKIPPED: Final = 10.0


def without_first(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Return the function with the signature that is left for TaskFlow: the first `count` parameters are ours.

    Raises `ValueError` for a function that does not take them, and for a coroutine function.
    """
    name = getattr(function, "__name__", repr(function))
    if is_async_callable(function):
        raise ValueError(f"@task.zkmq: {name} is a coroutine function: give a plain one")
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    first, rest = parameters[:count], parameters[count:]
    if len(first) < count or any(each.kind not in _BY_POSITION for each in first):
        wanted = "the task and its transaction" if count > 1 else "the task"
        raise ValueError(f"@task.zkmq: {name} is called with {wanted} first: it must take {count} argument(s) for it")

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    called.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
    return called


def take_fields(operator: Any, absent: Mapping[str, object]) -> None:
    """Set an operator's fields to the arguments of their names that its function is called with.

    `absent`: those fields, each with what a None that is given stands for. The default of an argument that is not given
    is taken where the field is None.
    """
    bound = inspect.signature(operator.python_callable).bind_partial(*operator.op_args, **operator.op_kwargs)
    given = {**operator.op_kwargs, **bound.arguments}
    bound.apply_defaults()
    for name, nothing in absent.items():
        if name in given:
            setattr(operator, name, nothing if given[name] is None else given[name])
        elif getattr(operator, name) is None and name in bound.arguments:
            setattr(operator, name, bound.arguments[name])


def keywords_of(
    function: Callable[..., Any],
    args: Collection[Any],
    kwargs: Mapping[str, Any],
    context: Mapping[str, Any],
    ours: Collection[str],
) -> Mapping[str, Any]:
    """Return a function's other arguments: TaskFlow's, and those of Airflow's context that it names; none of `ours`."""
    given = {name: value for name, value in {**context, **kwargs}.items() if name not in ours}
    keywords: Mapping[str, Any] = KeywordParameters.determine(function, tuple(args), given).unpacking()
    return keywords


def handler_of(
    function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any], log: Any
) -> Callable[..., Any]:
    """Return what a worker calls for each task, in its own thread: there, too, Airflow's context is at hand.

    What the function returns and a worker knows no meaning of is kept as JSON. What is none fails the task for good, as
    does `AirflowFailException`: another try would end alike. `AirflowSkipException` gives it back, which is no attempt.
    """
    around, told = contextvars.copy_context(), list[str]()

    def handle(*given: Any) -> Any:
        try:
            done = around.copy().run(function, *given, *args, **kwargs)
        except AirflowSkipException as error:
            log.info("Task %s is given back, as the function skipped it: %s", given[0].id, error)
            return Snooze(_SKIPPED)
        except Exception as error:
            if len(told) < _TRACEBACKS:
                told.append(given[0].id)
                log.warning("The function failed: task %s", given[0].id, exc_info=True)
            if isinstance(error, AirflowFailException):
                return Error(error)
            raise
        try:
            return done if isinstance(done, _OUTCOMES) else as_result(done)
        except ConfigError as error:
            return Error(error)

    return handle
