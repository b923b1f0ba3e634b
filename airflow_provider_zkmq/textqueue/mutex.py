r"""A message's mutex: a variable that says who has the message, and until when.

The seed reserves it as ``\mutex=      ``. Here it is ``mutex=<owner> <seconds since 1970>``, in the room that was
reserved; blank means free. An expired one is taken over: its owner died or was too slow.
"""

from __future__ import annotations

import os
import socket
from typing import Final

PREFIX: Final = "mutex="
#: Room for an owner's name of 40 bytes and a time.
RESERVED: Final = PREFIX + " " * 56


def new_owner() -> str:
    """A name for this process, unlike any other's."""
    return f"{socket.gethostname()[:16]}-{os.getpid()}-{os.urandom(4).hex()}"


def is_mutex(variable: str) -> bool:
    """Whether a variable is a mutex; the seed spells it in small and in large letters."""
    return variable[: len(PREFIX)].lower() == PREFIX


def holder(variable: str) -> tuple[str, float] | None:
    """Who holds a mutex, and until when; None: it is free, or says nothing that is understood."""
    owner, _, until = variable[len(PREFIX) :].strip().rpartition(" ")
    try:
        return (owner, float(until)) if owner else None
    except ValueError:
        return None


def taken(variable: str, owner: str, until: float) -> str:
    """The variable of a held mutex."""
    return f"{variable[: len(PREFIX)]}{owner} {until:.3f}"


def free(variable: str) -> str:
    """The variable of a free one."""
    return variable[: len(PREFIX)]
