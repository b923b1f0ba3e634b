"""One condition of a selector: a filter, an operator, a value."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_zkmq.engine.core.model.filters import FilterTypes, declared_type

OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison of a task's filter with a value."""

    name: str
    op: str
    value: str

    def matches(self, filters: Mapping[str, str], types: FilterTypes) -> bool:
        """Whether a task with these filters is accepted."""
        text = filters.get(self.name)
        kind = types.get(self.name)
        if text is None or kind is None:
            return False
        theirs, wanted = kind.key(text), kind.key(self.value)
        return theirs is not None and wanted is not None and OPERATORS[self.op](theirs, wanted)

    def refusal(self, filters: Mapping[str, str], types: FilterTypes) -> str | None:
        """Why a task with these filters is not accepted; None if it is."""
        if self.matches(filters, types):
            return None
        text, kind = filters.get(self.name), types.get(self.name)
        if kind is None:
            return f"{self}: the queue declares no filter {self.name!r}"
        if text is None:
            return f"{self}: the task has no {self.name!r}"
        if kind.key(text) is None or kind.key(self.value) is None:
            return f"{self}: the queue does not know {text if kind.key(text) is None else self.value!r}"
        return f"{self}: the task's is {text!r}"

    def bind(self, types: FilterTypes) -> Condition:
        """The condition with its value checked against the declared type. Raises `ConfigError`."""
        return Condition(self.name, self.op, declared_type(types, self.name).parse(self.name, self.value))

    def __str__(self) -> str:
        plain = re.fullmatch(r"[^\s,()\"=<>]+", self.value)
        value = self.value if plain else '"' + self.value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        return f"{self.name}{self.op}{value}"
