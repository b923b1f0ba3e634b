"""`internals`: what the package itself asks of a queue or a client, and its users do not.

Workers wait for changes by it, archives and streams read the log of what ended, and Spark reads columns. Nothing is
imported here at run time, so that reading a DAG does not pay for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from ..filequeue.client import FileClient, FileClientInternals
    from ..filequeue.queue import FileQueue
    from ..filequeue.queue_internals import FileQueueInternals
    from .api.client import Client, ClientInternals
    from .api.internal_methods import AsyncQueueInternals, QueueInternals
    from .api.queue import AsyncQueue, Queue


@overload
def internals(queue: Queue) -> QueueInternals: ...
@overload
def internals(queue: AsyncQueue) -> AsyncQueueInternals: ...
@overload
def internals(queue: FileQueue) -> FileQueueInternals: ...
@overload
def internals(queue: Client) -> ClientInternals: ...
@overload
def internals(queue: FileClient) -> FileClientInternals: ...
def internals(queue: Any) -> Any:
    """The verbs of a queue, or of a client, that are not public: for the code of this package, without a promise."""
    return queue.__internals__()
