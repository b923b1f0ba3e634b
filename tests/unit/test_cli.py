"""The command line without a server: parsing, answers, exit codes, and what it does not import."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, get_args
from unittest import mock

import pytest

from airflow_provider_zkmq import environment, worker_process
from airflow_provider_zkmq.cli import connection, main, options, queues, selection
from airflow_provider_zkmq.cli.options import UsageError
from airflow_provider_zkmq.engine.core.model.settings import ORDERS
from airflow_provider_zkmq.engine.core.model.states import State, Status
from airflow_provider_zkmq.engine.core.read.inspect import Task, Znode, enqueue_transactions
from airflow_provider_zkmq.engine.errors import (
    AccessDenied,
    ClaimLost,
    ConfigError,
    DuplicateTask,
    IllegalTransition,
    OutcomeUnknown,
    TaskNotFound,
    Unavailable,
    WaitTimeout,
)
from airflow_provider_zkmq.inspection import queue_status, records, wording
from tests.verbs import VERBS

EXAMPLES = Path(__file__).parents[2] / "example_dags"


class InHand(Task):
    """A task as `Commands` gets it."""

    cancelled = lost = False


def a_task(data: bytes = b"payload") -> InHand:
    return InHand(
        id="t-1",
        state=State.CLAIMED,
        status=Status.LOCKED,
        attempt=2,
        priority=0,
        filters={},
        metadata={},
        data=data,
        result=None,
        error=None,
        consumer=None,
        enqueued_ms=1_000,
        claimed_ms=None,
        ended_ms=None,
        due_ms=None,
        history=(),
        version=7,
        progress=0.5,
        note="half",
        dedupe_ms=2_000,
        batch="b",
    )


_HELP = """
import sys
from airflow_provider_zkmq.cli import main
from tests.verbs import VERBS
heavy = {"kazoo", "airflow", "pyspark", "pyarrow", "deltalake", "pandas", "pendulum"}
ENGINE = "airflow_provider_zkmq.engine"
for argv in (["--help"], ["--version"], *([*verb.split(), "--help"] for verb in VERBS)):
    code = main.main(argv)
    imported = {name for name in sys.modules if name.split(".")[0] in heavy or name.startswith(ENGINE)}
    if code or imported:
        sys.exit(f"{argv}: code {code}, imported {imported}")
"""


def test_help_imports_nothing_heavy() -> None:
    """Help of the command and of every verb ends with 0 and imports neither the engine, kazoo, Airflow nor pyspark."""
    found = subprocess.run([sys.executable, "-c", _HELP], capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert all(f"Usage: zkmq {verb} " in found.stdout for verb in VERBS)
    assert found.stdout.count("Example: zkmq ") == len(VERBS), "a verb has no example"
    assert all(re.search(f"^ *{code}  ", found.stdout, re.MULTILINE) for code in range(8)), "a code is not documented"
    assert "\x1b" not in found.stdout, "color in a pipe"


def test_exit_codes() -> None:
    """Each family of errors has its exit code; mistakes of ours have one that nothing else has."""
    codes = {
        1: (TaskNotFound, DuplicateTask, ClaimLost, IllegalTransition, PermissionError),
        2: (ConfigError, AccessDenied, UsageError),
        4: (WaitTimeout,),
        6: (Unavailable, OutcomeUnknown),
        8: (KeyError, ValueError),
    }
    for code, kinds in codes.items():
        assert {kind: main._exit_code(kind("x")) for kind in kinds} == dict.fromkeys(kinds, code)


#: What is wrong, by its verb.
_MISUSES = {
    "": ("", "nonsense", "--hosts '' queues", "--root relative queues", "--root /a/../b queues"),
    "--auth": ("nopassword queues",),
    "queues": ("--connect-timeout 0", "--session-timeout nan"),
    "enqueue": ("", "q", "q data --lines", "q data more", "q data --unknown"),
    "enqueue q data": ("--filter novalue", "--filter a=1 --filter a=2", "--metadata {", "--metadata [1]"),
    "enqueue q --lines": ("--task-id x", "--update"),
    "enqueue q x": (
        "--then y",
        "--update",
        "--requeue",
        "--only-new",
        "--task-id a --only-new --batch b",
        "--idempotency-key k --task-id a",
        "--idempotency-key k --batch b",
        "--attempts few",
        "--attempts 0",
    ),
    "complete q t": ("", "--token abc", "--token 1 --dedupe soon"),
    "fail q t": ("--token 1 --error x --backoff 1 --no-retry",),
    "report": ("", "q", "q --all --directory /nowhere"),
    "report q --directory /nowhere": ("", "--since yesterday", "--target-wait soon", "--html /nowhere/report.html"),
    "snooze q t": ("--token 1", "--delay 1"),
    "progress q t --token 1": ("", "half"),
    "clear q": ("", "--state dead", "--state lost --yes"),
    "batch q": ("", "b --timeout 1"),
    "show q t": ("--why --watch",),
    "redrive q": ("", "t --all"),
    "list q": ("--state lost", "--limit -1"),
    "configure q": ("--filter a=colour:red", "--filter a=enum:x,x", "--order random"),
    "configure q --limit": ("by=customer", "per=1m", "by=customer,per=1m", "''", "rate=0", "rate=1,rate=2"),
    "worker q": ("", "--threads 0 --until-empty", "--exec cat --handler a:b", "--exec cat --grace -1"),
    "worker q --exec": ("''", "' \t'"),
    "worker q --exec cat": ("--transactional",),
    "worker q --handler": ("json", "no.such.module:run", "json:nothing", "json:__name__"),
    "worker q --handler json:dumps": ("--pass-credentials", "--transactional --lease 5"),
}


def test_bad_usage_is_one_line_and_code_2(capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests) -> None:
    """What is wrong with a command line is told in one line, before anything is connected to; the code is 2."""
    for line in (f"{begin} {rest}" for begin, ends in _MISUSES.items() for rest in ends):
        with subtests.test(msg=line):
            assert main.main([*shlex.split(line), "--json"]) == 2
            told = capsys.readouterr()
            assert told.err.startswith("zkmq: ")
            assert told.err.count("\n") == 1
            answer = json.loads(told.out)
            assert set(answer) == {"error", "message"}
            assert told.err == f"zkmq: {answer['message']}\n"
            assert "nopassword" not in told.err


def test_a_number_out_of_its_range_is_refused_by_the_option_s_own_name(capsys: pytest.CaptureFixture[str]) -> None:
    """And not by the name that the engine has for it; more threads than a machine takes are refused."""
    for option in (
        "--max-tasks=0",
        "--warn-size=-1",
        "--task-timeout=0",
        "--threads=-1",
        "--threads=1001",
        "--prefetch=-1",
    ):
        assert main.main(["worker", "q", "--exec", "cat", option]) == 2
        told = capsys.readouterr().err
        assert option.partition("=")[0] in told
        assert not re.search("max_size|task_timeout|limit [0-9]", told)


def test_a_limit_that_limits_nothing_is_refused_with_the_way_to_lift_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever leaves a part out does not lift the limit."""
    assert main.main(["configure", "q", "--limit", "by=customer"]) == 2
    assert "it needs concurrency= or rate=; 'none' lifts a limit" in capsys.readouterr().err


_INTERRUPTED = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, *_):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting())
from airflow_provider_zkmq.__main__ import entry
entry()
"""


def test_ctrl_c_is_silent_while_modules_are_imported() -> None:
    """No traceback, and the exit code of Ctrl-C."""
    ended = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("line", "closed", "code", "out", "err"),
    [
        ("list q", ">&-", 0, "", ""),
        ("list q", "<&- 2>&-", 0, "ID .*", ""),
        ("enqueue q -", "<&-", 0, "[0-9a-f-]+\n", ""),
        ("delete q", "<&-", 2, "", "zkmq: .* add --yes to do so\n"),
        ("status nope --json", "2>&-", 2, '{"error": .*}\n', ""),
        ("status nope", "2>&-", 2, "", ""),
        ("status nope", ">&- <&-", 2, "", "zkmq: queue 'nope' .*\n"),
    ],
)
def test_closed_standard_streams_give_no_traceback(
    tmp_path: Path, line: str, closed: str, code: int, out: str, err: str
) -> None:
    """Nothing is read from them, what is written to them is lost, and errors are not on standard output instead."""
    hosts = f"textqueue://{tmp_path}"
    assert main.main(["queue", "create", "q", "--hosts", hosts]) == 0
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "airflow_provider_zkmq"]
    ended = subprocess.run([*command, *line.split(), "--hosts", hosts], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr[:400]) == (code, ended.stderr)
    assert re.fullmatch(out, ended.stdout, re.DOTALL)
    assert re.fullmatch(err, ended.stderr)


def test_without_a_word_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The same as by --help."""
    told = [(main.main(words), capsys.readouterr()) for words in ([], ["--help"])]
    assert told[0] == told[1]
    assert "Usage: zkmq " in told[0][1].out


def test_a_queue_that_is_missing_is_told_with_the_verb_that_creates_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one sentence, which names no method of Python; an enqueue has an option of its own."""
    hosts = ["--hosts", f"textqueue://{tmp_path}"]
    told = f"zkmq: queue 'missing' does not exist in {tmp_path}: zkmq queue create missing"
    for line, more in (("enqueue missing x", ", or --create"), ("list missing", ""), ("dead missing", "")):
        assert main.main([*line.split(), *hosts]) == 2
        assert capsys.readouterr().err == f"{told}{more}\n"


def test_dead_with_the_name_of_a_queue_lists_its_dead_letters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the word comes close to a verb of the group, it is a mistyped verb."""
    hosts = ["--hosts", f"textqueue://{tmp_path}"]
    assert main.main(["queue", "create", "orders", *hosts]) == 0
    capsys.readouterr()
    told = [
        (main.main([*line.split(), "--json", *hosts]), capsys.readouterr())
        for line in ("dead orders", "dead list orders")
    ]
    assert told[0] == told[1]
    assert json.loads(told[0][1].out) == {"queue": "orders", "groups": []}
    assert main.main(["dead", "lst", "orders"]) == 2
    assert "Did you mean 'list'?" in capsys.readouterr().err


def test_a_report_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    """No archive, no `deltalake` or Jinja2, a folder for the page: one line, and code 2; PySpark is not imported."""
    for absent, given, told in (
        ("", [], "is no folder: give the directory of the archive"),
        ("deltalake", [], "this needs deltalake: pip install 'airflow-provider-zkmq[spark]'"),
        ("jinja2", ["--html", "x.html"], "this needs jinja2: pip install "),
        ("", ["--html", "."], "cannot be written: it is a folder"),
    ):
        with subtests.test(msg=told), monkeypatch.context() as patch:
            patch.delitem(sys.modules, "pyspark", raising=False)
            for imported in ("history", "spark.reporting.rendering") if absent else ():  # as in a process that is new
                patch.delitem(sys.modules, f"airflow_provider_zkmq.{imported}", raising=False)
            if absent:
                patch.setitem(sys.modules, absent, None)
            assert main.main(["report", "q", *given, "--directory", "/nowhere"]) == 2
            assert sys.modules.get("pyspark") is None, "it was imported"
            said = capsys.readouterr()
            assert (said.out, said.err.count("\n"), told in said.err) == ("", 1, True)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[..., connection.Cli]:
    """What a command line and the environment, of which the test knows all, say of the connection and the answer."""
    for name in ("ZKMQ_HOSTS", "ZKMQ_ROOT", "ZKMQ_AUTH"):
        monkeypatch.delenv(name, raising=False)
    seen: list[connection.Cli] = []

    def client(cli: connection.Cli, **_: object) -> NoReturn:
        seen.append(cli)
        raise KeyboardInterrupt

    def read(*argv: str) -> connection.Cli:
        assert main.main(argv) == main.INTERRUPTED
        return seen[-1]

    monkeypatch.setattr(connection.Cli, "client", client)
    return read


def test_common_options_stand_before_or_after_the_verb(
    read: Callable[..., connection.Cli], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All places work, the later one wins, and all win over the environment, which wins over the defaults.

    No log or traceback shows the password that is among them.
    """
    bare = read("queues")
    assert (bare.hosts, bare.root, bool(bare.json)) == ("127.0.0.1:2181", "/zkmq", False)
    assert (bare.connect_timeout, bare.hosts_given) == (None, False)
    given = ("auth", "tls", "allow_open", "session_timeout", "request_timeout")
    assert bare.options == dict.fromkeys(given)
    monkeypatch.setenv("ZKMQ_HOSTS", "env:1")
    monkeypatch.setenv("ZKMQ_AUTH", "u:p")
    assert (read("queues").hosts, read("queues").options["auth"]) == ("env:1", "u:p")
    assert "u:p" not in repr(read("queues"))
    assert read("--hosts", "before:1", "queues").hosts == "before:1"
    assert read("--hosts", "before:1", "queues", "--hosts", "after:1").hosts == "after:1"
    assert read("--hosts", "first:1", "queue", "--hosts", "second:1", "list").hosts == "second:1"
    assert read("queue", "--hosts", "second:1", "list", "--hosts", "third:1").hosts == "third:1"
    assert all(read(*line.split()).json for line in ("--json queues", "queues --json", "queue --json list"))
    assert read("queues", "--connect-timeout", "2.5").connect_timeout == 2.5
    assert read("queues", "--timeout", "2m").connect_timeout == 120
    assert read("--timeout", "3", "wait", "q", "t", "--timeout", "9").connect_timeout == 3
    assert read("wait", "q", "t", "--timeout", "9", "--connect-timeout", "4").connect_timeout == 4
    opened = read("--allow-open", "queues", "--tls").options
    assert opened.items() >= {"tls": True, "allow_open": True}.items()


def test_a_server_answers_in_json_wherever_it_is_told_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before and after its verb; of the options of a connection it takes none."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise PermissionError("no server here")

    monkeypatch.setattr("airflow_provider_zkmq.embedded.EmbeddedServer", fail)
    for argv in (["--json", "server"], ["server", "--json"]):
        assert main.main(argv) == 1
        assert json.loads(capsys.readouterr().out)["message"] == "no server here"
    assert main.main(["server", "--hosts", "h:1"]) == 2


def test_what_the_environment_says_of_servers_is_not_about_files(
    read: Callable[..., connection.Cli], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has a root and credentials there may use queue files beside ZooKeeper; on the line they are refused."""
    for name, value in {"ZKMQ_HOSTS": "env:1", "ZKMQ_ROOT": "/env", "ZKMQ_AUTH": "u:p"}.items():
        monkeypatch.setenv(name, value)
    seen = read("queues", "--hosts", "textqueue:///queues")
    assert (seen.hosts, seen.root, seen.options["auth"]) == ("textqueue:///queues", environment.DEFAULT_ROOT, None)
    assert read("queues", "--hosts", "textqueue:///queues", "--root", "/mine").root == "/mine"


def test_examples_are_named_and_copied_and_replace_nothing(tmp_path, capsys) -> None:
    """What is copied is what the repository has; a mistyped name and a file that is there are refused, before any."""
    to = tmp_path / "dags"
    assert main.main(["examples", "--to", str(to), "zkmq_events", "zkmq_maintenance"]) == 0
    assert capsys.readouterr().out.split() == [str(to / "zkmq_events.py"), str(to / "zkmq_maintenance.py")]
    assert (to / "zkmq_events.py").read_bytes() == (EXAMPLES / "zkmq_events.py").read_bytes()
    assert main.main(["examples", "--json"]) == 0
    known = {each["name"]: each["about"] for each in json.loads(capsys.readouterr().out)["examples"]}
    assert set(known) == {path.stem for path in EXAMPLES.glob("*.py")} - {"demo"}
    assert all(known.values())
    for names, why in (("zkmq_flights zkmq_events", "zkmq_events.py is there already"), ("zkmq_event", "no example")):
        assert main.main(["examples", "--to", str(to), *names.split()]) == 2
        assert why in capsys.readouterr().err
    assert len(list(to.iterdir())) == 2


def test_names_are_the_engines() -> None:
    """The constants copied to keep the help fast are those of the engine."""
    assert (tuple(State), ORDERS) == (options.STATES, get_args(queues.Order))
    assert {*get_args(selection.Status), "dead", "cancelled"} == set(Status)


def test_operands_may_stand_after_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of data, tasks and options does not matter, and `-` for standard input is no option."""
    hosts = ["--hosts", f"textqueue://{tmp_path}"]

    def ask(*argv: str) -> Any:
        assert main.main([*hosts, *argv, "--json"]) in {0, 1}
        return json.loads(capsys.readouterr().out)

    ask("configure", "q", "--filter", "a=string")
    for line in ("enqueue q word --filter a=b", "enqueue q --filter a=b word", "enqueue --filter a=b q word"):
        task_id = ask(*line.split())["id"]
        shown = ask("show", "q", task_id)
        assert (shown["data"], shown["filters"]) == ("word", {"a": "b"})
    assert main.main([*hosts, "enqueue", "q", "--json", "--filter", "a=b", "--", "-x"]) == 0
    assert ask("show", "q", json.loads(capsys.readouterr().out)["id"])["data"] == "-x"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"piped")))
    assert ask("show", "q", ask("enqueue", "q", "--filter", "a=b", "-")["id"])["data"] == "piped"
    fake = mock.MagicMock()
    fake.queue.return_value.name = "q"
    fake.queue.return_value.redrive_many.return_value = {}
    fake.queue.return_value.wait.return_value = []
    monkeypatch.setattr(connection.Cli, "client", lambda *_, **__: fake)
    assert ask("redrive", "q", "--json", "a", "b")["redriven"] == ["a", "b"]
    ask("wait", "q", "--timeout", "1", "a", "b")
    assert fake.queue.return_value.wait.call_args.args[0] == ["a", "b"]


def test_bytes_that_are_no_text_come_as_base64() -> None:
    """JSON answers carry text where the bytes are text, and base64 under another name where they are not."""
    assert records.payload("data", "grüße".encode()) == {"data": "grüße"}
    assert records.payload("data", b"\xff\x00") == {"data_base64": "/wA="}
    assert records.payload("result", None) == {"result": None}
    assert wording.table([{"data_base64": "/w=="}, {"data": "x"}, {}], "data") == "DATA\nbase64:/w==\nx\n-"
    assert records.record(a_task(b"\xff"))["data_base64"] == "/w=="
    assert json.loads(json.dumps(records.record(a_task())))["data"] == "payload"


def test_a_task_is_shown_with_its_progress_batch_and_window() -> None:
    """JSON has the values as they are; people get a percentage and a time; what a task lacks is left out for them."""
    known = records.record(a_task())
    assert known.items() >= {"progress": 0.5, "note": "half", "batch": "b", "error": None}.items()
    plain = wording.facts(known)
    for line in (
        r"progress +50%",
        r"note +half",
        r"batch +b",
        r"dedupe until +ended 1970-01-01 00:00:02 UTC, \d+ d ago",
    ):
        assert re.search(f"^{line}$", plain, re.MULTILINE), line
    times = [known[name] for name in ("enqueued_at", "dedupe_until", "claimed_at")]
    assert times == ["1970-01-01T00:00:01.000+00:00", "1970-01-01T00:00:02.000+00:00", None]
    assert not [name for name in known if name.endswith("_ms")], "one name for one fact"
    bare = dataclasses.replace(a_task(), progress=None, note="", batch=None, dedupe_ms=None)
    assert not {"progress", "note", "batch", "dedupe"} & set(wording.facts(records.record(bare)).split())


def test_an_age_is_told_in_its_largest_unit() -> None:
    """How long ago, or in how long."""
    told = {0.4: "now", -0.4: "now", 59.9: "59 s ago", 300: "5 min ago", -5_400: "in 1 h", 86_399: "23 h ago"}
    told[86_400 * 20_000] = "20000 d ago"
    assert {seconds: wording.age(seconds) for seconds in told} == told


def test_a_damaged_time_does_not_keep_a_task_from_being_shown() -> None:
    """What is no time of a calendar is none."""
    for milliseconds in (10**15, -(10**15), 10**400):
        broken = dataclasses.replace(a_task(), due_ms=milliseconds)
        assert records.record(broken)["due_at"] is None
        assert "due" not in wording.facts(records.record(broken))


def test_tables_are_aligned_and_keep_control_characters_off_the_terminal() -> None:
    """Columns line up; an escape sequence or a line end in a value is printed as its escape."""
    assert wording.table([{"x": "a", "y": 1}, {"x": "long", "y": None}], "x y") == "X     Y\na     1\nlong  -"
    assert "\x1b" not in wording.table([{"x": "\x1b[31m\n"}], "x")
    assert wording.table([{"x": "\x1b[31m\n"}], "x").count("\n") == 1
    assert (wording.table([], "x y_at"), wording.facts({})) == ("X  Y", "")


def test_a_long_error_is_cut_in_a_table_alone() -> None:
    """At 200 characters; the facts of one task have all of it."""
    row = {"error": "x" * 4000}
    assert wording.table([row], "error") == f"ERROR\n{'x' * 199}…"
    assert wording.facts(row) == f"error  {'x' * 4000}"


def test_what_was_measured_is_told_in_whole_seconds_and_what_was_set_as_it_is() -> None:
    """Below a second in milliseconds; nobody reads more."""
    spans = {3.089: "3s", 625.288: "10m25s", 0.5: "500ms"}
    assert {span: wording.words("idle", span) for span in spans} == spans
    assert wording.words("min_backoff", 1.5) == "1s500ms"


def test_a_task_that_is_due_is_due_now() -> None:
    """Not some time ago; one that is not is due in so long."""
    status = {"queue": "q", "troubles": [], "counts": {"inserted": 1, "scheduled": 0}, "oldest_at": None}
    for due, told in (("2020-01-01T00:00:00+00:00", "now"), ("2999-01-01T00:00:00+00:00", r"in \d+ d")):
        assert re.search(f"  {told}$", queue_status.overview_page([status | {"next_due_at": due}]))


def test_people_read_words() -> None:
    """Durations, parts, flags, lists and mappings."""
    spoken = {"lease": 5400.0, "progress": 0.5, "paused": True, "ids": ["a", "b"], "filters": {"a": "1"}, "note": None}
    assert [wording.words(name, value) for name, value in spoken.items()] == ["1h30m", "50%", "yes", "a b", "a=1", "-"]


def test_enqueue_transactions_count_what_enqueue_wrote() -> None:
    """A claim, a result and a run in escrow come later and do not count; other znodes of another transaction do."""
    tree = [Znode(f"/r/q/tasks/t{part}", 0, 5, 5) for part in ("", "/data", "/metadata", "/filters", "/filters/claim")]
    tree += [Znode("/r/q/tasks/t/state", 9, 5, 11), Znode("/r/q/tasks/t/claim", 0, 8, 8)]
    later = [Znode(f"/r/q/tasks/t/{part}", 0, 9, 9) for part in ("result", "requeue")]
    assert enqueue_transactions([*tree, *later]) == 1
    torn = dataclasses.replace(tree[4], czxid=6)
    assert enqueue_transactions([*tree[:4], torn, *tree[5:]]) == 2


def test_handlers_are_loaded_by_name() -> None:
    """`module:function` names a function, also inside a class."""
    assert worker_process.load("json:dumps") is json.dumps
    assert worker_process.load("airflow_provider_zkmq.cli.connection:Cli.client") is connection.Cli.client


def test_what_a_worker_is_told_is_what_the_engine_s_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks and leases as the engine keeps them; by default heartbeats, and claims ahead while handlers are fast."""
    fake = mock.MagicMock()
    fake.queue.return_value.worker.return_value = mock.MagicMock(finished=0, failed=0)
    monkeypatch.setattr(connection.Cli, "client", lambda *_, **__: fake)
    monkeypatch.setattr("airflow_provider_zkmq.worker_logs.set_up", lambda **_: None)

    def given(line: str) -> dict[str, Any]:
        assert main.main(["worker", "q", "--exec", "cat", *line.split()]) == 0
        found = fake.queue.return_value.worker.call_args.kwargs
        return {name: value for name, value in found.items() if name not in {"node", "filter_method", "selector"}}

    plain = given("")
    assert plain.pop("grace") > 30
    assert plain == {
        "threads": 1,
        "lease": None,
        "heartbeat": True,
        "throttle": 0.0,
        "prefetch": 32,
        "transactional": False,
        "limit": None,
    }
    told = given("--threads 2 --lease 10m --no-heartbeat --throttle 10ms --prefetch 0 --warn-size 5 --grace 0")
    assert told.pop("monitor") is not None
    assert told.pop("grace") < 30
    changed = {"threads": 2, "lease": 600, "heartbeat": False, "throttle": 0.01, "prefetch": 0}
    assert told == {**changed, "transactional": False, "limit": None}


def test_a_mistyped_verb_is_refused_with_those_that_come_close(capsys: pytest.CaptureFixture[str]) -> None:
    """In its group; a group without a verb is refused, too."""
    for line, hint in (
        ("enqeue q x", "No such command 'enqeue'. Did you mean 'enqueue', 'queue', 'queues'? (see zkmq --help)"),
        ("queue crate q", "No such command 'crate'. Did you mean 'create'? (see zkmq queue --help)"),
        ("xyz", "No such command 'xyz' (see zkmq --help)"),
        ("queue", "Missing command (see zkmq queue --help)"),
        ("list q --limt 3", "No such option: --limt (Possible options: --limit, --timeout) (see zkmq list --help)"),
        ("list", "Missing argument 'QUEUE' (see zkmq list --help)"),
        ("list q --prio x", "No such option: --prio (Possible options: --error, --root) (see zkmq list --help)"),
        ("fsck q --repair --dry-run", "--dry-run is not allowed with --repair"),
        ("task release q t", "one of --token and --force is required"),
    ):
        assert main.main(line.split()) == 2
        assert capsys.readouterr().err == f"zkmq: {hint}\n"


def test_each_flat_verb_is_one_of_a_group() -> None:
    """Both names are of one function, so that neither can differ."""
    for name in (
        "task enqueue",
        "task list",
        "queue pause",
        "dead redrive",
        "dead export",
        "queue fsck",
        "queue status",
    ):
        assert VERBS[name] is VERBS[name.split()[1]]
    assert VERBS["queue list"] is VERBS["queues"]
    assert VERBS["queue create"] is VERBS["queue configure"] is VERBS["configure"]


def shell(tmp_path: Path, line: str) -> list[str]:
    """What bash would offer for the last word of a line; the queue `orders` is there."""
    hosts = f"textqueue://{tmp_path}"
    env = os.environ | {"ZKMQ_HOSTS": hosts, "_ZKMQ_COMPLETE": "complete_bash", "COMP_WORDS": line}
    env["COMP_CWORD"] = str(len(line.split(" ")) - 1)
    command = [sys.executable, "-m", "airflow_provider_zkmq"]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60).stdout.split()


def test_the_shell_completes_verbs_states_and_names_of_queues(tmp_path: Path) -> None:
    """A queue's name is read from the servers; where nobody answers there is nothing to complete, and no error."""
    assert main.main(["queue", "create", "orders", "--hosts", f"textqueue://{tmp_path}"]) == 0
    assert shell(tmp_path, "zkmq task sh") == ["show"]
    assert shell(tmp_path, "zkmq status o") == ["orders"]
    assert shell(tmp_path, "zkmq list orders --state qu") == ["queued", "queued-with-backoff"]
    assert shell(tmp_path, "zkmq status --hosts 127.0.0.1:1 o") == []


@pytest.mark.parametrize(("no_color", "styled"), [("", True), ("1", False)])
def test_color_is_on_a_terminal_alone_and_names_are_no_markup(tmp_path: Path, no_color: str, styled: bool) -> None:
    """The same text as in a pipe, but for the escapes of its style; what a task holds is neither markup nor escape."""
    hosts = ["--hosts", f"textqueue://{tmp_path}"]
    assert main.main(["enqueue", "q", "[red]x[/red]" + "y" * 300, "--create", *hosts]) == 0
    assert main.main(["enqueue", "q", "\x1b[31mevil\x07", *hosts]) == 0
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"}
    env |= {"NO_COLOR": no_color} if no_color else {}
    for verb in (["list", "q"], ["status"]):
        command = [sys.executable, "-m", "airflow_provider_zkmq", *verb, *hosts]
        ours, theirs = pty.openpty()
        subprocess.run(command, env=env, stdout=theirs, check=True, timeout=60)
        os.close(theirs)
        told = os.read(ours, 100_000).decode()
        os.close(ours)
        assert ("\x1b[1m" in told, "\x07" in told, "evil\x1b" in told) == (styled, False, False)
        piped = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60).stdout
        assert "\x1b" not in piped
        if verb == ["status"]:
            colorless = re.sub("\x1b\\[[0-9;]*m|\r", "", told)
            ours_said, theirs_said = (re.sub(r"\d+ s ago", "", text).split() for text in (colorless, piped))
            assert ours_said == theirs_said, "but for the time between, and the columns that it widens"
        else:
            assert "[red]x[/red]yyy" in told
            assert max(map(len, piped.splitlines())) > 100


def test_an_error_shows_no_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names that the user types come back in messages, each control character as its escape."""
    assert main.main(["status", "\x1b[31m\n", "--hosts", f"textqueue://{tmp_path}"]) == 2
    assert main.main(["\x1b[31mlist"]) == 2
    assert main.main(["list", "q", "--\x1b[31m"]) == 2
    told = capsys.readouterr().err
    assert ("\x1b" in told, told.count("\n")) == (False, 3)


def test_a_mistake_of_ours_is_a_sentence_and_its_traceback_is_for_who_asks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With -v, before or after the verb; the code is one that nothing else has."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise KeyError("x")

    monkeypatch.setattr(connection.Cli, "client", fail)
    sentence = "zkmq: this is a mistake of zkmq itself (KeyError: 'x'); -v shows where\n"
    assert (main.main(["queues"]), capsys.readouterr().err) == (8, sentence)
    for words in (["-v", "queues"], ["queue", "list", "--verbose"]):
        assert main.main(words) == 8
        told = capsys.readouterr().err
        assert (told.startswith("Traceback"), told.endswith(sentence)) == (True, True)
    assert main.main(["enqueue", "q", "--", "-v"]) == 8
    assert capsys.readouterr().err == sentence
