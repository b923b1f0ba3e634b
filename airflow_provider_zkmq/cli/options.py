"""The kinds of options that verbs declare, and the text forms of values."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

import typer

State = Literal["inserted", "claimed", "finished", "dead", "cancelled"]
STATES: tuple[str, ...] = get_args(State)


class UsageError(Exception):
    """The command line itself is not understood."""


def refuse(*rules: tuple[object, str]) -> None:
    """Raise `UsageError` by the first of these rules whose condition, which stands before the reason, is met."""
    for wrong, why in rules:
        if wrong:
            raise UsageError(why)


def at_most_one(*, required: bool = False, **given: object) -> None:
    """Raise `UsageError` where several of these options are given, or none although one is required."""
    names = {name: f"--{name.replace('_', '-')}" for name in given}
    present = [names[name] for name, value in given.items() if value is not None and value is not False]
    if len(present) > 1:
        raise UsageError(f"{present[1]} is not allowed with {present[0]}")
    if required and not present:
        raise UsageError(f"one of {' and '.join(names.values())} is required")


# --- The text forms of values.


def _engine_parser(name: str) -> Callable[[Any], Any]:
    """A parser of the engine, which is imported when there is a value to parse."""

    def parse(text: Any) -> Any:
        from .. import engine

        try:
            return getattr(engine, name)(text)
        except engine.ConfigError as error:
            raise typer.BadParameter(str(error)) from error

    return parse


#: Seconds from what people write, such as ``1h30m`` or ``PT1H30M``; a moment from ISO 8601 with a zone; a limit.
duration, moment, parse_limit = map(_engine_parser, ("parse_duration", "parse_moment", "parse_limit"))


def past(text: str) -> datetime:
    """A moment, or a duration before now by this machine's clock, such as ``24h``."""
    try:
        return datetime.now(UTC) - timedelta(seconds=duration(text))
    except (typer.BadParameter, OverflowError):
        return moment(text)  # type: ignore[no-any-return]


def attempts(text: str) -> dict[str, int | None]:
    """The field of a policy for a number of attempts, or for ``unbounded``."""
    try:
        return {"attempts": None if text == "unbounded" else int(text)}
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a number nor 'unbounded'") from None


def pairs(name: str, texts: Iterable[str] | None) -> dict[str, str]:
    """A mapping from ``name=value`` texts of an option, each name once. Raises `UsageError`."""
    values: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"{name} {text!r} is not understood: write name=value")
        if key in values:
            raise UsageError(f"{name} {key!r} is given twice")
        values[key] = value
    return values


def json_object(text: str) -> dict[str, Any]:
    """An object of JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"no JSON: {error}") from error
    if not isinstance(value, dict):
        raise typer.BadParameter('no JSON object such as \'{"owner": "me"}\'')
    return value


def read_value(text: str) -> bytes:
    """The bytes that a word of the command line stands for: its own, or for ``-`` those of standard input."""
    return sys.stdin.buffer.read() if text == "-" else os.fsencode(text)


# --- The kinds of options. Typer makes an option's name of its parameter's, unless it is given.


def option(text: str, metavar: str | None = None, default: Any = None, names: Sequence[str] = (), **more: Any) -> Any:
    """An option with a value: its help, and what stands for the value there."""
    return typer.Option(default, *names, help=text, metavar=metavar, show_default=False, **more)


def flag(name: str, text: str, default: bool | None = False, **more: Any) -> Any:
    """An option without a value."""
    return option(text, None, default, name.split(", "), **more)


def span(text: str, default: Any = None, **more: Any) -> Any:
    """An option that takes a duration."""
    return option(text, "DURATION", default, parser=duration, **more)


def operand(metavar: str, text: str = "", default: Any = ..., **more: Any) -> Any:
    """A word of a command line that is no option."""
    return typer.Argument(default, metavar=metavar, help=text, show_default=False, **more)


YES = flag("--yes", "do not ask once more")
ATTEMPTS = option("deliveries at the most, or 'unbounded'", "N", parser=attempts)
