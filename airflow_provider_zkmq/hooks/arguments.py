"""Arguments as templates, forms and XComs give them: their values, or their text."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from ..engine import ConfigError, parse_duration, parse_moment


def kind_of(value: object) -> str:
    """Return what an error tells of a value that it must not show: its type, and how long a text is."""
    kind = type(value).__name__
    return f"{kind} of {len(value)} characters" if isinstance(value, str) else kind


def check_choice(what: str, value: object, known: Iterable[str]) -> None:
    """Raise `ConfigError`, which is a `ValueError`, for a value that is not known."""
    choices = tuple(known)  # a list has no hash, and is none of them
    if value not in choices:
        raise ConfigError(f"{what} {value!r} is not known: give {', '.join(choices)}")


def check_number(what: str, value: object, least: int = 1, most: float = math.inf) -> None:
    """Raise `ConfigError`, which is a `ValueError`, for what is no number of things, or too small, or too large."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        bounds = f", {least} or more" if most == math.inf else f" from {least} to {most}"
        raise ConfigError(f"{what} {value!r} is not allowed: a whole number{bounds}")


def flag(what: str, value: object) -> bool:
    """Return a truth value, or the text that a form or a template makes of one.

    Raises `ConfigError`, which does not show what was given: a connection's field may hold a secret by mistake.
    """
    known = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    try:
        return known[str(value).lower()]
    except KeyError:
        raise ConfigError(f"{what} is neither true nor false, but {kind_of(value)}") from None


def span(what: str, value: Any) -> float | None:
    """Return a duration, or its text, in seconds, keeping None. Raises `ConfigError`."""
    return None if value is None else parse_duration(value, what)


def moment(what: str, value: Any) -> datetime | None:
    """Return a moment, or its text, keeping None. Raises `ConfigError`."""
    return None if value is None else parse_moment(value, what)


def is_blank(value: object) -> bool:
    """Whether a list, or its text, names nothing at all; what is only rendered later is not blank."""
    if isinstance(value, str):
        return value.strip() in {"", "[]", "()"}
    return isinstance(value, list | tuple | set) and all(map(is_blank, value))


def items_of(what: str, value: object) -> list[Any]:
    """Return a templated list: a list, another series, as mapped tasks give it, or text. Raises `ConfigError`."""
    if isinstance(value, str):
        text = value.strip()
        if not text.startswith(("[", "(")):
            return [text] if text else []
        for read in (json.loads, ast.literal_eval):  # JSON, or the text that Jinja makes of a list
            with suppress(ValueError, SyntaxError):
                value = read(text)
                break
        else:  # the text is not shown: there may be payloads in it
            raise ConfigError(f"{what} is not a list, but {kind_of(text)} that begins like one")
    if isinstance(value, Mapping | bytes) or not isinstance(value, Iterable):
        raise ConfigError(f"{what} must be a list, not {type(value).__name__}")
    return list(value)


def flat_ids(value: object) -> list[str]:
    """Return task ids, each once, from one id, a list, lists in lists, or their text. Raises `ConfigError`."""
    ids: list[str] = []
    for item in items_of("task_ids", value):
        if isinstance(item, str) and not item.startswith(("[", "(")):
            ids.append(item)
        else:
            ids += flat_ids(item)
    return list(dict.fromkeys(ids))
