"""`ZkmqEventTrigger`: tells DAGs that are scheduled on an asset that a queue has work, and claims none of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_zkmq.engine import ConfigError, Duration, check_name, parse_selector
from airflow_provider_zkmq.hooks.connections import DEFAULT_CONN_ID
from airflow_provider_zkmq.hooks.templating import span
from airflow_provider_zkmq.triggers.watching import Watch

_ARGUMENTS: Final = ("zkmq_queue", "selector", "mode", "refire", "zkmq_conn_id")
#: What only ``mode="claim"`` will read, and how it says that nothing was asked for.
_OF_CLAIMS: Final = {"max_in_flight": 16, "lease": 900, "include_data": False}


class ZkmqEventTrigger(BaseEventTrigger):
    """Watches a queue for an `AssetWatcher`: fires when there is work that fits, and claims nothing; the run claims.

    It fires as soon as a task that `selector` matches may be delivered, again after each `refire` seconds while any
    may, and soon for work that comes after the queue was seen without. So work that a run left, or that a run died
    with, is told of again, and the backlog of a slow or paused DAG stays pending: no lease runs out meanwhile, and no
    attempt is counted. The event is ``{"queue", "selector", "counts"}``, `counts` being the number of the whole
    queue's tasks in each state; it has neither payloads nor ids, since Airflow logs and stores it.

    The watch never ends by itself. While ZooKeeper is away, or the connection or the queue is missing or refused, it
    tries again after pauses of 1 to 60 seconds, and its log has one line a minute at the most. Several triggerers may
    run the same watch for a while: each tells, and nothing is claimed, settled or cancelled by any of them, whatever
    ends it.

    Args:
        zkmq_queue: the queue's name; None: the connection's.
        selector: only tasks that it matches, as text; None: all.
        mode: ``"wake"``, as described. (``"claim"`` is refused: it is not there yet.)
        refire: seconds, 1 or more, or their text, after which work that is still there is told of again.
        max_in_flight: of ``mode="claim"``.
        lease: of ``mode="claim"``.
        include_data: of ``mode="claim"``.
        zkmq_conn_id: the Airflow connection; its secrets are looked up where the trigger runs.

    Raises `ConfigError`, where the DAG is parsed, for what is not understood.

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
        _check_mode(mode, {"max_in_flight": max_in_flight, "lease": lease, "include_data": include_data})
        # No attribute may be named `queue`: newer releases of Airflow choose a trigger's triggerer by it.
        self.zkmq_queue = check_name("queue", zkmq_queue) if zkmq_queue else None
        self.selector = _checked_selector(selector)
        self.mode = mode
        self.refire = _checked_refire(refire)
        self.zkmq_conn_id = zkmq_conn_id
        self._watch: Watch | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments, plain JSON: Airflow tells watchers apart by them."""
        kwargs = {name: getattr(self, name) for name in _ARGUMENTS}
        return ("airflow_provider_zkmq.triggers.events.ZkmqEventTrigger", kwargs)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield an event whenever there is work to tell of, until cancelled."""
        watch = self._watch = Watch(self.zkmq_conn_id, self.zkmq_queue, self.selector, self.refire, self.log)
        try:
            while True:
                yield TriggerEvent(await watch.next_event())
        finally:
            await watch.leave()

    async def cleanup(self) -> None:
        """Give the shared session back: a run that was cancelled between two events has not done so yet."""
        if self._watch is not None:
            await self._watch.leave()


def _check_mode(mode: object, of_claims: dict[str, object]) -> None:
    if mode == "claim":
        raise ConfigError("mode 'claim' is not there yet: use mode='wake', which claims nothing, and claim in the run")
    if mode != "wake":
        raise ConfigError(f"mode {mode!r} is not allowed: 'wake'")
    if given := [name for name, value in of_claims.items() if value != _OF_CLAIMS[name]]:
        raise ConfigError(f"{', '.join(given)} would go with mode='claim', which is not there yet: leave it out")


def _checked_selector(selector: object) -> str | None:
    if selector is None or selector == "":
        return None
    if not isinstance(selector, str):
        raise ConfigError(f"selector must be text, not {type(selector).__name__}: the triggerer is given it as JSON")
    parse_selector(selector)
    return selector


def _checked_refire(refire: Duration | str) -> float:
    seconds = span("refire", refire)
    if seconds is None or seconds < 1:
        raise ConfigError(f"refire {refire!r} is not allowed: 1 second or more, as each event is a row and a log line")
    return seconds
