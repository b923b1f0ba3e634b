"""Claims taken ahead: what says that the handler of a claim has not begun.

It stands where it goes with the claim: in the note of a consumer that works on the task, or, as a claim that outlives
its session has none, in the claim's znode. Beginning takes it away. Whatever cannot be read says that it had begun: a
delivery that is counted in vain costs an attempt, one that is not counted could kill its consumers for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from airflow_provider_zkmq.engine.core.model.stored import dump, load
from airflow_provider_zkmq.engine.errors import CorruptRecord

_AHEAD: Final = {"ahead": True}


def consumer_note(*, ahead: bool) -> bytes:
    """What the note of a consumer that works on a task holds."""
    return dump(_AHEAD) if ahead else b""


def claim_note(claim: Mapping[str, Any], *, ahead: bool) -> bytes:
    """What the znode of a claim holds."""
    return dump({**claim, **_AHEAD} if ahead else claim)


def taken_ahead(path: str, data: bytes) -> bool:
    """Whether a note says that no handler has begun."""
    try:
        return bool(data) and load(path, data).get("ahead") is True
    except CorruptRecord:
        return False
