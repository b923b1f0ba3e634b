"""TextQueue: queues in files that people can read and edit. The format is that of the PyPI package ``textqueue``."""

from .errors import HostileFile, LockHeld, StaleMessage, TextQueueError
from .line_reader import Limits
from .message import Message, Status
from .text_queue import TextQueue, read_all

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
