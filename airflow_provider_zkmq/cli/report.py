"""``zkmq report``: what the archive of queues answers. ZooKeeper is asked how many tasks wait now, if it is named."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

from .connection import Cli
from .options import flag, operand, option, past, refuse, span
from .output import warn
from .verbs import verb

DIRECTORY_VARIABLE = "ZKMQ_ARCHIVE_DIR"
_WHEN = "a moment, or a duration before now such as 24h"


@verb("report", example="zkmq report orders --directory archive --since 24h")
def report(
    cli: Cli,
    queue: str | None = operand("[QUEUE]", default=None),
    every: bool = flag("--all", "every queue of the archive"),
    directory: str | None = option("the archive's directory", "DIR", envvar=DIRECTORY_VARIABLE),
    since: datetime | None = option(f"from then on: {_WHEN}", "WHEN", parser=past),
    until: datetime | None = option(f"up to then: {_WHEN}", "WHEN", parser=past),
    html: Path | None = option("write a page with plots, too", "FILE"),
    full: bool = flag("--full", "all tables, also where nothing is wrong"),
    target_wait: float = span("95 of 100 tasks wait no longer (1m)", 60.0),
    target_utilisation: float | None = option("consumers are busy no more than this part of 1", "PART"),
    recent: float = span("so long a time at the end is now (1h)", 3600.0),
    top: int = option("rows of a table; the rest is summed (20)", "N", 20),
) -> int:
    """Answer from the archive: who waits, what fails, are there enough consumers."""
    refuse(
        (bool(queue) == every, "report needs either a queue or --all"),
        (not directory, f"report needs --directory DIR, or {DIRECTORY_VARIABLE}: where the archive is"),
    )
    from ..spark.reporting.rendering import check_page, need

    check_page(html)
    need("pyarrow", "deltalake")
    from ..spark import report as make

    targets = {"target_wait": target_wait, "target_utilisation": target_utilisation}
    made = make(
        directory or "", queue, since=since, until=until, recent=recent, top=top, counts=_counts(cli), **targets
    )
    if html is not None:
        made.write_html(html)
    return cli.say(made.record(), made.text(full=full))


def _counts(cli: Cli) -> Callable[[str], Mapping[str, int]] | None:
    """How many tasks of a queue there are now, where the command line or the environment says whom to ask."""
    from ..engine import TransportError

    try:
        client = cli.client() if cli.hosts_given or os.environ.get("ZKMQ_HOSTS") else None
    except TransportError as error:  # the archive can be read all the same
        warn(f"how many tasks wait now is not known: {error}")
        return None
    return None if client is None else lambda queue: client.queue(queue).counts()
