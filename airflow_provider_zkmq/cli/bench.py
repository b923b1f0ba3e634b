"""``zkmq bench``: the engine and its peers side by side on one server, as ratios with their spread."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from airflow_provider_zkmq.cli.options import Common, UsageError
from airflow_provider_zkmq.cli.output import say
from airflow_provider_zkmq.cli.server import stop_signals_interrupt


def add_bench(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``bench``."""
    parser.add_argument(
        "--rows", nargs="+", metavar="ROW", default=[], help="these rows only; `all` adds the long ones"
    )
    parser.add_argument("--list", action="store_true", help="name the rows, and measure nothing")
    parser.add_argument("--rounds", type=int, default=5, help="each way is measured so often (%(default)s)")
    parser.add_argument(
        "--tasks", type=int, default=300, help="tasks of a round; some ways take a multiple (%(default)s)"
    )
    parser.add_argument(
        "--depth",
        type=int,
        default=100_000,
        help="pending tasks of rows about depth, and tenfold the waiters of `waiters-many` (%(default)s)",
    )
    parser.add_argument("--ensemble", type=int, default=1, metavar="N", help="nodes of the server (%(default)s)")
    parser.add_argument("--no-sync", action="store_true", help="the server does not wait for its disk")
    parser.add_argument("--syscalls", action="store_true", help="count system calls with strace, in a round more")
    parser.add_argument("--profile", action="store_true", help="say where our processor time goes, in a round more")
    parser.add_argument("--plots", metavar="DIR", type=Path, help="draw each row, as PNG and SVG")
    parser.add_argument("--page", metavar="FILE", type=Path, help="replace the tables of this Markdown page")


def bench(args: argparse.Namespace, options: Common) -> int:
    """Measure, and say what came out.

    Servers that the environment names are left alone: a benchmark is no work for those that others use.
    """
    from airflow_provider_zkmq.bench.command import Order, carry_out, list_rows

    if args.list:
        rows = list_rows()
        say(rows, "\n".join(f"{key:16}  {title}" for key, title in rows.items()), as_json=options.as_json)
        return 0
    if options.auth is not None or options.access["tls"] is not None:
        raise UsageError("bench measures servers without TLS and credentials: its peers know neither")
    order = Order(
        hosts=args.hosts or args.before_hosts,
        rows=tuple(args.rows),
        rounds=args.rounds,
        tasks=args.tasks,
        depth=args.depth,
        ensemble=args.ensemble,
        sync=not args.no_sync,
        syscalls=args.syscalls,
        profile=args.profile,
        plots=args.plots,
        page=args.page,
    )
    with stop_signals_interrupt():
        made = carry_out(order, lambda line: print(line, file=sys.stderr, flush=True))
    say(made.record, made.text, as_json=options.as_json)
    return 0
