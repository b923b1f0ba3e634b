"""What queue files cannot promise: each is refused with one `Unsupported` that names it, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NoReturn

from ..engine.errors import Unsupported

TRANSACTIONS: Final = "transactions over several queues"
BATCHES: Final = "batches (batch=, then=)"
PRIORITIES: Final = "priorities: the order is that of the lines"
UPDATES: Final = "updates of a queued task (on_conflict='replace'): edit its line"
ESCROW: Final = "a run in escrow (on_conflict='requeue')"
DEDUPE: Final = "dedupe windows (dedupe=)"
PROGRESS: Final = "progress reports (progress, on_progress=)"
COLLECTION: Final = "clean-up of finished tasks (task_gc_…=): delete their lines"
ENDLESS: Final = "claims that end with a session (lock=0): a lock needs an end"
SERVERS: Final = "servers to speak to"
ARCHIVES: Final = "archive or stream (configure(archive=True), configure(follow=True))"
LIMITS: Final = "limits (limit=): its consumers share no record of what the others have in hand"
BOUNDS: Final = "bound on its leases (max_leases=)"


def refusal(what: str) -> Unsupported:
    """The error that names what is refused, and who has it."""
    return Unsupported(f"refused: a queue file (textqueue://) has no {what}. ZooKeeper has it: connect to host:port")


def refused(what: str) -> Callable[..., NoReturn]:
    """A method of the interface that raises `Unsupported`, whatever it is given."""

    def method(*_given: object, **_named: object) -> NoReturn:
        """Raise `Unsupported`: a queue file cannot promise it."""
        raise refusal(what)

    return method


class OnlyWhatFilesHave:
    """Has the verbs that a file can do. Any other one is refused, since code may be written for queues on ZooKeeper."""

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        if name.startswith("_"):  # Python itself asks for such names, and expects no other error
            raise AttributeError(name)
        msg = f"refused: a queue file (textqueue://) has no {name}. If ZooKeeper has it: connect to host:port"
        raise Unsupported(msg)


def refuse(options: Mapping[str, object]) -> None:
    """Raise `Unsupported` for the first thing that was asked for, by what is refused."""
    for what, value in options.items():
        if value:
            raise refusal(what)
