"""``zkmq report``: what the archive of queues answers. ZooKeeper is asked how many tasks wait now, if it is named."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Mapping
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

    with contextlib.ExitStack() as stack:
        made = make(
            directory,
            args.queue,
            since=since,
            until=until,
            recent=args.recent,
            target_wait=args.target_wait,
            target_utilisation=args.target_utilisation,
            top=args.top,
            counts=_counts(args, options, stack),
        )
    if args.html is not None:
        made.write_html(args.html)
    say(made.record(), made.text(full=args.full), as_json=options.as_json)
    return 0


def _counts(
    args: argparse.Namespace, options: Common, stack: contextlib.ExitStack
) -> Callable[[str], Mapping[str, int]] | None:
    """How many tasks of a queue there are now, where the command line or the environment says whom to ask."""
    if not (args.hosts or args.before_hosts or os.environ.get("ZKMQ_HOSTS")):
        return None
    from ..engine import TransportError

    try:
        client = options.connect()
    except TransportError as error:  # the archive can be read all the same
        print(f"zkmq: how many tasks wait now is not known: {error}", file=sys.stderr)
        return None
    stack.callback(client.close)

    def counts(queue: str) -> Mapping[str, int]:
        try:
            return client.queue(queue).counts()
        except TransportError as error:
            print(f"zkmq: how many tasks of {queue} wait now is not known: {error}", file=sys.stderr)
            return {}

    return counts


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
