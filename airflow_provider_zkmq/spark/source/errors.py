"""What users of the data source see where something is wrong: our message first, and no walk through Spark's code."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from airflow_provider_zkmq.engine import ZkmqError

#: Spark's Python workers say nothing but the error itself where this variable is set; they end after an error.
_HIDE = "SPARK_HIDE_TRACEBACK"
#: Spark starts its Python workers, and nobody else, with variables whose names begin so.
_WORKER = "PYTHON_WORKER_FACTORY_"


class SourceError(ZkmqError):
    """What the data source refuses: an option, a column, a queue; or that ZooKeeper cannot be reached."""


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Raise what the engine raises inside as a `SourceError` whose text is all that Spark shows of it."""
    try:
        yield
    except ZkmqError as error:
        if any(name.startswith(_WORKER) for name in os.environ):
            os.environ[_HIDE] = "1"
        if isinstance(error, SourceError):
            raise
        raise SourceError(str(error)) from None
