"""What users of the data source see where something is wrong: our message first, and no walk through Spark's code."""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Collection, Iterator

from ...engine import ZkmqError


class SourceError(ZkmqError):
    """What the data source refuses: an option, a column, a queue; or that ZooKeeper cannot be reached."""


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Raise what the engine raises inside as a `SourceError` whose text is all that Spark shows of it."""
    try:
        yield
    except ZkmqError as error:
        # Spark starts its Python workers, and nobody else, with such variables; they end after an error.
        if any(name.startswith("PYTHON_WORKER_FACTORY_") for name in os.environ):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        if isinstance(error, SourceError):
            raise
        raise SourceError(str(error)) from None


def unknown(what: str, name: str, known: Collection[str]) -> SourceError:
    """The error for a name that is none of the `known` ones, with those that come close."""
    lower = {each.lower(): each for each in known}
    close = [lower[each] for each in difflib.get_close_matches(name.lower(), lower)]
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    return SourceError(f"unknown {what}: {hint}known are {', '.join(known)}")
