"""Many clients at one queue: they spread over its work, and report damage once."""

from __future__ import annotations

from typing import Final

from airflow_provider_zkmq.engine.core.client.context import Context
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure, Wait
from airflow_provider_zkmq.engine.errors import ConfigError, TransportError, ZkmqError

# --- Many consumers at one queue: they keep out of each other's way, so that what comes does not set all of them going.
#
# Each consumer has a share, told by its place among the living. In the default order it begins at entries of its
# own share. Those who wait look one after the other when something comes: for most of them it is gone when their
# turn is there, and they have looked once instead of racing.

#: So many consumers look all at once.
FEW: Final = 8
#: Seconds between the looks of two waiting consumers: in the default order, and in strict order, where one claim must
#: be over before the next one can be.
SPACING: Final = {"default": 0.004, "fifo": 0.008}
#: Seconds between the looks of the first and the last of them at the most.
LONGEST: Final = {"default": 0.2, "fifo": 0.4}
#: A consumer without an entry in its own share begins at any of so many.
WIDTH: Final = 8


def share(context: Context) -> tuple[int, int]:
    """This consumer's place among the living, and how many they are."""
    names, consumer = context.known_consumers.live, context.registration.consumer
    return (names.index(consumer.id), len(names)) if consumer is not None and consumer.id in names else (0, 1)


def stagger(context: Context, most: float) -> Procedure[None]:
    """Wait for this consumer's turn to look, at most so many seconds; few consumers need none."""
    place, count = share(context)
    if count > FEW:
        yield from _rest(context, min(most, place * _spacing(context, count)))


def _spacing(context: Context, count: int) -> float:
    order = "default" if context.configuration.conf is None else context.configuration.conf.order
    return min(SPACING[order], LONGEST[order] / count)


def any_of_the_first(context: Context, many: int) -> int:
    """Where to begin among so many entries, none of this consumer's share: by chance, if consumers are many."""
    _, count = share(context)
    return int(context.run.random() * min(many, WIDTH)) if count > FEW else 0


def back_off(context: Context) -> Procedure[None]:
    """After a lost race: let those pass who are at it, the longer the more they are."""
    _, count = share(context)
    if count > FEW:
        yield from _rest(context, context.run.random() * _spacing(context, count) * count / 8)


def _rest(context: Context, seconds: float) -> Procedure[None]:
    if seconds > 0:
        yield Wait(context.run.new_signal(), 0, seconds)


# --- What cannot be carried out since a znode is damaged holds up nothing else that a queue is owed.


def unless_damaged(context: Context, path: str, procedure: Procedure[bool]) -> Procedure[bool]:
    """Whether a duty was carried out; what refuses it for good is reported once, by the path that it is about.

    It is the caller's to leave it alone for a while: somebody may put the znode right.
    """
    try:
        return (yield from procedure)
    except (TransportError, ConfigError):
        raise
    except ZkmqError as error:
        context.warn_once(path, str(error), damage=str(error))
        return False
