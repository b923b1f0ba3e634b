"""What the tasks that a run has finished keep as their result: each its own, or one for all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from airflow.sdk import XComArg
from airflow.sdk.exceptions import XComNotFound

from airflow_provider_zkmq.engine import ConfigError

if TYPE_CHECKING:
    from airflow.sdk import Context

#: The task and the key of an XCom, and whether each instance of a mapped task has one.
Source: TypeAlias = tuple[str, str, bool]
#: What values, and the functions that a DAG applies to them, raise; where Airflow does not answer, it is another error.
_WRONG: Final = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


class Results:
    """The results of `count` claims, from what was given, or from the XCom that it is or is made of.

    What work returns is asked for only where it succeeded: else there is none, which Airflow's templates complain of.
    """

    def __init__(self, given: Any, source: Source | None, context: Context, count: int, *, each: bool) -> None:
        self._given = given
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
            return as_result(value)
        return as_result(self._in_order[position])

    @cached_property
    def _for_all(self) -> Any:
        if self._source is not None:
            return self._pulled(self._source, -1)
        if not isinstance(self._given, XComArg):
            return self._given
        try:
            return self._given.resolve(self._context)
        except (XComNotFound, *_WRONG) as error:
            raise ConfigError(f"result cannot be made: {error}") from None

    @cached_property
    def _in_order(self) -> list[Any]:
        """The values, one for each claim: in any other number, they would be taken for those of other claims."""
        if isinstance(self._for_all, AbstractSet):
            raise ConfigError("result is a set, which has no order: with each=True, give a list in that of the claims")
        try:
            values = list(self._for_all)
        except _WRONG as error:
            raise ConfigError(f"result cannot be made: {error}") from None
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
    """Return what a queue's task keeps as its result. Raises `ConfigError` for what is neither text nor JSON."""
    if value is None or isinstance(value, bytes):
        return value
    try:
        if isinstance(value, str):
            return value.encode()  # half a surrogate pair is no text
        # What mapped tasks returned is read from Airflow one by one, and is no list.
        return json.dumps(value, default=list)
    except _WRONG as error:
        raise ConfigError(f"result is neither bytes, text nor JSON: {error}") from None


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
