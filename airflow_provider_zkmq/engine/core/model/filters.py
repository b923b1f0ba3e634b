"""Filter types and selectors: which tasks fit a consumer."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NotRequired, TypeAlias, TypedDict

from ...errors import ConfigError
from .znode_names import check_name

# --- Filter types: the typed tags of a task, as zkmq declares them.
#
# A queue declares its filters once (`conf`); a task carries values of declared filters, stored as text.
# Ordered enums have few values and make lanes of their own; integers and strings do too while a queue has few
# lanes, and are evaluated entry by entry beyond that (see `lanes`).

MAX_VALUE_BYTES = 256


@dataclass(frozen=True, slots=True, init=False)
class OrderedEnum:
    """A closed list of values, lowest first: ``OrderedEnum("low", "standard", "high")``."""

    values: tuple[str, ...]

    def __init__(self, *values: str) -> None:
        if not values or len(set(values)) != len(values):
            raise ConfigError(f"OrderedEnum needs one or more different values, not {values!r}")
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
        raise ConfigError(f"filter {name!r}: {value!r} is not a whole number of 64 bits")

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


FilterType: TypeAlias = OrderedEnum | Integer | String
FilterTypes: TypeAlias = Mapping[str, FilterType]


def _check_text(what: str, value: object) -> str:
    if isinstance(value, str) and value.isprintable() and value and len(value.encode()) <= MAX_VALUE_BYTES:
        return value
    raise ConfigError(f"{what} {value!r} is not allowed: 1 to {MAX_VALUE_BYTES} bytes of printable text")


def check_types(declared: Mapping[str, FilterType]) -> dict[str, FilterType]:
    """The declaration itself, validated."""
    for name, kind in declared.items():
        check_name("filter name", name)
        if not isinstance(kind, OrderedEnum | Integer | String):
            raise ConfigError(f"filter {name!r}: {kind!r} is no filter type; use OrderedEnum(…), Integer() or String()")
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


class Declared(TypedDict):
    """How a filter type is stored."""

    type: Literal["OrderedEnum", "Integer", "String"]
    values: NotRequired[list[str]]


def declare_types(types: FilterTypes) -> dict[str, Declared]:
    """Filter types as they are stored."""
    declared: dict[str, Declared] = {}
    for name, kind in sorted(types.items()):
        if isinstance(kind, OrderedEnum):
            declared[name] = {"type": "OrderedEnum", "values": list(kind.values)}
        else:
            declared[name] = {"type": "Integer" if isinstance(kind, Integer) else "String"}
    return declared


def declared_types(declared: Mapping[str, Declared]) -> dict[str, FilterType]:
    """Filter types from how they are stored. Raises `ConfigError`, `KeyError`."""
    types: dict[str, FilterType] = {}
    for name, entry in declared.items():
        if entry["type"] == "OrderedEnum":
            types[name] = OrderedEnum(*entry["values"])
        else:
            types[name] = Integer() if entry["type"] == "Integer" else String()
    return check_types(types)


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
            raise ConfigError(f"filter type {text!r} is unknown: use enum:low,standard,high or integer or string")


def spell_type(kind: FilterType) -> str:
    """The text form of a type, as `parse_type` takes it."""
    return f"enum:{','.join(kind.values)}" if isinstance(kind, OrderedEnum) else type(kind).__name__.lower()


# --- One condition of a selector: a filter, an operator, a value.

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


# --- Selectors: what a consumer accepts, decided on a task's filters alone.
#
# A condition reads ``task value OPERATOR given value``: ``performance_class<=standard`` takes tasks of class
# standard and below. A task without the filter, or with a value its type does not know, never matches a
# condition on it. `AllOf` and `AnyOf` are zkmq's ``All`` and ``Any(n)``.

FilterMethod: TypeAlias = Literal["absolute", "at_least"]
#: One for all filters, or by the name of the filter.
FilterMethods: TypeAlias = FilterMethod | Mapping[str, FilterMethod]
MAX_DEPTH: Final = 32


@dataclass(frozen=True, slots=True, init=False)
class AllOf:
    """Every one of its parts matches; without parts, everything does."""

    parts: tuple[Selector, ...]

    def __init__(self, *parts: Selector | str) -> None:
        object.__setattr__(self, "parts", tuple(as_selector(part) for part in parts))

    def matches(self, filters: Mapping[str, str], types: FilterTypes) -> bool:
        """Whether a task with these filters is accepted."""
        return all(part.matches(filters, types) for part in self.parts)

    def refusal(self, filters: Mapping[str, str], types: FilterTypes) -> str | None:
        """Why a task with these filters is not accepted; None if it is."""
        return next(filter(None, (part.refusal(filters, types) for part in self.parts)), None)

    def bind(self, types: FilterTypes) -> AllOf:
        """The selector with its values checked against the declared types. Raises `ConfigError`."""
        return AllOf(*(part.bind(types) for part in self.parts))

    def __str__(self) -> str:
        return f"all({', '.join(map(str, self.parts))})"


@dataclass(frozen=True, slots=True, init=False)
class AnyOf:
    """At least `count` of its parts match."""

    count: int
    parts: tuple[Selector, ...]

    def __init__(self, count: int, *parts: Selector | str) -> None:
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= len(parts):
            raise ConfigError(
                f"AnyOf({count!r}, …) of {len(parts)} parts: the count is a whole number from 1 to the number of parts"
            )
        object.__setattr__(self, "count", count)
        object.__setattr__(self, "parts", tuple(as_selector(part) for part in parts))

    def matches(self, filters: Mapping[str, str], types: FilterTypes) -> bool:
        """Whether a task with these filters is accepted."""
        return sum(part.matches(filters, types) for part in self.parts) >= self.count

    def refusal(self, filters: Mapping[str, str], types: FilterTypes) -> str | None:
        """Why a task with these filters is not accepted; None if it is."""
        refused = [why for why in (part.refusal(filters, types) for part in self.parts) if why is not None]
        matched = len(self.parts) - len(refused)
        if matched >= self.count:
            return None
        return f"only {matched} of {len(self.parts)} match where {self.count} must: {'; '.join(refused)}"

    def bind(self, types: FilterTypes) -> AnyOf:
        """The selector with its values checked against the declared types. Raises `ConfigError`."""
        return AnyOf(self.count, *(part.bind(types) for part in self.parts))

    def __str__(self) -> str:
        return f"any({self.count}, {', '.join(map(str, self.parts))})"


Selector: TypeAlias = Condition | AllOf | AnyOf
EVERYTHING: Final = AllOf()


def as_selector(value: Selector | str) -> Selector:
    """A selector as it is, or parsed from text."""
    if isinstance(value, Condition | AllOf | AnyOf):
        return value
    if isinstance(value, str):
        return parse_selector(value)
    raise ConfigError(f"{value!r} is no selector: give text such as 'region==eu', AllOf(…) or AnyOf(n, …)")


def choose(
    types: FilterTypes,
    *,
    node: Mapping[str, object] | Selector | str | None = None,
    filter_method: FilterMethods = "absolute",
    selector: Selector | str | None = None,
) -> Selector:
    """What a consumer accepts: its `selector`, or what its `node` values allow; without either, everything.

    A selector in the place of the `node` is one. zkmq's filter methods: `absolute` is equality; `at_least`: the node
    is good enough for the task.
    """
    if node is not None and selector is not None:
        raise ConfigError("give either node= with filter_method=, or selector=, not both")
    if node is not None and not isinstance(node, Mapping):
        node, selector = None, node
    if selector is not None:
        return as_selector(selector).bind(types)
    if not node:
        return EVERYTHING
    conditions: list[Condition] = []
    for name, value in sorted(node.items()):
        kind = declared_type(types, name)
        method = filter_method if isinstance(filter_method, str) else filter_method.get(name, "absolute")
        if method not in {"absolute", "at_least"}:
            raise ConfigError(f"filter_method {method!r} is unknown: use 'absolute' or 'at_least'")
        if method == "at_least" and isinstance(kind, String):
            if not isinstance(filter_method, str):
                raise ConfigError(f"filter {name!r} is a String: filter_method 'at_least' needs an ordered type")
            method = "absolute"  # one method for all of a node's values: a String knows only equality
        conditions.append(Condition(name, "<=" if method == "at_least" else "==", kind.parse(name, value)))
    return AllOf(*conditions)


_TOKEN: Final = re.compile(
    r'\s*(?:(?P<op>==|>=|<=|>|<)|(?P<punct>[(),])|"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<word>[^\s,()"=<>]+))'
)


def parse_selector(text: str) -> Selector:
    r"""A selector from text: ``performance_class<=standard, region==eu`` (all of them), ``all(…)``, ``any(2, …)``.

    Values with spaces or punctuation stand in double quotes, with ``\"`` and ``\\`` inside. Raises `ConfigError`.
    """
    tokens = _Tokens(text)
    parts = tokens.parts(until=None)
    if not parts:
        raise tokens.refusal("it is empty")
    return parts[0] if len(parts) == 1 else AllOf(*parts)


class _Tokens:
    """A recursive-descent reader of selector text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.items: list[tuple[str, str]] = []
        self.at = 0
        self.depth = 0
        position, end = 0, len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None:
                raise self.refusal(f"unexpected {text[position:].strip()[:12]!r}")
            position = match.end()
            value = match[match.lastgroup]
            unquoted = re.sub(r"\\(.)", r"\1", value) if match.lastgroup == "quoted" else value
            self.items.append((match.lastgroup, unquoted))

    def refusal(self, why: str) -> ConfigError:
        example = "write for example 'performance_class<=standard, region==eu'"
        return ConfigError(f"selector {self.text!r} is not understood: {why}; {example}")

    def next(self, *kinds: str) -> str:
        if self.at < len(self.items) and self.items[self.at][0] in kinds:
            self.at += 1
            return self.items[self.at - 1][1]
        instead = repr(self.items[self.at][1]) if self.at < len(self.items) else "the end"
        raise self.refusal(f"found {instead} where a {' or '.join(kinds)} belongs")

    def peek(self) -> tuple[str, str] | None:
        return self.items[self.at] if self.at < len(self.items) else None

    def parts(self, until: str | None) -> list[Selector]:
        parts: list[Selector] = []
        while (token := self.peek()) is not None and token != ("punct", until):
            parts.append(self.part())
            if self.peek() == ("punct", ","):
                self.at += 1
                if self.peek() in {None, ("punct", until)}:
                    raise self.refusal("nothing follows the last comma")
            elif self.peek() not in {None, ("punct", until)}:
                raise self.refusal(f"a comma is missing before {self.items[self.at][1]!r}")
        if until is not None and self.next("punct") != until:
            raise self.refusal(f"{until!r} is missing")
        return parts

    def part(self) -> Selector:
        name = self.next("word")
        if name not in {"all", "any"} or self.peek() != ("punct", "("):
            return Condition(name, self.next("op"), self.next("word", "quoted"))
        self.at += 1
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.refusal(f"it is nested deeper than {MAX_DEPTH}")
        count = "0"
        if name == "any":
            count = self.next("word")
            if not (count.isascii() and count.isdigit() and len(count) < 6):
                raise self.refusal(f"any(n, …) needs a whole number, not {count!r}")
            if self.next("punct") != ",":
                raise self.refusal("a comma belongs after the count of any(n, …)")
        parts = self.parts(until=")")
        self.depth -= 1
        return AllOf(*parts) if name == "all" else AnyOf(int(count), *parts)
