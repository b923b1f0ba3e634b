"""A worker as a process of its own: a function or a shell command, with traces, metrics and signals around it."""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

from . import engine, traces, worker_logs, worker_signals
from .shell_handler.command_reaper import TERMINATE_SECONDS
from .shell_handler.exec_handler import Commands

_MARGIN: Final = 1.0
_LOG: Final = logging.getLogger("airflow_provider_zkmq")


def run(
    connect: Callable[[], engine.AnyClient],
    queue: str,
    *,
    handler: str | None = None,
    command: str | None = None,
    pass_credentials: bool = False,
    secret: Collection[str] = frozenset(),
    task_timeout: float | None = None,
    warn_size: int | None = None,
    listen: str | None = None,
    grace: float = 30.0,
    until_empty: bool = False,
    **settings: Any,
) -> engine.Worker:
    """Handle tasks until a signal ends the worker, or it is done; after SIGHUP the process begins anew.

    `handler`: a function, as `load` takes it; or `command`: what a shell carries out, as `Commands` has it, for which
    `pass_credentials` and `secret` are. `settings`: of `Queue.worker`. Raises `ConfigError`, and what `connect` does.
    """
    signals = worker_signals.Signals()
    watched = [] if warn_size is None else [engine.monitor(max_size=warn_size)]
    settings["grace"] = grace
    with worker_signals.reload_held():
        with contextlib.ExitStack() as stack:
            stack.callback(traces.export("zkmq-worker"))
            handle: Callable[..., Any] = _nothing
            over: Callable[[], object] = _nothing
            stopping: Callable[[], object] = _nothing
            if handler is not None:
                handle = load(handler)
                settings["task_timeout"] = task_timeout
            elif command is not None:
                handle = commands = Commands(
                    command, queue, credentials=pass_credentials, secret=secret, timeout=task_timeout
                )
                stack.callback(commands.end)  # none outlives the worker
                over = commands.end
                settings["grace"] = grace + TERMINATE_SECONDS + _MARGIN
            client = connect()
            handle = worker_logs.handler(traces.handler(handle, queue), queue)
            if listen is not None:
                metrics = _worker_metrics(client.queue(queue))
                handle, stopping = metrics.handler(handle), metrics.stop
                settings["on_settled"] = metrics.on_settled
                watched.append(metrics.monitor)
            if watched:
                settings["monitor"] = lambda poll: [look(poll) for look in watched]
            worker = client.queue(queue).worker(handle, **settings)
            if listen is not None:
                address = stack.enter_context(metrics.serve(listen, worker))
                _LOG.info("metrics and health are served at %s", address, extra={"queue": queue})
            stack.enter_context(signals.ending(worker, grace, stopping=stopping, over=over))
            worker.run(until_empty=until_empty)
        if signals.anew:
            client.close()
            worker_signals.start_anew()
    return worker


def _worker_metrics(queue: engine.AnyQueue) -> Any:
    """What ``--listen`` serves. Raises `ConfigError` without Prometheus's client."""
    try:
        from .worker_metrics import WorkerMetrics
    except ModuleNotFoundError as error:
        raise engine.ConfigError(f"--listen needs {error.name}: pip install 'airflow-provider-zkmq[metrics]'") from None
    return WorkerMetrics(queue)


def _nothing(*_: object) -> None:
    """The handler of a worker without threads, and what is done at the end of the grace where nothing is."""


def load(text: str) -> Callable[..., Any]:
    """The function that ``module:function`` names, also of a module in the current folder. Raises `ConfigError`."""
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise engine.ConfigError(f"--handler {text!r} is not understood: write module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
    except Exception as error:
        raise engine.ConfigError(f"--handler {text!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise engine.ConfigError(f"--handler {text!r} is no function")
    return function  # type: ignore[no-any-return]
