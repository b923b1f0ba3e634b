"""TextQueue: queues in files that people can read and edit. The format is that of the PyPI package ``textqueue``."""

from .file import TextQueue, read_all
from .lines import HostileFile, Limits, LockHeld, StaleMessage, TextQueueError
from .message import Message, Status

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
