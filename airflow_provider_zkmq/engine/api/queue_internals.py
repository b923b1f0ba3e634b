"""The verbs of a queue that only this package calls, blocking and on an event loop: see `engine.internals`."""

from __future__ import annotations

from collections.abc import Callable

from ..core.claim.claim import wanted
from ..core.context import Context
from ..core.maintenance.consumers import run_maintenance, wait_for_change
from ..core.protocol import Procedure
from ..core.read import completion_log, configuration, inspect, leases, nodes
from ..core.read.scan import scan
from ..core.read.wait import find_matching
from ..core.tasks import admin
from ..core.tasks.enqueue import enqueue_new
from ..errors import ZkmqError
from ..zk.session import Session
from .methods import Api, AsyncApi, SyncApi, verb


class OfQueue(Api[Context]):
    """What calls on queues have in common. `used`: called with each claim and enqueue."""

    def __init__(self, session: Session, context: Context, used: Callable[[Context], None]) -> None:
        super().__init__(session, context)
        self._context = context
        self._used = used

    def _mark_used(self) -> None:
        """The queue is claimed from or enqueued to: its client takes part in clean-up from now on."""
        self._used(self._context)

    def _explain(self, error: ZkmqError) -> Procedure[ZkmqError | None]:
        """What fails where there is no such queue fails for that, whatever else it would say."""
        return nodes.missing_queue(self._context, error)


class QueueInternalMethods(OfQueue):
    """What the internals of queues of both APIs are."""

    # For workers, and for triggers that claim.
    check_wanted = verb(wanted)
    pending = verb(inspect.pending)
    run_maintenance = verb(run_maintenance)
    wait_for_change = verb(wait_for_change)

    # For operators, sensors, the command line, the bridge and reports.
    enqueue_new = verb(enqueue_new, marks_used=True)
    replace = verb(admin.replace_data)
    ids = verb(inspect.list_ids)
    tree = verb(nodes.read_tree)
    find = verb(find_matching)

    # For archives and streams.
    zxid = verb(leases.zxid)
    now = verb(leases.now)
    scan = verb(scan)
    ended_between = verb(completion_log.ended_between)
    read_ended = verb(completion_log.read_ended)
    latest_end = verb(completion_log.latest_end)
    truncated_at = verb(configuration.truncated_at)
    archive = verb(configuration.archive)
    publish_archive = verb(admin.publish_archive)

    @property
    def closed(self) -> bool:
        """Whether the queue's connection has been closed: nothing can be done with it any more."""
        return self._session.closed

    @property
    def changes(self) -> int:
        """How often the queue has changed, as far as this client was told: the `seen` of `wait_for_change`."""
        return self._context.signal.count

    def wake(self) -> None:
        """Wake every call of this client that waits for the queue to change; they look again."""
        self._context.signal.fire()


class QueueInternals(QueueInternalMethods, SyncApi[Context]):
    """The internals of a `Queue`; each call blocks."""


class AsyncQueueInternals(QueueInternalMethods, AsyncApi[Context]):
    """The internals of an `AsyncQueue`; the names are those of `QueueInternals`."""
