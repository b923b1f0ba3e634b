"""The kinds of options that verbs declare, the common ones that all of them take, and the text forms of values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import typer

from ..environment import DEFAULT_HOSTS, DEFAULT_ROOT, KEY_PASSWORD

STATES = ("inserted", "claimed", "finished", "dead", "cancelled")
#: The statuses that tell more than the state does.
STATUSES = (
    *("queued", "queued-with-backoff", "locked", "locked-with-requeue"),
    *("done-awaiting-gc", "done-with-backoff", "done-with-requeue"),
)
#: For how many seconds a server is waited for by default where nobody listens, and where somebody does, or by a worker.
QUICK, PATIENT = 1.0, 10.0


class UsageError(Exception):
    """The command line itself is not understood."""


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


#: Seconds from what people write, such as ``1h30m`` or ``PT1H30M``; a moment from ISO 8601 with a zone.
duration, moment = _engine_parser("parse_duration"), _engine_parser("parse_moment")


def past(text: str) -> datetime:
    """A moment, or a duration before now by this machine's clock, such as ``24h``."""
    try:
        return datetime.now(UTC) - timedelta(seconds=duration(text))
    except (typer.BadParameter, OverflowError):
        pass
    try:
        when: datetime = moment(text)
    except typer.BadParameter as error:
        raise typer.BadParameter(f"{error}; or write how long ago, such as 24h") from error
    return when


def attempts(text: str) -> int | str | None:
    """A number of attempts, or ``unbounded``."""
    try:
        return text if text == "unbounded" else int(text)
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


def read_file(path: Path) -> bytes:
    """What a file holds. Raises `UsageError` where it cannot be read."""
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # a name may hold what no file's can
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def at_most_one(*, required: bool = False, **given: object) -> None:
    """Raise `UsageError` where several of these options are given, or none although one is required."""
    names = {name: f"--{name.replace('_', '-')}" for name in given}
    present = [names[name] for name, value in given.items() if value is not None and value is not False]
    if len(present) > 1:
        raise UsageError(f"{present[1]} is not allowed with {present[0]}")
    if required and not present:
        raise UsageError(f"one of {' and '.join(names.values())} is required")


# --- The kinds of options. Typer makes an option's name of its parameter's, unless it is given.


def option(text: str, metavar: str, default: Any = None, names: Sequence[str] = (), **more: Any) -> Any:
    """An option with a value: its help, and what stands for the value there."""
    return typer.Option(default, *names, help=text, metavar=metavar, show_default=False, **more)


def flag(name: str, text: str, default: bool | None = False, **more: Any) -> Any:
    """An option without a value."""
    return typer.Option(default, name, help=text, show_default=False, **more)


def span(text: str, default: Any = None, **more: Any) -> Any:
    """An option that takes a duration."""
    return option(text, "DURATION", default, parser=duration, **more)


def choice(
    words: Sequence[str], text: str = "", default: str | None = None, metavar: str | None = None, **more: Any
) -> Any:
    """An option that takes one of some words, which the shell completes."""

    def check(word: str) -> str:
        if word not in words:
            raise typer.BadParameter(f"invalid choice: {word!r} (choose from {', '.join(map(repr, words))})")
        return word

    def complete(incomplete: str) -> list[str]:
        return starting(words, incomplete)

    shown = metavar or f"{{{','.join(words)}}}"
    return option(text, shown, default, parser=check, autocompletion=complete, **more)


def operand(metavar: str, text: str = "", default: Any = ..., **more: Any) -> Any:
    """A word of a command line that is no option."""
    return typer.Argument(default, metavar=metavar, help=text, show_default=False, **more)


def starting(words: Iterable[str], incomplete: str) -> list[str]:
    """The words that complete one."""
    return [word for word in words if word.startswith(incomplete)]


TASK, TASKS = operand("TASK"), operand("TASK…")
YES = flag("--yes", "do not ask once more")
ATTEMPTS = option("deliveries at the most, or 'unbounded'", "N", parser=attempts)

# --- The common options, which may stand before or after the verb.

_BOTH = "(before or after the verb)"
_common, _common_span = (partial(each, rich_help_panel=f"Connection and output {_BOTH}") for each in (option, span))
_json = flag("--json", "answer in JSON", rich_help_panel=f"Connection and output {_BOTH}")
_access, _access_flag = (partial(each, rich_help_panel=f"TLS and access {_BOTH}") for each in (option, flag))
_WAITED = f"how long a server is waited for ({QUICK:g}s where nobody listens, else {PATIENT:g}s)"
#: Of the verbs whose ``--timeout`` is about something else than the connection.
CONNECT_TIMEOUT_ALONE: Final = _common_span(_WAITED, names=("--connect-timeout",))


def take_common(
    hosts: str | None = _common(f"host:port,host:port (env ZKMQ_HOSTS, else {DEFAULT_HOSTS})", "HOSTS"),
    root: str | None = _common(f"znode of the queues (env ZKMQ_ROOT, else {DEFAULT_ROOT})", "ROOT"),
    auth: str | None = _common("credentials; prefer env ZKMQ_AUTH, which other users cannot see", "USER:PASSWORD"),
    json: bool = _json,
    session_timeout: float | None = _common_span("how long (10s)"),
    request_timeout: float | None = _common_span("how long (30s)"),
    connect_timeout: float | None = _common_span(_WAITED, names=("--connect-timeout", "--timeout")),
    tls: bool = _access_flag("--tls", "speak TLS (env ZKMQ_TLS=1); the files below imply it"),
    tls_ca: str | None = _access("PEM file of those who sign the servers' certificates (env ZKMQ_TLS_CA)", "FILE"),
    tls_cert: str | None = _access("PEM file of your certificate, which is your identity (env ZKMQ_TLS_CERT)", "FILE"),
    tls_key: str | None = _access("PEM file of its private key (env ZKMQ_TLS_KEY)", "FILE"),
    tls_key_password_env: str | None = _access(f"variable with the key's password (else {KEY_PASSWORD})", "NAME"),
    tls_key_password_file: str | None = _access(f"file that begins with it (env {KEY_PASSWORD}_FILE)", "FILE"),
    allow_open: bool = _access_flag("--allow-open", "with credentials: use znodes that anyone may use, too"),
    verbose: bool = flag("--verbose/-v", "show tracebacks", rich_help_panel=f"Connection and output {_BOTH}"),
) -> None:
    """Declare the common options: of ``zkmq`` itself, of each group and of each verb."""


COMMON: Final = inspect.signature(take_common, eval_str=True).parameters
