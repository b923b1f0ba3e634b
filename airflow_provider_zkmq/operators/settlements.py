"""Settling a run's claims one by one: once each, however often the Airflow task is tried."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider_zkmq.engine import (
    ClaimLost,
    QueueNotFound,
    TaskNotFound,
    TaskTooLarge,
    ZkmqError,
)
from airflow_provider_zkmq.hooks.claims import Claim, shown
from airflow_provider_zkmq.hooks.telemetry import count_dead, count_settled
from airflow_provider_zkmq.operators.verdicts import Verdict

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import AnyQueue, Task
    from airflow_provider_zkmq.hooks.zkmq import ZkmqHook
    from airflow_provider_zkmq.operators.memory import Memory

_OUTCOMES: Final = {"complete": "completed", "fail": "failed", "release": "released"}
_NOTE: Final = "zkmq_settled"
#: How far the task of a claim has got that was settled so: its states, and what its count of attempts is then.
_ENDS: Final = {
    "complete": ({"finished"}, 0),
    "fail": ({"inserted", "dead"}, 0),
    "release": ({"inserted"}, -1),
}


class Settlements:
    """What was settled, what was lost, and what was not settled for now. `again`: an earlier try may have settled.

    Of those that failed, `retried` are tried again by their queue, `failed` are not.
    """

    def __init__(self, hook: ZkmqHook, memory: Memory, log: Any, *, again: bool) -> None:
        self._hook = hook
        self._memory = memory
        self._log = log
        self._again = again
        self._noted: dict[str, str] = memory.read(_NOTE) or {}
        self._done: dict[str, int] = {"completed": 0, "failed": 0, "released": 0}
        self.failed: list[str] = []
        self.retried: list[str] = []
        self.released: list[str] = []
        self.lost: list[str] = []
        self.trouble: list[str] = []

    def settle(self, claim: Claim, verdict: Verdict, result: bytes | str | None) -> None:
        """Settle one claim, or find that an earlier try did; what keeps it from that is in `lost` or `trouble`."""
        name = f"{claim['queue']}/{claim['id']}/{claim['token']}"
        queue = self._hook.queue(claim["queue"])
        try:
            if name in self._noted:
                verdict = _as_noted(self._noted[name], verdict)
            else:
                verdict = self._settle_now(queue, claim, verdict, result)
                self._noted[name] = verdict.kind
                count_settled(queue.name, _OUTCOMES[verdict.kind])
            self._tell(queue, claim, verdict)
        except (ClaimLost, TaskNotFound, QueueNotFound) as error:
            count_settled(claim["queue"], "lost")
            self.lost.append(f"{type(error).__name__}: {error}")
        except ZkmqError as error:
            self.trouble.append(f"{shown(claim)}: {type(error).__name__}: {error}")

    def remember(self) -> None:
        """Note what is settled, and how, for later tries."""
        if self._noted:
            self._memory.note(_NOTE, self._noted)

    def counts(self) -> dict[str, int]:
        """Return how many were settled in which way, and how many were lost."""
        return {**self._done, "lost": len(self.lost)}

    def _settle_now(self, queue: AnyQueue, claim: Claim, verdict: Verdict, result: bytes | str | None) -> Verdict:
        """Settle; return how, which may be another way. Raises `ClaimLost` where no earlier try did so."""
        try:
            return _settle(queue, claim, verdict, result)
        except ClaimLost:
            if not (self._again and _settled_so(queue.task(claim["id"]), claim, verdict)):
                raise
        self._log.info("Settled by an earlier try: %s", shown(claim))
        return verdict

    def _tell(self, queue: AnyQueue, claim: Claim, verdict: Verdict) -> None:
        if verdict.kind == "fail":
            self._done["failed"] += 1
            task = queue.task(claim["id"])
            count_dead(queue.name, int(task.state == "dead"))
            outlook = _outlook(task)
            told = self.retried if task.state == "inserted" else self.failed
            told.append(f"{shown(claim)} {outlook}: {verdict.reason}")
            self._log.error("Failed: %s, which %s: %s", shown(claim), outlook, verdict.reason)
            return
        if verdict.kind == "release":
            self._done["released"] += 1
            self.released.append(f"{shown(claim)}: {verdict.reason}")
            self._log.warning("Given back: %s: %s", shown(claim), verdict.reason)
            return
        self._done["completed"] += 1
        self._log.info("Completed: %s", shown(claim))


def _as_noted(kind: str, verdict: Verdict) -> Verdict:
    """Return how a claim was settled, whatever its work looks like now: nobody is told that it went otherwise."""
    return verdict if verdict.kind == kind else Verdict(kind, "so an earlier try settled it, which stands")


def _settle(queue: AnyQueue, claim: Claim, verdict: Verdict, result: bytes | str | None) -> Verdict:
    task_id, token = claim["id"], claim["token"]
    if verdict.kind == "release":
        queue.release(task_id, token)
        return verdict
    if verdict.kind == "complete":
        try:
            queue.complete(task_id, token, result)
        except TaskTooLarge as error:  # no later try could keep it either
            verdict = Verdict("fail", str(error))
        else:
            return verdict
    queue.fail(task_id, token, verdict.reason)
    return verdict


def _settled_so(task: Task, claim: Claim, verdict: Verdict) -> bool:
    """Whether a task is where an earlier try of the same settlement leaves it."""
    states, attempts = _ENDS[verdict.kind]
    return task.state in states and task.attempt == claim["attempt"] + attempts


def _outlook(task: Task) -> str:
    if task.state == "inserted":
        return f"is tried again{'' if task.due_at is None else f' at {task.due_at}'}, after attempt {task.attempt}"
    return f"is {task.state} after attempt {task.attempt}"
