"""`ZkmqEventTrigger`: tells DAGs that are scheduled on an asset that a queue has work, or claims it for them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any, Final

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_zkmq.engine import ConfigError, Duration, check_name, parse_selector
from airflow_provider_zkmq.hooks.connections import DEFAULT_CONN_ID
from airflow_provider_zkmq.hooks.templating import span
from airflow_provider_zkmq.triggers.claiming import ClaimingWatch, Terms
from airflow_provider_zkmq.triggers.watching import Watch

_ARGUMENTS: Final = ("zkmq_queue", "selector", "mode", "refire", "zkmq_conn_id")
_MOST_IN_FLIGHT: Final = 64
_LOG: Final = logging.getLogger(__name__)
#: For each mode what the other one alone reads, and what it is where nobody gave it.
_OF_OTHER: Final = {"wake": {"max_in_flight": 16, "lease": 900}, "claim": {"refire": 60}}


class ZkmqEventTrigger(BaseEventTrigger):
    """Watches a queue for an `AssetWatcher`: fires when there is work that fits.

    With ``mode="wake"`` it claims nothing; the run claims. It fires as soon as a task that `selector` matches may be
    delivered, again after each `refire` seconds while any may, and soon for work that comes after the queue was seen
    without. So work that a run left, or that a run died with, is told of again, and the backlog of a slow or paused DAG
    stays pending: no lease runs out meanwhile, and no attempt is counted. The event is ``{"queue", "selector",
    "counts"}``, `counts` being the number of the whole queue's tasks in each state; it has neither payloads nor ids,
    since Airflow logs and stores it.

    With ``mode="claim"`` it claims for runs, as long as the queue has fewer than `max_in_flight` leases, whoever holds
    them: counted in the tree and held against other triggers, so that neither a restart nor a second triggerer makes
    them more. The event is ``{"queue", "selector", "claims"}``, each claim ``{"queue", "id", "token", "attempt",
    "filters"}``. A run accepts a claim by ``queue.begin(id, token)``, and keeps and settles it by its token. What no
    run accepts within `lease` seconds comes back, counts no attempt, and is claimed and told of again.

    The watch never ends by itself. While ZooKeeper is away, or the connection or the queue is missing or refused, it
    tries again after pauses of 1 to 60 seconds, and its log has one line a minute at the most. Several triggerers may
    run the same watch for a while: each tells of what it found, and nothing is settled, released or cancelled by any of
    them, whatever ends it.

    Args:
        zkmq_queue: the queue's name; None: the connection's.
        selector: only tasks that it matches, as text; None: all.
        mode: ``"wake"`` or ``"claim"``, as described.
        refire: of ``mode="wake"``: seconds, 1 or more, or their text, after which work that is still there is told of
            again.
        max_in_flight: of ``mode="claim"``: no more leased claims of the queue, 1 to 64.
        lease: of ``mode="claim"``: seconds, 1 or more, or their text, for which a claim waits for its run.
        include_data: of ``mode="claim"``: each claim of an event has the task's payload, too, in base64 as ``"data"``,
            as far as 48 000 bytes reach. Airflow logs each event and stores it. In the other mode it is refused.
        zkmq_conn_id: the Airflow connection; its secrets are looked up where the trigger runs.

    Raises `ConfigError`, where the DAG is parsed, for what is not understood; what is of the other mode, its log tells.

    """

    def __init__(
        self,
        *,
        zkmq_queue: str | None = None,
        selector: str | None = None,
        mode: str = "wake",
        refire: Duration | str = 60,
        max_in_flight: int = 16,
        lease: Duration | str = 900,
        include_data: bool = False,
        zkmq_conn_id: str = DEFAULT_CONN_ID,
    ) -> None:
        super().__init__()
        of_claims = {"max_in_flight": max_in_flight, "lease": lease, "include_data": include_data}
        _check_mode(mode, {"refire": refire, **of_claims})
        # No attribute may be named `queue`: newer releases of Airflow choose a trigger's triggerer by it.
        self.zkmq_queue = check_name("queue", zkmq_queue) if zkmq_queue else None
        self.selector = _checked_selector(selector)
        self.mode = mode
        self.refire = _seconds("refire", refire)
        self.terms = Terms(_in_flight(max_in_flight), _seconds("lease", lease), include_data)
        self.zkmq_conn_id = zkmq_conn_id
        self._watch: Watch | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments, plain JSON: Airflow tells watchers apart by them."""
        kwargs = {name: getattr(self, name) for name in _ARGUMENTS}
        if self.mode == "claim":
            del kwargs["refire"]
            kwargs |= asdict(self.terms)
        return ("airflow_provider_zkmq.triggers.events.ZkmqEventTrigger", kwargs)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield an event whenever there is work to tell of, until cancelled."""
        watch = self._watch = self._made()
        try:
            while True:
                yield TriggerEvent(await watch.next_event())
        finally:
            await watch.leave()

    def _made(self) -> Watch:
        if self.mode == "claim":
            return ClaimingWatch(self.zkmq_conn_id, self.zkmq_queue, self.selector, self.terms, self.log)
        return Watch(self.zkmq_conn_id, self.zkmq_queue, self.selector, self.refire, self.log)

    async def cleanup(self) -> None:
        """Give the shared session back: a run that was cancelled between two events has not done so yet."""
        if self._watch is not None:
            await self._watch.leave()


def _check_mode(mode: object, given: dict[str, object]) -> None:
    if mode not in tuple(_OF_OTHER):  # a list has no hash
        raise ConfigError(f"mode {mode!r} is not allowed: 'wake' or 'claim'")
    if not isinstance(given["include_data"], bool):
        raise ConfigError(f"include_data {given['include_data']!r} is not allowed: True or False")
    if mode == "wake" and given["include_data"]:
        raise ConfigError(
            "include_data would go with mode='claim': a wake event names no task whose data it could have"
        )
    without_use = [name for name, value in _OF_OTHER[str(mode)].items() if given[name] != value]
    if without_use:
        _LOG.warning("ZkmqEventTrigger: %s: of no use with mode=%r", ", ".join(without_use), mode)


def _checked_selector(selector: object) -> str | None:
    if selector is None or selector == "":
        return None
    if not isinstance(selector, str):
        raise ConfigError(f"selector must be text, not {type(selector).__name__}: the triggerer is given it as JSON")
    parse_selector(selector)
    return selector


def _in_flight(number: object) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= _MOST_IN_FLIGHT:
        raise ConfigError(f"max_in_flight {number!r} is not allowed: a whole number from 1 to {_MOST_IN_FLIGHT}")
    return number


def _seconds(what: str, value: Duration | str) -> float:
    seconds = span(what, value)
    if seconds is None or seconds < 1:
        raise ConfigError(f"{what} {value!r} is not allowed: 1 second or more, as each event is a row and a log line")
    return seconds
