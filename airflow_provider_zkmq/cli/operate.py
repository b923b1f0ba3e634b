"""The verbs that change many tasks whatever their consumers do: redrive, cancel, clear."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_zkmq.cli.options import STATES, Common, UsageError
from airflow_provider_zkmq.cli.output import say

if TYPE_CHECKING:
    from airflow_provider_zkmq.engine import ZkmqError


def add_cancel(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``cancel``."""
    parser.add_argument("queue")
    parser.add_argument("tasks", metavar="TASK", nargs="+")


def cancel(args: argparse.Namespace, options: Common) -> int:
    """Withdraw tasks that have not ended."""
    with options.connect() as zk:
        done = _each(args.tasks, zk.queue(args.queue).cancel)
    return done.tell(args.queue, "cancelled", options)


def add_redrive(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``redrive``."""
    parser.add_argument("queue")
    parser.add_argument("tasks", metavar="TASK", nargs="*", default=[])
    parser.add_argument("--all", action="store_true", help="every task in the dead letters")


def redrive(args: argparse.Namespace, options: Common) -> int:
    """Put dead or cancelled tasks back."""
    from airflow_provider_zkmq.engine import CorruptRecord

    if bool(args.tasks) == args.all:
        raise UsageError("redrive needs either task ids or --all")
    with options.connect() as zk:
        queue = zk.queue(args.queue)
        ids = _checked(queue.ids("dead") if args.all else args.tasks)
        refused = queue.redrive_many(ids)
        done = _Done([task for task in ids if task not in refused], refused)
    if args.all:  # where somebody else was faster, that is no refusal of what was asked for
        done.refused = {task: why for task, why in refused.items() if isinstance(why, CorruptRecord)}
    return done.tell(args.queue, "redriven", options)


def add_clear(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``clear``."""
    parser.add_argument("queue")
    parser.add_argument("--state", choices=STATES, help="only tasks in this state")
    parser.add_argument("--yes", action="store_true", help="needed: what is deleted cannot be brought back")


def clear(args: argparse.Namespace, options: Common) -> int:
    """Delete tasks, whatever is being done with them."""
    if not args.yes:
        what = "every task" if args.state is None else f"every {args.state} task"
        raise UsageError(f"clear deletes {what} of queue {args.queue!r} for good: add --yes to do so")
    with options.connect() as zk:
        count = zk.queue(args.queue).clear(args.state)
    say({"queue": args.queue, "cleared": count}, f"{count} cleared", as_json=options.as_json)
    return 0


@dataclass(slots=True)
class _Done:
    """With which tasks something was done, and which refused it."""

    tasks: list[str] = field(default_factory=list)
    refused: dict[str, ZkmqError] = field(default_factory=dict)

    def tell(self, queue: str, word: str, options: Common) -> int:
        """Print it; 1 if a task refused."""
        value: dict[str, object] = {"queue": queue, word: self.tasks}
        for why in self.refused.values():
            value.setdefault("error", type(why).__name__)
            value.setdefault("message", str(why))
            print(f"zkmq: {why}", file=sys.stderr)
        if self.refused:
            value["refused"] = {task: str(why) for task, why in self.refused.items()}
        say(value, "\n".join(f"{word} {task}" for task in self.tasks) or f"nothing {word}", as_json=options.as_json)
        return 1 if self.refused else 0


def _checked(tasks: Iterable[str]) -> list[str]:
    """The ids, each once. Raises `ConfigError` for a bad one."""
    from airflow_provider_zkmq.engine import check_name

    return [check_name("task id", task) for task in dict.fromkeys(tasks)]


def _each(tasks: Iterable[str], act: Callable[[str], None]) -> _Done:
    """Act on one task after the other, passing over those that refuse. A bad id is refused before anything is done."""
    from airflow_provider_zkmq.engine import IllegalTransition, TaskNotFound

    done = _Done()
    for task in _checked(tasks):
        try:
            act(task)
        except (TaskNotFound, IllegalTransition) as error:
            done.refused[task] = error
        else:
            done.tasks.append(task)
    return done
