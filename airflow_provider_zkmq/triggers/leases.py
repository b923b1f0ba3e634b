"""`ZkmqLeaseTrigger`: keeps a DAG run's claims from running out, in the triggerer, for as long as they hold."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from airflow.triggers.base import BaseTrigger, TaskFailedEvent, TaskSuccessEvent, TriggerEvent

from ..engine import ClaimLost, Duration, QueueNotFound, TaskNotFound, Unsupported
from ..hooks import arguments, connection_options, outages, task_instance
from .sessions import HeldSession, going_on

if TYPE_CHECKING:
    from ..engine import AsyncClaim, Task

#: A claim: the queue's name, the task's id, the token.
_Claim: TypeAlias = tuple[str, str, int]
#: Airflow tells the process of a task that has ended otherwise at its next heartbeat, and kills it soon after.
_DYING: Final = 15.0
_OVER: Final = (ClaimLost, TaskNotFound, QueueNotFound)
#: States in which the Airflow task that is to settle does nothing more by itself.
_SKIPPED: Final = "skipped"
_ENDED: Final = {"success", "failed", "upstream_failed", "skipped", "removed"}
#: Seconds: a shorter lease could run out before anybody extends it.
_SHORTEST: Final = 3.0


def checked_lease(lease: Duration | str) -> float:
    """Return a lease in seconds. Raises `ValueError` for one that is too short to be extended, and `ConfigError`."""
    seconds = arguments.span("lease", lease)
    if seconds is None or seconds < _SHORTEST:
        raise ValueError(f"lease {lease!r} is not allowed: {_SHORTEST:g} seconds or more, to be extended in time")
    return seconds


def end_of(dag_id: str, run_id: str, task_id: str, map_index: int) -> str | None:
    """Return the state of an Airflow task that does nothing more by itself; None of one that does. Blocks."""
    state = task_instance.state_of(dag_id, run_id, task_id, map_index)
    return state if state in _ENDED else None


class _Left(Exception):
    """A task is in nobody's hand any more, or in another's."""


class ZkmqLeaseTrigger(BaseTrigger):
    """Extends claims every third of their lease, until none of them holds, and ends its Airflow task as a success.

    A claim is over when its task was settled, by whomever, or was lost; that is learnt by a watch. ZooKeeper being away
    ends nothing: the trigger tries again after pauses, with one line a minute in its log. Where the Airflow task that
    is to settle has ended and has not settled, the claims are left to their leases, so that the tasks are delivered
    again; where it is skipped, as by a run's time-out (``dagrun_timeout``), they are given back. Where the connection
    names queue files, which a trigger cannot use, its Airflow task fails, and the log says why. Nothing else is settled
    here, whatever ends the trigger; two triggerers that run it do no harm.

    Args:
        claims: the claims, each as the queue's name, the task's id and the token.
        lease: seconds for which a claim holds after it was extended.
        settle: the Airflow task that is to settle, as its DAG, run, task and map index; None: it is not looked at.
        zkmq_conn_id: the Airflow connection; its secrets are looked up where the trigger runs.
    """

    def __init__(
        self,
        *,
        claims: list[list[Any]],
        lease: float,
        settle: list[Any] | None = None,
        zkmq_conn_id: str = connection_options.DEFAULT_CONN_ID,
    ) -> None:
        super().__init__()
        self.claims = [list(claim) for claim in claims]
        self.lease = lease
        self.settle = None if settle is None else list(settle)
        self.zkmq_conn_id = zkmq_conn_id
        self._held: dict[_Claim, None] = {(each[0], each[1], each[2]): None for each in claims}

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments, plain JSON."""
        kwargs = {name: getattr(self, name) for name in ("claims", "lease", "settle", "zkmq_conn_id")}
        return ("airflow_provider_zkmq.triggers.leases.ZkmqLeaseTrigger", kwargs)

    @cached_property
    def _session(self) -> HeldSession:
        """The session; a pause that is longer than what is left of a lease would lose the claim."""
        return HeldSession(
            self.zkmq_conn_id, outages.Backoff(self.log, what="Keeping the claims", longest=self.lease / 3)
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the one event that ends the task without a worker; by then nothing is extended any more."""
        end: TriggerEvent = TaskSuccessEvent()
        try:
            await self._keep()
        except Unsupported as error:
            self.log.warning("Nothing is extended, and the claims are left to their leases: %s", error)
            end = TaskFailedEvent()
        finally:
            await self._session.leave()
        yield end

    async def on_kill(self) -> None:
        """Give the claims back where the Airflow task that was to settle them is skipped, as by a run's time-out.

        Airflow calls this in other cases, too, and cancels this call when it takes long: what it began goes on.
        """
        await asyncio.shield(going_on(self._give_back()))

    async def cleanup(self) -> None:
        """Give the shared session back."""
        await self._session.leave()

    async def _keep(self) -> None:
        """Extend what is held, until nothing is, or nobody is to settle it. Raises `Unsupported` for queue files."""
        while self._held:
            try:
                trouble = await self._extend()
                if self._held and (end := await self._settler_end()):
                    left = "given back" if end == _SKIPPED else "left to their leases"
                    self.log.warning("%d claim(s) are %s: what was to settle them is %s", len(self._held), left, end)
                    if end == _SKIPPED:
                        await self._release()
                    return
                if trouble is not None:
                    raise trouble
                await self._pause()
            except Unsupported:
                raise
            except Exception as error:  # noqa: BLE001  work that goes on is not to be delivered again
                await self._session.after(error)

    async def _give_back(self) -> None:
        """Do what `on_kill` promises. What goes wrong is logged, as nobody waits for this: the leases then run out."""
        try:
            if self._held and await self._settler_end() == _SKIPPED:
                self.log.warning("%d claim(s) are given back: what was to settle them is skipped", len(self._held))
                await self._release()
        except Exception as error:  # noqa: BLE001  nobody else would hear of it
            self.log.warning("The claims are left to their leases: %s", error)
        finally:
            await self._session.leave()

    async def _release(self) -> None:
        """Give back what is held, which counts no attempt, when Airflow has ended the processes of such a run."""
        await asyncio.sleep(min(_DYING, self.lease / 3))
        for claim in list(self._held):
            with contextlib.suppress(*_OVER):
                await (await self._handle(claim)).release()

    async def _extend(self) -> Exception | None:
        """Extend all, and forget those that are over. Return what else went wrong with one, after all were tried."""
        claims = list(self._held)
        outcomes = await asyncio.gather(*map(self._extend_one, claims), return_exceptions=True)
        trouble: list[Exception] = []
        for claim, outcome in zip(claims, outcomes, strict=True):
            if isinstance(outcome, _OVER):
                del self._held[claim]
                self.log.info("Claim %d of task %r of queue %r is over", claim[2], claim[1], claim[0])
            elif isinstance(outcome, Exception):
                trouble.append(outcome)
        return trouble[0] if trouble else None

    async def _extend_one(self, claim: _Claim) -> None:
        await (await self._handle(claim)).extend(self.lease)

    async def _handle(self, claim: _Claim) -> AsyncClaim:
        name, task_id, token = claim
        return await (await self._session.queue(name)).claim_handle(task_id, token)

    async def _pause(self) -> None:
        """Wait until it is time to extend, or until one of the tasks is not as it was. Raises what kept it from it."""
        followers = [asyncio.create_task(self._follow(claim)) for claim in self._held]
        try:
            if followers:
                done, _ = await asyncio.wait(followers, timeout=self.lease / 3, return_when=asyncio.FIRST_COMPLETED)
                for follower in done:
                    follower.result()
        finally:
            for follower in followers:
                follower.cancel()
            await asyncio.gather(*followers, return_exceptions=True)

    async def _follow(self, claim: _Claim) -> None:
        """Return when a task is not claimed any more; each change of it is told by a watch."""
        name, task_id, _ = claim

        def look(task: Task) -> None:
            if task.state != "claimed":
                raise _Left

        with contextlib.suppress(_Left, *_OVER):
            await (await self._session.queue(name)).follow(task_id, look)

    async def _settler_end(self) -> str | None:
        """Return the state in which the Airflow task that is to settle has ended, although there are claims left."""
        if self.settle is None:
            return None
        from asgiref.sync import sync_to_async  # the triggerer has imported it: nothing is loaded on its loop

        return await sync_to_async(end_of)(*self.settle)
