"""The command ``zkmq``: its verbs, its errors, its exit codes."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

import typer

from ..inspection import records, wording
from .options import UsageError
from .output import warn
from .verbs import ROOT

#: The modules whose verbs these are.
MODULES = ("claims", "dead_letters", "examples", "queues", "report", "server", "tasks", "worker")
REFUSED, USAGE, TIMED_OUT, NO_CONNECTION, OUR_MISTAKE = 1, 2, 4, 6, 8
INTERRUPTED, PIPE_CLOSED = 130, 141
#: The exit codes of what the engine and the system raise on purpose; what is no such error is a mistake of ours.
_CODES: Final = {
    "UsageError": USAGE,
    "ConfigError": USAGE,
    "WaitTimeout": TIMED_OUT,
    "TransportError": NO_CONNECTION,
    "ZkmqError": REFUSED,
    "OSError": REFUSED,
}
_COMPLETION: Final = "_ZKMQ_COMPLETE"
#: What Typer raises where it does not understand a command line; it exports the most frequent kind alone.
_NOT_UNDERSTOOD: type[Any] = typer.BadParameter.__mro__[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    logging.getLogger("airflow_provider_zkmq.kazoo").disabled = True  # the engine's errors say it in one line
    try:
        try:
            code = _carry_out(words)
        except Exception as error:
            if isinstance(error, BrokenPipeError):
                raise
            code = _report(error, words)
        sys.stdout.flush()
    except BrokenPipeError:
        with contextlib.suppress(OSError, ValueError):  # what is left in the buffer must not fail again at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    return code


def _report(error: Exception, words: list[str]) -> int:
    """Say what went wrong in one line, with ``-v`` also where, with ``--json`` as JSON, too; returns the exit code."""
    said = words[: words.index("--")] if "--" in words else words
    code, message = _exit_code(error), wording.error(error)
    if code == OUR_MISTAKE:
        message = f"this is a mistake of zkmq itself ({type(error).__name__}: {message}); -v shows where"
    if {"-v", "--verbose"}.intersection(said):
        traceback.print_exception(error)
    warn(message)
    if "--json" in said:
        print(json.dumps(records.error_record(error, message)), flush=True)
    return code


def _carry_out(words: list[str]) -> int:
    """Run a command line. Raises `UsageError`, also for all that Typer finds wrong, and what the verb raises."""
    if any("\0" in word for word in words):  # by no shell, but by callers in this process
        raise UsageError("no word of a command line may hold a NUL")
    for module in ["worker"] if words[:1] == ["worker"] else MODULES:  # many workers stand idle: they are kept small
        import_module(f"{__package__}.{module}")
    command = typer.main.get_command(ROOT)
    if os.environ.get(_COMPLETION):
        command.main(words, prog_name="zkmq", complete_var=_COMPLETION)
    try:  # not by Typer's own `main`, which has other exit codes
        with command.make_context("zkmq", [*words] or ["--help"]) as ctx:
            return int(command.invoke(ctx) or 0)
    except typer.Exit as leave:
        return int(leave.exit_code)
    except _NOT_UNDERSTOOD as error:
        where = f" (see {error.ctx.command_path} --help)" if error.ctx is not None else ""
        raise UsageError(f"{error.format_message().rstrip('.')}{where}") from error
    except UnicodeEncodeError as error:
        raise UsageError(f"{error.object!r} is no text in UTF-8") from error


def _exit_code(error: Exception) -> int:
    """The exit code of an error, by the nearest of its classes that has one."""
    return next((_CODES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _CODES), OUR_MISTAKE)
