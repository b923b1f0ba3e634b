"""What tasks of Airflow did with queues, as metrics of Airflow's own stats: StatsD or OpenTelemetry, as it is set up.

=====================  =======  ==================================================================================
name                   kind     what
=====================  =======  ==================================================================================
``zkmq.enqueued``      counter  tasks that were enqueued; not those that an earlier try had
``zkmq.claimed``       counter  tasks that were claimed, by triggers, too; again where no run accepted them in time
``zkmq.settled``       counter  claims that were settled; tag ``outcome``: completed, failed, released, lost
``zkmq.dead``          counter  tasks that were seen dead by who settled them or waited for them; not for a batch
``zkmq.wait_time``     timing   milliseconds from a task's enqueue, or when it was due, to its claim
``zkmq.run_time``      timing   milliseconds from a task's claim to its end: of ``@task.zkmq``, and of who waited
=====================  =======  ==================================================================================

Of a batch nothing is told but that it was enqueued: who waits for one hears which members failed, not which are dead.
Each has the tag ``queue``. The option ``stats`` of the section ``[zkmq]`` switches them off.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import conf

from ..engine import ConfigError

if TYPE_CHECKING:
    from ..engine import Task

# --- The options of the section ``[zkmq]`` of Airflow's configuration, as the code reads them.

#: By name, with what holds where nobody sets one: the same as in the provider's metadata.
DEFAULTS: Final = {"archive_directory": "", "dead_letters_shown": "5", "stats": "True"}
_SECTION: Final = "zkmq"
_LOG: Final = logging.getLogger(__name__)


def setting(name: str) -> str:
    """Return an option, or its default. Raises KeyError for one that there is not."""
    return str(conf.get(_SECTION, name, fallback=DEFAULTS[name]))


def how_many(name: str, named: object = None) -> int:
    """Return what was given, or an option that says how many. Raises `ConfigError` for what is no number of things."""
    value = setting(name) if named is None else named
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    where = f"[{_SECTION}] {name}" if named is None else name
    raise ConfigError(f"{where} = {value!r} is not allowed: a whole number, 0 or more")


def switched_on(name: str) -> bool:
    """Return an option that is yes or no; of what is neither a warning is logged, and the default holds.

    It is asked for by what has done its work already, which must not fail by it. Raises KeyError for an option that
    there is not.
    """
    default = DEFAULTS[name] == "True"
    try:
        return bool(conf.getboolean(_SECTION, name, fallback=default))
    except Exception as error:  # noqa: BLE001  Airflow's own, which has no public name
        _warn(name, default, str(error))
        return default


@functools.cache
def _warn(name: str, default: bool, why: str) -> None:
    """Log it once in a process."""
    _LOG.warning("[%s] %s is taken for %s: %s", _SECTION, name, default, why)


# --- What tasks of Airflow did with queues, as metrics of Airflow's own stats: StatsD or OpenTelemetry, as it is set
# up.
#
# =====================  =======  ==================================================================================
# name                   kind     what =====================  =======
# ================================================================================== ``zkmq.enqueued``      counter
# tasks that were enqueued; not those that an earlier try had ``zkmq.claimed``       counter  tasks that were
# claimed, by triggers, too; again where no run accepted them in time ``zkmq.settled``       counter  claims that
# were settled; tag ``outcome``: completed, failed, released, lost ``zkmq.dead``          counter  tasks that were
# seen dead by who settled them or waited for them; not for a batch ``zkmq.wait_time``     timing   milliseconds
# from a task's enqueue, or when it was due, to its claim ``zkmq.run_time``      timing   milliseconds from a task's
# claim to its end: of ``@task.zkmq``, and of who waited =====================  =======
# ==================================================================================
#
# Of a batch nothing is told but that it was enqueued: who waits for one hears which members failed, not which are
# dead. Each has the tag ``queue``. The option ``stats`` of the section ``[zkmq]`` switches them off.

_DEAD: Final = "dead"


def count_enqueued(queue: str, number: int) -> None:
    """Count tasks that were written."""
    _count("enqueued", number, queue=queue)


def count_claimed(queue: str, tasks: Iterable[Task]) -> None:
    """Count tasks that were claimed, and tell how long each had waited."""
    claimed = list(tasks)
    _count("claimed", len(claimed), queue=queue)
    _waited(queue, claimed)


def count_settled(queue: str, outcome: str, number: int = 1, *, run_ms: float | None = None) -> None:
    """Count settled claims, ``outcome`` being completed, failed, released or lost; `run_ms`: since the claim."""
    _count("settled", number, queue=queue, outcome=outcome)
    if run_ms is not None:
        _time("run_time", run_ms, queue)


def count_dead(queue: str, number: int = 1) -> None:
    """Count tasks that are dead."""
    _count(_DEAD, number, queue=queue)


def log_ended(queue: str, tasks: Iterable[Task]) -> None:
    """Tell of tasks that others have handled and that ended: how long they waited and ran, and how many are dead."""
    ended = list(tasks)
    _waited(queue, ended)
    for task in ended:
        if task.started_ms is not None and task.ended_ms is not None:
            _time("run_time", task.ended_ms - task.started_ms, queue)
    count_dead(queue, sum(task.state == _DEAD for task in ended))


def _waited(queue: str, tasks: Iterable[Task]) -> None:
    for task in tasks:
        began = task.claimed_ms if task.started_ms is None else task.started_ms
        if began is not None:
            _time("wait_time", began - max(task.enqueued_ms, task.due_ms or 0), queue)


def _count(name: str, number: int, **tags: Any) -> None:
    if number > 0 and switched_on("stats"):
        from airflow.sdk.observability import stats

        stats.incr(f"zkmq.{name}", number, tags=tags)


def _time(name: str, milliseconds: float, queue: str) -> None:
    if switched_on("stats"):
        from airflow.sdk.observability import stats

        stats.timing(f"zkmq.{name}", max(0.0, milliseconds), tags={"queue": queue})
