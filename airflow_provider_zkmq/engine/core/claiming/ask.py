"""Asking for tasks: what a consumer wants is checked first; a claim that is not refused can then be carried out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from airflow_provider_zkmq.engine.core.claiming.claim import claim_many
from airflow_provider_zkmq.engine.core.claiming.loop import Loop
from airflow_provider_zkmq.engine.core.claiming.take import Ahead, Wanted
from airflow_provider_zkmq.engine.core.memory.claims import Caller, Claimed
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.durations import Duration, optional_seconds, seconds
from airflow_provider_zkmq.engine.core.model.numbers import number_of_claims, optional_whole_number
from airflow_provider_zkmq.engine.core.model.selectors import FilterMethod, Selector, choose
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure, Within
from airflow_provider_zkmq.engine.core.reading.configuration import read_conf
from airflow_provider_zkmq.engine.core.reading.existence import never_stopping, unless_missing
from airflow_provider_zkmq.engine.errors import ConfigError

Method = FilterMethod | Mapping[str, FilterMethod]


@dataclass(frozen=True, slots=True)
class Asked:
    """Claims that were asked for and not refused: on which queue, and how a caller comes by them."""

    context: Context
    claiming: Callable[[Caller], Procedure[list[Claimed]]]


def wanted(
    context: Context,
    node: Mapping[str, object] | Selector | str | None = None,
    filter_method: Method = "absolute",
    selector: Selector | str | None = None,
    lease: Duration | None = None,
) -> Procedure[Wanted]:
    """What a consumer asks for, checked against the queue's declarations. Raises `ConfigError`, `QueueNotFound`."""
    conf = yield from read_conf(context)
    span = optional_seconds("lease", lease)
    if span == 0:
        msg = "a lease of 0 seconds would end at once"
        raise ConfigError(msg)
    return Wanted(choose(conf.types, node=node, filter_method=filter_method, selector=selector), span)


def ask(
    context: Context,
    node: Mapping[str, object] | None = None,
    filter_method: Method = "absolute",
    *,
    selector: Selector | str | None = None,
    timeout: Duration = 0,
    lease: Duration | None = None,
    stopping: Callable[[], bool] = never_stopping,
) -> Procedure[Asked]:
    """Take the first task that fits, waiting at most `timeout` seconds; None when there was none.

    `node` with `filter_method`, or `selector`, say what fits; neither: everything. `lease`: seconds for which
    the claim outlives this process; without it the claim ends with the ZooKeeper session. `stopping` ends the wait
    early; it is asked whenever the queue changes. A call that is cancelled or interrupted gives back what it took.
    Raises `ConfigError` for what the queue's declarations refuse, and `QueueNotFound`, also while it waits.
    """
    span = seconds("timeout", timeout)
    if span > 0:
        yield Within(span)
    asked = yield from wanted(context, node, filter_method, selector, lease)
    return _asked(context, asked, 1, span, stopping)


def ask_many(
    context: Context,
    n: int,
    node: Mapping[str, object] | None = None,
    filter_method: Method = "absolute",
    *,
    selector: Selector | str | None = None,
    timeout: Duration = 0,
    lease: Duration | None = None,
    stopping: Callable[[], bool] = never_stopping,
    ahead: Ahead = False,
    max_leases: int | None = None,
) -> Procedure[Asked]:
    """Take the first `n` tasks that fit (1 to 64), or as many as there are; an empty list when there was none.

    `timeout`: for how many seconds the first of them is waited for; what is there by then is taken. They come in the
    queue's order, and are taken together in few transactions: tasks that one transaction took have the same token. A
    call that is cancelled or interrupted gives back all that it took. `ahead`: all but the first are handled later,
    or ``"all"`` of them; until `begin` says that one is, the death of this process, or the end of its lease, counts it
    as no attempt. `max_leases`, of claims with a `lease`: no more are taken than leave the queue with so many leases,
    whoever holds them, and however many claim under a bound at once; other claims of the same moment may come on top.
    Where there is no room for one, the list is empty at once. The other arguments are `claim`'s. Raises `ConfigError`,
    also for another `n`, and `QueueNotFound`, also while it waits.
    """
    most, span = number_of_claims(n), seconds("timeout", timeout)
    if span > 0:
        yield Within(span)
    asked = yield from wanted(context, node, filter_method, selector, lease)
    bound = optional_whole_number("max_leases", max_leases, 1)
    if bound is not None and asked.lease is None:
        raise ConfigError("max_leases goes with a lease: other claims are not counted")
    if ahead not in {True, False, "all"}:
        raise ConfigError(f"ahead {ahead!r} is not allowed: True, False or 'all'")
    return _asked(context, replace(asked, ahead=ahead, max_leases=bound), most, span, stopping)


def ask_in_turn(
    context: Context,
    node: Mapping[str, object] | None = None,
    filter_method: Method = "absolute",
    *,
    selector: Selector | str | None = None,
    timeout: Duration | None = None,
    lease: Duration | None = None,
    prefetch: int = 1,
    stopping: Callable[[], bool] = never_stopping,
) -> Loop:
    """Loop over the tasks that fit, one after the other: ``for claim in q.claims():``.

    What the body has not settled when the loop comes back is completed, with ``claim.result``, which the body may set;
    the next one is claimed in the same transaction. The loop ends when nothing came for `timeout` seconds (None: it
    waits for ever; 0: it ends when the queue is empty), or when `stopping` says so. `prefetch`: so many are claimed
    together (1 to 64), which costs less; all but the first are taken ahead, and count no attempt before they begin.
    What is handled then is completed with the claim of the next ones, or after 50 ms. For bodies that are done fast:
    nobody extends what waits.

    A loop that is left early, or closed, fails what its body has in hand, gives back uncounted what it has taken ahead,
    and completes what was handled. A completion that is refused is raised by the step that finds out (`ClaimLost`,
    say); a loop that is still referred to goes on after that. Of a loop that was left it is logged. One loop is for one
    thread. The other arguments are `claim`'s. Raises `ConfigError`; each step raises what `claim` and `Claim.complete`
    do.
    """
    most, span = number_of_claims(prefetch, "prefetch"), optional_seconds("timeout", timeout)

    def wanting() -> Procedure[Wanted]:
        asked = yield from unless_missing(context, wanted(context, node, filter_method, selector, lease))
        return replace(asked, ahead=most > 1)

    return Loop(context, wanting, most, span, stopping)


def _asked(context: Context, asked: Wanted, most: int, span: float, stopping: Callable[[], bool]) -> Asked:
    def claiming(caller: Caller) -> Procedure[list[Claimed]]:
        stops = lambda: caller.left or stopping()  # noqa: E731
        return unless_missing(context, claim_many(context, asked, most, span, stops, caller))

    return Asked(context, claiming)
