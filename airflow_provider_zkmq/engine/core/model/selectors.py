"""Selectors: what a consumer accepts, decided on a task's filters alone.

A condition reads ``task value OPERATOR given value``: ``performance_class<=standard`` takes tasks of class
standard and below. A task without the filter, or with a value its type does not know, never matches a
condition on it. `AllOf` and `AnyOf` are zkmq's ``All`` and ``Any(n)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from airflow_provider_zkmq.engine.core.model.conditions import Condition
from airflow_provider_zkmq.engine.core.model.filters import FilterTypes, String, declared_type
from airflow_provider_zkmq.engine.errors import ConfigError

FilterMethod: TypeAlias = Literal["absolute", "at_least"]
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
            msg = (
                f"AnyOf({count!r}, …) of {len(parts)} parts: the count is a whole number from 1 to the number of parts"
            )
            raise ConfigError(msg)
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
    msg = f"{value!r} is no selector: give text such as 'region==eu', AllOf(…) or AnyOf(n, …)"
    raise ConfigError(msg)


def choose(
    types: FilterTypes,
    *,
    node: Mapping[str, object] | Selector | str | None = None,
    filter_method: FilterMethod | Mapping[str, FilterMethod] = "absolute",
    selector: Selector | str | None = None,
) -> Selector:
    """What a consumer accepts: its `selector`, or what its `node` values allow; without either, everything.

    A selector in the place of the `node` is one.
    """
    if node is not None and selector is not None:
        msg = "give either node= with filter_method=, or selector=, not both"
        raise ConfigError(msg)
    if node is not None and not isinstance(node, Mapping):
        node, selector = None, node
    if selector is not None:
        return as_selector(selector).bind(types)
    if not node:
        return EVERYTHING
    return AllOf(*(_of_node(types, name, value, filter_method) for name, value in sorted(node.items())))


def _of_node(
    types: FilterTypes, name: str, value: object, method: FilterMethod | Mapping[str, FilterMethod]
) -> Condition:
    """zkmq's filter methods: `absolute` is equality; `at_least`: the node is good enough for the task."""
    kind = declared_type(types, name)
    chosen = method if isinstance(method, str) else method.get(name, "absolute")
    if chosen not in {"absolute", "at_least"}:
        msg = f"filter_method {chosen!r} is unknown: use 'absolute' or 'at_least'"
        raise ConfigError(msg)
    if chosen == "at_least" and isinstance(kind, String):
        if not isinstance(method, str):
            msg = f"filter {name!r} is a String: filter_method 'at_least' needs an ordered type"
            raise ConfigError(msg)
        chosen = "absolute"  # one method for all of a node's values: a String knows only equality
    return Condition(name, "<=" if chosen == "at_least" else "==", kind.parse(name, value))


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
        self.items = list(self._scan(text))
        self.at = 0
        self.depth = 0

    def _scan(self, text: str) -> Iterable[tuple[str, str]]:
        position, end = 0, len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None:
                raise self.refusal(f"unexpected {text[position:].strip()[:12]!r}")
            position = match.end()
            value = match[match.lastgroup]
            yield match.lastgroup, re.sub(r"\\(.)", r"\1", value) if match.lastgroup == "quoted" else value

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
        if name in {"all", "any"} and self.peek() == ("punct", "("):
            return self.group(name)
        return Condition(name, self.next("op"), self.next("word", "quoted"))

    def group(self, name: str) -> Selector:
        self.at += 1
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.refusal(f"it is nested deeper than {MAX_DEPTH}")
        count = self.count() if name == "any" else 0
        parts = self.parts(until=")")
        self.depth -= 1
        return AllOf(*parts) if name == "all" else AnyOf(count, *parts)

    def count(self) -> int:
        text = self.next("word")
        if not (text.isascii() and text.isdigit() and len(text) < 6):
            raise self.refusal(f"any(n, …) needs a whole number, not {text!r}")
        if self.next("punct") != ",":
            raise self.refusal("a comma belongs after the count of any(n, …)")
        return int(text)
