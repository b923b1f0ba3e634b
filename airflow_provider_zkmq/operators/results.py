"""What the tasks that a run has finished keep as their result: each its own, or one for all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from airflow.sdk import XComArg
from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_provider_zkmq.engine import ConfigError

if TYPE_CHECKING:
    from airflow.sdk import Context

#: The task and the key of an XCom, and whether each instance of a mapped task has one.
Source: TypeAlias = tuple[str, str, bool]
#: Airflow does not answer: the next try asks it again.
_NO_ANSWER: Final = (AirflowRuntimeError, OSError, EOFError)
_NO_RESULT: Final = "result is neither bytes, text nor JSON"
T = TypeVar("T")


class Results:
    """The results of `count` claims, from what `render` makes of what was given, or from the XCom that it is.

    What work returns is asked for only where it succeeded: else there is none, which Airflow's templates complain of.
    """

    def __init__(
        self, render: Callable[[], Any], source: Source | None, context: Context, count: int, *, each: bool
    ) -> None:
        self._render = render
        self._source = source
        self._context = context
        self._count = count
        self._each = each

    def of(self, position: int) -> bytes | str | None:
        """Return the result of the claim at a position. Raises `ConfigError` for what is none, or may be another's."""
        if self._source is not None and self._source[2]:
            return as_result(self._pulled(self._source, position))
        value = self._for_all
        if not self._each or isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            return self._same
        return as_result(self._in_order[position])

    @cached_property
    def _same(self) -> bytes | str | None:
        return as_result(self._for_all)

    @cached_property
    def _for_all(self) -> Any:
        source = self._source
        return _made("result cannot be made", self._render) if source is None else self._pulled(source, -1)

    @cached_property
    def _in_order(self) -> list[Any]:
        """The values, one for each claim: in any other number, they would be taken for those of other claims."""
        if isinstance(self._for_all, AbstractSet):
            raise ConfigError("result is a set, which has no order: with each=True, give a list in that of the claims")
        values = _made("result cannot be made", lambda: list(self._for_all))
        if len(values) != self._count:
            raise ConfigError(
                f"result has {len(values)} value(s) for {self._count} claim(s), and is kept by none, as it may be "
                "another's: with each=True, give a list with a value for each claim, None where it has none"
            )
        return values

    def _pulled(self, source: Source, index: int) -> Any:
        instance: Any = self._context["ti"]
        return instance.xcom_pull(task_ids=source[0], key=source[1], map_indexes=index)


def as_result(value: Any) -> bytes | str | None:
    """Return what a queue's task keeps as its result. Raises `ConfigError` for what is neither text nor JSON.

    So is a set: as a list it would have an order that is another each time.
    """
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return _made(_NO_RESULT, value.encode)  # half a surrogate pair is no text
    return _made(_NO_RESULT, lambda: json.dumps(value, default=_as_list))


def _as_list(value: Any) -> list[Any]:
    """Return what is no JSON as a list: what mapped tasks returned, say, which is read from Airflow one by one."""
    if isinstance(value, AbstractSet):
        raise TypeError("a set has no order: give a list")
    return list(value)


def _made(wrong: str, work: Callable[[], T]) -> T:
    """Return what `work` makes of values, by functions of the DAG's, too, which may raise anything.

    Raises `ConfigError` for that: what is not settled is done again, and no later try would do better.
    """
    try:
        return work()
    except _NO_ANSWER:
        raise
    except Exception as error:  # noqa: BLE001  whatever a function of the DAG's raises
        raise ConfigError(f"{wrong}: {type(error).__name__}: {error}") from None


def source_of(result: Any, *, each: bool) -> Source | None:
    """Return the XCom that a result is. None for what is none, is made of several, or is for all claims.

    Raises `ValueError` for what is made of a mapped task's XComs for claims that are told apart: Airflow leaves out the
    instances that have none, and what follows them would move to the claims before.
    """
    operator, key = getattr(result, "operator", None), getattr(result, "key", None)
    if operator is not None and key is not None:
        mapped = _is_mapped(operator)
        return (str(operator.task_id), str(key), mapped) if each or not mapped else None
    parts = [operator for operator, _ in XComArg.iter_xcom_references(result)] if each else []
    if names := sorted({operator.task_id for operator in parts if _is_mapped(operator)}):
        raise ValueError(
            f"result: with each=True, what is made of the results of the mapped task {names[0]!r} (map, zip, concat, a "
            "list) has no certain order: apply the function in the task itself, and give what the task returns"
        )
    return None


def _is_mapped(operator: Any) -> bool:
    return operator.is_mapped or operator.get_closest_mapped_task_group() is not None
