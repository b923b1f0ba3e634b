"""``zkmq worker``: handle tasks until told to stop."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from airflow_provider_zkmq.cli.claims import add_wanted, wanted
from airflow_provider_zkmq.cli.commands import TERMINATE_SECONDS, Commands
from airflow_provider_zkmq.cli.options import PATIENT, Common, UsageError, duration
from airflow_provider_zkmq.cli.output import say

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import Monitor, Worker

_MARGIN = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``worker``."""
    parser.add_argument("queue", help="one that is not there yet is waited for, unless --until-empty is given")
    add_wanted(parser)
    work = parser.add_mutually_exclusive_group()
    work.add_argument("--handler", metavar="MODULE:FUNCTION", help="called with each task; its return is the result")
    work.add_argument(
        "--exec",
        dest="command",
        metavar="CMD",
        help="run by /bin/sh for each task: data on stdin, result on stdout, non-zero exit fails the task; "
        "in its environment ZKMQ_TASK_ID, ZKMQ_ATTEMPT and ZKMQ_QUEUE; ended with its task and with the worker",
    )
    parser.add_argument(
        "--pass-credentials",
        action="store_true",
        help="with --exec: the command, which may use the queues itself, inherits ZKMQ_AUTH and the like",
    )
    parser.add_argument(
        "--transactional",
        action="store_true",
        help="with --handler, which is called with the task and a transaction: what it puts is written as the task is "
        "completed, or not at all",
    )
    parser.add_argument(
        "--threads", type=int, default=1, metavar="N", help="tasks in hand at once (1); 0: only watch, see --warn-size"
    )
    parser.add_argument(
        "--lease",
        type=duration,
        metavar="DURATION",
        help="claims outlive the ZooKeeper session, and end so long after they were last extended",
    )
    parser.add_argument(
        "--no-heartbeat", action="store_true", help="do not extend locks and leases: they bound the handling"
    )
    parser.add_argument(
        "--throttle", type=duration, default=0.0, metavar="DURATION", help="a thread's pause between tasks (0)"
    )
    parser.add_argument(
        "--prefetch",
        type=int,
        default=32,
        metavar="N",
        help="claim so many tasks ahead at the most, while handlers are fast (32); 0: each by itself",
    )
    parser.add_argument(
        "--warn-size", type=int, metavar="N", help="log a warning, at most each 6 h, when more than N tasks are pending"
    )
    parser.add_argument("--until-empty", action="store_true", help="end when nothing that fits is left")
    parser.add_argument("--no-gc", action="store_true", help="take no part in clean-up")
    parser.add_argument(
        "--grace",
        type=duration,
        default=30.0,
        metavar="DURATION",
        help="on SIGTERM: time to finish what is in hand (30s)",
    )


def run(args: argparse.Namespace, common: Common) -> int:
    """Handle tasks until a signal, or until there is none."""
    _check(args)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("airflow_provider_zkmq").setLevel(logging.INFO)
    handler, end, extra = _handler(args, common)
    options = _options(args) | wanted(args)
    with common.connect(gc=not args.no_gc, seconds=PATIENT) as zk:
        queue = zk.queue(args.queue)
        worker = queue.worker(handler, grace=args.grace + extra, **options)
        with _stopped_by_signals(worker, args.grace, end):
            try:
                worker.run(until_empty=args.until_empty)
            finally:
                end()
    done = {"queue": args.queue, "finished": worker.finished, "failed": worker.failed}
    say(done, f"{worker.finished} finished, {worker.failed} failed", as_json=common.as_json)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Refuse options that contradict each other. Raises `UsageError`."""
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


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """What `Worker` takes besides a handler and a choice of tasks."""
    return {
        "threads": args.threads,
        "lease": args.lease,
        "heartbeat": not args.no_heartbeat,
        "throttle": args.throttle,
        "prefetch": args.prefetch,
        "transactional": args.transactional,
        "monitor": _monitor(args.warn_size),
    }


def _monitor(size: int | None) -> Monitor | None:
    from airflow_provider_zkmq.engine import monitor

    return None if size is None else monitor(max_size=size)


def _handler(args: argparse.Namespace, common: Common) -> tuple[Callable[..., Any], Callable[[], None], float]:
    """The handler, how to end what it started, and the time that takes beyond the grace."""
    if args.handler is not None:
        return load(args.handler), lambda: None, 0.0
    if args.command is None:
        return _unused, lambda: None, 0.0
    commands = Commands(args.command, args.queue, credentials=args.pass_credentials, secret=common.secret)
    return commands, commands.end, TERMINATE_SECONDS + _MARGIN


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


@contextlib.contextmanager
def _stopped_by_signals(worker: Worker, grace: float, end: Callable[[], None]) -> Iterator[None]:
    """Inside the block SIGTERM and SIGINT stop the worker; commands that outlast the grace are ended."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        if worker.stop():
            timer = threading.Timer(grace, end)
            timer.daemon = True
            timer.start()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
