"""A queue as a worker sees it that is to handle claims which others made, and to claim nothing."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sized
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_zkmq.engine import ConfigError, TransportError, Worker, ZkmqError
from airflow_provider_zkmq.hooks.claims import Claim, shown
from airflow_provider_zkmq.operators.taking import telling_of_the_end

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AnyClaim, AnyQueue


class Given:
    """Hands out claims that another process made, each taken over and extended when a thread is free for it.

    What does not hold any more is passed over, with a line in the log. What no thread got to is left to whoever asks
    for it again, at the latest when its lease runs out.
    """

    def __init__(self, queue: AnyQueue, claims: Iterable[Claim], lease: float | None, log: Any) -> None:
        self._queue = queue
        self._waiting = deque(claims)
        self._lease = lease
        self._log = log
        self._turn = threading.Lock()

    def worker(self, handler: Callable[..., Any], **options: Any) -> Worker:
        """Return a worker that handles what is given. Raises `ConfigError` for what goes with claiming alone."""
        if options.pop("selector") is not None:
            raise ConfigError("@task.zkmq: with claims there is nothing left to select: leave selector out")
        if options.pop("transactional", False):
            raise ConfigError("@task.zkmq: a transaction takes what it claims itself: leave out claims or it")
        del options["lease"]
        queue: Any = self  # the rest of it is `__getattr__`'s
        return Worker(queue, handler, **options | {"prefetch": 0})

    def claim(self, *_: object, timeout: float = 0, **__: object) -> AnyClaim | None:
        """Return the next claim that holds. Raises `TransportError`; the claim is then asked for again."""
        with self._turn:
            while self._waiting:
                claim = self._take(self._waiting[0])
                self._waiting.popleft()
                if claim is not None:
                    return claim
        if timeout:  # another thread has something in hand, and what it gives back is nobody's here
            self._queue.wait_for_change(self._queue.changes, timeout)
        return None

    def _take(self, given: Claim) -> AnyClaim | None:
        try:
            with telling_of_the_end(given, self._log):
                return self._taken(given)
        except (ConfigError, TransportError):
            raise
        except ZkmqError as error:  # its task is damaged, say: the others are to be handled
            self._log.warning("Claim %d of %s is passed over: %s", given["token"], shown(given), error)
        return None

    def _taken(self, given: Claim) -> AnyClaim | None:
        claim: AnyClaim | None = self._queue.take_over(given["id"], given["token"])
        if claim is None:
            task = self._queue.task(given["id"])
            now = f"it is {task.status}, attempt {task.attempt}"
            self._log.info("Claim %d of %s does not hold any more: %s", given["token"], shown(given), now)
        else:
            claim.extend(self._lease or claim.span or 0.0)
        return claim

    def __getattr__(self, name: str) -> Any:
        """Whatever else a worker asks of a queue."""
        return getattr(self._queue, name)


def queue_of(claims: Iterable[Claim], queue: str | None) -> str | None:
    """Return the one queue of the claims. Raises `ConfigError` where they are of several, or of another."""
    names = {claim["queue"] for claim in claims} | ({queue} if queue else set())
    if len(names) > 1:
        raise ConfigError(f"@task.zkmq: the claims are of several queues, {', '.join(sorted(names))}: map over them")
    return next(iter(names), None)


def check_none_holds(claims: Sized, on_empty: str) -> None:
    """Raise, by `on_empty`, where nothing could be taken over: there is nothing to wait for."""
    why = f"none of the {len(claims)} claim(s) holds any more; see the log above"
    if on_empty == "fail":
        raise AirflowFailException(why)
    if on_empty != "succeed":
        raise AirflowSkipException(why)
