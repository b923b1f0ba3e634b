"""A worker's process: signals end it when its tasks are done, or have it begin anew."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from .engine import Worker

_LOG: Final = logging.getLogger("airflow_provider_zkmq")
#: Empty where there is no such signal, as on Windows.
_RELOAD: Final = {signal.SIGHUP} if hasattr(signal, "SIGHUP") else set[signal.Signals]()
#: Who tries whether the code can be loaded has this in its environment, and so many seconds.
_TRIAL: Final = "ZKMQ_WORKER_TRIAL"
TRIAL_SECONDS: Final = 60.0


@contextmanager
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

    @contextmanager
    def ending(
        self, worker: Worker, grace: float, *, stopping: Callable[[], object], over: Callable[[], object]
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
