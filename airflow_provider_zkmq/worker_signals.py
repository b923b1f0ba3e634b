"""A worker's process: signals end it when its tasks are done, or have it begin anew."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from .engine import Worker

_LOG: Final = logging.getLogger("airflow_provider_zkmq")
#: Empty where there is no such signal, as on Windows.
_RELOAD: Final = {signal.SIGHUP} if hasattr(signal, "SIGHUP") else set[signal.Signals]()


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
    too, and then the process is to begin anew (`start_anew`); what outlasts the grace then counts no attempt. Where
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
        interrupts = 0

        def stop(number: int, _frame: FrameType | None) -> None:
            nonlocal interrupts
            interrupts += number == signal.SIGINT
            if interrupts > 1:
                raise KeyboardInterrupt
            anew = number in _RELOAD and not _has_terminal()
            stopping()
            if worker.stop(forgive=anew):
                self.anew = anew
                then = "then this process begins anew" if anew else "Ctrl-C again stops now"
                _LOG.info("finishing what is in hand, at most %g s; %s", grace, then)
                timer = threading.Timer(grace, over)
                timer.daemon = True
                timer.start()
            else:  # it is stopping already: what ends the process does so also before it begins anew
                self.anew = self.anew and anew

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
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  what runs already


def _mask(how: int) -> None:
    if _RELOAD:
        signal.pthread_sigmask(how, _RELOAD)


def _has_terminal() -> bool:
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()
