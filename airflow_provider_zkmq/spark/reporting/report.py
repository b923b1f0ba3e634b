"""The report: what the history of queues answers, as plain data, as text, and as a page."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from ...engine import ConfigError, Duration, Moment, QueueNotFound, TransportError, parse_duration, parse_moment
from ...history import known
from ...location import Location
from . import capacity, sections
from .capacity import Target
from .rendering import Row, Section, page, render, several
from .tables import OTHERS, Tables

#: More rows than these in a table nobody reads.
MOST_ROWS: Final = 200
#: How a section is, the worst first.
_LEVELS: Final = ("bad", "warn", "good", "note")
#: Where nothing is wrong a report has no more lines than fit on a screen.
SCREEN: Final = 40


@dataclass(frozen=True, slots=True)
class Report:
    """The answers of one history, in sections of plain data.

    `queues`: those it is about, the largest first; `since`, `until`: what was asked for, None: all; `made`: when.
    """

    queues: tuple[str, ...]
    since: datetime | None
    until: datetime | None
    made: datetime
    sections: tuple[Section, ...]

    def section(self, name: str) -> Section:
        """One of ``overview``, ``waiting``, ``capacity``, ``failures``, ``consumers``, ``depth``, ``retries``."""
        return next(section for section in self.sections if section.name == name)

    @property
    def findings(self) -> list[tuple[str, str]]:
        """What to know first: sentences, each ``bad``, ``warn``, ``good`` or ``note``."""
        found = [(each.level, text) for each in self.sections if each.level in _LEVELS for text in each.said[:5]]
        return sorted(found, key=lambda finding: _LEVELS.index(finding[0]))

    def record(self) -> Row:
        """All of it as plain data, as `json` writes it."""
        moments = {"since": self.since, "until": self.until, "made": self.made}
        times = {name: when and when.astimezone(UTC).isoformat(timespec="seconds") for name, when in moments.items()}
        findings = [{"level": level, "text": text} for level, text in self.findings]
        sections = {section.name: section.record() for section in self.sections}
        return {"queues": list(self.queues), **times, "findings": findings, **sections}

    def json(self, indent: int | None = None) -> str:
        """The report as JSON; times in its tables are seconds since 1970, spans are seconds."""
        return json.dumps(self.record(), indent=indent, allow_nan=False)

    def text(self, width: int | None = None, *, full: bool = False) -> str:
        """The report for a terminal of a width; default: that of this one.

        Every question is answered by a sentence; queues, crews and what is wrong have tables, `full`: all. Where
        nothing is wrong, tables have as many rows as fit on a screen.
        """
        wrong = [each.name for each in self.sections if each.level in _LEVELS[:2]]
        shown = [each for each in self.sections if full or each.name in {"overview", "capacity", *wrong}]
        most = None if full or wrong else SCREEN
        while True:
            text = render(self._head(), self.findings, shown, width, most)
            if not most or len(text.splitlines()) <= SCREEN:
                return text
            most -= 1

    def html(self) -> str:
        """The report as one page with plots, which fetches nothing."""
        return page(self._head(), self.findings, self.sections)

    def write_html(self, path: str | os.PathLike[str] | Location) -> str:
        """Write the page to a file or an address in S3, at one stroke; returns its path, or address."""
        target, text = Location.of(path), self.html()
        if (file := target.folder) is None:
            target.write(text.encode())
            return str(target)
        temporary = file.with_name(f".{file.name}.{os.getpid()}.draft")
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
        return str(target)

    def _head(self) -> tuple[str, str]:
        """The title, and what time it is about."""
        named = ", ".join(self.queues[:3]) or "no queue"
        more = f" and {several(len(self.queues) - 3, 'more queue')}" if len(self.queues) > 3 else ""
        start, stop = (f"{when:%Y-%m-%d %H:%M} UTC" if when else None for when in (self.since, self.until))
        period = f"From {start or 'the beginning'} to {stop or 'the last end that is known'}."
        return f"Report on {named}{more}", f"{period} Made {self.made:%Y-%m-%d %H:%M} UTC; all times are UTC."


def answer(
    tables: Tables, *, recent: float, target: Target, top: int, now: list[Row] | None = None
) -> tuple[Section, ...]:
    """The sections of a report on a history; `now`: how many tasks there are of each queue, by their states."""
    queue_rows = sections.queues(tables, top)
    queues = [row["queue"] for row in queue_rows]
    if OTHERS in queues:
        tables = replace(tables, queues={queue: each for queue, each in tables.queues.items() if queue in queues})
    tables = replace(tables, classes=sections.largest(tables, "runs", ["queue", "class"], top))
    class_rows = sections.class_waits(tables)
    load, lost = capacity.Load(tables, recent), sections.failed(tables)
    return (
        sections.overview(queue_rows),
        capacity.section(load.rows(target), target, load.stretches),
        sections.waiting(class_rows),
        sections.section(sections.groups(lost, top), sections.worst(lost, min(top, 10))),
        sections.consumer_section(sections.consumers(tables, top)),
        sections.depth_section(sections.depth_rows(tables, top), now or []),
        sections.ends(class_rows),
    )


def report(
    directory: str | os.PathLike[str] | Location,
    queues: str | Sequence[str] | None = None,
    *,
    since: Moment | str | None = None,
    until: Moment | str | None = None,
    recent: Duration | str = 3600.0,
    target_wait: Duration | str | None = 60.0,
    target_utilisation: float | None = None,
    top: int = 20,
    counts: Callable[[str], Mapping[str, int]] | None = None,
) -> Report:
    """Answer from the history below `directory`: who waits, whether there are enough consumers, what fails and why.

    `queues`: a name or several; default all. `since`, `until`: moments, the first included; default all there is.
    `recent`: so long a time at the end of each queue's history stands for now. Enough consumers are there where 95 of
    100 tasks wait no longer than `target_wait`, and they are busy no more than `target_utilisation` (0 to 1); None asks
    for nothing. `top`: so many rows at the most, of queues, classes, errors and consumers; the rest is summed.
    `counts` says how many tasks of a queue there are now, by their states: ``lambda name: zk.queue(name).counts()``. A
    queue that is gone has none.

    It starts neither Spark nor Java. Raises `ConfigError` where there is no history of a queue, or where silver and
    gold were not made of it yet, and for values that are not allowed; `ReportFailed`.
    """
    named = known(directory, [queues] if isinstance(queues, str) else queues)
    start, stop = (
        None if when is None else parse_moment(when, name) for when, name in ((since, "since"), (until, "until"))
    )
    if start is not None and stop is not None and start >= stop:
        raise ConfigError(f"since={since!r} must be before until={until!r}")
    if target_utilisation is not None and not 0 < target_utilisation <= 1:
        raise ConfigError(f"target_utilisation={target_utilisation!r} is not allowed: a part of 1, such as 0.8")
    wait = None if target_wait is None else parse_duration(target_wait, "target_wait")
    target = Target(wait, target_utilisation)
    seconds = parse_duration(recent, "recent")
    if seconds <= 0 or not 1 <= top <= MOST_ROWS:
        raise ConfigError(f"recent={recent!r} and top={top!r} must be positive, and top at most {MOST_ROWS}")
    now = [] if counts is None else [row for name in named if (row := _counted(counts, name))]
    now.sort(key=lambda row: (-row["inserted"], row["queue"]))
    answered = answer(Tables.open(directory, named, start, stop), recent=seconds, target=target, top=top, now=now)
    listed = [row["queue"] for row in answered[0].tables[0].rows if row["queue"] in named]
    return Report(tuple(dict.fromkeys([*listed, *named])), start, stop, datetime.now(UTC), answered)


def _counted(counts: Callable[[str], Mapping[str, int]], queue: str) -> Row | None:
    try:
        found = counts(queue)
    except QueueNotFound:
        return None
    except TransportError as error:  # the history can be read all the same
        logging.getLogger(__name__).warning("how many tasks of %s wait now is not known: %s", queue, error)
        return None
    return {"queue": queue, **found} if found else None
