"""How a function becomes a verb of ``zkmq``: its names, its group, and the options that all verbs share."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from copy import copy
from difflib import get_close_matches
from typing import Any, Final, TypeVar

import typer
from typer.core import TyperGroup

from .. import __version__
from ..inspection.selection import Selection
from .connection import Cli
from .options import COMMON, CONNECT_TIMEOUT_ALONE, UsageError, flag, span
from .selection import SELECTION

Verb = TypeVar("Verb", bound=Callable[..., int])

#: Each verb, by the words that name it, such as ``task list`` and ``list``.
VERBS: dict[str, Callable[..., int]] = {}
_EPILOG: Final = """\
zkmq VERB --help tells of a verb. Those of the groups have short names, too: zkmq enqueue is zkmq task enqueue.

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

Errors are one line on standard error; with --json also {"error": …, "message": …} on standard output.
docs/command-line.md tells what each verb answers with --json.
"""
_CONTEXT: Final = {"help_option_names": ["-h", "--help"]}
_CLEAR: Final = "\x1b[H\x1b[2J"
_KEYWORD: Final = inspect.Parameter.KEYWORD_ONLY


def _escaped(text: str) -> str:
    """A text in which Rich takes nothing for markup. Its own function would cost a worker two megabytes."""
    return text.replace("[", "\\[")


class Group(TyperGroup):
    """Verbs by their names. A mistyped one is refused with those that come close."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb that the words begin with. Raises `UsageError`."""
        word = args[0]
        if self.get_command(ctx, word) is None and not ctx.resilient_parsing:
            close = get_close_matches(word, self.commands, 1) or [name for name in VERBS if name.split()[-1] == word]
            hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
            raise UsageError(f"there is no verb {word!r}{hint} (see {ctx.command_path} --help)")
        return super().resolve_command(ctx, args)


def _declare(function: Callable[..., Any], parameters: Iterable[inspect.Parameter]) -> Callable[..., Any]:
    """Have Typer read these parameters, and not those of the function, which takes any."""
    named = [each.replace(kind=_KEYWORD) for each in parameters]
    function.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    function.__annotations__ = {each.name: each.annotation for each in named}
    return function


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"zkmq {__version__}")
        raise typer.Exit


def _group(text: str, epilog: str | None = None, *, own: Iterable[inspect.Parameter] = (), **more: Any) -> typer.Typer:
    """A group of verbs, which takes the common options, too."""
    group = typer.Typer(
        cls=Group,
        help=text,
        epilog=epilog,
        context_settings=_CONTEXT,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        subcommand_metavar="VERB …",
        **more,
    )
    hidden = [each.replace(default=copy(each.default)) for each in COMMON.values()]
    for each in hidden:
        each.default.hidden = True  # the help of each verb has them
    group.callback()(_declare(lambda **_: None, [*own, *hidden]))
    return group


def _parameter(name: str, kind: type, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, _KEYWORD, default=default, annotation=kind)


_VERSION: Final = flag("--version", "say which version this is", callback=_show_version, is_eager=True)
_WATCH: Final = (
    _parameter("watch", bool, flag("--watch", "again and again; in a pipe one answer after the other")),
    _parameter("interval", float, span("with --watch: how long between two answers (2s)", 2.0)),
)
ROOT: Final = _group(
    "A durable task queue on Apache ZooKeeper.", _escaped(_EPILOG), own=[_parameter("version", bool, _VERSION)]
)
GROUPS: Final = {
    "queue": _group("Create, configure, pause, clean, check and delete queues."),
    "task": _group("Enqueue tasks, look at them, wait for them; claim and settle them."),
    "dead": _group("Look at dead letters, put them back, drop them, edit them in a file."),
}
for _name, _app in GROUPS.items():
    ROOT.add_typer(_app, name=_name, rich_help_panel="Groups of verbs")


def verb(*names: str, example: str, connects: bool = True, watched: bool = False) -> Callable[[Verb], Verb]:
    """Make a function a verb by each of the names, such as ``task list`` and ``list``; help shows the first alone.

    Its first parameter is a `Cli`, by the common options; the others are its operands and options, or a `Selection` of
    tasks. Its docstring is the help, which `example`, a command line, ends. Unless it `connects`, of the common options
    it takes ``--json`` and ``-v`` alone. `watched`: ``--watch`` carries it out again and again.
    """

    def register(function: Verb) -> Verb:
        _, *own = inspect.signature(function, eval_str=True).parameters.values()
        shared = {name: each for name, each in COMMON.items() if connects or name in {"json", "verbose"}}
        if any(each.name == "timeout" for each in own):
            shared["connect_timeout"] = shared["connect_timeout"].replace(default=CONNECT_TIMEOUT_ALONE)
        taken: list[inspect.Parameter] = []
        for each in own:
            taken += SELECTION.values() if each.annotation is Selection else [each]
            shared.pop(each.name, None)
        taken += _WATCH if watched else ()

        def call(ctx: typer.Context, **values: Any) -> int:
            def given(each: inspect.Parameter) -> Any:
                whole = each.annotation is Selection
                return Selection(**{name: values[name] for name in SELECTION}) if whole else values[each.name]

            with closing(Cli.of(ctx)) as cli:
                while True:
                    code = function(cli, **{each.name: given(each) for each in own})
                    if not (watched and values["watch"]):
                        return code
                    time.sleep(values["interval"])
                    if sys.stdout.isatty():
                        print(_CLEAR, end="")

        _declare(call, [_parameter("ctx", typer.Context, inspect.Parameter.empty), *taken, *shared.values()])
        call.__doc__ = function.__doc__
        for name in names:
            group, _, word = name.rpartition(" ")
            VERBS[name] = function
            (GROUPS[group] if group else ROOT).command(
                word,
                epilog=f"Example: {_escaped(example)}",
                hidden=not group and name != names[0],
                context_settings=_CONTEXT,
                rich_help_panel=None if group else "Verbs",
            )(call)
        return function

    return register
