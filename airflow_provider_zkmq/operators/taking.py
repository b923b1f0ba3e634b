"""Which tasks a run takes: new ones, those that another process took for it, or those that an earlier try took."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider_zkmq.engine import (
    ClaimLost,
    ConfigError,
    QueueNotFound,
    TaskNotFound,
    TransportError,
    ZkmqError,
)
from airflow_provider_zkmq.hooks.claims import MOST, Claim, read_claims, shown, told
from airflow_provider_zkmq.hooks.telemetry import count_claimed

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_zkmq.engine import AnyQueue
    from airflow_provider_zkmq.hooks.zkmq import ZkmqHook

#: The engine claims at most so many together.
_TOGETHER: Final = 64


class Taken(NamedTuple):
    """A claim, and when its task was enqueued, in milliseconds since 1970: an id may be enqueued again."""

    claim: Claim
    enqueued: int


def take_new(queue: AnyQueue, selector: str | None, most: int, lease: float, log: Any, *, ahead: bool) -> list[Taken]:
    """Claim what fits and is there, at most `most`; `ahead`: for others, who say when they begin.

    Raises what `Queue.claim_many` does, where nothing was claimed. An interrupt gives back what was.
    """
    taken: list[Taken] = []
    try:
        while len(taken) < most:
            wanted = min(_TOGETHER, most - len(taken))
            claims = queue.claim_many(wanted, selector=selector, lease=lease, ahead="all" if ahead else False)
            taken += [Taken(told(queue.name, claim), claim.task.enqueued_ms) for claim in claims]
            count_claimed(queue.name, [claim.task for claim in claims])
            if len(claims) < wanted:
                break
    except ZkmqError:
        if not taken:  # else they would be nobody's until their leases run out
            raise
    except BaseException:
        give_back(lambda _: queue, taken, log)
        raise
    return taken


def accept(hook: ZkmqHook, claims: Iterable[Claim], lease: float, log: Any) -> list[Taken]:
    """Take over claims that another process took: those that still hold begin, and are extended.

    An interrupt gives back what has begun. An error does not: whoever asks again begins it once more.
    """
    taken: list[Taken] = []
    try:
        for claim in claims:
            with telling_of_the_end(claim, log):
                queue = hook.queue(claim["queue"])
                queue.begin(claim["id"], claim["token"])
                queue.extend(claim["id"], claim["token"], lease)
                taken.append(Taken(claim, queue.task(claim["id"]).enqueued_ms))
    except Exception:
        raise
    except BaseException:
        give_back(hook.queue, taken, log)
        raise
    return taken


def take_back(
    hook: ZkmqHook,
    noted: list[dict[str, Any]],
    lease: float,
    log: Any,
    *,
    ahead: bool = False,
    in_place: bool = False,
) -> list[Taken]:
    """Take what an earlier try had, by its id, and nothing else: as it is, or claimed anew where it is pending.

    The rest is left out, or, with `in_place`, left as it was if anything is taken. What is claimed anew takes its place
    in `noted`: where the rest cannot be read now, whoever asks again finds it there.
    """
    places: list[Taken] = []
    held = 0
    for at, note in enumerate(noted):
        [claim] = read_claims("what an earlier try noted", note["claim"])
        place = Taken(claim, note["enqueued"])
        mine = place if still_held(hook, claim, lease, log) else _claim_again(hook, place, lease, log, ahead=ahead)
        if mine is not None:
            noted[at] = mine._asdict()
            held += 1
        if mine is not None or in_place:
            places.append(mine or place)
    return places if held else []


def give_back(queue_of: Callable[[str], AnyQueue], taken: Iterable[Taken], log: Any) -> None:
    """Release claims that no later try would know of; what cannot be is delivered again when its lease runs out."""
    left = list(taken)
    while left:
        claim, _ = left.pop(0)
        try:
            queue_of(claim["queue"]).release(claim["id"], claim["token"])
        except TransportError as error:  # whoever is told to end has no time to wait for each of them
            log.warning("Not given back: %s and %d more: %s", shown(claim), len(left), error)
            return
        except ZkmqError as error:
            log.warning("Not given back: %s: %s", shown(claim), error)


def still_held(hook: ZkmqHook, claim: Claim, lease: float, log: Any) -> bool:
    """Whether a claim is the current one, which then holds for `lease` seconds from now."""
    with telling_of_the_end(claim, log):
        hook.queue(claim["queue"]).extend(claim["id"], claim["token"], lease)
        return True
    return False


@contextmanager
def telling_of_the_end(claim: Claim, log: Any) -> Iterator[None]:
    """Go on after a block that finds a claim over, with a line in the log."""
    try:
        yield
    except (ClaimLost, TaskNotFound, QueueNotFound) as error:
        log.info("Claim %d of %s does not hold any more: %s", claim["token"], shown(claim), error)


def _claim_again(hook: ZkmqHook, place: Taken, lease: float, log: Any, *, ahead: bool) -> Taken | None:
    claim, enqueued = place
    try:
        queue = hook.queue(claim["queue"])
        task = queue.task(claim["id"])
        anew = task.enqueued_ms != enqueued
        again = None if anew else queue.claim_task(claim["id"], lease=lease, ahead=ahead)
    except (TaskNotFound, QueueNotFound) as error:
        log.info("Left out: %s: %s", shown(claim), error)
        return None
    if again is None:
        why = "its id was enqueued anew" if anew else f"it is {task.status}, attempt {task.attempt}"
        log.info("Left out: %s: %s", shown(claim), why)
        return None
    count_claimed(queue.name, [again.task])
    return Taken(told(queue.name, again), enqueued)


def claims_of_events(context: Context, queue: str | None, log: Any) -> list[Claim] | None:
    """Return the claims of the events that started a run; None where it is to claim, as with those of ``"wake"``.

    `queue`: only those of this one; others' are left to whoever else the events started. Of very many the latest: a
    slow DAG is told again and again of what it has not accepted in time.
    """
    events = context.get("triggering_asset_events") or {}
    payloads = [_payload(event) for asset in events for event in events[asset]]
    given = [_claims_in(payload, log) for payload in payloads if "claims" in payload]
    lists = [claims for claims in given if claims is not None]
    claims = [claim for each in lists for claim in each]
    unique = {(claim["queue"], claim["id"], claim["token"]): claim for claim in claims}
    mine = [claim for claim in unique.values() if queue in {None, claim["queue"]}]
    if len(mine) < len(unique):
        log.info("%d claim(s) of other queues than %r are left to others", len(unique) - len(mine), queue)
    woken = any("counts" in payload and queue in (None, payload.get("queue")) for payload in payloads)
    return mine[-MOST:] if mine or (lists and not woken) else None


def _claims_in(payload: Mapping[str, Any], log: Any) -> list[Claim] | None:
    """Return the claims of an event; None for one that is another's: it is no reason to leave ours to their leases."""
    try:
        return read_claims("the claims of an asset event", payload["claims"])
    except ConfigError as error:
        log.warning("An asset event is passed over: %s", error)
        return None


def _payload(event: Any) -> Mapping[str, Any]:
    payload = (event.extra or {}).get("payload")
    return payload if isinstance(payload, Mapping) else {}
