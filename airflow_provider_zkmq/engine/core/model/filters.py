"""Filter types: the typed tags of a task, as zkmq declares them.

A queue declares its filters once (`conf/filters`); a task carries values of declared filters, stored as text.
Ordered enums have few values and make lanes of their own; integers and strings do too while a queue has few
lanes, and are evaluated entry by entry beyond that (see `lanes`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from airflow_provider_zkmq.engine.core.model import checks
from airflow_provider_zkmq.engine.core.model.paths import check_name
from airflow_provider_zkmq.engine.core.model.stored import corrupt_unless_read, load
from airflow_provider_zkmq.engine.errors import ConfigError, CorruptRecord

MAX_VALUE_BYTES = 256


@dataclass(frozen=True, slots=True, init=False)
class OrderedEnum:
    """A closed list of values, lowest first: ``OrderedEnum("low", "standard", "high")``."""

    values: tuple[str, ...]

    def __init__(self, *values: str) -> None:
        if not values or len(set(values)) != len(values):
            msg = f"OrderedEnum needs one or more different values, not {values!r}"
            raise ConfigError(msg)
        for value in values:
            _check_text("OrderedEnum value", value)
        object.__setattr__(self, "values", values)

    def parse(self, name: str, value: object) -> str:
        """The stored text of `value`; `ConfigError` unless it is declared."""
        if isinstance(value, str) and value in self.values:
            return value
        msg = f"filter {name!r}: {value!r} is not declared; declared values, lowest first: {', '.join(self.values)}"
        raise ConfigError(msg)

    def key(self, text: str) -> int | None:
        """The rank of a stored value; None where it is not (or no longer) declared."""
        return self.values.index(text) if text in self.values else None


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number of at most 64 bits."""

    def parse(self, name: str, value: object) -> str:
        """The stored text of an int, or of its decimal text; anything else is a `ConfigError`."""
        number = self.key(value) if isinstance(value, str) else value
        if isinstance(number, int) and not isinstance(number, bool) and -(1 << 63) <= number < 1 << 63:
            return str(number)
        msg = f"filter {name!r}: {value!r} is not a whole number of 64 bits"
        raise ConfigError(msg)

    def key(self, text: str) -> int | None:
        """The number; None where the text is none."""
        sign, digits = (text[0], text[1:]) if text[:1] in {"+", "-"} else ("", text)
        return int(sign + digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None


@dataclass(frozen=True, slots=True)
class String:
    """Any text of at most 256 bytes, compared by code point."""

    def parse(self, name: str, value: object) -> str:
        """The stored text; `ConfigError` for what is no text or too long."""
        return _check_text(f"filter {name!r}: value", value)

    def key(self, text: str) -> str | None:
        """The text itself."""
        return text


_VALUES: Final = checks.many(checks.text)
FilterType: TypeAlias = OrderedEnum | Integer | String
FilterTypes: TypeAlias = Mapping[str, FilterType]


class Undeclared(Mapping[str, FilterType]):
    """Declarations that cannot be read: whoever asks for one is refused with `CorruptRecord`, nobody else."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getitem__(self, name: str) -> FilterType:
        raise CorruptRecord(self._why)

    def __iter__(self) -> Iterator[str]:
        raise CorruptRecord(self._why)

    def __len__(self) -> int:
        raise CorruptRecord(self._why)


def _check_text(what: str, value: object) -> str:
    if isinstance(value, str) and value.isprintable() and value and len(value.encode()) <= MAX_VALUE_BYTES:
        return value
    msg = f"{what} {value!r} is not allowed: 1 to {MAX_VALUE_BYTES} bytes of printable text"
    raise ConfigError(msg)


def check_types(declared: Mapping[str, FilterType]) -> dict[str, FilterType]:
    """The declaration itself, validated."""
    for name, kind in declared.items():
        check_name("filter name", name)
        if not isinstance(kind, OrderedEnum | Integer | String):
            msg = f"filter {name!r}: {kind!r} is no filter type; use OrderedEnum(…), Integer() or String()"
            raise ConfigError(msg)
    return dict(declared)


def parse_filters(types: FilterTypes, values: Mapping[str, object] | None) -> dict[str, str]:
    """A task's filters as stored text, by name. Raises `ConfigError` for an undeclared name or a bad value."""
    parsed = {}
    for name, value in sorted((values or {}).items()):
        check_name("filter name", name)
        parsed[name] = declared_type(types, name).parse(name, value)
    return parsed


def declared_type(types: FilterTypes, name: str) -> FilterType:
    """The declared type of a filter; `ConfigError` where there is none."""
    if name in types:
        return types[name]
    known = ", ".join(sorted(types)) or "none"
    msg = f"filter {name!r} is not declared on this queue (declared: {known}); declare it with configure(filters=…)"
    raise ConfigError(msg)


def encode_types(types: FilterTypes) -> bytes:
    """What `conf/filters` holds."""
    record = {name: _describe(kind) for name, kind in sorted(types.items())}
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()


def _describe(kind: FilterType) -> dict[str, object]:
    record: dict[str, object] = {"type": type(kind).__name__}
    if isinstance(kind, OrderedEnum):
        record["values"] = list(kind.values)
    return record


def decode_types(path: str, data: bytes) -> dict[str, FilterType]:
    """Read `conf/filters`. Raises `CorruptRecord`."""
    record = load(path, data or b"{}")
    with corrupt_unless_read(path, "filter declarations"):
        return check_types({name: _revive(entry) for name, entry in record.items()})


def _revive(entry: Mapping[str, object]) -> FilterType:
    kind = entry["type"]
    if kind == "OrderedEnum":
        return OrderedEnum(*_VALUES(entry["values"]))
    if kind in {"Integer", "String"}:
        return Integer() if kind == "Integer" else String()
    msg = f"unknown filter type {kind!r}"
    raise ValueError(msg)


def parse_type(text: str) -> FilterType:
    """A type from its text form: ``enum:low,standard,high``, ``integer`` or ``string`` (command line, Airflow)."""
    kind, _, rest = text.partition(":")
    match kind.strip().lower():
        case "enum" | "orderedenum":
            return OrderedEnum(*(value.strip() for value in rest.split(",")))
        case "integer" | "int":
            return Integer()
        case "string" | "str":
            return String()
        case _:
            msg = f"filter type {text!r} is unknown: use enum:low,standard,high or integer or string"
            raise ConfigError(msg)
