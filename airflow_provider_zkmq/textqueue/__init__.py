"""TextQueue: queues in files that people can read and edit. The format is that of the PyPI package ``textqueue``."""

from airflow_provider_zkmq.textqueue.file import TextQueue, read_all
from airflow_provider_zkmq.textqueue.lines import HostileFile, Limits, LockHeld, StaleMessage, TextQueueError
from airflow_provider_zkmq.textqueue.message import Message, Status

__all__ = [
    "HostileFile",
    "Limits",
    "LockHeld",
    "Message",
    "StaleMessage",
    "Status",
    "TextQueue",
    "TextQueueError",
    "read_all",
]
