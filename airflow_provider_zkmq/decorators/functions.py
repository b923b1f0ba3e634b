"""The function under `@task.zkmq`: what of its signature is TaskFlow's, and how a worker calls it."""

from __future__ import annotations

import contextvars
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from airflow.sdk.bases.decorator import KeywordParameters, is_async_callable

_BY_POSITION: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
#: So many failures of a function are logged with their tracebacks.
_TRACEBACKS: Final = 3


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


def fields_of(
    own: Mapping[str, object], function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values of an operator's `own` fields of which a function has arguments of that name.

    A field is as the argument is given; by its default only where the field is None.
    """
    bound = inspect.signature(function).bind_partial(*args, **kwargs)
    given = set(bound.arguments)
    bound.apply_defaults()
    named = {name: bound.arguments.get(name, value) for name, value in own.items()}
    return {name: value if name in given or own[name] is None else own[name] for name, value in named.items()}


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
    """Return what a worker calls for each task, in its own thread: there, too, Airflow's context is at hand."""
    around, told = contextvars.copy_context(), list[str]()

    def handle(*given: Any) -> Any:
        try:
            return around.copy().run(function, *given, *args, **kwargs)
        except Exception:
            if len(told) < _TRACEBACKS:
                told.append(given[0].id)
                log.warning("Task %s: the function failed", given[0].id, exc_info=True)
            raise

    return handle
