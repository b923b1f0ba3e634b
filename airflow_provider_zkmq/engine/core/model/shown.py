"""Values of callers as errors show them."""

from __future__ import annotations

from typing import Final

_MOST_CHARACTERS: Final = 80


def shown(value: object) -> str:
    """A value in an error: short, and without an error of its own, as that of an endless number would be."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  whatever its `__repr__` raises
        return f"of type {type(value).__name__}"
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"


def named(what: str, value: object) -> str:
    """A value behind the name of the parameter that it was given for; without one, the value alone."""
    return f"{what} {shown(value)}" if what else shown(value)
