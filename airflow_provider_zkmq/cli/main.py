"""The command ``zkmq``: its verbs, its errors, its exit codes."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .. import __version__
from .options import Parser, UsageError, add_common, common

REFUSED, USAGE, TIMED_OUT, NO_CONNECTION = 1, 2, 4, 6
INTERRUPTED, PIPE_CLOSED = 130, 141

EPILOG = """\
exit codes:
  0  ok
  1  the operation was refused: no such task, claim lost, state does not allow it, …
  2  usage or bad input
  3  nothing to claim
  4  timed out
  5  a task that was waited for, or one of a batch, ended dead or cancelled
  6  no connection to ZooKeeper
  7  fsck has found damage that it has not repaired

durations:  seconds (90), units (5m, 1h30m, 250ms) or ISO 8601 (PT1H30M)
moments:    ISO 8601 with a zone (2026-11-22T10:31:05Z, "2026-11-22 11:31:05+01:00")

Errors are one line on standard error; with --json also {"error": …, "message": …} on standard output;
a task id that is in use adds its "status", the "duplicates" refused and those "enqueued", a time-out what is "left",
a queue that does not exist the names that are "similar".
"""


class Verb(NamedTuple):
    """A verb: what it is for, where it is, and the names of its functions there; the second adds its options."""

    help: str
    module: str
    run: str
    add: str | None = None


VERBS = {
    "server": Verb("run a ZooKeeper for development", "server", "run", "add_arguments"),
    "queues": Verb("name the queues", "queues", "queues"),
    "doctor": Verb("say whether the servers answer, and what is open to anyone above the root", "queues", "doctor"),
    "configure": Verb("create a queue or change its configuration", "queues", "configure", "add_configure"),
    "enqueue": Verb("write tasks", "tasks", "enqueue", "add_enqueue"),
    "claim": Verb("take a task under a lease; 3 if there is none", "tasks", "claim", "add_claim"),
    "complete": Verb("finish a claimed task", "tasks", "settle", "add_complete"),
    "fail": Verb("report that a claimed task failed", "tasks", "settle", "add_fail"),
    "release": Verb("give a claimed task back", "tasks", "settle", "add_force"),
    "snooze": Verb("give a claimed task back, to be handled later", "tasks", "settle", "add_snooze"),
    "extend": Verb("hold a claimed task longer", "tasks", "settle", "add_extend"),
    "progress": Verb("report how far a claimed task has come", "tasks", "settle", "add_progress"),
    "status": Verb("say how a queue stands", "queues", "status"),
    "show": Verb("show all there is to a task, why nobody takes it, or follow it", "tasks", "show", "add_show"),
    "list": Verb("list tasks", "queues", "list_tasks", "add_list"),
    "wait": Verb("wait until tasks have ended or were claimed", "tasks", "wait", "add_wait"),
    "batch": Verb("say how a batch stands, or wait for its end", "tasks", "batch", "add_batch"),
    "report": Verb(
        "answer from the archive: who waits, what fails, are there enough consumers", "report", "report", "add_report"
    ),
    "gc": Verb("delete what ended long ago", "queues", "collect", "add_gc"),
    "fsck": Verb("find what is damaged in a queue's tree, and repair it", "queues", "check", "add_fsck"),
    "redrive": Verb("put dead or cancelled tasks back", "tasks", "redrive", "add_redrive"),
    "export": Verb(
        "write dead letters to a file that people can read and edit", "export_import", "export", "add_export"
    ),
    "import": Verb(
        "do what an edited export asks for: redrive, drop, new text", "export_import", "import_", "add_import"
    ),
    "cancel": Verb("withdraw tasks that have not ended", "tasks", "cancel", "add_cancel"),
    "clear": Verb("delete every task of a queue, or every one in a state", "queues", "clear", "add_clear"),
    "pause": Verb("hand out nothing", "queues", "set_paused"),
    "resume": Verb("hand out tasks again", "queues", "set_paused"),
    "delete": Verb("delete a queue with everything in it", "queues", "delete", "add_delete"),
    "examples": Verb("name the example DAGs, or copy them into a folder", "examples", "examples", "add_examples"),
    "worker": Verb("handle tasks until told to stop", "worker", "run", "add_arguments"),
}
#: Every other verb takes the name of a queue before its own operands.
_NO_QUEUE = {"server", "queues", "doctor", "report", "import", "examples", "worker"}
#: What errors tell besides their message, with --json.
_DETAILS = {
    "DuplicateTask": ("status", "duplicates", "enqueued"),
    "QueueNotFound": ("similar",),
    "WaitTimeout": ("left",),
}
_FORMAT = argparse.RawDescriptionHelpFormatter


def entry() -> None:
    """The console script."""
    sys.exit(main())


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:
        with contextlib.suppress(OSError, ValueError):  # what is left in the buffer must not fail again at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as leave:  # argparse, after --help or --version
        return int(leave.code or 0)
    return code


def _run(argv: list[str]) -> int:
    as_json = "--json" in argv
    try:
        args = parse(argv)
        options = common(args)
        as_json = options.as_json
        verb = VERBS[args.verb]
        run = _function(verb.module, verb.run)
        if args.verb == "server":
            args.json = as_json
            return int(run(args))
        logger = logging.getLogger("airflow_provider_zkmq.kazoo")  # the engine's errors say it in one line
        logger.propagate = False
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
        return int(run(args, options))
    except Exception as error:
        code = _exit_code(error)
        if code is None:
            raise
        message = " ".join(str(error).split("\n"))
        print(f"zkmq: {message}", file=sys.stderr)
        if as_json:
            more = {name: getattr(error, name) for name in _DETAILS.get(type(error).__name__, ())}
            print(json.dumps({"error": type(error).__name__, "message": message, **more}), flush=True)
        return code


def _function(module: str, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(importlib.import_module(f"airflow_provider_zkmq.cli.{module}"), name)
    return function


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line, understood. Raises `UsageError`."""
    about = "A durable task queue on Apache ZooKeeper."
    parser = Parser(prog="zkmq", description=about, epilog=EPILOG, allow_abbrev=False, formatter_class=_FORMAT)
    parser.add_argument("--version", action="version", version=f"zkmq {__version__}")
    add_common(parser, before=True)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)
    for name, verb in VERBS.items():
        described = verb.help[0].upper() + verb.help[1:] + "."
        sub = verbs.add_parser(
            name, help=verb.help, description=described, epilog=EPILOG, allow_abbrev=False, formatter_class=_FORMAT
        )
        if name in argv:  # the others' options would cost imports
            if name not in _NO_QUEUE:
                sub.add_argument("queue")
            if verb.add is not None:
                _function(verb.module, verb.add)(sub)
            if name != "server":  # it has a --json of its own
                add_common(sub)
    args, left = parser.parse_known_args(argv)
    # argparse gives up on an optional positional as soon as an option stands before it.
    if left and not any(text.startswith("-") and text != "-" for text in left):
        if getattr(args, "data", "") is None and len(left) == 1:
            args.data, left = left[0], []
        elif getattr(args, "tasks", None) == []:
            args.tasks, left = left, []
    if left:
        raise UsageError(f"unrecognized arguments: {' '.join(left)} (see zkmq {args.verb} --help)")
    return args


def _exit_code(error: Exception) -> int | None:
    """The exit code of an expected error; None for a mistake of ours, which keeps its traceback, and a closed pipe."""
    if isinstance(error, UsageError | BrokenPipeError):
        return USAGE if isinstance(error, UsageError) else None
    from ..engine import ConfigError, TransportError, WaitTimeout, ZkmqError

    codes: tuple[tuple[type[Exception], int], ...] = (
        (WaitTimeout, TIMED_OUT),  # an OSError too, being a TimeoutError
        (ConfigError, USAGE),
        (TransportError, NO_CONNECTION),
        (ZkmqError, REFUSED),
        (OSError, REFUSED),
    )
    return next((code for kind, code in codes if isinstance(error, kind)), None)
