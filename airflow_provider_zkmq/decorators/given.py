"""A queue as a worker sees it that is to handle claims which others made, and to claim nothing."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, AirflowTaskTimeout

from airflow_provider_zkmq.decorators.consuming import Consumed
from airflow_provider_zkmq.engine import AccessDenied, ConfigError, TransportError, ZkmqError
from airflow_provider_zkmq.hooks.claims import Claim, shown
from airflow_provider_zkmq.operators.taking import Taken, give_back, telling_of_the_end

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AnyClaim, AnyQueue, Worker


#: What was given back is claimed anew with a lease of so many seconds, where none is asked for; it is extended.
_ANEW: Final = 60.0


@dataclass(slots=True)
class _Waiting:
    """A claim that waits for a thread; `hand`: taken over, and to be extended from `due` on, by the monotonic clock."""

    told: Claim
    hand: AnyClaim | None = None
    due: float = 0.0


class Given:
    """Hands out claims that another process made, each taken over when a thread is free for it.

    Those that wait for a thread are extended meanwhile, whenever the worker looks after its queue. What does not hold
    any more is passed over, with a line in the log; a later try of the Airflow task (`again`) first claims anew, by its
    id, what an earlier one gave back: the same delivery, which has counted no attempt.
    """

    def __init__(
        self, queue: AnyQueue, claims: Iterable[Claim], lease: float | None, log: Any, *, again: bool = False
    ) -> None:
        self._queue = queue
        self._waiting = deque(
            _Waiting(told) for told in {(each["id"], each["token"]): each for each in claims}.values()
        )
        self._lease = lease
        self._log = log
        self._again = again
        self._turn = threading.Lock()
        self._handed = 0
        self._refused: ZkmqError | None = None

    def worker(self, handler: Callable[..., Any], **options: Any) -> Worker:
        """Return a worker that handles what is given. Raises `ConfigError` for what goes with claiming alone."""
        from airflow_provider_zkmq.engine import Worker  # it loads much: reading a DAG does without

        if options.pop("selector") is not None:
            raise ConfigError("@task.zkmq: with claims there is nothing left to select: leave selector out")
        if options.pop("transactional", False):
            raise ConfigError("@task.zkmq: a transaction takes what it claims itself: leave out claims or it")
        del options["lease"]
        queue: Any = self  # the rest of it is `__getattr__`'s
        return Worker(queue, handler, **options | {"prefetch": 0})

    def check_wanted(self, **_: object) -> None:
        """Nothing is chosen; where there is no queue any more, no claim holds, which is found one by one."""

    def claim(self, *_: object, timeout: float = 0, **__: object) -> AnyClaim | None:
        """Return the next claim that holds, begun. Raises `TransportError`; the claim is then asked for again."""
        with self._turn:
            while self._waiting:
                held = self._hold(self._waiting[0], begins=True)
                first = self._waiting.popleft()
                if held:
                    self._handed += 1
                    return first.hand
        if timeout:  # another thread has something in hand, and what it gives back is nobody's here
            self._queue.wait_for_change(self._queue.changes, timeout)
        return None

    def look_after(self) -> None:
        """Extend what waits for a thread, each a third of its span after the last time."""
        with self._turn:
            for each in [each for each in self._waiting if each.due <= time.monotonic()]:
                if not self._hold(each):
                    self._waiting.remove(each)
        self._queue.look_after()

    def check_handled(self) -> None:
        """Raise where nothing was handled for another reason than that no claim holds any more."""
        if self._refused is not None:
            raise self._refused
        if self._handed:
            raise AirflowException(f"{self._handed} task(s) were taken over and none was settled; see the log above")

    @contextmanager
    def failing_for_good(self) -> Iterator[None]:
        """After a time-out in which a function had begun, have Airflow not try again: its claim is over.

        What no thread got to is given back then.
        """
        try:
            yield
        except AirflowTaskTimeout as error:
            if not self._handed:
                raise
            self._give_back()
            raise AirflowFailException(f"{error}; no other try could handle what a function has begun") from None

    def _give_back(self) -> None:
        if self._turn.acquire(timeout=1.0):  # else a thread waits for ZooKeeper: so would we
            try:
                left = [Taken(each.told, 0) for each in self._waiting]
                self._waiting.clear()
            finally:
                self._turn.release()
            give_back(lambda _: self._queue, left, self._log)

    def _hold(self, waiting: _Waiting, *, begins: bool = False) -> bool:
        """Take a claim over, or extend it; False where it does not hold any more, or is refused."""
        told = waiting.told
        try:
            with telling_of_the_end(told, self._log):
                hand = waiting.hand = waiting.hand or self._taken_over(told)
                if hand is None:
                    return False
                hand.extend(hand.span or 0.0)
                if begins and hand.ahead:
                    hand.begin()
                waiting.due = time.monotonic() + (hand.span or 0.0) / 3
                return True
        except (AccessDenied, TransportError):
            raise
        except ZkmqError as error:  # its task is damaged, say: the others are to be handled
            self._refused = error
            self._log.warning("Claim %d of %s is passed over: %s", told["token"], shown(told), error)
        return False

    def _taken_over(self, told: Claim) -> AnyClaim | None:
        claim: AnyClaim | None = self._queue.take_over(told["id"], told["token"], lease=self._lease)
        if claim is None and self._again:
            claim = self._queue.claim_task(told["id"], lease=self._lease or _ANEW, attempt=told["attempt"])
            told["token"] = told["token"] if claim is None else claim.token
        if claim is None:
            task = self._queue.task(told["id"])
            now = f"it is {task.status}, attempt {task.attempt}"
            self._log.info("Claim %d of %s does not hold any more: %s", told["token"], shown(told), now)
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


def none_holds(number: int, on_empty: str) -> dict[str, Any]:
    """Return the XCom where nothing could be taken over, or raise, by `on_empty`: there is nothing to wait for."""
    why = f"none of the {number} claim(s) holds any more; see the log above" if number else "there is no claim"
    if on_empty == "fail":
        raise AirflowFailException(why)
    if on_empty != "succeed":
        raise AirflowSkipException(why)
    return Consumed("").summary()
