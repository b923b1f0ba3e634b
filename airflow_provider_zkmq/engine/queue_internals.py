"""`internals`: what the package itself asks of a queue, and its users do not.

Workers wait for changes by it, archives and streams read the log of what ended, and Spark reads columns. Nothing is
imported here at run time, so that reading a DAG does not pay for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from ..filequeue.queue import FileQueue
    from ..filequeue.queue_internals import FileQueueInternals
    from .api.internal_methods import AsyncQueueInternals, QueueInternals
    from .api.queue import AsyncQueue, Queue


@overload
def internals(queue: Queue) -> QueueInternals: ...
@overload
def internals(queue: AsyncQueue) -> AsyncQueueInternals: ...
@overload
def internals(queue: FileQueue) -> FileQueueInternals: ...
def internals(queue: Any) -> Any:
    """The verbs of a queue that are not public: for the code of this package, and without a promise to anybody else."""
    return queue.__internals__()
