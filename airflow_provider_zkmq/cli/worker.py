"""``zkmq worker``: handle tasks with a Python function, or with a shell command for each task (``--exec``)."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from ..shell_handler.command_reaper import TERMINATE_SECONDS
from ..shell_handler.exec_handler import Commands
from .options import DURATION, PATIENT, Common, UsageError
from .output import say
from .stop_signals import on_stop_signals
from .tasks import add_wanted, wanted

_MARGIN = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``worker``."""
    parser.add_argument("queue", help="one that is not there yet is waited for, unless --until-empty is given")
    add_wanted(parser)
    work = parser.add_mutually_exclusive_group()
    work.add_argument("--handler", metavar="MODULE:FUNCTION", help="called with each task; its return is the result")
    run_by = (
        "run by /bin/sh for each task: data on stdin, result on stdout, non-zero exit fails the task; "
        "in its environment ZKMQ_TASK_ID, ZKMQ_ATTEMPT and ZKMQ_QUEUE; ended with its task and with the worker"
    )
    work.add_argument("--exec", dest="command", metavar="CMD", help=run_by)
    passed = "with --exec: the command, which may use the queues itself, inherits ZKMQ_AUTH and the like"
    parser.add_argument("--pass-credentials", action="store_true", help=passed)
    transactional = (
        "with --handler, which is called with the task and a transaction: what it puts is written as the task is "
        "completed, or not at all"
    )
    parser.add_argument("--transactional", action="store_true", help=transactional)
    threads = "tasks in hand at once (1); 0: only watch, see --warn-size"
    parser.add_argument("--threads", type=int, default=1, metavar="N", help=threads)
    lease = "claims outlive the ZooKeeper session, and end so long after they were last extended"
    parser.add_argument("--lease", help=lease, **DURATION)
    bounded = "do not extend locks and leases: they bound the handling"
    parser.add_argument("--no-heartbeat", action="store_true", help=bounded)
    parser.add_argument("--throttle", default=0.0, help="a thread's pause between tasks (0)", **DURATION)
    ahead = "claim so many tasks ahead at the most, while handlers are fast (32); 0: each by itself"
    parser.add_argument("--prefetch", type=int, default=32, metavar="N", help=ahead)
    warned = "log a warning, at most each 6 h, when more than N tasks are pending"
    parser.add_argument("--warn-size", type=int, metavar="N", help=warned)
    parser.add_argument("--until-empty", action="store_true", help="end when nothing that fits is left")
    parser.add_argument("--no-gc", action="store_true", help="take no part in clean-up")
    parser.add_argument("--grace", default=30.0, help="on SIGTERM: time to finish what is in hand (30s)", **DURATION)


def run(args: argparse.Namespace, common: Common) -> int:
    """Handle tasks until a signal, or until there is none."""
    if args.threads and args.handler is None and args.command is None:
        raise UsageError("worker needs --handler or --exec; only with --threads 0 there is nothing to handle")
    if args.pass_credentials and args.command is None:
        raise UsageError("--pass-credentials goes with --exec: a handler has the worker's own environment")
    if args.transactional and args.handler is None:
        raise UsageError("--transactional goes with --handler, which gets the transaction")
    if args.transactional and args.lease is not None:
        raise UsageError("--transactional does not go with --lease: a transaction ends with its session")
    if args.until_empty and not args.threads:
        raise UsageError("--until-empty does not go with --threads 0, which empties nothing")
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("airflow_provider_zkmq").setLevel(logging.INFO)
    handler: Callable[..., Any] = _unused
    commands, grace = None, args.grace
    if args.handler is not None:
        handler = load(args.handler)
    elif args.command is not None:
        handler = commands = Commands(args.command, args.queue, credentials=args.pass_credentials, secret=common.secret)
        grace += TERMINATE_SECONDS + _MARGIN
    options = _options(args) | wanted(args)
    with common.connect(gc=not args.no_gc, seconds=PATIENT) as zk:
        worker = zk.queue(args.queue).worker(handler, grace=grace, **options)

        def stop(_number: int, _frame: FrameType | None) -> None:
            if worker.stop() and commands is not None:  # what outlasts the grace is ended
                timer = threading.Timer(args.grace, commands.end)
                timer.daemon = True
                timer.start()

        with on_stop_signals(stop):
            try:
                worker.run(until_empty=args.until_empty)
            finally:
                if commands is not None:
                    commands.end()
    done = {"queue": args.queue, "finished": worker.finished, "failed": worker.failed}
    say(done, f"{worker.finished} finished, {worker.failed} failed", as_json=common.as_json)
    return 0


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """What `Worker` takes besides a handler and a choice of tasks."""
    from ..engine import monitor

    return {
        "threads": args.threads,
        "lease": args.lease,
        "heartbeat": not args.no_heartbeat,
        "throttle": args.throttle,
        "prefetch": args.prefetch,
        "transactional": args.transactional,
        "monitor": None if args.warn_size is None else monitor(max_size=args.warn_size),
    }


def _unused(_task: object) -> None:
    """The handler of a worker without threads."""


def load(text: str) -> Callable[..., Any]:
    """The function that ``module:function`` names, also of a module in the current folder. Raises `UsageError`."""
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise UsageError(f"--handler {text!r} is not understood: write module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
    except Exception as error:
        raise UsageError(f"--handler {text!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise UsageError(f"--handler {text!r} is no function")
    return function  # type: ignore[no-any-return]
