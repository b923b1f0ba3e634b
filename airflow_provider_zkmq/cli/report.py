"""``zkmq report``: what the archive of queues answers. It asks no ZooKeeper."""

from __future__ import annotations

import argparse
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from .options import DURATION, Common, UsageError
from .output import say

DIRECTORY_VARIABLE = "ZKMQ_ARCHIVE_DIR"


def add_report(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``report``."""
    parser.add_argument("queue", nargs="?")
    parser.add_argument("--all", action="store_true", help="every queue of the archive")
    parser.add_argument("--directory", metavar="DIR", help=f"the archive's directory (env {DIRECTORY_VARIABLE})")
    for name, what in (("since", "from then on"), ("until", "up to then")):
        parser.add_argument(f"--{name}", metavar="WHEN", help=f"{what}: a moment, or a duration before now such as 24h")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page with plots, too")
    parser.add_argument("--full", action="store_true", help="all tables, also where nothing is wrong")
    parser.add_argument("--target-wait", default=60.0, help="95 of 100 tasks wait no longer (1m)", **DURATION)
    busy = "consumers are busy no more than this part of 1"
    parser.add_argument("--target-utilisation", type=float, metavar="PART", help=busy)
    parser.add_argument("--recent", default=3600.0, help="so long a time at the end is now (1h)", **DURATION)
    parser.add_argument("--top", type=int, default=20, metavar="N", help="rows of a table; the rest is summed (20)")


def report(args: argparse.Namespace, options: Common) -> int:
    """Answer from the archive who waits, whether there are enough consumers, and what fails."""
    if bool(args.queue) == args.all:
        raise UsageError("report needs either a queue or --all")
    directory = args.directory or os.environ.get(DIRECTORY_VARIABLE)
    if not directory:
        raise UsageError(f"report needs --directory DIR, or {DIRECTORY_VARIABLE}: where the archive is")
    if args.html is not None and not args.html.absolute().parent.is_dir():
        raise UsageError(f"{args.html} cannot be written: {args.html.absolute().parent} is no folder")
    if args.html is not None and args.html.is_dir():
        raise UsageError(f"{args.html} cannot be written: it is a folder")
    from ..spark.reporting.rendering import need

    need("pyarrow", "deltalake", *(("jinja2",) if args.html is not None else ()))
    since, until = _moment("--since", args.since), _moment("--until", args.until)
    from ..spark import report as make

    made = make(
        directory,
        args.queue,
        since=since,
        until=until,
        recent=args.recent,
        target_wait=args.target_wait,
        target_utilisation=args.target_utilisation,
        top=args.top,
    )
    if args.html is not None:
        made.write_html(args.html)
    say(made.record(), made.text(full=args.full), as_json=options.as_json)
    return 0


def _moment(option: str, text: str | None) -> datetime | None:
    """A moment, or a duration before now by this machine's clock. Raises `UsageError`."""
    from ..engine import ConfigError, parse_duration, parse_moment

    if text is None:
        return None
    try:
        return datetime.now(UTC) - timedelta(seconds=parse_duration(text))
    except (ConfigError, OverflowError):
        pass
    try:
        return parse_moment(text)
    except ConfigError as error:
        raise UsageError(f"{option}: {error}; or write how long ago, such as 24h") from error
