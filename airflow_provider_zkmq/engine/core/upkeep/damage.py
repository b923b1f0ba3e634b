"""What cannot be carried out since a znode is damaged holds up nothing else that a queue is owed."""

from __future__ import annotations

from airflow_provider_zkmq.engine.core.memory.context import Context
from airflow_provider_zkmq.engine.core.protocol.ops import Procedure
from airflow_provider_zkmq.engine.errors import ConfigError, TransportError, ZkmqError


def unless_damaged(context: Context, path: str, procedure: Procedure[bool]) -> Procedure[bool]:
    """Whether a duty was carried out; what refuses it for good is reported once, by the path that it is about.

    It is the caller's to leave it alone for a while: somebody may put the znode right.
    """
    try:
        return (yield from procedure)
    except (TransportError, ConfigError):
        raise
    except ZkmqError as error:
        context.tell(path, str(error), damage=str(error))
        return False
