"""What calls left to be put right (`core.upkeep.debts`) is put right in the background, by a thread of its own."""

from __future__ import annotations

import contextlib
import threading
from typing import Final

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.upkeep.debts import in_debt, pay_debts, until_due
from airflow_provider_zkmq.engine.errors import TransportError, ZkmqError
from airflow_provider_zkmq.engine.log import log
from airflow_provider_zkmq.engine.zk.drivers import run
from airflow_provider_zkmq.engine.zk.session import Session

#: The longest pause between two tries to pay what is owed, while the connection is lost.
LOOK_SECONDS: Final = 5.0


def pay(session: Session, context: Context) -> None:
    """Have what is owed put right by a thread of its own, as soon as there is a connection; one at a time is enough.

    From any thread: the connection's own must not wait for the client's lock, under which a signal's handler may wait
    for the connection's thread.
    """
    if not context.debts.paying and not session.closed:
        with contextlib.suppress(RuntimeError):  # no thread is to be had: before the next claim it is put right, too
            threading.Thread(target=_pay, args=(session, context), name="zkmq-debts", daemon=True).start()


def _pay(session: Session, context: Context) -> None:
    with session.memory:
        if context.debts.paying:
            return
        context.debts.paying = True
    try:
        while _goes_on(session, context):
            seen = session.changed.count
            with contextlib.suppress(TransportError):
                run(session, pay_debts(context))
            if _goes_on(session, context):
                session.changed.wait(seen, until_due(context, LOOK_SECONDS))
    except Exception as error:  # noqa: BLE001  whatever was met: the next debt is to be paid
        context.debts.paying = False
        what = "what calls on queue %r left is put right before its next claim: %s"
        log.warning(what, context.queue, error, exc_info=not isinstance(error, ZkmqError))


def _goes_on(session: Session, context: Context) -> bool:
    """Whether anything is owed still; no debt falls in between.

    What is owed later is owed by somebody who has the client's memory after us; or, without it, by somebody who notes
    the debt first and then asks whether anybody pays: nobody is said to, before it is asked what is owed.
    """
    with session.memory:
        context.debts.paying = False
        context.debts.paying = in_debt(context) and not session.closed
        return context.debts.paying
