"""`FileWorker`: the worker of `engine.worker` over a file."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.core.tasks.outcome import settle_by
from airflow_provider_zkmq.engine.outcomes import Success
from airflow_provider_zkmq.engine.working.deliveries import NOT_BEGUN, Delivery
from airflow_provider_zkmq.engine.working.handling import Handler
from airflow_provider_zkmq.engine.working.worker import KEEPER_SECONDS, Worker
from airflow_provider_zkmq.filequeue.refusals import TRANSACTIONS, refuse

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine.fronts.queue import Claim, Queue
    from airflow_provider_zkmq.filequeue.claims import FileClaim
    from airflow_provider_zkmq.filequeue.queue import FileQueue

T = TypeVar("T")


class FileWorker(Worker):
    """Claims tasks of one file and runs a handler on each; see `Worker`.

    Every claim has an end here: while its handler runs, it is extended each time a third of its span has passed,
    unless ``heartbeat`` is False. Raises `ConfigError` for ``transactional``.
    """

    def __init__(self, queue: FileQueue, handler: Handler, *, transactional: bool = False, **options: Any) -> None:
        refuse({TRANSACTIONS: transactional})
        self._file = queue
        super().__init__(cast("Queue", queue), handler, **options)

    def stop(self) -> bool:
        """Claim nothing more; callable from a signal handler. False if it was stopping already."""
        if self._stopping.is_set():
            return False
        self._stopping.set()
        threading.Thread(target=self._file.folder.alarms.fire, daemon=True).start()
        return True

    def _check_selector(self) -> None:
        self._file.check_wanted(self._asked)

    def _span(self, claim: Claim) -> float | None:
        return cast("FileClaim", claim).span

    def _settle_once(self, delivery: Delivery) -> bool:
        return _driven(settle_by(_OfFile(delivery.claim), delivery.outcome or NOT_BEGUN, delivery.progress))

    def _is_over(self, delivery: Delivery) -> bool:  # noqa: ARG002  a file's claim ends with its connection only
        return self._file.folder.closed

    def _look_after(self) -> None:
        """Nothing is promoted or rescued in a file: whoever claims finds what is due."""

    def _seen(self) -> int:
        return 0

    def _doze(self, seen: int) -> None:  # noqa: ARG002  a file has no signal
        self._stopping.wait(KEEPER_SECONDS)


@dataclass(frozen=True, slots=True)
class _OfFile:
    """The ends of a claim out of a file, as procedures: they do at once what those of a queue ask a driver for."""

    claim: FileClaim

    def succeed(self, outcome: Success) -> Procedure[None]:
        self.claim.complete(outcome.result, dedupe=outcome.dedupe)
        yield from ()

    def withdraw(self) -> Procedure[None]:
        yield from ()

    def fail(self, error: str | BaseException, *, retry: bool, backoff: object) -> Procedure[None]:
        self.claim.fail(error, retry=retry, backoff=backoff)
        yield from ()

    def snooze(self, delay: object) -> Procedure[None]:
        self.claim.snooze(delay)
        yield from ()

    def recover(self) -> Procedure[bool]:
        yield from ()
        return False


def _driven(procedure: Procedure[T]) -> T:
    """A procedure that asks for nothing, carried out."""
    try:
        next(procedure)
    except StopIteration as stop:
        return cast(T, stop.value)
    msg = "a file's procedure asks for no operation"
    raise AssertionError(msg)
