"""The reference of `zkmq`, written from its verbs: ``python -m tests.house.command_line --write``.

Each verb is there with its words, its options and an example; the options that all verbs share stand once.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import typer

from airflow_provider_zkmq.cli.output import PANEL
from airflow_provider_zkmq.cli.verbs import GROUPS, ROOT
from tests.house.package import TOP
from tests.verbs import VERBS

PAGE = TOP / "docs" / "reference" / "command-line.md"
HEAD = """# The verbs of zkmq

Every verb with its options and an example, as `zkmq VERB --help` has them. [The command line](../command-line.md)
says how they work together, what exit codes mean, and what answers look like.

Verbs of the groups `queue`, `task` and `dead` have short names, too: `zkmq enqueue` is `zkmq task enqueue`. Durations
are seconds (`90`), units (`1h30m`, `250ms`) or ISO 8601 (`PT1H30M`); moments are ISO 8601 with a zone. Numbers in
parentheses are defaults. `airflow zkmq` takes the same verbs.
"""
SHARED = """## Options of every verb

They stand before or after the verb. A few verbs, such as `server`, connect to nothing and have `--json` and `-v` alone.
"""
#: How the help names the panels of options that verbs share.
BEFORE_OR_AFTER = PANEL.partition(" (")[2]


def verbs() -> Iterator[tuple[str, Any]]:
    """Each verb by its whole name, as Typer has made it: those of no group first, none by its short name."""
    root = typer.main.get_command(ROOT)
    alone = [name for name in root.commands if name not in GROUPS and not root.commands.get(name).hidden]
    yield from ((name, root.commands.get(name)) for name in sorted(alone))
    for group in GROUPS:
        inside = root.commands.get(group).commands
        yield from ((f"{group} {name}", inside.get(name)) for name in sorted(inside))


def is_shared(parameter: Any) -> bool:
    """Whether an option stands before or after any verb."""
    return str(getattr(parameter, "rich_help_panel", "")).endswith(BEFORE_OR_AFTER)


def choices(verb: Any, name: str) -> str:
    """The words that an option takes, where it takes no others."""
    kind = inspect.signature(verb.callback).parameters[name].annotation
    words = [word for part in (kind, *get_args(kind)) if get_origin(part) is Literal for word in get_args(part)]
    return "\\|".join(map(str, words))


def rows(verb: Any, parameters: list[Any]) -> Iterator[str]:
    """A table of words and options."""
    yield from ("", "| option | meaning |", "|---|---|")
    for each in parameters:
        names = ", ".join(f"`{name}`" for name in (*each.opts, *each.secondary_opts) if name.startswith("-"))
        value = each.metavar or ("" if each.is_flag else choices(verb, each.name))
        text = (each.help or ("the queue's name" if "QUEUE" in value else "")).replace("|", "\\|")
        many = " (may be repeated)" if getattr(each, "multiple", False) else ""
        yield f"| {names or f'`{value}`'}{f' `{value}`' if names and value else ''} | {text}{many} |"
    yield ""


def section(name: str, verb: Any) -> Iterator[str]:
    """What the page has of one verb."""
    group, _, word = name.rpartition(" ")
    short = group and word in VERBS and VERBS[word] is VERBS[name]
    yield from (f"### zkmq {name}", "", " ".join((verb.help or "").split()))
    if short:
        yield from ("", f"Short: `zkmq {word}`.")
    if own := [each for each in verb.params if not is_shared(each)]:
        yield from rows(verb, own)
    yield from ("", "```sh", verb.epilog.removeprefix("Example: "), "```", "")


def reference() -> str:
    """The page."""
    lines, group = [HEAD], None
    for name, verb in verbs():
        if group != (group := name.rpartition(" ")[0]):
            lines += (
                [f"## zkmq {group}", "", str(GROUPS[group].info.help), ""] if group else ["## Verbs of no group", ""]
            )
        lines += section(name, verb)
    status = dict(verbs())["status"]
    lines += [SHARED.rstrip(), *rows(status, [each for each in status.params if is_shared(each)])]
    text = "\n".join(lines)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text.rstrip("\n") + "\n"


def main() -> None:
    """Print the page, or write it."""
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(reference(), encoding="utf-8")
    else:
        sys.stdout.write(reference())


if __name__ == "__main__":
    main()
