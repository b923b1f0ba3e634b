r"""A message's mutex: a variable that says who has the message, and until when.

The seed reserves it as ``\mutex=      `` or ``\MUTEX``. Here it is ``mutex=<owner> <seconds since 1970>``, in the room
that was reserved, which is more than the seed's; blank means free. An expired one is taken over: its owner died or was
too slow.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Sequence
from typing import Final

PREFIX: Final = "mutex="
#: Room for an owner's name of 40 bytes and a time.
RESERVED: Final = PREFIX + " " * 56


def new_owner() -> str:
    """A name for this process, unlike any other's."""
    return f"{socket.gethostname()[:16]}-{os.getpid()}-{os.urandom(4).hex()}"


def is_mutex(variable: str) -> bool:
    """Whether a variable is a mutex; the seed spells it in small and in large letters."""
    return variable[: len(PREFIX)].lower() == PREFIX or variable.rstrip().lower() == PREFIX.removesuffix("=")


def place(variables: Sequence[str]) -> int | None:
    """Which of a message's variables is its mutex: the first one, but rather one that has any room."""
    found = [index for index, variable in enumerate(variables) if is_mutex(variable)]
    return min(found, key=lambda index: "=" not in variables[index], default=None)


def holder(variable: str) -> tuple[str, float] | None:
    """Who holds a mutex, and until when; None: it is free, or says nothing that is understood."""
    owner, _, spelled = variable[len(PREFIX) :].strip().rpartition(" ")
    try:
        until = float(spelled)
    except ValueError:
        return None
    return (owner, until) if owner and math.isfinite(until) else None


def taken(variable: str, owner: str, until: float) -> str:
    """The variable of a held mutex."""
    return f"{variable[: len(PREFIX) - 1]}={held(owner, until)}"


def held(owner: str, until: float) -> str:
    """What a held mutex says."""
    return f"{owner} {until:.3f}"


def free(variable: str) -> str:
    """The variable of a free one."""
    return variable[: len(PREFIX)]
