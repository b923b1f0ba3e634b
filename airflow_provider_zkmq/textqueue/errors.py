"""What goes wrong with a queue file."""

from __future__ import annotations


class TextQueueError(Exception):
    """Whatever this package raises on purpose; the message names the file, and the byte where there is one."""


class StaleMessage(TextQueueError):
    """The file holds something else by now where the message was: nothing was written. Read the file again."""


class LockHeld(TextQueueError):
    """Another process holds the file's lock, for longer than was to be waited: nothing was read or written."""


class HostileFile(TextQueueError):
    """The file exceeds what is read: a line, a message, its variables or the file itself is too large."""
