"""How queues stand: what is wrong, in words, what is in hand, and who consumes; all as records for programs."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from .records import iso, record
from .wording import age, facts, since, table, words

if TYPE_CHECKING:
    from ..engine import AnyClient, AnyQueue, Consumer, HeldClaim, Overview, QueueConf

#: So many troubles of a kind are listed one by one.
_MOST: Final = 5
#: The kinds of trouble, the worst first, each with the command that mends it or says more.
_REMEDIES: Final = {
    "dead": "zkmq dead list {queue}",
    "hung": "zkmq task release {queue} {id} --force",
    "gone": "zkmq worker {queue}",
    "paused": "zkmq queue resume {queue}",
    "unaccepted": "zkmq consumers {queue}",
    "unconsumed": "zkmq worker {queue}",
    "stuck": "zkmq consumers {queue}",
}


def queue_status(queue: AnyQueue, hung_after: float) -> dict[str, Any]:
    """How a queue stands. `hung_after`: for so many seconds nothing may be heard of a task in hand."""
    from ..engine.queue_internals import internals

    return status_record(queue.name, internals(queue).overview(), hung_after)


def status_record(queue: str, seen: Overview, hung_after: float) -> dict[str, Any]:
    """The same of an overview that was read already."""
    hung = [each for each in seen.held if is_hung(each, hung_after)]
    return {
        "queue": queue,
        "troubles": list(_troubles(queue, seen, hung, hung_after)),
        "counts": seen.counts,
        "paused": seen.paused,
        "consumers": seen.consumers,
        "oldest_at": iso(seen.oldest_ms),
        "next_due_at": iso(seen.next_due_ms),
        "unaccepted": [record(each) for each in seen.unaccepted],
        "claims": [_claim_record(each, hung_after) for each in hung],
    }


def all_queues(client: AnyClient, hung_after: float) -> list[dict[str, Any]]:
    """How all queues stand, those in trouble first, by the worst of their troubles."""
    from ..engine import QueueNotFound

    kinds, known = list(_REMEDIES), []
    for name in client.queues():
        with suppress(QueueNotFound):  # it was deleted meanwhile
            known.append(queue_status(client.queue(name), hung_after))

    def severity(status: dict[str, Any]) -> int:
        return min((kinds.index(trouble["kind"]) for trouble in status["troubles"]), default=len(kinds))

    return sorted(known, key=lambda status: (severity(status), status["queue"]))


def is_hung(held: HeldClaim, hung_after: float) -> bool:
    """Whether nothing was heard of a task in hand for so many seconds, or its lease or its consumer has ended."""
    return held.lapsed or held.gone or held.idle >= hung_after


def _claim_record(held: HeldClaim, hung_after: float) -> dict[str, Any]:
    return record(held) | {"hung": is_hung(held, hung_after)}


def _troubles(queue: str, seen: Overview, found: list[HeldClaim], hung_after: float) -> Iterator[dict[str, str]]:
    """What is wrong with a queue, the worst first, and what helps."""
    hung, gone = ([each for each in found if each.gone is one] for one in (False, True))

    def trouble(kind: str, text: str, **names: str) -> dict[str, str]:
        return {"kind": kind, "text": text, "remedy": _REMEDIES[kind].format(queue=queue, **names)}

    pending = seen.counts["inserted"] - seen.counts["scheduled"]
    if dead := seen.counts["dead"]:
        yield trouble("dead", f"{dead} dead letter(s)")
    for held in hung[:_MOST]:
        yield trouble("hung", f"{held.id}, in hand of {held.consumer}: {claim_in_words(held, hung=True)}", id=held.id)
    if len(hung) > _MOST:
        yield trouble("hung", f"{len(hung) - _MOST} more tasks are hung (zkmq consumers {queue})", id="TASK")
    if gone:
        yield trouble(
            "gone", f"{len(gone)} task(s) in hand of consumers that are gone: the next to claim gives them back"
        )
    if seen.paused:
        yield trouble("paused", f"paused; {pending} task(s) wait")
    for lane in seen.unaccepted[:_MOST]:
        which = words("filters", lane.filters) if lane.filters else "no filter"
        yield trouble("unaccepted", f"{lane.count} task(s) with {which}: no consumer accepts them")
    if pending and seen.consumers == 0:
        yield trouble("unconsumed", f"{pending} task(s) wait, and no consumer lives")
    waited = 0 if seen.oldest_ms is None else time.time() - seen.oldest_ms / 1000
    accepted = sum(lane.count for lane in seen.lanes if lane.filters is None or lane.accepted_by)
    if (
        accepted
        and waited >= max(hung_after, 1)
        and not (seen.paused or seen.limited or seen.held or not seen.consumers)
    ):
        since = age(waited).removesuffix(" ago")
        text = (
            f"{accepted} task(s) wait, for {since} already, and no consumer that accepts them takes any: hung workers?"
        )
        yield trouble("stuck", text)


def claim_in_words(held: HeldClaim, *, hung: bool) -> str:
    """Since when a task is in hand, how far it is, when its lease ends, and whether it is hung."""
    parts = [] if held.claimed_ms is None else [f"claimed {age(time.time() - held.claimed_ms / 1000)}"]
    parts += [] if held.progress is None else [words("progress", held.progress)]
    if held.gone:
        parts.append("its consumer is gone")
    elif hung and not held.lapsed:
        parts.append(f"hung: nothing was heard of it for {words('idle', held.idle)}")
    if held.lease_ms is not None:
        end = age(time.time() - held.lease_ms / 1000)
        parts.append(f"lease ended {end}: hung or gone" if held.lapsed else f"lease ends {end}")
    return ", ".join(parts)


def consumer_records(queue: AnyQueue, hung_after: float) -> list[dict[str, Any]]:
    """The consumers of a queue and what each has in hand, also what is leased to one that is gone; hung ones first."""
    from ..engine.queue_internals import internals

    known: dict[str, Consumer] = {each.id: each for each in queue.consumers()}
    claims = defaultdict[str, list["HeldClaim"]](list)
    for each in internals(queue).held_claims():
        claims[each.consumer].append(each)
    records = []
    for name in sorted(known.keys() | claims, key=lambda it: (-max((at.idle for at in claims[it]), default=-1), it)):
        consumer, held = known.get(name), claims[name]
        longest = held and f"{held[0].id} {claim_in_words(held[0], hung=is_hung(held[0], hung_after))}"
        records.append(
            {
                "consumer": name,
                "alive": consumer is not None and consumer.alive,
                **{field: getattr(consumer, field, None) for field in ("name", "host", "pid")},
                "accepts": [] if consumer is None else list(consumer.accepts),
                "in_hand": len(held),
                "longest_in_hand": longest or None,
                "claims": [_claim_record(each, hung_after) for each in held],
            }
        )
    return records


def conf_record(conf: QueueConf) -> dict[str, Any]:
    """A configuration, its filter types as ``configure --filter`` takes them."""
    from ..engine import spell_type

    settings = {name: value for name, value in record(conf).items() if name != "paused"}  # which says how it stands
    return settings | {"filters": {name: spell_type(kind) for name, kind in sorted(conf.filters.items())}}


def conf_facts(conf: dict[str, Any]) -> dict[str, Any]:
    """The record of a configuration for people, who read what None stands for."""
    without = {"task_gc_lifetime": "for ever", "task_gc_interval": "never", "lock": "none", "archived": "none"}
    policy = conf["policy"] | {"attempts": conf["policy"]["attempts"] or "unbounded"}
    bounds = conf["limit"] | {"per": conf["limit"]["rate"] and words("per", conf["limit"]["per"])}
    limit = ",".join(f"{name}={value}" for name, value in bounds.items() if value is not None)
    bound = (bounds["concurrency"], bounds["rate"]) != (None, None)
    shown = {name: text for name, text in without.items() if conf[name] is None}
    return conf | shown | {"policy": policy, "limit": limit if bound else "none"}


# --- The same for people.


def queue_page(status: dict[str, Any]) -> str:
    """How a queue stands, with its configuration."""
    plain = {name: status[name] for name in ("queue", "paused", "consumers", "oldest_at", "next_due_at")}
    return _after_troubles([status], facts(plain | status["counts"] | conf_facts(status["conf"])))


def overview_page(statuses: list[dict[str, Any]]) -> str:
    """How queues stand, a row each."""
    rows = []
    for each in statuses:
        counts, oldest, due = each["counts"], each["oldest_at"], each["next_due_at"]
        pending = counts["inserted"] - counts["scheduled"]
        more = {"pending": pending, "oldest": oldest and since(oldest), "next_due": due and _due(due)}
        rows.append(each | counts | more)
    columns = "queue pending scheduled claimed dead paused consumers oldest next_due"
    return _after_troubles(statuses, table(rows, columns))


def _due(moment: str) -> str:
    """In how long a task is due; now, where it is already."""
    distance = since(moment)
    return distance if distance.startswith("in ") else "now"


def _after_troubles(statuses: list[dict[str, Any]], page: str) -> str:
    """A page after the troubles of queues, a line each."""
    troubles = [(each["queue"], trouble) for each in statuses for trouble in each["troubles"]]
    lines = [f"{queue}: {trouble['text']}  ({trouble['remedy']})" for queue, trouble in troubles]
    return "\n".join([*lines, *([""] if lines else []), page])


def consumers_page(records: list[dict[str, Any]]) -> str:
    """The consumers of a queue, a row each. An empty selector is one that accepts every task."""
    rows = [each | {"accepts": "; ".join(text or "all tasks" for text in each["accepts"]) or None} for each in records]
    return table(rows, "consumer alive host pid in_hand accepts longest_in_hand")
