"""The methods of both APIs, written from the procedures that they carry out: ``python -m tests.house.methods``.

A method has its procedure's parameters (less what the API provides), documentation and result. A new one is a name in
the table below; for one whose procedure has changed there is nothing to do but to write the modules again.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final, NamedTuple

from airflow_provider_zkmq.engine.api import transaction_procedures
from airflow_provider_zkmq.engine.core.claim import claim, claim_iterator, wait_until_ready
from airflow_provider_zkmq.engine.core.maintenance import collect, consumer_registry, due_work, fsck
from airflow_provider_zkmq.engine.core.read import (
    columnar_read,
    completion_log,
    configuration,
    overview,
    pages,
    queue_existence,
    server_clock,
    watch_tasks,
)
from airflow_provider_zkmq.engine.core.read import inspect as read
from airflow_provider_zkmq.engine.core.tasks import admin, batches, enqueue, interventions, settle, settle_by_outcome
from tests.house.package import PACKAGE, TOP

ENGINE: Final = f"{PACKAGE}.engine"
FOLDER: Final = TOP / PACKAGE / "engine" / "api"
#: The longest line of a method's documentation, which is indented.
WIDTH: Final = 112


class Written(NamedTuple):
    """A module that has an awaited class and its blocking twin. `given`: what procedures get of the API first.

    `procedures`: by their module, with the method's name where that is another. `more`: what else the class has.
    """

    module: str
    awaited: str
    bases: str
    documentation: tuple[str, str]
    given: tuple[str, ...]
    procedures: dict[ModuleType, str]
    more: str = ""


#: What the caller of a claim gets, and what chooses it among the claims.
CLAIMING: Final = {
    "claim": ("AsyncClaim | None", "first_or_none"),
    "claim_task": ("AsyncClaim | None", "first_or_none"),
    "claim_many": ("list[AsyncClaim]", "list"),
    "claim_handle": ("AsyncClaim", "first"),
    "try_take": ("Task | None", "first_or_none"),
}
#: From these calls on, as from a claim, a client takes part in its queue's clean-up.
USING: Final = {"claims", "enqueue", "enqueue_many", "enqueue_new", "open_batch"}
#: What of the API the text below names.
OF_API: Final = {
    "bases": "ClaimBase QueueBase QueueInternalsBase TransactionBase",
    "calls": "AsyncApi AsyncClaiming SyncApi SyncClaiming first first_or_none",
    "claims": "AsyncClaim Claim",
    "claim_iterators": "AsyncClaims Claims",
    "transactions": "AsyncUnitOfWork UnitOfWork",
}
MODULES: Final = [
    Written(
        "transaction_methods", "AsyncTransactionMethods", "TransactionBase, AsyncClaiming[Task]",
        ("The calls of an `AsyncUnitOfWork`.", "The calls of a `UnitOfWork`."),
        ("self._transaction",),
        {transaction_procedures: "try_take put commit rollback settle"},
    ),
    Written(
        "claims", "AsyncClaim", "ClaimBase[AsyncUnitOfWork], AsyncApi",
        ("A task in hand; see `Claim`.",
         """A task in hand. Settle it with exactly one of `complete`, `fail`, `release` and `snooze`.

    A session-bound claim ends with its ZooKeeper session, or with its lock; a leased one at its deadline.
    """),
        ("self._context", "self._claimed"),
        {settle: "complete fail release snooze extend progress begin", settle_by_outcome: "settle=settle_by_outcome"},
    ),
    Written(
        "queue_methods", "AsyncQueueMethods", "QueueBase[AsyncUnitOfWork], AsyncClaiming[AsyncClaim]",
        ("The calls of an `AsyncQueue`.", "The calls of a `Queue`."),
        ("self._context",),
        {
            enqueue: "enqueue=enqueue_one enqueue_many=enqueue_each open_batch=open_shared seal_batch=seal",
            claim: "claim=request_claim claim_many=request_claims claim_task=request_by_id claim_handle=request_handle",
            claim_iterator: "claims=request_loop", wait_until_ready: "ready",
            read: "task=read_task tasks=list_tasks counts explain",
            watch_tasks: "wait follow", batches: "wait_batch batch=read_batch",
            configuration: "conf", consumer_registry: "consumers", queue_existence: "exists", fsck: "fsck",
            collect: "collect_garbage",
            admin: "delete configure pause resume", interventions: "redrive redrive_many cancel revoke clear drop",
        },
        '''def _receive(self, context: Context, claimed: Claimed) -> AsyncClaim:
    """The claim that a caller gets."""
    return AsyncClaim(self._session, context, claimed, self._begin)

''',
    ),
    Written(
        "internal_methods", "AsyncQueueInternals", "QueueInternalsBase, AsyncApi",
        ("The internals of an `AsyncQueue`; the names are those of `QueueInternals`.",
         "The internals of a `Queue`; each call blocks."),
        ("self._context",),
        {
            claim: "check_wanted=wanted", due_work: "run_maintenance wait_for_change",
            enqueue: "enqueue_new", watch_tasks: "find=find_matching", columnar_read: "scan", server_clock: "zxid now",
            read: "pending ids=list_ids tree=read_tree", overview: "overview activity held_claims", pages: "page",
            interventions: "replace=replace_data", admin: "publish_archive",
            completion_log: "ended_between read_ended latest_end truncated_at", configuration: "archive",
        },
    ),
]  # fmt: skip


def blocking(text: str) -> str:
    """The blocking twin of awaited text."""
    text = re.sub(r"\basync (?=def)|\bawait ", "", text)
    return re.sub(r"\bAsync(?=(?:Api|Claiming)\b)", "Sync", text).replace("Async", "")


def documentation(procedure: Callable[..., Any]) -> str:
    """A procedure's; a paragraph or an item of a list that is too wide where a method has it is filled again."""
    lines: list[str] = []
    for paragraph in inspect.cleandoc(procedure.__doc__ or "").split("\n\n"):
        if not lines and len(paragraph.splitlines()[0]) > WIDTH - 3:  # its quotes stand beside it
            raise ValueError(f"the first line of {procedure.__qualname__} is too long for a method")
        lines.append("")
        for part in re.split(r"\n(?=- )", paragraph):
            indent, words = "  " if part.startswith("- ") else "", " ".join(part.split())
            wide = any(len(line) > WIDTH for line in part.splitlines())
            filled = textwrap.fill(words, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
            lines += (filled if wide else part).splitlines()
    return "\n".join([*lines[1:], ""]) if len(lines) > 2 else lines[1]


def method(name: str, procedure: Callable[..., Any], given: tuple[str, ...]) -> str:
    """The awaited method that carries a procedure out."""
    node = ast.parse(textwrap.dedent(inspect.getsource(procedure))).body[0]
    assert isinstance(node, ast.FunctionDef)
    assert node.returns is not None
    arguments, result = node.args, re.sub(r"^Procedure\[(.*)\]$", r"\1", ast.unparse(node.returns))
    assert not arguments.posonlyargs, f"{name}: each parameter can be given by its name"
    assert arguments.vararg is None, f"{name}: a method has no such parameter"
    assert (result == "ClaimRequest") == (name in CLAIMING), f"{name}: what its caller gets of the claims is not said"
    del arguments.args[: len(given)]
    passed = [*given, *(it.arg for it in arguments.args), *(f"{it.arg}={it.arg}" for it in arguments.kwonlyargs)]
    passed += [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
    home = procedure.__module__.rpartition(".")[2]
    hidden = home in {it.arg for it in (*arguments.args, *arguments.kwonlyargs)}  # by a parameter of that name
    call = f"{'' if hidden else f'{home}.'}{procedure.__name__}({', '.join(passed)})"
    begin, body = "async def", f"return await self._carry_out({call})"
    if result == "Loop":
        begin, result = "def", "AsyncClaims[AsyncClaim]"
        body = f"return AsyncClaims(self._session, {call}, self._receive)"
    elif name in CLAIMING:
        result, choose = CLAIMING[name]
        body = f"return await self._take({call}, {choose})"
    if name in USING:
        body = f"self._used({given[0]})\n{body}"
    arguments.args.insert(0, ast.arg("self"))
    text = f'"""{documentation(procedure)}"""\n{body}'
    return f"{begin} {name}({ast.unparse(arguments)}) -> {result}:\n{textwrap.indent(text, '    ')}\n"


def origins(procedure: Callable[..., Any]) -> dict[str, str]:
    """The modules of the names that a procedure may use: what its module imports, and what that has itself."""
    home = sys.modules[procedure.__module__]
    found = dict.fromkeys(vars(home), home.__name__)
    for node in ast.parse(inspect.getsource(home)).body:
        if isinstance(node, ast.ImportFrom):
            above = home.__name__.split(".")[: -node.level] if node.level else []
            origin = ".".join([*above, *filter(None, [node.module])])
            found |= {it.asname or it.name: origin for it in node.names}
    return found


def imports(written: Written, procedures: list[Callable[..., Any]], classes: str) -> Iterator[str]:
    """An import for each module that the classes name something of."""
    known = {name: origin for each in procedures for name, origin in origins(each).items()}
    known |= {name: package for package, _, name in (each.__module__.rpartition(".") for each in procedures)}
    known |= {name: f"{ENGINE}.api.{module}" for module, names in OF_API.items() for name in names.split()}
    used = set[str]()
    for node in ast.walk(ast.parse(classes)):
        if isinstance(node, ast.ClassDef):
            used |= {it.id for base in node.bases for it in ast.walk(base) if isinstance(it, ast.Name)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = {it.id for it in ast.walk(node) if isinstance(it, ast.Name)}
            used |= names - {it.arg for it in ast.walk(node.args) if isinstance(it, ast.arg)}
    for origin in sorted({known[name] for name in used - set(vars(builtins))}):
        near = re.sub(rf"^{ENGINE}\.?", "..", origin).replace("..api.", ".")
        yield f"from {near} import {', '.join(sorted(name for name in used if known.get(name) == origin))}"


def module(written: Written) -> str:
    """A module's text, not yet formatted."""
    named = [
        (name, getattr(home, procedure or name))
        for home, words in written.procedures.items()
        for name, _, procedure in (word.partition("=") for word in words.split())
    ]
    methods = "\n".join(method(name, procedure, written.given) for name, procedure in named)
    head, body = f"class {written.awaited}({written.bases}):", textwrap.indent(written.more + methods, "    ")
    pair = zip(written.documentation, (head, blocking(head)), (body, blocking(body)), strict=True)
    classes = "\n\n".join(f'{begin}\n    """{says}"""\n\n{rest}' for says, begin, rest in pair)
    lines = "\n".join(imports(written, [procedure for _, procedure in named], classes))
    first = '"""Generated by ``python -m tests.house.methods`` from the procedures, by its tables."""'
    return f"{first}\n\nfrom __future__ import annotations\n\n{lines}\n\n\n{classes}"


def main() -> None:
    """Write the modules."""
    for written in MODULES:
        path = FOLDER / f"{written.module}.py"
        path.write_text(module(written), encoding="utf-8")
        for command in (["check", "--select", "I", "--fix"], ["format"]):
            subprocess.run([sys.executable, "-m", "ruff", *command, "--quiet", path], check=True)


if __name__ == "__main__":
    main()
