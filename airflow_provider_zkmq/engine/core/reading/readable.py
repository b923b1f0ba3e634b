"""What stands in a queue's configuration, as far as it can be read: one damaged value must not stop the queue.

Who has read a value before goes on with that. Who has not: without the declarations of filters, tasks are handed out to
whoever wants any; without the retry policy, what was delivered before and has no policy of its own waits, since
nobody knows how often it may be delivered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.model.filters import FilterTypes, Undeclared, decode_types
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.protocol.ops import Node
from airflow_provider_zkmq.engine.errors import CorruptRecord

T = TypeVar("T")
#: What fails goes back and waits, while the queue's policy cannot be read.
UNKNOWN_POLICY: Final = RetryPolicy(attempts=None)


def declarations(context: Context, node: Node | None) -> FilterTypes:
    """The queue's filter types; whoever needs one of those that nobody can read is refused with `CorruptRecord`."""
    path = context.paths.conf("filters")
    types = _read(context, path, node, decode_types)
    if not isinstance(types, CorruptRecord):
        context.configuration.types = types
    elif context.configuration.types is None:
        return Undeclared(str(types))
    return context.configuration.types


def retry_policy(context: Context, node: Node | None) -> tuple[RetryPolicy, str | None]:
    """The queue's policy; where nobody of us could ever read it, why, and what is done meanwhile."""
    path = context.paths.conf("policy")
    policy = _read(context, path, node, RetryPolicy.decode)
    if isinstance(policy, CorruptRecord):
        known = context.configuration.policy
        return (UNKNOWN_POLICY, str(policy)) if known is None else (known, None)
    context.configuration.policy = policy
    if context.quarantine.waiting:  # for a policy that could not be read
        context.quarantine.waiting.clear()
        context.listings.restock_all()
    return policy, None


def _read(context: Context, path: str, node: Node | None, decode: Callable[[str, bytes], T]) -> T | CorruptRecord:
    """What a value is, or why it cannot be read, which is reported once."""
    try:
        if node is None or not node.data:
            msg = f"{path} is {'missing' if node is None else 'empty'}; configure() writes it anew"
            raise CorruptRecord(msg)
        return decode(path, node.data)
    except CorruptRecord as error:
        context.report(path, str(error))
        return error
