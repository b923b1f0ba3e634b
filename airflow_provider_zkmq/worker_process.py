"""A worker as a process of its own: a function or a shell command, with traces, metrics and signals around it.

Signals end it when its tasks are done, or have it begin anew.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

from . import engine, traces, worker_logs
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
    if on_trial():
        if handler is not None:
            load(handler)
        sys.exit(0)
    signals = Signals()
    watched = [] if warn_size is None else [engine.monitor(max_size=warn_size)]
    settings["grace"] = grace
    with reload_held():
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
            start_anew()
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


# --- What signals do to it.

#: Empty where there is no such signal, as on Windows.
_RELOAD: Final = {signal.SIGHUP} if hasattr(signal, "SIGHUP") else set[signal.Signals]()
#: Who tries whether the code can be loaded has this in its environment, and so many seconds.
_TRIAL: Final = "ZKMQ_WORKER_TRIAL"
TRIAL_SECONDS: Final = 60.0


@contextlib.contextmanager
def reload_held() -> Iterator[None]:
    """A SIGHUP inside the block waits for `Signals`, so that it ends nobody who is still beginning."""
    _mask(signal.SIG_BLOCK)
    try:
        yield
    finally:
        _mask(signal.SIG_UNBLOCK)


class Signals:
    """What signals do to the process of a worker.

    SIGTERM and Ctrl-C end it when its tasks are done, or the grace is over; a second Ctrl-C at once. SIGHUP does so,
    too, and then the process is to begin anew (`start_anew`); what outlasts the grace then counts no attempt. Where a
    trial says that the code cannot be loaded, the process goes on as it is, and its log says why. Where
    standard input is a terminal, SIGHUP says that this is gone, and ends the worker as SIGTERM does. Where whoever
    started the process has it ignore SIGHUP, as ``nohup`` does, that stays so.
    """

    def __init__(self) -> None:
        self.anew = False
        """Whether the process is to begin anew, now that the worker has ended."""

    @contextlib.contextmanager
    def ending(
        self, worker: engine.Worker, grace: float, *, stopping: Callable[[], object], over: Callable[[], object]
    ) -> Iterator[None]:
        """Signals end this worker inside the block. It is told that it is `stopping`, and that the grace is `over`.

        A second Ctrl-C raises KeyboardInterrupt.
        """
        interrupts, reloading = 0, threading.Lock()
        named: dict[str, Any] = {"extra": {"queue": worker.queue.name}}

        def stop(number: int, _frame: FrameType | None) -> None:
            nonlocal interrupts
            interrupts += number == signal.SIGINT
            if interrupts > 1:
                raise KeyboardInterrupt
            if number in _RELOAD and not _has_terminal():
                # In a thread: the main one hears meanwhile of what ends the worker.
                threading.Thread(target=reload, name="zkmq-reload", daemon=True).start()
            else:
                finish("; Ctrl-C again to stop now" if number == signal.SIGINT else "")

        def reload() -> None:
            with reloading:  # a later signal is about code that may have changed since
                trouble = None if worker.stopping else _trouble()
                if trouble is not None:
                    _LOG.error("the worker goes on as it is, as it cannot begin anew: %s", trouble, **named)
                elif not worker.stopping:
                    finish("; then this process begins anew", anew=True)

        def finish(then: str, *, anew: bool = False) -> None:
            stopping()
            self.anew = anew  # what ends the process does so also before it begins anew
            if not worker.stop(forgive=anew):
                self.anew = False
                return
            count = worker.in_hand
            if count:
                _LOG.info("finishing %d task%s, at most %g s%s", count, "s" * (count > 1), grace, then, **named)
            else:
                _LOG.info("%s: nothing is in hand", "beginning anew" if anew else "ending", **named)
            timer = threading.Timer(grace, over)
            timer.daemon = True
            timer.start()

        heard = {signal.SIGTERM, signal.SIGINT}
        heard |= {number for number in _RELOAD if signal.getsignal(number) is not signal.SIG_IGN}
        before = {number: signal.signal(number, stop) for number in heard}
        _mask(signal.SIG_UNBLOCK)
        try:
            yield
        finally:
            _mask(signal.SIG_BLOCK)
            for number, old in before.items():
                signal.signal(number, old)


def start_anew() -> None:
    """Begin this process anew: its number and arguments stay, its code is read again. Raises `OSError`."""
    sys.stdout.flush()
    logging.shutdown()
    os.execv(sys.executable, _command())  # noqa: S606  what runs already


def on_trial() -> bool:
    """Whether this process only tries whether the worker's code can be loaded, and is to end then."""
    return _TRIAL in os.environ


def _command() -> list[str]:
    return [sys.executable, *sys.orig_argv[1:]]


def _trouble() -> str | None:
    """What would keep this process from beginning anew, as another one has found that loads the same code."""
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    env = os.environ | {_TRIAL: "1"}
    try:
        ended = subprocess.run(_command(), env=env, check=False, timeout=TRIAL_SECONDS, **quiet)  # noqa: S603  the same
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    words = ended.stderr.decode(errors="backslashreplace").strip().rpartition("\n")[2]
    return None if ended.returncode == 0 else words.removeprefix("zkmq: ") or f"exit code {ended.returncode}"


def _mask(how: int) -> None:
    if _RELOAD:
        signal.pthread_sigmask(how, _RELOAD)


def _has_terminal() -> bool:
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()
