"""Transactions that nobody waits for: sent at once by the caller's thread, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_provider_zkmq.engine.core.protocol.ops import Post
from airflow_provider_zkmq.engine.zk.reply import Reply
from airflow_provider_zkmq.engine.zk.requests import Refused, Transaction
from airflow_provider_zkmq.engine.zk.session import Session
from airflow_provider_zkmq.engine.zk.wire import check_sizes


class Posted(Reply):
    """The reply to a transaction that nobody waits for; the connection's thread sets it."""

    __slots__ = ("_lost",)

    def __init__(self, lost: Callable[[], None]) -> None:
        super().__init__()
        self._lost = lost

    def set(self, value: Any = None) -> None:
        """The server answered; refused, it was not carried out."""
        if isinstance(value[0], Refused):
            self._lost()
        super().set(value)

    def set_exception(self, exception: BaseException) -> None:
        """The connection was lost before the answer."""
        self._lost()
        super().set_exception(exception)


def post(session: Session, op: Post) -> bool:
    """Send a transaction without waiting for anything; whether the system has all of it.

    Not where something is to be asked before, nor where only the connection's thread may write: over TLS, say. What
    waits in this process when it is killed is never sent. Raises `TaskTooLarge`.
    """
    check_sizes((op.multi,))
    if session.closed or not session.connected.is_set() or any(True for _ in session.access.questions((op.multi,))):
        return False
    transaction = Transaction(op.multi.ops, session.access.rights)
    return session.send_now(type(op.multi).__name__, transaction, Posted(op.lost))
