"""How a function becomes a verb of ``zkmq``: its names, its group, and the options that all verbs share."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from copy import copy
from dataclasses import dataclass, is_dataclass
from difflib import get_close_matches
from typing import Any, Final, TypeVar

import typer
from typer.core import TyperGroup

from .. import __version__
from .connection import CONNECT_TIMEOUT_ALONE, Cli, Watching
from .options import flag

Verb = TypeVar("Verb", bound=Callable[..., int])

#: Each verb, by the words that name it, such as ``task list`` and ``list``.
VERBS: dict[str, Callable[..., int]] = {}
_SHARED_HELP: Final = """
zkmq VERB --help tells of a verb. Those of the groups have short names, too:
zkmq enqueue is zkmq task enqueue.

exit codes:
0  ok
1  the operation was refused: no such task, claim lost, state does not allow it, …
2  usage or bad input
3  nothing to claim
4  timed out
5  a task that was waited for, or one of a batch, ended dead or cancelled
6  no connection to ZooKeeper
7  fsck has found damage that it has not repaired
8  a mistake of zkmq itself: -v shows where

durations:  seconds (90), units (5m, 1h30m, 250ms) or ISO 8601 (PT1H30M)
moments:  ISO 8601 with a zone (2026-11-22T10:31:05Z, "2026-11-22 11:31:05+01:00")
"""
_CONTEXT: Final = {"help_option_names": ["-h", "--help"]}
#: The verbs of each group, of none under "", by their words.
_APPS: Final = defaultdict[str, dict[str, typer.Typer]](dict)


class _Commands(dict[str, Any]):
    """Verbs by their words, each made when it is asked for: all of them take a worker two and a half megabytes."""

    def get(self, word: str, default: Any = None) -> Any:
        """The verb, or a group of them."""
        found = super().get(word, default)
        return typer.main.get_command(found) if isinstance(found, typer.Typer) else found


class Group(TyperGroup):
    """A group of verbs, which are those declared for its name."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands(_APPS[self.name or ""] | dict(self.commands))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb that the first word names; where `dead` has none that comes close, the word is a queue to list."""
        listed = self.name == "dead" and not get_close_matches(args[0], self.commands)
        return super().resolve_command(ctx, ["list", *args] if listed else args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help; that of all verbs ends with what they share, whose lines not every Typer would keep."""
        super().format_help(ctx, formatter)
        if not self.name:
            print(_SHARED_HELP, end="")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"zkmq {__version__}")
        raise typer.Exit


@dataclass(repr=False)
class _Shared(Cli):
    """The options of a group: those of each verb, whose help has them, and one of its own."""

    version: bool = flag("--version", "say which version this is", callback=_show_version)


def _declare(function: Callable[..., Any], parameters: dict[str, inspect.Parameter]) -> Callable[..., Any]:
    """Have Typer read these parameters, and not those of the function, which takes any."""
    named = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters.values()]
    function.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    return function


def _group(text: str) -> typer.Typer:
    """A group of verbs, which takes the common options, too."""
    group = typer.Typer(
        cls=Group,
        help=text,
        context_settings=_CONTEXT,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        subcommand_metavar="VERB …",
    )
    shared = dict(inspect.signature(_Shared, eval_str=True).parameters)
    for name, each in shared.items():
        shared[name] = each.replace(default=copy(each.default))
        shared[name].default.hidden = name != "version"
    group.callback()(_declare(lambda **_: None, shared))
    return group


ROOT: Final = _group("A durable task queue on Apache ZooKeeper.")
GROUPS: Final = {
    "queue": _group("Create, configure, pause, clean, check and delete queues."),
    "task": _group("Enqueue tasks, look at them, wait for them; claim and settle them."),
    "dead": _group("Look at dead letters, put them back, drop them, edit them in a file."),
}
for _name, _app in GROUPS.items():
    ROOT.add_typer(_app, name=_name, rich_help_panel="Groups of verbs")


def verb(*names: str, example: str) -> Callable[[Verb], Verb]:
    """Make a function a verb by each of the names, such as ``task list`` and ``list``; help shows the first alone.

    Its first parameter is an `Output`, such as a `Cli`, the others are its operands and options. A parameter whose type
    is a dataclass stands for the fields of that, each an option. The docstring is the help, which `example`, a command
    line, ends. A verb of a `Watching` one is carried out again and again where ``--watch`` says so.
    """

    def register(function: Verb) -> Verb:
        own = dict(inspect.signature(function, eval_str=True).parameters)
        first, *others = own.values()
        taken: dict[str, inspect.Parameter] = {}
        fields: dict[str, Any] = {}
        for each in (*others, first):
            whole = is_dataclass(each.annotation)
            fields[each.name] = inspect.signature(each.annotation, eval_str=True).parameters if whole else {}
            taken |= fields[each.name] or {each.name: each}
        if "timeout" in own and "connect_timeout" in taken:
            taken["connect_timeout"] = taken["connect_timeout"].replace(default=CONNECT_TIMEOUT_ALONE)

        def call(ctx: typer.Context, **values: Any) -> int:
            def given(each: inspect.Parameter) -> Any:
                whole = fields[each.name]
                return each.annotation(**{name: values[name] for name in whole}) if whole else values[each.name]

            with closing(first.annotation.of(ctx)) as cli:
                code = function(cli, *map(given, others))
                while isinstance(cli, Watching) and cli.watch:
                    cli.pause()
                    code = function(cli, *map(given, others))
                return code

        _declare(call, {"ctx": inspect.signature(call, eval_str=True).parameters["ctx"], **taken})
        call.__doc__ = function.__doc__
        for name in names:
            group, _, word = name.rpartition(" ")
            VERBS[name] = function
            app = _APPS[group][word] = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            app.command(
                word,
                epilog=f"Example: {example}",
                hidden=not group and name != names[0],
                context_settings=_CONTEXT,
                rich_help_panel=None if group else "Verbs",
            )(call)
        return function

    return register
