"""What a transaction puts: in memory only, until its commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.conf import Conf
from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.core.protocol.writes import MAX_REQUEST
from airflow_provider_zkmq.engine.core.reading.configuration import default_conf, fresh_conf, read_conf
from airflow_provider_zkmq.engine.core.writing.draft import Tree, prepare, with_filters
from airflow_provider_zkmq.engine.core.writing.record import Current
from airflow_provider_zkmq.engine.errors import ConfigError, QueueNotFound, TaskTooLarge


@dataclass(slots=True)
class Put:
    """A task to enqueue on commit; ``unchecked``: filters that wait for the configuration of its queue."""

    context: Context
    tree: Tree
    unchecked: Mapping[str, object] | None = None
    ended: Current | None = None
    """The task that has its id and has ended, as far as is known: it runs anew."""

    @property
    def task_id(self) -> str:
        """The id of its task, given by the caller or made when it was put."""
        return self.tree.task_id

    def check(self, conf: Conf) -> None:
        """Check the filters, where they wait for that. Raises `ConfigError`, `TaskTooLarge`."""
        if self.unchecked is not None:
            self.tree = with_filters(self.context, conf, self.tree, self.unchecked)
            self.unchecked = None


def put(puts: list[Put], context: Context, message: Message) -> str:
    """Remember a message to enqueue on commit; returns its task's id. Nothing is asked of the server, nor sent.

    What is wrong whatever the queue declares is refused now, and the filters, too, where this client remembers the
    queue's configuration; else the commit checks them. Raises `ConfigError`, `TaskTooLarge`.
    """
    conf, filters = fresh_conf(context), message.filters
    wait = conf is None and isinstance(filters, Mapping)
    tree = prepare(context, conf or default_conf(), replace(message, filters=None) if wait else message)
    if tree.update or tree.requeue:
        msg = "a transaction can put new tasks only; update or requeue one outside of the transaction"
        raise ConfigError(msg)
    puts.append(Put(context, tree, dict(filters) if wait and isinstance(filters, Mapping) else None))
    return tree.task_id


def make_room(puts: Sequence[Put]) -> Procedure[None]:
    """Check everything put by the configuration of its queue; only then create the queues that are not there."""
    for each in puts:
        try:
            conf = yield from read_conf(each.context)
        except QueueNotFound:
            conf = default_conf()
        each.check(conf)
    check_size(sum(len(each.tree.data) for each in puts))
    for each in puts:
        yield from read_conf(each.context, create=True)


def check_size(size: int) -> None:
    """Raise `TaskTooLarge` for a transaction of so many bytes, where ZooKeeper does not take that at once."""
    if size > MAX_REQUEST:
        msg = (
            f"the transaction needs {size:,} bytes, ZooKeeper takes {MAX_REQUEST:,} at once; nothing was committed: "
            "take and put less in one transaction"
        )
        raise TaskTooLarge(msg)
