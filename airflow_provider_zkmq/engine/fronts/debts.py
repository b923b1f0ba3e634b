"""What calls left to be put right (`core.upkeep.debts`) is put right in the background, by a thread of its own."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Final

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.tasks.departing import settle_leaving
from airflow_provider_zkmq.engine.core.upkeep.debts import in_debt, pay_debts, until_due
from airflow_provider_zkmq.engine.errors import TransportError, ZkmqError
from airflow_provider_zkmq.engine.log import log
from airflow_provider_zkmq.engine.zk.drivers import run
from airflow_provider_zkmq.engine.zk.session import Session

#: The longest pause between two tries to pay what is owed, while the connection is lost.
LOOK_SECONDS: Final = 5.0
#: The pause before what could not be paid is tried again, while there is one.
RETRY_SECONDS: Final = 0.5


def pay(session: Session, context: Context) -> None:
    """Have what is owed put right by a thread of its own, as soon as there is a connection; one at a time is enough.

    From any thread: the connection's own must not wait for the client's lock, under which a signal's handler may wait
    for the connection's thread.
    """
    if not context.debts.paying and (context.claims.leaving or not session.closed) and os.getpid() == session.pid:
        with contextlib.suppress(RuntimeError):  # no thread is to be had: before the next claim it is put right, too
            threading.Thread(target=_pay, args=(session, context), name="zkmq-debts", daemon=True).start()


def _pay(session: Session, context: Context) -> None:
    with session.memory:
        if context.debts.paying:
            return
        context.debts.paying = True
    while _goes_on(session, context):
        seen, least = session.changed.count, RETRY_SECONDS
        try:
            run(session, settle_leaving(context) if session.closed else pay_debts(context))
            least = 0.0
        except TransportError:
            pass
        except Exception as error:  # noqa: BLE001  whatever was met: the next debt is to be paid
            what = "what calls on queue %r left is put right before its next claim: %s"
            log.warning(what, context.queue, error, exc_info=not isinstance(error, ZkmqError))
            if not context.claims.leaving:
                context.debts.paying = False
                return
        if _goes_on(session, context):
            session.changed.wait(seen, max(least, _pause(session, context)))


def _pause(session: Session, context: Context) -> float:
    """How long what is owed may wait, unless the connection changes; what is put down meanwhile is looked at, too."""
    with session.memory:
        return until_due(context, RETRY_SECONDS if session.connected.is_set() else LOOK_SECONDS)


def _goes_on(session: Session, context: Context) -> bool:
    """Whether anything is owed still; no debt falls in between. Of a client that was closed: what was put down is told.

    What is owed later is owed by somebody who has the client's memory after us; or, without it, by somebody who notes
    the debt first and then asks whether anybody pays: nobody is said to, before it is asked what is owed.
    """
    with session.memory:
        context.debts.paying = False
        context.debts.paying = bool(context.claims.leaving) if session.closed else in_debt(context)
        return context.debts.paying
