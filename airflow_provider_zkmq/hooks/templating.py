"""Arguments as templates and forms give them: truth values, durations, moments, lists and task ids, or their text."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from airflow_provider_zkmq.engine import ConfigError, parse_duration, parse_moment


def kind_of(value: object) -> str:
    """Return what an error tells of a value that it must not show: its type, and how long a text is."""
    kind = type(value).__name__
    return f"{kind} of {len(value)} characters" if isinstance(value, str) else kind


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
    """Return a templated list: a list, any other series (as mapped tasks give it), or text that holds a list.

    Raises:
        ConfigError: `value` is none of these.

    """
    if isinstance(value, str):
        text = value.strip()
        if not text.startswith(("[", "(")):
            return [text] if text else []
        value = _literal(what, text)
    if isinstance(value, Mapping | bytes) or not isinstance(value, Iterable):
        raise ConfigError(f"{what} must be a list, not {type(value).__name__}")
    return list(value)


def _literal(what: str, text: str) -> object:
    """Read the text Jinja makes of a list, or JSON. An error does not show it: there may be payloads in it."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError):
            continue
    raise ConfigError(f"{what} is not a list, but {kind_of(text)} that begins like one")


def flat_ids(value: object) -> list[str]:
    """Return task ids from one id, a list, lists in lists, or the text of any of these; each id once, in order.

    Raises:
        ConfigError: there is something else in it.

    """
    ids: list[str] = []
    for item in items_of("task_ids", value):
        if isinstance(item, str) and not item.startswith(("[", "(")):
            ids.append(item)
        else:
            ids += flat_ids(item)
    return list(dict.fromkeys(ids))
