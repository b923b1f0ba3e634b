"""The command line without a server: parsing, answers, exit codes, and what it does not import."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zkmq.cli import commands, configuration, guard, options, output, show, times, worker
from airflow_provider_zkmq.cli import main as cli
from airflow_provider_zkmq.cli.commands import CommandFailed, Commands
from airflow_provider_zkmq.cli.guard import Process, _started_by
from airflow_provider_zkmq.cli.guarded import Guard
from airflow_provider_zkmq.cli.options import UsageError
from airflow_provider_zkmq.engine.core.model.states import State, Status
from airflow_provider_zkmq.engine.core.reading.inspect import Task
from airflow_provider_zkmq.engine.core.reading.trees import Znode
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
from tests.support import eventually

_IMPORTS = (
    "import sys; from airflow_provider_zkmq.cli import main; code = main.main({argv!r}); "
    "heavy = {{'kazoo', 'airflow', 'pyspark', 'pandas', 'pendulum'}} & {{name.split('.')[0] for name in sys.modules}}; "
    "sys.exit(code or (f'imported {{heavy}}' if heavy else 0))"
)


class InHand(Task):
    """A task as `Commands` gets it."""

    cancelled = False


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


@pytest.mark.parametrize("argv", [["--help"], ["--version"], *([verb, "--help"] for verb in cli.VERBS)])
def test_help_imports_nothing_heavy(argv: list[str]) -> None:
    """Help of the command and of every verb ends with 0 and imports neither kazoo nor Airflow nor pyspark."""
    code = _IMPORTS.format(argv=argv)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert "zkmq" in found.stdout


def test_help_documents_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """`zkmq --help` tells what each exit code from 0 to 6 means."""
    assert cli.main(["--help"]) == 0
    told = capsys.readouterr().out
    assert all(f"\n  {code}  " in told for code in range(7))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TaskNotFound("x"), 1),
        (DuplicateTask("x"), 1),
        (ClaimLost("x"), 1),
        (IllegalTransition("x"), 1),
        (ConfigError("x"), 2),
        (AccessDenied("x"), 2),
        (UsageError("x"), 2),
        (WaitTimeout("x"), 4),
        (Unavailable("x"), 6),
        (OutcomeUnknown("x"), 6),
        (PermissionError("x"), 1),
        (BrokenPipeError("x"), None),
        (KeyError("x"), None),
    ],
)
def test_exit_codes(error: Exception, code: int | None) -> None:
    """Each family of errors has its exit code; mistakes of ours and closed pipes have none."""
    assert cli._exit_code(error) == code


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["nonsense"],
        ["enqueue"],
        ["enqueue", "q"],
        ["enqueue", "q", "data", "--lines"],
        ["enqueue", "q", "data", "more"],
        ["enqueue", "q", "data", "--unknown"],
        ["enqueue", "q", "data", "--filter", "novalue"],
        ["enqueue", "q", "data", "--filter", "a=1", "--filter", "a=2"],
        ["enqueue", "q", "data", "--metadata", "{"],
        ["enqueue", "q", "data", "--metadata", "[1]"],
        ["enqueue", "q", "--data-file", "/nowhere/at/all"],
        ["enqueue", "q", "--lines", "--task-id", "x"],
        ["enqueue", "q", "x", "--then", "y"],
        ["enqueue", "q", "x", "--update"],
        ["enqueue", "q", "x", "--requeue"],
        ["enqueue", "q", "x", "--only-new"],
        ["enqueue", "q", "x", "--task-id", "a", "--only-new", "--batch", "b"],
        ["enqueue", "q", "--lines", "--update"],
        ["enqueue", "q", "x", "--attempts", "few"],
        ["enqueue", "q", "x", "--attempts", "0"],
        ["complete", "q", "t"],
        ["complete", "q", "t", "--token", "abc"],
        ["complete", "q", "t", "--token", "1", "--dedupe", "soon"],
        ["fail", "q", "t", "--token", "1", "--error", "x", "--backoff", "1", "--no-retry"],
        ["report"],
        ["report", "q"],
        ["report", "q", "--all", "--directory", "/nowhere"],
        ["report", "q", "--directory", "/nowhere"],
        ["report", "q", "--directory", "/nowhere", "--since", "yesterday"],
        ["report", "q", "--directory", "/nowhere", "--target-wait", "soon"],
        ["report", "q", "--directory", "/nowhere", "--html", "/nowhere/report.html"],
        ["snooze", "q", "t", "--token", "1"],
        ["snooze", "q", "t", "--delay", "1"],
        ["progress", "q", "t", "--token", "1"],
        ["progress", "q", "t", "--token", "1", "half"],
        ["clear", "q"],
        ["clear", "q", "--state", "dead"],
        ["clear", "q", "--state", "lost", "--yes"],
        ["batch", "q"],
        ["batch", "q", "b", "--timeout", "1"],
        ["show", "q", "t", "--why", "--watch"],
        ["redrive", "q"],
        ["redrive", "q", "t", "--all"],
        ["list", "q", "--state", "lost"],
        ["list", "q", "--limit", "-1"],
        ["configure", "q", "--filter", "a=colour:red"],
        ["configure", "q", "--filter", "a=enum:x,x"],
        ["configure", "q", "--order", "random"],
        ["worker", "q"],
        ["worker", "q", "--exec", "cat", "--handler", "a:b"],
        ["worker", "q", "--handler", "json"],
        ["worker", "q", "--handler", "no.such.module:run"],
        ["worker", "q", "--handler", "json:nothing"],
        ["worker", "q", "--handler", "json:__name__"],
        ["worker", "q", "--exec", "cat", "--grace", "-1"],
        ["worker", "q", "--exec", "cat", "--transactional"],
        ["worker", "q", "--handler", "json:dumps", "--pass-credentials"],
        ["worker", "q", "--exec", "cat", "--warn-size", "-1"],
        ["worker", "q", "--handler", "json:dumps", "--transactional", "--lease", "5"],
        ["worker", "q", "--threads", "0", "--until-empty"],
        ["--hosts", "", "queues"],
        ["--hosts", "a b", "queues"],
        ["--root", "relative", "queues"],
        ["--root", "/a/../b", "queues"],
        ["--auth", "nopassword", "queues"],
        ["queues", "--connect-timeout", "0"],
        ["queues", "--session-timeout", "nan"],
    ],
)
def test_bad_usage_is_one_line_and_code_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """What is wrong with a command line is told in one line, before anything is connected to; the code is 2."""
    assert cli.main([*argv, "--json"]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("zkmq: ")
    assert told.err.count("\n") == 1
    answer = json.loads(told.out)
    assert set(answer) == {"error", "message"}
    assert told.err == f"zkmq: {answer['message']}\n"


_REPORT = (
    "import sys; {before}; from airflow_provider_zkmq.cli import main; "
    "code = main.main(['report', 'q', *{options!r}]); "
    "sys.exit(code if 'pyspark' not in sys.modules or sys.modules['pyspark'] is None else 'imported')"
)


@pytest.mark.parametrize(
    ("before", "options", "told"),
    [
        ("pass", [], "is no folder: give the directory of the archive"),
        ("sys.modules['pyspark'] = None", [], "this needs pyspark: pip install 'airflow-provider-zkmq[spark]'"),
        ("sys.modules['matplotlib'] = None", ["--html", "x.html"], "this needs matplotlib: pip install "),
        ("pass", ["--html", "."], "cannot be written: it is a folder"),
    ],
)
def test_a_report_is_refused_before_spark_is_started(before: str, options: list[str], told: str) -> None:
    """No archive, no PySpark or matplotlib, a folder for the page: one line, and code 2, at once."""
    code = _REPORT.format(before=before, options=[*options, "--directory", "/nowhere"])
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert told in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_password_is_not_repeated_in_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A bad --auth is refused without printing what was given."""
    assert cli.main(["queues", "--auth", "justonesecret"]) == 2
    assert "justonesecret" not in "".join(capsys.readouterr())


def test_common_options_stand_before_or_after_the_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both places work, the later one wins, and both win over the environment, which wins over the defaults."""
    for name in ("ZKMQ_HOSTS", "ZKMQ_ROOT", "ZKMQ_AUTH"):
        monkeypatch.delenv(name, raising=False)

    def read(*argv: str) -> options.Common:
        return options.common(cli.parse(argv))

    assert read("queues") == options.Common("127.0.0.1:2181", "/zkmq", None, False, None, None)
    monkeypatch.setenv("ZKMQ_HOSTS", "env:1")
    monkeypatch.setenv("ZKMQ_AUTH", "u:p")
    assert (read("queues").hosts, read("queues").auth) == ("env:1", "u:p")
    assert read("--hosts", "before:1", "queues").hosts == "before:1"
    assert read("--hosts", "before:1", "queues", "--hosts", "after:1").hosts == "after:1"
    assert read("--json", "queues").as_json
    assert read("queues", "--json").as_json
    assert read("--json", "server").as_json
    assert read("server", "--json").as_json
    assert read("queues", "--connect-timeout", "2.5").connect_timeout == 2.5


def test_what_the_environment_says_of_servers_is_not_about_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has a root and credentials there may use queue files beside ZooKeeper; on the line they are refused."""
    for name, value in {"ZKMQ_HOSTS": "env:1", "ZKMQ_ROOT": "/env", "ZKMQ_AUTH": "u:p"}.items():
        monkeypatch.setenv(name, value)
    read = options.common(cli.parse(["queues", "--hosts", "textqueue:///queues"]))
    assert (read.hosts, read.root, read.auth) == ("textqueue:///queues", options.DEFAULT_ROOT, None)
    assert options.common(cli.parse(["queues", "--hosts", "textqueue:///queues", "--root", "/mine"])).root == "/mine"


def test_names_are_the_engines() -> None:
    """The constants copied to keep the help fast are those of the engine."""
    from airflow_provider_zkmq.engine.core.reading.configuration import ORDERS

    assert (tuple(State), ORDERS) == (options.STATES, configuration.ORDERS)


@pytest.mark.parametrize(
    "argv",
    [
        ["enqueue", "q", "word", "--filter", "a=b"],
        ["enqueue", "q", "--filter", "a=b", "word"],
        ["enqueue", "--filter", "a=b", "q", "word"],
    ],
)
def test_data_may_stand_after_options(argv: list[str]) -> None:
    """The order of DATA and options does not matter."""
    args = cli.parse(argv)
    assert (args.queue, args.data, args.filter) == ("q", "word", ["a=b"])


def test_tasks_may_stand_after_options() -> None:
    """So it is with task ids, and `-` for standard input is no option."""
    assert cli.parse(["redrive", "q", "--json", "a", "b"]).tasks == ["a", "b"]
    assert cli.parse(["wait", "q", "--timeout", "1", "a", "b"]).tasks == ["a", "b"]
    assert cli.parse(["enqueue", "q", "--json", "-"]).data == "-"
    assert cli.parse(["enqueue", "q", "--", "-x"]).data == "-x"


def test_bytes_that_are_no_text_come_as_base64() -> None:
    """JSON answers carry text where the bytes are text, and base64 under another name where they are not."""
    assert output.payload("data", "grüße".encode()) == {"data": "grüße"}
    assert output.payload("data", b"\xff\x00") == {"data_base64": "/wA="}
    assert output.payload("result", None) == {"result": None}
    assert (output.brief(b"\xff"), output.brief(b"x"), output.brief(None)) == ("base64:/w==", "x", None)
    assert output.task_record(a_task(b"\xff"))["data_base64"] == "/w=="
    assert json.loads(json.dumps(output.task_record(a_task())))["data"] == "payload"


def test_a_task_is_shown_with_its_progress_batch_and_window() -> None:
    """JSON has the values as they are; people get a percentage and a time; what a task lacks is left out for them."""
    record, plain = output.task_record(a_task()), output.task_facts(a_task())
    assert {name: record[name] for name in ("progress", "note", "batch", "dedupe_ms")} == {
        "progress": 0.5,
        "note": "half",
        "batch": "b",
        "dedupe_ms": 2_000,
    }
    assert (plain["progress"], plain["note"], plain["batch"]) == ("50%", "half", "b")
    assert re.fullmatch(r"1970-01-01 00:00:02 UTC, \d+ d ago", str(plain["dedupe until"]))
    assert (record["enqueued_at"], record["dedupe_until"]) == (
        "1970-01-01T00:00:01.000+00:00",
        "1970-01-01T00:00:02.000+00:00",
    )
    assert record["claimed_at"] is None
    bare = dataclasses.replace(a_task(), progress=None, note="", batch=None, dedupe_ms=None)
    assert not {"progress", "note", "batch", "dedupe until"} & set(output.facts(output.task_facts(bare)).split("  "))


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.4, "now"),
        (-0.4, "now"),
        (59.9, "59 s ago"),
        (300, "5 min ago"),
        (-5_400, "in 1 h"),
        (86_399, "23 h ago"),
        (86_400 * 20_000, "20000 d ago"),
    ],
)
def test_an_age_is_told_in_its_largest_unit(seconds: float, told: str) -> None:
    """How long ago, or in how long."""
    assert times.age(seconds) == told


@pytest.mark.parametrize("milliseconds", [10**15, -(10**15), 10**400])
def test_a_damaged_time_does_not_keep_a_task_from_being_shown(milliseconds: int) -> None:
    """What is no time of a calendar is told as it stands; JSON has no text for it."""
    broken = dataclasses.replace(a_task(), due_ms=milliseconds)
    assert str(output.task_facts(broken)["due"]).endswith(" ms since 1970")
    assert output.task_record(broken)["due_at"] is None


@pytest.mark.parametrize(
    "argv",
    [
        ["enqueue", "q", "x", "--delay", "5x"],
        ["enqueue", "q", "x", "--lock", "1M"],
        ["configure", "q", "--max-backoff", "P1Y"],
        ["claim", "q", "--lease", "-1"],
        ["worker", "q", "--exec", "cat", "--grace", "soon"],
        ["wait", "q", "t", "--timeout", ""],
        ["gc", "q", "--lifetime", "1h1h"],
        ["status", "q", "--connect-timeout", "nan"],
    ],
)
def test_what_is_no_duration_names_its_option_and_how_to_write_one(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, with the option, the text and the forms that are understood; code 2."""
    assert cli.main(argv) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"argument {argv[-2]}: {argv[-1]!r} is no duration: write seconds (90), units (1h30m, 250ms)" in told


def test_no_options_object_shows_the_password() -> None:
    """The options of a command line may be logged or shown in a traceback."""
    made = options.common(cli.parse(["status", "q", "--auth", "ann:s3cret"]))
    assert made.auth == "ann:s3cret"
    assert "s3cret" not in repr(made)


def test_a_duplicate_is_told_with_its_status(capsys: pytest.CaptureFixture[str]) -> None:
    """Under --json the error of an id in use has the status as a field, and what was and was not written."""
    error = DuplicateTask("in use", status="locked", duplicates=["a"], enqueued=["b"])
    cli._say_error(error, as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "error": "DuplicateTask",
        "message": "in use",
        "status": "locked",
        "duplicates": ["a"],
        "enqueued": ["b"],
    }


def test_tables_are_aligned_and_keep_control_characters_off_the_terminal() -> None:
    """Columns line up; an escape sequence or a line end in a value is printed as its escape."""
    assert output.table([("a", 1), ("long", None)], ("X", "Y")) == "X     Y\na     1\nlong  -"
    assert "\x1b" not in output.table([("\x1b[31m\n",)])
    assert output.table([("\x1b[31m\n",)]).count("\n") == 0
    assert output.table([]) == ""


def test_enqueue_transactions_count_what_enqueue_wrote() -> None:
    """A claim, a result and a run in escrow come later and do not count; other znodes of another transaction do."""
    tree = [Znode(f"/r/q/tasks/t{part}", 0, 5, 5) for part in ("", "/data", "/metadata", "/filters", "/filters/claim")]
    tree += [Znode("/r/q/tasks/t/state", 9, 5, 11), Znode("/r/q/tasks/t/claim", 0, 8, 8)]
    later = [Znode(f"/r/q/tasks/t/{part}", 0, 9, 9) for part in ("result", "requeue")]
    assert show.enqueue_transactions([*tree, *later]) == 1
    torn = dataclasses.replace(tree[4], czxid=6)
    assert show.enqueue_transactions([*tree[:4], torn, *tree[5:]]) == 2


def executed(command: str, task: InHand | None = None, **options: Any) -> bytes:
    """The output of a command on a task."""
    run = Commands(command, "q", **options)
    try:
        return run(task or a_task())
    finally:
        run.end()


def test_exec_passes_the_task_and_returns_the_output() -> None:
    """The data is standard input, the output the result, and the environment names the task."""
    assert executed('tr a-z A-Z; echo " $ZKMQ_QUEUE/$ZKMQ_TASK_ID/$ZKMQ_ATTEMPT"') == b"PAYLOAD q/t-1/2\n"


@pytest.mark.parametrize("data", [b"", b"\n", b"\n\nno line end", b"\x00\xff\r\n", b"one\ntwo\n"])
def test_exec_passes_the_data_as_it_is(data: bytes) -> None:
    """To the byte, whatever the data begins and ends with."""
    assert executed("cat", a_task(data)) == data


def test_exec_runs_in_a_session_of_its_own() -> None:
    """The command leads a process group, so that all it starts can be ended together."""
    pid, group = executed("ps -o pid= -o pgid= -p $$ 2>/dev/null || cut -d' ' -f1,5 /proc/$$/stat").split()
    assert pid == group


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("echo first >&2; echo last >&2; exit 3", "exit code 3: first\nlast"),
        ("exit 4", "exit code 4"),
        ("kill -9 $$", "ended by signal 9"),
        ("seq 1 9 >&2; exit 1", "exit code 1: 5\n6\n7\n8\n9"),
        ("printf '\\377' >&2; exit 1", "exit code 1: \ufffd"),
    ],
)
def test_exec_failure_tells_code_and_last_words(command: str, told: str) -> None:
    """A command that fails raises its exit code or signal and the last lines of its standard error."""
    with pytest.raises(CommandFailed) as caught:
        executed(command)
    assert str(caught.value) == told


def test_exec_of_a_command_that_does_not_read_its_input() -> None:
    """Input that nobody reads is no failure."""
    assert executed("echo ok", a_task(b"x" * 1_000_000)) == b"ok\n"


SECRETS = {"ZKMQ_AUTH": "u:p", "ZKMQ_TLS_KEY_PASSWORD": "k", "ZKMQ_KEY_PASSPHRASE": "k", "ZKMQ_SECRET": "s"}


@pytest.mark.parametrize("credentials", [False, True])
def test_exec_does_not_pass_credentials_unless_told(monkeypatch: pytest.MonkeyPatch, credentials: bool) -> None:
    """A command inherits the environment without what opens the queues, and all of it with --pass-credentials."""
    for name, value in {**SECRETS, "ZKMQ_HOSTS": "h:1", "OTHER": "o"}.items():
        monkeypatch.setenv(name, value)
    seen = dict(line.split("=", 1) for line in executed("env", credentials=credentials).decode().splitlines())
    assert {name: seen.get(name) for name in SECRETS} == (SECRETS if credentials else dict.fromkeys(SECRETS))
    assert (seen["ZKMQ_HOSTS"], seen["OTHER"], seen["ZKMQ_TASK_ID"]) == ("h:1", "o", "t-1")
    assert "ZKMQ_BEGIN" not in seen


def test_exec_does_not_pass_a_variable_that_is_named_as_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody inherits the variable that --tls-key-password-env names, unless that is asked for."""
    monkeypatch.setenv("MINE", "open sesame")
    named = options.common(cli.parse(["worker", "q", "--exec", "env", "--tls-key-password-env", "MINE"])).secret
    assert named == {"MINE"}
    assert b"sesame" in executed("env")
    assert b"sesame" not in executed("env", secret=named)
    assert b"sesame" in executed("env", secret=named, credentials=True)


def held_open(path: Path) -> str:
    """A command that holds a pipe open, as do its child, its grandchild, and what left its session."""
    os.mkfifo(path)
    begun = f"exec 9>{shlex.quote(str(path))}"
    rest = "sh -c 'sleep 600; :' & setsid sh -c 'sleep 600; :' & sleep 600"
    return f"{begun}; {rest}; :"


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
def test_exec_ends_the_command_of_a_cancelled_task(trap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that it started is ended, also what ignores SIGTERM or left its session, and the failure says why."""
    monkeypatch.setattr(commands, "TERMINATE_SECONDS", 0.3)
    alive = tmp_path / "alive"
    task = a_task()
    command = trap + held_open(alive)

    def cancel() -> None:
        with alive.open("rb") as pipe:  # opened when the command has opened the other end
            monkeypatch.setattr(InHand, "cancelled", True)
            assert pipe.read() == b""  # neither the shell nor what it started holds it any more

    with ThreadPoolExecutor(1) as pool:
        cancelled = pool.submit(cancel)
        with pytest.raises(CommandFailed, match="cancelled"):
            executed(command, task)
        cancelled.result(timeout=10)


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
def test_exec_ends_the_process_group_where_there_is_no_proc(
    trap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other systems tell less of who started what: the command's process group is ended there."""
    monkeypatch.setattr(commands, "TERMINATE_SECONDS", 0.3)
    monkeypatch.setattr(guard, "_processes", set)
    alive = tmp_path / "alive"
    command = trap + held_open(alive).replace("setsid ", "")
    run = Commands(command, "q")
    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(run, a_task())
        with alive.open("rb") as pipe:
            monkeypatch.setattr(InHand, "cancelled", True)
            assert pipe.read() == b""
        with pytest.raises(CommandFailed, match="cancelled"):
            stuck.result(timeout=10)
    run.end()


_WORKER = """
import sys
from airflow_provider_zkmq.cli.commands import Commands
from tests.unit.test_cli import a_task
Commands(sys.argv[1], "q")(a_task())
"""


@contextlib.contextmanager
def a_worker(command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs a command, as a worker does."""
    with subprocess.Popen([sys.executable, "-c", _WORKER, command], start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
def test_exec_ends_with_its_worker(trap: str, tmp_path: Path) -> None:
    """When the worker is killed, the command ends with its child, its grandchild, and what left its session."""
    alive = tmp_path / "alive"
    with a_worker(trap + held_open(alive)) as process, alive.open("rb") as pipe:
        os.killpg(process.pid, signal.SIGKILL)  # with all that is in the worker's own group
        assert pipe.read() == b""


def test_exec_ends_with_its_worker_though_its_guard_was_told_to_end(tmp_path: Path) -> None:
    """A service that is shut down sends SIGTERM to each of its processes: the guard stays as long as the worker."""
    alive = tmp_path / "alive"
    with a_worker(held_open(alive)) as process, alive.open("rb") as pipe:
        eventually(lambda: guard_of(process.pid))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(guard_of(process.pid), number)
        process.kill()
        assert pipe.read() == b""


def guard_of(pid: int) -> int:
    """The guard among the children of a process; 0 while there is none, or it is not yet what it will be."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(
        int(child) for child in children if Path(f"/proc/{child}/cmdline").read_text().startswith(sys.executable)
    )


def test_exec_never_begins_a_command_that_nobody_guards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is killed between the start of a command and telling its guard leaves one that does nothing."""
    begun = tmp_path / "begun"
    run = Commands(f"touch {shlex.quote(str(begun))}", "q")
    monkeypatch.setattr(run._guard, "add", lambda _leader: None)
    child = run._spawn(a_task())
    assert child.stdin is not None
    child.stdin.close()  # as the system closes it for whoever is killed
    assert child.wait(timeout=30) != 0
    assert not begun.exists()


def test_exec_starts_its_guard_again(tmp_path: Path) -> None:
    """If somebody killed it, the next command has another one, which also knows of the commands that run."""
    alive, gate = tmp_path / "alive", tmp_path / "gate"
    os.mkfifo(gate)
    run = Commands("eval $(cat)", "q")
    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(run, a_task(held_open(alive).encode()))
        with alive.open("rb") as pipe:
            first = run._guard._process
            assert first is not None
            first.kill()
            first.wait()
            assert run(a_task(b"echo ok")) == b"ok\n"
            second = run._guard._process
            assert second is not first
            assert second is not None
            run._guard = Guard({})
            second.communicate()  # our end of the pipe is closed, as if we had been killed
            assert pipe.read() == b""
        with pytest.raises(CommandFailed, match="signal"):
            stuck.result(timeout=10)


def test_exec_says_that_there_is_no_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where none can be started the log says so once, and the commands are run."""
    monkeypatch.setattr(guard, "__file__", str(tmp_path / "nothing.py"))
    run = Commands("cat", "q")
    assert [run(a_task()), run(a_task())] == [b"payload", b"payload"]
    run.end()
    assert caplog.text.count("no guard could be started") == 1


def test_exec_of_a_slow_command_loses_nothing() -> None:
    """A command that takes longer than one look gets all its input and gives all its output."""
    data = os.urandom(300_000)
    assert executed(f"sleep {2 * commands._LOOK_SECONDS}; cat", a_task(data)) == data


def test_handlers_are_loaded_by_name() -> None:
    """`module:function` names a function, also inside a class."""
    assert worker.load("json:dumps") is json.dumps
    assert worker.load("airflow_provider_zkmq.cli.options:Common.connect") is options.Common.connect


def test_a_child_that_was_started_while_its_parent_was_ended_is_the_command_s() -> None:
    """It is seen first when it has no parent any more: its session was begun by one that was known."""
    left_its_session = Process(11, started=1, parent=10, group=11, session=11)
    orphan = Process(12, started=2, parent=1, group=11, session=11)
    other = Process(13, started=2, parent=1, group=13, session=13)
    assert _started_by({10}, {left_its_session}, {orphan, other}) == {orphan}
    assert _started_by({10}, set(), {orphan, other}) == set()
