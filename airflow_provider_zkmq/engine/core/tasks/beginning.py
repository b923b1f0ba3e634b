"""Saying that the handler of a claim taken ahead begins: from then on the delivery counts.

Until then the death of its consumer, or the end of its lock or lease, counts no attempt. It is said without waiting for
the reply where the claim can hardly be another's by now: what was given to the system arrives although this process is
killed in the next moment, and before whatever settles the claim. Where it turns out not to stand, because the
connection was lost, it is owed, and said once more.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from airflow_provider_zkmq.engine.core.memory.claims import Claimed
from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.notes import taken_ahead
from airflow_provider_zkmq.engine.core.protocol.ops import Get, Node, Post, Procedure
from airflow_provider_zkmq.engine.core.protocol.writes import Check, Multi
from airflow_provider_zkmq.engine.core.reading.claims import claim_lost
from airflow_provider_zkmq.engine.core.reading.lapsed import lease_path, mark_path
from airflow_provider_zkmq.engine.core.tasks.holding import check_and_set
from airflow_provider_zkmq.engine.core.writing.pieces import beginning
from airflow_provider_zkmq.engine.errors import ClaimLost, TransportError, ZkmqError

#: Of a claim that was asked for longer ago it is not taken for granted that it is ours still: its session may be over.
FRESH_SECONDS: Final = 1.0
#: Nor of one of whose lock or lease this part has passed.
FRESH_PART: Final = 0.5


def begin(context: Context, claimed: Claimed) -> Procedure[None]:
    """Say that the handling of a claim taken ahead begins: from here on the delivery counts. Raises `ClaimLost`.

    Of a claim of less than a second ago that is sent and not waited for: if it is lost, its settlement tells. Nothing
    is written for a claim that was not taken ahead.
    """
    if claimed.lost:
        raise claim_lost(claimed.task_id, claimed.token)
    claimed.began = context.run.monotonic()
    if claimed.ahead:
        if not (yield from _post(context, claimed)):
            yield from _acknowledged(context, claimed)
        claimed.ahead = False


def begin_for(context: Context, claimed: Claimed) -> Procedure[None]:
    """Say that the handling of a claim begins that was taken ahead, by another process, say: from here on it counts.

    Nothing is written for a claim that has begun. Raises `ClaimLost`.
    """
    if claimed.ends_with_session:  # it stands in its consumer's note; where that is gone, the claim is over, or damaged
        path = mark_path(context, claimed.task_id, claimed.state)
        node: Node | None = yield Get(path)
        claimed.ahead = node is None or taken_ahead(path, node.data)
    yield from begin(context, claimed)


def begin_again(context: Context) -> Procedure[None]:
    """Say once more what does not stand, unless the claim is over. Raises `TransportError`: then it is owed still."""
    for key, claimed in context.debts.unmarked.copy().items():
        if claimed.settling is not None:
            continue  # that tells whose it is; what is left then is looked at again
        try:
            yield from _acknowledged(context, claimed)
        except TransportError:
            raise
        except ClaimLost:
            pass
        except ZkmqError as error:
            path = context.paths.task(claimed.task_id)
            context.run.report(path, f"that its handler has begun is not noted, its death may count nothing: {error}")
        context.debts.unmarked.pop(key, None)


def _post(context: Context, claimed: Claimed) -> Procedure[bool]:
    """Say it and do not wait, if that will do."""
    if not _is_fresh(context, claimed):
        return False
    multi = Multi((Check(context.paths.task(claimed.task_id, "state"), claimed.version), *_checks(context, claimed),
                   beginning(context, claimed)))  # fmt: skip
    sent: bool = yield Post(multi, partial(_owe, context, claimed))
    return sent


def _acknowledged(context: Context, claimed: Claimed) -> Procedure[None]:
    yield from check_and_set(context, claimed, beginning(context, claimed), _checks(context, claimed))


def _checks(context: Context, claimed: Claimed) -> list[Check]:
    """What tells a claim from another of the same task at the same version, where its mark's own path does not."""
    return [] if claimed.ends_with_session else [Check(lease_path(context, claimed.state))]


def _is_fresh(context: Context, claimed: Claimed) -> bool:
    """Whether the claim is ours still, as far as that can be told without asking."""
    if claimed.sent is None or claimed.cancelled or claimed.session != context.run.session():
        return False
    span = FRESH_SECONDS if claimed.span is None else min(FRESH_SECONDS, FRESH_PART * claimed.span)
    return context.run.monotonic() - claimed.sent < span


def _owe(context: Context, claimed: Claimed) -> None:
    """It does not stand. Called by the connection's thread, without the client's lock."""
    context.debts.unmarked[claimed.task_id, claimed.token] = claimed
    context.run.pay()
