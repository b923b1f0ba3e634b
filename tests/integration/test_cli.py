"""The command line against a real ZooKeeper, as a shell and an operator use it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zkmq.embedded import ports
from airflow_provider_zkmq.engine import Queue, State, Zkmq

_LIMIT_S = 60.0
_ZKMQ = [sys.executable, "-m", "airflow_provider_zkmq"]


class Cli:
    """`zkmq` with the environment of one test."""

    def __init__(self, hosts: str, root: str) -> None:
        self.hosts = hosts
        self.root = root
        self.env = os.environ | {"ZKMQ_HOSTS": hosts, "ZKMQ_ROOT": root}
        self.env.pop("ZKMQ_AUTH", None)

    def run(self, *argv: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*_ZKMQ, *argv], input=stdin, capture_output=True, env=self.env, timeout=_LIMIT_S, check=False
        )

    def ask(self, *argv: str, code: int = 0, stdin: bytes = b"") -> Any:
        """The JSON answer of a command that must end with `code`."""
        ended = self.run(*argv, "--json", stdin=stdin)
        assert ended.returncode == code, ended.stderr.decode()
        return json.loads(ended.stdout)

    def refused(self, *argv: str, code: int, stdin: bytes = b"") -> dict[str, str]:
        """The error of a command that must end with `code`: one line, and the same as JSON."""
        ended = self.run(*argv, "--json", stdin=stdin)
        assert ended.returncode == code, ended.stderr.decode()
        answer: dict[str, str] = json.loads(ended.stdout)
        assert ended.stderr.decode() == f"zkmq: {answer['message']}\n"
        return answer

    @contextmanager
    def worker(self, *argv: str) -> Iterator[subprocess.Popen[bytes]]:
        """A worker in the background, ended at the latest with the block."""
        with subprocess.Popen(
            [*_ZKMQ, "worker", *argv], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            try:
                yield process
            finally:
                process.kill()


@pytest.fixture
def cli(zookeeper: str) -> Cli:
    return Cli(zookeeper, f"/cli-{uuid.uuid4().hex[:12]}")


@pytest.fixture
def queue(cli: Cli) -> Iterator[Queue]:
    """The queue `q` of the test, seen from this process."""
    with Zkmq.connect(cli.hosts, cli.root, gc=False) as zk:
        found = zk.queue("q")
        found.configure()
        yield found


_SCRIPT = r"""
field() { python -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }
zkmq configure jobs --filter class=enum:low,standard,high --filter size=integer --attempts 2 >configured
id=$(zkmq enqueue jobs 'first work' --filter class=standard --filter size=7 --metadata '{"owner":"me"}')
zkmq status jobs --json >before.json
code=0; zkmq claim jobs --node class=low --filter-method at_least >nothing 2>why || code=$?
test "$code" = 3; test ! -s nothing; grep -q '^zkmq: nothing to claim in jobs$' why
zkmq --json claim jobs --node class=high --filter-method at_least --lease 60 >claim.json
test "$(field id <claim.json)" = "$id"
test "$(field data <claim.json)" = 'first work'
token=$(field token <claim.json)
zkmq extend jobs "$id" --token "$token" --lease 120 >extended
zkmq complete jobs "$id" --token "$token" --result done >completed
zkmq show jobs "$id" --json >show.json
zkmq show jobs "$id" >show.txt
zkmq wait jobs "$id" --timeout 10 >waited
zkmq status jobs --json >after.json
zkmq gc jobs --lifetime 0 --json >gc.json
code=0; zkmq show jobs "$id" 2>gone || code=$?
test "$code" = 1
"""


def test_a_shell_script_carries_a_task_through_its_life(cli: Cli, tmp_path: Path) -> None:
    """A `sh -eu` script can do all of it by exit codes and JSON alone.

    The claim settles from another process, and the task was written in one transaction.
    """
    bin_dir = Path(sys.executable).parent
    env = cli.env | {"PATH": f"{bin_dir}{os.pathsep}{os.environ['PATH']}"}
    ended = subprocess.run(
        ["sh", "-eu", "-c", _SCRIPT], cwd=tmp_path, env=env, capture_output=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr.decode()

    def read(name: str) -> Any:
        return json.loads((tmp_path / name).read_text())

    show = read("show.json")
    assert (show["state"], show["result"], show["data"]) == ("finished", "done", "first work")
    assert (show["filters"], show["metadata"]) == ({"class": "standard", "size": "7"}, {"owner": "me"})
    assert show["enqueue_transactions"] == 1
    base = f"{cli.root}/jobs/tasks/{show['id']}"
    parts = {node["path"].removeprefix(base) for node in show["znodes"]}
    assert {"", "/data", "/metadata", "/state", "/filters", "/filters/class", "/filters/size", "/result"} <= parts
    assert read("before.json")["counts"]["inserted"] == 1
    assert read("before.json")["conf"]["filters"] == {"class": "enum:low,standard,high", "size": "integer"}
    assert read("before.json")["conf"]["policy"]["attempts"] == 2
    assert (read("after.json")["counts"]["finished"], read("after.json")["consumers"]) == (1, 0)
    assert read("gc.json")["collected"] == 1
    assert re.search(r"^enqueue transactions +1$", (tmp_path / "show.txt").read_text(), re.MULTILINE)
    assert (tmp_path / "gone").read_text().startswith("zkmq: task ")


@pytest.mark.parametrize("task_id", ["a/b", "..", "a..b", ".", "", "spa ce", "é", "x" * 129, "line\nend"])
def test_bad_task_ids_are_refused_by_name(cli: Cli, task_id: str) -> None:
    """An id that could not be a znode's name, or could leave its folder, is refused with code 2 by every verb."""
    for argv in (("enqueue", "q", "x", f"--task-id={task_id}"), ("show", "q", task_id), ("cancel", "q", task_id)):
        answer = cli.refused(*argv, code=2)
        assert answer["error"] == "ConfigError"
        assert "task id" in answer["message"]
    assert cli.ask("queues")["queues"] in ([], ["q"])


def test_bad_values_are_refused_and_nothing_is_written(cli: Cli, queue: Queue) -> None:
    """An undeclared filter, an undeclared enum value, a bad number, priority, delay or queue name: code 2, no task."""
    cli.ask("configure", "q", "--filter", "class=enum:low,high", "--filter", "size=integer")
    for options, word in (
        (("--filter", "class=extreme"), "low, high"),
        (("--filter", "colour=red"), "not declared"),
        (("--filter", "size=big"), "whole number"),
        (("--filter", "size=1.5"), "whole number"),
        (("--priority", "100000"), "priority"),
        (("--delay", "-1"), "delay"),
        (("--delay", "nan"), "delay"),
    ):
        answer = cli.refused("enqueue", "q", "x", *options, code=2)
        assert (answer["error"], word in answer["message"]) == ("ConfigError", True), answer
    assert cli.refused("enqueue", "a/b", "x", code=2)["error"] == "ConfigError"
    assert cli.refused("claim", "q", "--node", "class=extreme", code=2)["error"] == "ConfigError"
    assert cli.refused("claim", "q", "--selector", "class>", code=2)["error"] == "ConfigError"
    assert cli.refused("claim", "q", "--lease", "0", code=2)["error"] == "ConfigError"
    assert queue.tasks() == []


def test_data_that_zookeeper_cannot_take_is_refused(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    """More than a request may hold is refused before it is sent, with the sizes; what just fits is stored whole."""
    big, fits = tmp_path / "big", tmp_path / "fits"
    big.write_bytes(b"x" * 1_100_000)
    fits.write_bytes(b"\xff" * 1_000_000)
    answer = cli.refused("enqueue", "q", "--data-file", str(big), code=1)
    assert answer["error"] == "TaskTooLarge"
    assert "1,100,000" in answer["message"]
    assert queue.tasks() == []
    task_id = cli.ask("enqueue", "q", "--data-file", str(fits))["id"]
    assert queue.task(task_id).data == fits.read_bytes()


def test_no_server_is_told_with_the_hosts() -> None:
    """Where nothing listens, the error names the hosts and the code is 6."""
    hosts = f"127.0.0.1:{ports.free_ports('127.0.0.1', 1)[0]}"
    answer = Cli(hosts, "/x").refused("queues", "--connect-timeout", "0.5", code=6)
    assert answer["error"] == "Unavailable"
    assert hosts in answer["message"]


def test_standard_input_and_lines(cli: Cli, queue: Queue) -> None:
    """`-` takes the bytes as they are; `--lines` writes one task a line, in order, and none for no input."""
    task_id = cli.ask("enqueue", "q", "-", stdin=b"\xff\x00\n")["id"]
    assert queue.task(task_id).data == b"\xff\x00\n"
    assert cli.ask("show", "q", task_id)["data_base64"] == "/wAK"
    ids = cli.ask("enqueue", "q", "--lines", "--priority", "5", stdin=b"one\ntwo\n\nfour")["ids"]
    assert [queue.task(one).data for one in ids] == [b"one", b"two", b"", b"four"]
    assert cli.ask("enqueue", "q", "--lines")["ids"] == []
    claimed = [cli.ask("claim", "q")["data"] for _ in range(2)]
    assert claimed == ["one", "two"]


def test_a_claim_outlives_its_process_and_only_its_token_settles_it(cli: Cli, queue: Queue) -> None:
    """The claim stands after `zkmq claim` has ended; a wrong token is refused and changes nothing; release gives back."""
    task_id = cli.ask("enqueue", "q", "x")["id"]
    token = cli.ask("claim", "q")["token"]
    assert queue.task(task_id).state is State.CLAIMED
    answer = cli.refused("complete", "q", task_id, "--token", str(token + 1), code=1)
    assert answer["error"] == "ClaimLost"
    assert queue.task(task_id).state is State.CLAIMED
    assert cli.ask("claim", "q", code=3)["id"] is None
    assert cli.ask("release", "q", task_id, "--token", str(token))["state"] == "inserted"
    again = cli.ask("claim", "q")
    assert (again["id"], again["attempt"]) == (task_id, 1)
    assert again["token"] > token
    assert cli.refused("release", "q", task_id, "--token", str(token), code=1)["error"] == "ClaimLost"


def test_failures_dead_letters_and_redrive(cli: Cli) -> None:
    """A final failure ends in the dead letters, where `wait` says 5; redrive --all brings the task back."""
    task_id = cli.ask("enqueue", "q", "x")["id"]
    token = cli.ask("claim", "q")["token"]
    failed = cli.ask("fail", "q", task_id, "--token", str(token), "--error", "broken pump", "--no-retry")
    assert failed["state"] == "dead"
    assert cli.ask("wait", "q", task_id, "--timeout", "10", code=5)["tasks"][0]["error"] == "broken pump"
    assert [task["id"] for task in cli.ask("list", "q", "--state", "dead")["tasks"]] == [task_id]
    assert cli.ask("redrive", "q", "--all")["redriven"] == [task_id]
    assert cli.ask("redrive", "q", "--all")["redriven"] == []
    assert cli.ask("show", "q", task_id)["history"][0]["error"] == "broken pump"


def test_cancel_tells_what_it_could_not_cancel(cli: Cli) -> None:
    """Of several tasks those that have not ended are cancelled; the others are named, and the code is 1."""
    first, second = (cli.ask("enqueue", "q", "x", "--task-id", name)["id"] for name in ("first", "second"))
    cli.ask("complete", "q", first, "--token", str(cli.ask("claim", "q")["token"]))
    ended = cli.run("cancel", "q", first, second, "missing", "--json")
    answer = json.loads(ended.stdout)
    assert (ended.returncode, answer["cancelled"]) == (1, [second])
    assert set(answer["refused"]) == {first, "missing"}
    assert answer["error"] == "IllegalTransition"
    assert ended.stderr.count(b"zkmq: ") == 2
    assert cli.ask("wait", "q", second, code=5)["tasks"][0]["state"] == "cancelled"


def test_waits_time_out_with_4_and_unknown_tasks_are_1(cli: Cli) -> None:
    """A time-out and a task that is not there are told apart by the exit code."""
    task_id = cli.ask("enqueue", "q", "x")["id"]
    assert cli.refused("wait", "q", task_id, "--timeout", "0.1", code=4)["error"] == "WaitTimeout"
    assert cli.refused("wait", "q", "missing", "--timeout", "5", code=1)["error"] == "TaskNotFound"
    assert cli.refused("status", "nowhere", code=2)["error"] == "ConfigError"
    assert cli.refused("enqueue", "q", "x", "--task-id", task_id, code=1)["error"] == "DuplicateTask"


def test_credentials_come_from_the_environment_and_guard_the_queue(cli: Cli) -> None:
    """What ZKMQ_AUTH created opens to the same credentials only; others are refused with 2, the password untold."""
    cli.env["ZKMQ_AUTH"] = "me:right-secret"
    cli.ask("enqueue", "q", "x")
    assert cli.ask("status", "q")["counts"]["inserted"] == 1
    cli.env["ZKMQ_AUTH"] = "me:wrong-secret"
    answer = cli.refused("claim", "q", code=2)
    assert answer["error"] == "AccessDenied"
    assert "secret" not in answer["message"]
    assert cli.ask("--auth", "me:right-secret", "claim", "q")["data"] == "x"


def test_pause_and_resume(cli: Cli) -> None:
    """A paused queue hands out nothing and says so in its status; resumed, it goes on."""
    cli.ask("enqueue", "q", "x")
    assert cli.ask("pause", "q") == {"queue": "q", "paused": True, "changed": True}
    assert not cli.ask("pause", "q")["changed"]
    assert cli.ask("status", "q")["paused"] is True
    assert cli.run("claim", "q").returncode in {1, 3}
    assert cli.ask("resume", "q")["changed"]
    assert cli.ask("claim", "q")["data"] == "x"


def test_configure_changes_only_what_is_given(cli: Cli) -> None:
    """A second configure keeps the filters, the policy's other values and the times of the first."""
    cli.ask("configure", "q", "--filter", "a=string", "--attempts", "3", "--task-gc-lifetime", "60")
    conf = cli.ask("configure", "q", "--max-backoff", "9", "--task-gc-interval", "5")["conf"]
    assert (conf["filters"], conf["policy"]["attempts"], conf["policy"]["max_backoff"]) == ({"a": "string"}, 3, 9)
    assert (conf["task_gc_lifetime"], conf["task_gc_interval"]) == (60, 5)
    assert cli.ask("configure", "q", "--attempts", "unbounded")["conf"]["policy"]["attempts"] is None
    assert cli.ask("queues")["queues"] == ["q"]


def test_a_closed_pipe_is_quiet_and_an_unread_claim_is_given_back(cli: Cli, queue: Queue) -> None:
    """When nobody reads the answer there is no traceback; a claim whose token nobody learned is not kept."""
    task_id = queue.enqueue("x")
    reader, writer = os.pipe()
    os.close(reader)
    with subprocess.Popen([*_ZKMQ, "claim", "q"], stdout=writer, stderr=subprocess.PIPE, env=cli.env) as process:
        os.close(writer)
        _, errors = process.communicate(timeout=_LIMIT_S)
    assert (process.returncode, errors) == (141, b"")
    assert (queue.task(task_id).state, queue.task(task_id).attempt) == (State.INSERTED, 0)


def test_worker_exec_upper_cases(cli: Cli, queue: Queue) -> None:
    """Each task is the command's input and its output the result; --until-empty ends with 0."""
    ids = [queue.enqueue(word) for word in ("one", "two", "three")]
    done = cli.ask("worker", "q", "--exec", "tr a-z A-Z", "--until-empty", "--threads", "2")
    assert (done["finished"], done["failed"]) == (3, 0)
    assert [task.result for task in queue.wait(ids, timeout=10)] == [b"ONE", b"TWO", b"THREE"]


def test_worker_exec_failure_fails_the_task(cli: Cli, queue: Queue) -> None:
    """A non-zero exit fails the task with the exit code and the last words; with one attempt it is dead."""
    cli.ask("configure", "q", "--attempts", "1")
    task_id = queue.enqueue("x")
    done = cli.ask("worker", "q", "--exec", "echo no water >&2; exit 7", "--until-empty")
    assert (done["finished"], done["failed"]) == (0, 1)
    task = queue.task(task_id)
    assert task.state is State.DEAD
    assert "exit code 7: no water" in (task.error or "")


def test_worker_takes_only_what_its_node_may(cli: Cli, queue: Queue) -> None:
    """--node with --filter-method at_least leaves what is too much for the node."""
    cli.ask("configure", "q", "--filter", "class=enum:low,standard,high")
    low, high = (queue.enqueue(name, {"class": name}) for name in ("low", "high"))
    node = ("--node", "class=standard", "--filter-method", "at_least")
    assert cli.ask("worker", "q", *node, "--exec", "cat", "--until-empty")["finished"] == 1
    assert (queue.task(low).state, queue.task(high).state) == (State.FINISHED, State.INSERTED)


def test_worker_handler_from_the_current_folder(
    cli: Cli, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--handler module:function finds a module in the folder where the worker is started."""
    (tmp_path / "my_handlers.py").write_text("def turn(task):\n    return task.data[::-1]\n")
    cli.env["PYTHONPATH"] = str(Path(__file__).parents[2])
    monkeypatch.chdir(tmp_path)
    task_id = queue.enqueue("abc")
    cli.ask("worker", "q", "--handler", "my_handlers:turn", "--until-empty", "--no-gc")
    assert queue.task(task_id).result == b"cba"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_worker_finishes_what_is_in_hand(
    cli: Cli, queue: Queue, tmp_path: Path, number: signal.Signals
) -> None:
    """After the signal the running command may finish within the grace: its task is finished, the next untouched, 0."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    first, second = queue.enqueue("first"), queue.enqueue("second")
    with cli.worker("q", "--exec", f"cat {shlex.quote(str(gate))}; cat", "--grace", "30") as process:
        queue.wait([first], "claim", timeout=30)
        opened = os.open(gate, os.O_WRONLY)  # returns when the command has opened the other end
        process.send_signal(number)
        os.write(opened, b"through ")
        os.close(opened)
        _, errors = process.communicate(timeout=_LIMIT_S)
    assert process.returncode == 0, errors.decode()
    done = queue.task(first)
    assert (done.state, done.result) == (State.FINISHED, b"through first")
    assert queue.task(second).state is State.INSERTED


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
def test_a_stopped_worker_gives_back_what_outlasts_the_grace(cli: Cli, queue: Queue, tmp_path: Path, trap: str) -> None:
    """A command that outlasts the grace is ended with all its children, even if it ignores SIGTERM.

    Its task is pending again, with no attempt counted and no failure noted, and the worker ends with 0.
    """
    gate, alive = tmp_path / "gate", tmp_path / "alive"
    os.mkfifo(gate)
    os.mkfifo(alive)
    task_id = queue.enqueue("x")
    # The loop and its children hold the pipe `alive` open: its end of file says that all of them are gone.
    command = f"{trap}exec 9>{shlex.quote(str(alive))}; while :; do cat {shlex.quote(str(gate))}; done"
    with cli.worker("q", "--exec", command, "--grace", "0.2") as process:
        queue.wait([task_id], "claim", timeout=30)
        with alive.open("rb") as pipe:  # opened when the command has opened the other end
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=_LIMIT_S)
            assert pipe.read() == b""
    assert process.returncode == 0, errors.decode()
    task = queue.task(task_id)
    assert (task.state, task.attempt, task.error, task.history) == (State.INSERTED, 0, None, ())


def test_an_idle_worker_stops_at_once(cli: Cli, queue: Queue) -> None:
    """A worker that waits for tasks, and has shown that it works, ends on SIGTERM with 0."""
    with cli.worker("q", "--exec", "cat") as process:
        queue.wait([queue.enqueue("x")], timeout=30)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=15)
    assert process.returncode == 0, errors.decode()
