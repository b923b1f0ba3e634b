"""The options of the data source: text, by names whose case does not matter, each checked once, at planning time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Self

from .errors import SourceError, unknown

#: How to reach ZooKeeper; every use of the data source takes these.
CONNECTION: Final = ("hosts", "root", "connId", "connectTimeout", "requestTimeout")
_QUEUES: Final = ("queue", "queues")
_TASKS: Final = (*_QUEUES, "states", "columns", "selector", "numPartitions")
READ: Final = (*CONNECTION, *_TASKS, "since")
STREAM: Final = (*CONNECTION, *_TASKS, "startingOffsets", "maxTasksPerTrigger", "failOnDataLoss")
_PARTS: Final = ("id", "key", "data", "filters", "metadata", "priority", "delay", "notBefore")
#: Where `enqueue` finds what its write has done.
REPORT: Final = "_report"
WRITE: Final = (*CONNECTION, *_QUEUES, *_PARTS, "batch", REPORT)
#: Spark itself hands these on to the writer of a stream.
STREAM_WRITE: Final = (*WRITE, "checkpointLocation", "queryName", "path")
#: What looks like a password by its name is refused.
SECRETS: Final = ("auth", "password", "passwd", "secret", "token", "credential", "tls")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one use of the data source, by their names in small letters. No secret is among them."""

    values: Mapping[str, str]

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Spark's options. Raises `SourceError` for whatever looks like a password, and for one that is given twice."""
        values = {name.lower(): text for name, text in options.items()}
        if len(values) < len(options):
            twice = [name for name in options if sum(each.lower() == name.lower() for each in options) > 1]
            raise SourceError(f"options {' and '.join(twice)} are the same one: their case does not matter")
        for name in values:
            if any(word in name for word in SECRETS):
                raise SourceError(
                    f"option {name!r} is refused: options are kept in Spark's plans and event logs. Give connId, an "
                    "Airflow connection that is looked up where it is used, or set ZKMQ_AUTH and ZKMQ_TLS_* in the "
                    "environment of driver and executors"
                )
        return cls(values)

    def check(self, known: Collection[str], use: str) -> None:
        """Raise `SourceError` for an option that `use` does not have, with the names that come close."""
        names = {name.lower(): name for name in known}
        for name in self.values:
            if name not in names:
                raise unknown(f"option {name!r} of {use}", name, names.values())

    def text(self, name: str) -> str | None:
        """An option's text; None where it is not given or empty."""
        return self.values.get(name.lower(), "").strip() or None

    def names(self, name: str) -> list[str]:
        """The names of a comma list, each once; none where it is not given."""
        parts = (part.strip() for part in (self.text(name) or "").split(","))
        return list(dict.fromkeys(part for part in parts if part))

    def queues(self) -> list[str]:
        """The queues that are named, by the option ``queue`` or ``queues``. Raises `SourceError` for both."""
        if self.text("queue") and self.text("queues"):
            raise SourceError("give option queue or option queues, not both: they are the same")
        given = self.text("queue") or self.text("queues")
        names = self.names("queue") or self.names("queues")
        if given and not names:
            raise SourceError(f"option queue names no queue: {given!r}; leave it out for all")
        return names

    def count(self, name: str, default: int) -> int:
        """A whole number of at least 1. Raises `SourceError` for what is none."""
        text = self.text(name)
        if text is None:
            return default
        if not text.isdecimal() or int(text) < 1:
            raise SourceError(f"option {name} must be a whole number of at least 1, not {text!r}")
        return int(text)
