"""Keeping claims from running out, in the triggerer: what `ZkmqLeaseTrigger` does until they are over."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from airflow_provider_zkmq.engine import ClaimLost, QueueNotFound, TaskNotFound, Unsupported
from airflow_provider_zkmq.triggers.backoff import Backoff
from airflow_provider_zkmq.triggers.held import HeldSession

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import Task

#: A claim: the queue's name, the task's id, the token.
_Claim: TypeAlias = tuple[str, str, int]
_OVER: Final = (ClaimLost, TaskNotFound, QueueNotFound)
#: States in which the Airflow task that is to settle does nothing more by itself.
_ENDED: Final = {"success", "failed", "upstream_failed", "skipped", "removed"}


class _Left(Exception):
    """A task is in nobody's hand any more, or in another's."""


class Keeping:
    """Claims that are extended until they are over. One coroutine's."""

    def __init__(
        self, conn_id: str, claims: Sequence[Sequence[Any]], lease: float, settle: Sequence[Any] | None, log: Any
    ) -> None:
        self._held: dict[_Claim, None] = {(each[0], each[1], each[2]): None for each in claims}
        self._lease = lease
        self._settle = settle
        self._log = log
        # A pause that is longer than what is left of a lease would lose the claim.
        self._session = HeldSession(conn_id, Backoff(log, what="Keeping the claims", longest=lease / 3))

    async def until_over(self) -> None:
        """Extend what is held, until nothing is, or nobody is there to settle it.

        Raises `Unsupported` for queue files, which no pause makes into anything else, and nothing else.
        """
        while self._held:
            try:
                trouble = await self._extend()
                if self._held and await self._settler_ended():
                    self._log.warning(
                        "%d claim(s) are left to their leases: the Airflow task that was to settle them has ended",
                        len(self._held),
                    )
                    return
                if trouble is not None:
                    raise trouble
                await self._pause()
            except Unsupported:
                raise
            except Exception as error:  # noqa: BLE001  work that goes on is not to be delivered again
                await self._session.after(error)

    async def leave(self) -> None:
        """Give the session back. Idempotent."""
        await self._session.leave()

    async def _extend(self) -> Exception | None:
        """Extend all, and forget those that are over. Return what else went wrong with one, after all were tried."""
        claims = list(self._held)
        outcomes = await asyncio.gather(*map(self._extend_one, claims), return_exceptions=True)
        trouble: list[Exception] = []
        for claim, outcome in zip(claims, outcomes, strict=True):
            if isinstance(outcome, _OVER):
                del self._held[claim]
                self._log.info("Claim %d of task %r of queue %r is over", claim[2], claim[1], claim[0])
            elif isinstance(outcome, Exception):
                trouble.append(outcome)
        return trouble[0] if trouble else None

    async def _extend_one(self, claim: _Claim) -> None:
        name, task_id, token = claim
        await (await self._session.queue(name)).extend(task_id, token, self._lease)

    async def _pause(self) -> None:
        """Wait until it is time to extend, or until one of the tasks is not as it was. Raises what kept it from it."""
        followers = [asyncio.create_task(self._follow(claim)) for claim in self._held]
        try:
            if followers:
                done, _ = await asyncio.wait(followers, timeout=self._lease / 3, return_when=asyncio.FIRST_COMPLETED)
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

        try:
            await (await self._session.queue(name)).follow(task_id, look)
        except (_Left, *_OVER):
            pass

    async def _settler_ended(self) -> bool:
        """Whether the Airflow task that is to settle has ended, although there are claims left."""
        if self._settle is None:
            return False
        from asgiref.sync import sync_to_async  # the triggerer has imported it: nothing is loaded on its loop

        return await sync_to_async(has_ended)(*self._settle)


def has_ended(dag_id: str, run_id: str, task_id: str, map_index: int) -> bool:
    """Whether an Airflow task does nothing more by itself; asked of Airflow, in a task or in a thread of a trigger."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    states = RuntimeTaskInstance.get_task_states(
        dag_id=dag_id, task_ids=[task_id], run_ids=[run_id], map_index=map_index
    )
    name = task_id if map_index < 0 else f"{task_id}_{map_index}"
    return states.get(run_id, {}).get(name) in _ENDED
