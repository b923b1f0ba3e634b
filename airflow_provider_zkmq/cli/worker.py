"""``zkmq worker``: handle tasks with a Python function, or with a shell command for each task (``--exec``)."""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..shell_handler.command_reaper import TERMINATE_SECONDS
from ..shell_handler.exec_handler import Commands
from .claims import FILTER_METHOD, NODE, WANTED_SELECTOR, wanted
from .connection import QUEUE, Cli
from .options import PATIENT, UsageError, at_most_one, flag, option, span
from .verbs import verb

if TYPE_CHECKING:
    from ..engine import AnyQueue
    from ..worker_metrics import WorkerMetrics

_MARGIN = 1.0
_LOG: Final = logging.getLogger("airflow_provider_zkmq")


@verb("worker", example="zkmq worker orders --exec 'lp -'")
def worker(
    cli: Cli,
    queue: str = QUEUE,
    node: list[str] | None = NODE,
    filter_method: str = FILTER_METHOD,
    selector: str | None = WANTED_SELECTOR,
    handler: str | None = option("called with each task; its return is the result", "MODULE:FUNCTION"),
    command: str | None = option(
        "run by /bin/sh for each task: data on stdin, result on stdout, non-zero exit fails the task; "
        "in its environment ZKMQ_TASK_ID, ZKMQ_ATTEMPT and ZKMQ_QUEUE; ended with its task and with the worker",
        "CMD",
        names=("--exec",),
    ),
    pass_credentials: bool = flag("--pass-credentials", "with --exec: the command inherits ZKMQ_AUTH and the like"),
    transactional: bool = flag(
        "--transactional", "with --handler, which is called with the task and a transaction that completes it"
    ),
    threads: int = option("tasks in hand at once (1); 0: only watch", "N", 1, names=("--threads", "--concurrency")),
    max_tasks: int | None = option("end when so many tasks were handled", "N"),
    task_timeout: float | None = span("an attempt that takes longer has failed; a command is ended then"),
    lease: float | None = span("claims outlive the ZooKeeper session, and end so long after they were last extended"),
    no_heartbeat: bool = flag("--no-heartbeat", "do not extend locks and leases: they bound the handling"),
    throttle: float = span("a thread's pause between tasks (0)", 0.0),
    prefetch: int = option("claim so many tasks ahead at the most, while handlers are fast (32); 0: none", "N", 32),
    warn_size: int | None = option("log a warning, at most each 6 h, when more than N tasks are pending", "N"),
    listen: str | None = option(
        "serve /metrics for Prometheus, /livez and /readyz there (extra [metrics])", "HOST:PORT"
    ),
    until_empty: bool = flag("--until-empty", "end when nothing that fits is left, and if there is no such queue"),
    no_gc: bool = flag("--no-gc", "take no part in clean-up"),
    grace: float = span("on SIGTERM, and on SIGHUP, which reloads: time to finish what is in hand (30s)", 30.0),
    log_json: bool = flag("--log-json", "log a JSON object a line: time, level, message, queue, task, attempt"),
    verbose: bool = option("log tracebacks, too", "", False, names=("-v", "--verbose"), is_flag=True),
) -> int:
    """Handle tasks until told to stop."""
    from .. import engine, traces, worker_logs, worker_signals

    _check(handler, command, threads, lease, pass_credentials=pass_credentials, transactional=transactional)
    if until_empty and not threads:
        raise UsageError("--until-empty does not go with --threads 0, which empties nothing")
    if worker_signals.on_trial():
        if handler is not None:
            load(handler)
        return 0
    worker_logs.set_up(as_json=log_json, verbose=verbose, queue=queue)
    settings: dict[str, Any] = {
        **wanted(node, filter_method, selector),
        "threads": threads,
        "lease": lease,
        "heartbeat": not no_heartbeat,
        "throttle": throttle,
        "prefetch": prefetch,
        "transactional": transactional,
        "limit": max_tasks,
        "grace": grace,
    }
    watched = [] if warn_size is None else [engine.monitor(max_size=warn_size)]
    signals = worker_signals.Signals()
    with worker_signals.reload_held():
        with contextlib.ExitStack() as stack:
            stack.callback(traces.export("zkmq-worker"))
            handle: Callable[..., Any] = _unused
            over, stopping = _nothing, _nothing
            if handler is not None:
                handle = load(handler)
                settings["task_timeout"] = task_timeout
            elif command is not None:
                commands = Commands(
                    command, queue, credentials=pass_credentials, secret=cli.secret, timeout=task_timeout
                )
                stack.callback(commands.end)  # none outlives the worker
                handle, over = commands, commands.end
                settings["grace"] = grace + TERMINATE_SECONDS + _MARGIN
            source = cli.client(gc=not no_gc, seconds=PATIENT).queue(queue)
            handle = worker_logs.handler(traces.handler(handle, queue), queue)
            if listen is not None:
                metrics = _metrics(source)
                handle, stopping = metrics.handler(handle), metrics.stop
                settings["on_settled"] = metrics.on_settled
                watched.append(metrics.monitor)
            if watched:
                settings["monitor"] = lambda poll: [look(poll) for look in watched]
            running = source.worker(handle, **settings)
            if listen is not None:
                address = stack.enter_context(metrics.serve(listen, running))
                _LOG.info("metrics and health are served at %s", address, extra={"queue": queue})
            stack.enter_context(signals.ending(running, grace, stopping=stopping, over=over))
            running.run(until_empty=until_empty)
        if signals.anew:
            cli.close()
            worker_signals.start_anew()
    done = {"queue": queue, "finished": running.finished, "failed": running.failed}
    return cli.say(done, f"{running.finished} finished, {running.failed} failed")


def _check(
    handler: str | None,
    command: str | None,
    threads: int,
    lease: float | None,
    *,
    pass_credentials: bool,
    transactional: bool,
) -> None:
    """Raise `UsageError` for options that do not go together."""
    at_most_one(handler=handler, exec=command)
    if threads and handler is None and command is None:
        raise UsageError("worker needs --handler or --exec; only with --threads 0 there is nothing to handle")
    if pass_credentials and command is None:
        raise UsageError("--pass-credentials goes with --exec: a handler has the worker's own environment")
    if transactional and handler is None:
        raise UsageError("--transactional goes with --handler, which gets the transaction")
    if transactional and lease is not None:
        raise UsageError("--transactional does not go with --lease: a transaction ends with its session")


def _metrics(queue: AnyQueue) -> WorkerMetrics:
    """What ``--listen`` serves. Raises `UsageError` without Prometheus's client."""
    try:
        from ..worker_metrics import WorkerMetrics
    except ModuleNotFoundError as error:
        raise UsageError(f"--listen needs {error.name}: pip install 'airflow-provider-zkmq[metrics]'") from None
    return WorkerMetrics(queue)


def _unused(_task: object) -> None:
    """The handler of a worker without threads."""


def _nothing() -> None:
    """What is done at the end of the grace, say, where nothing is."""


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
