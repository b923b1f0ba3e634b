"""The command line against a real ZooKeeper, as a shell and an operator use it."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zkmq.embedded import ports
from airflow_provider_zkmq.engine import Queue, State, Zkmq
from tests.support import eventually

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

    def refused(self, *argv: str, code: int, stdin: bytes = b"") -> dict[str, Any]:
        """The error of a command that must end with `code`: one line, and the same as JSON."""
        ended = self.run(*argv, "--json", stdin=stdin)
        assert ended.returncode == code, ended.stderr.decode()
        answer: dict[str, Any] = json.loads(ended.stdout)
        assert ended.stderr.decode() == f"zkmq: {answer['message']}\n"
        return answer

    def worker(self, *argv: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """A worker in the background, ended at the latest with the block."""
        return self.background("worker", *argv)

    @contextmanager
    def background(self, *argv: str) -> Iterator[subprocess.Popen[bytes]]:
        """A command in the background, ended at the latest with the block."""
        with subprocess.Popen([*_ZKMQ, *argv], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
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


@pytest.mark.full
@pytest.mark.parametrize("task_id", ["a/b", "..", "a..b", ".", "", "spa ce", "é", "x" * 129, "line\nend"])
def test_bad_task_ids_are_refused_by_name(cli: Cli, task_id: str) -> None:
    """An id that could not be a znode's name, or could leave its folder, is refused with code 2 by every verb."""
    for argv in (("enqueue", "q", "x", f"--task-id={task_id}"), ("show", "q", task_id), ("cancel", "q", task_id)):
        answer = cli.refused(*argv, code=2)
        assert answer["error"] == "ConfigError"
        assert "task id" in answer["message"]
    assert cli.ask("queues")["queues"] in ([], ["q"])


@pytest.mark.full
def test_bad_values_are_refused_and_nothing_is_written(cli: Cli, queue: Queue) -> None:
    """An undeclared filter, an undeclared enum value, a bad number, priority, time or queue name: code 2, no task."""
    cli.ask("configure", "q", "--filter", "class=enum:low,high", "--filter", "size=integer")
    for options, word in (
        (("--filter", "class=extreme"), "low, high"),
        (("--filter", "colour=red"), "not declared"),
        (("--filter", "size=big"), "whole number"),
        (("--filter", "size=1.5"), "whole number"),
        (("--priority", "100000"), "priority"),
    ):
        answer = cli.refused("enqueue", "q", "x", *options, code=2)
        assert (answer["error"], word in answer["message"]) == ("ConfigError", True), answer
    for options in (("--delay", "-1"), ("--delay", "nan"), ("--delay", "soon"), ("--lock", "1 month")):
        answer = cli.refused("enqueue", "q", "x", *options, code=2)
        assert (answer["error"], f"argument {options[0]}: " in answer["message"]) == ("UsageError", True), answer
    naive = cli.refused("enqueue", "q", "x", "--not-before", "2026-11-22T10:31:05", code=2)
    assert "has no zone" in naive["message"]
    both = cli.refused("enqueue", "q", "x", "--not-before", "2026-11-22T10:31:05Z", "--delay", "1m", code=2)
    assert "not allowed with argument" in both["message"]
    assert cli.refused("enqueue", "a/b", "x", code=2)["error"] == "ConfigError"
    assert cli.refused("claim", "q", "--node", "class=extreme", code=2)["error"] == "ConfigError"
    assert cli.refused("claim", "q", "--selector", "class>", code=2)["error"] == "ConfigError"
    assert cli.refused("claim", "q", "--lease", "0", code=2)["error"] == "ConfigError"
    assert queue.tasks() == []


@pytest.mark.full
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


@pytest.mark.full
def test_no_server_is_told_with_the_hosts() -> None:
    """Where nothing listens, the error names the hosts and the code is 6."""
    hosts = f"127.0.0.1:{ports.free_ports('127.0.0.1', 1)[0]}"
    answer = Cli(hosts, "/x").refused("queues", "--connect-timeout", "0.5", code=6)
    assert answer["error"] == "Unavailable"
    assert hosts in answer["message"]


@pytest.mark.full
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


@pytest.mark.full
def test_a_claim_outlives_its_process_and_only_its_token_settles_it(cli: Cli, queue: Queue) -> None:
    """The claim stands after `zkmq claim` has ended; a wrong token is refused, and changes nothing; a release works."""
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


@pytest.mark.full
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


@pytest.mark.full
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


@pytest.mark.full
def test_waits_time_out_with_4_and_unknown_tasks_are_1(cli: Cli) -> None:
    """A time-out and a task that is not there are told apart by the exit code."""
    task_id = cli.ask("enqueue", "q", "x")["id"]
    late = cli.refused("wait", "q", task_id, "--timeout", "0.1", code=4)
    assert (late["error"], late["left"]) == ("WaitTimeout", [task_id])
    assert cli.refused("wait", "q", "missing", "--timeout", "5", code=1)["error"] == "TaskNotFound"
    assert cli.refused("status", "nowhere", code=2)["error"] == "QueueNotFound"
    assert cli.refused("enqueue", "q", "x", "--task-id", task_id, code=1)["error"] == "DuplicateTask"


@pytest.mark.full
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


@pytest.mark.full
def test_pause_and_resume(cli: Cli) -> None:
    """A paused queue hands out nothing and says so in its status; resumed, it goes on."""
    cli.ask("enqueue", "q", "x")
    assert cli.ask("pause", "q") == {"queue": "q", "paused": True, "changed": True}
    assert not cli.ask("pause", "q")["changed"]
    assert cli.ask("status", "q")["paused"] is True
    assert cli.run("claim", "q").returncode in {1, 3}
    assert cli.ask("resume", "q")["changed"]
    assert cli.ask("claim", "q")["data"] == "x"


@pytest.mark.full
def test_configure_changes_only_what_is_given(cli: Cli) -> None:
    """A second configure keeps the filters, the policy's other values and the times of the first."""
    cli.ask("configure", "q", "--filter", "a=string", "--attempts", "3", "--task-gc-lifetime", "60")
    conf = cli.ask("configure", "q", "--max-backoff", "9", "--task-gc-interval", "5")["conf"]
    assert (conf["filters"], conf["policy"]["attempts"], conf["policy"]["max_backoff"]) == ({"a": "string"}, 3, 9)
    assert (conf["task_gc_lifetime"], conf["task_gc_interval"]) == (60, 5)
    assert cli.ask("configure", "q", "--attempts", "unbounded")["conf"]["policy"]["attempts"] is None
    assert cli.ask("queues")["queues"] == ["q"]


@pytest.mark.full
def test_configure_says_that_a_queue_is_archived(cli: Cli) -> None:
    """--archive holds until --no-archive; status tells programs and people; clean-up keeps what no archive has."""
    assert cli.ask("configure", "q")["conf"]["archive"] is False
    conf = cli.ask("configure", "q", "--archive")["conf"]
    assert (conf["archive"], conf["archived"]) == (True, 0)
    assert cli.ask("configure", "q", "--lock", "3")["conf"]["archive"] is True
    assert cli.ask("status", "q")["conf"]["archive"] is True
    assert b"up to zxid 0" in cli.run("status", "q").stdout
    cli.ask("enqueue", "q", "x", "--task-id", "a")
    token = cli.ask("claim", "q", "--lease", "60")["token"]
    cli.ask("complete", "q", "a", "--token", str(token))
    report = cli.ask("gc", "q", "--lifetime", "0")
    assert (report["collected"], report["kept_unarchived"]) == (0, 1)
    assert cli.ask("configure", "q", "--follow")["conf"]["follow"] is True
    assert cli.ask("configure", "q", "--no-archive")["conf"]["archive"] is False
    assert cli.ask("gc", "q", "--lifetime", "0")["collected"] == 1


@pytest.mark.full
def test_configure_sets_lock_order_and_the_whole_retry_policy(cli: Cli, queue: Queue) -> None:
    """What configure is given, configure and status tell, to programs and to people; 0 and '' take it back."""
    assert (cli.ask("status", "q")["conf"]["lock"], cli.ask("status", "q")["conf"]["order"]) == (None, "default")
    given = ("--lock", "90", "--order", "fifo", "--min-backoff", "2", "--backoff-factor", "0.5")
    conf = cli.ask("configure", "q", *given, "--final", "ValueError", "--final", "my.Error")["conf"]
    assert (conf["lock"], conf["order"]) == (90, "fifo")
    assert conf["policy"] == {
        "attempts": 5,
        "factor": 0.5,
        "min_backoff": 2,
        "max_backoff": 300,
        "final": ["ValueError", "my.Error"],
    }
    assert cli.ask("status", "q")["conf"] == conf
    told = cli.run("status", "q").stdout.decode()
    assert re.search(r"^lock +1m30s$", told, re.MULTILINE)
    assert re.search(r"^order +fifo$", told, re.MULTILINE)
    assert "final=ValueError,my.Error" in told
    assert cli.refused("configure", "q", "--min-backoff", "400", code=2)["error"] == "ConfigError"
    back = cli.ask("configure", "q", "--lock", "0", "--order", "default", "--final", "")["conf"]
    assert (back["lock"], back["order"], back["policy"]["final"]) == (None, "default", [])
    assert "final" not in cli.run("configure", "q").stdout.decode()


@pytest.mark.full
def test_durations_and_moments_are_written_as_people_write_them(cli: Cli, queue: Queue) -> None:
    """Units, ISO 8601 and plain seconds are the same; what was set is told as one may write it."""
    cli.ask("configure", "q", "--task-gc-lifetime", "1d", "--task-gc-interval", "PT5M", "--lock", "1h30m")
    conf = cli.ask("status", "q")["conf"]
    assert (conf["task_gc_lifetime"], conf["task_gc_interval"], conf["lock"]) == (86_400, 300, 5_400)
    told = cli.run("status", "q").stdout.decode()
    assert re.search(r"task_gc_lifetime +1d\n", told)
    assert re.search(r"lock +1h30m\n", told)
    cli.ask("configure", "q", "--lock", "0", "--max-backoff", "5m", "--min-backoff", "250ms", "--backoff-factor", "1m")
    policy = queue.conf().policy
    assert (policy.max_backoff, policy.min_backoff, policy.factor) == (300, 0.25, 60)
    cli.ask("enqueue", "q", "later", "--task-id", "a", "--delay", "PT1H", "--lock", "90s")
    cli.ask("enqueue", "q", "later", "--task-id", "b", "--not-before", "2096-11-22 11:31:05+01:00")
    cli.ask("enqueue", "q", "now", "--task-id", "c", "--not-before", "2006-11-22T10:31:05Z")
    later, moment = queue.task("a"), queue.task("b")
    assert 3_590_000 < (later.due_ms or 0) - later.enqueued_ms < 3_610_000
    assert str(moment.due_at) == "2096-11-22 10:31:05+00:00"
    claim = cli.ask("claim", "q", "--timeout", "1s", "--lease", "2m")
    assert (claim["id"], claim["lease"]) == ("c", 120)
    cli.ask("snooze", "q", "c", "--token", str(claim["token"]), "--delay", "1h")
    assert cli.ask("gc", "q", "--lifetime", "2w")["collected"] == 0


@pytest.mark.full
def test_times_are_told_with_zone_and_age(cli: Cli, queue: Queue) -> None:
    """People read UTC and how long ago it was; JSON keeps the milliseconds and has the same time as text."""
    queue.enqueue(b"x", task_id="a")
    claim = queue.claim()
    assert claim is not None
    claim.fail("once", retry=False)
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, (now|\d+ s ago)"
    shown = cli.run("show", "q", "a").stdout.decode()
    assert re.search(rf"^enqueued +{time}$", shown, re.MULTILINE)
    assert re.search(rf"^ended +{time}$", shown, re.MULTILINE)
    assert re.search(rf"^1 +failed +\S+ +{time} +{time} +once$", shown, re.MULTILINE)
    assert re.search(rf"^a +dead +1 +0 +{time} ", cli.run("list", "q").stdout.decode(), re.MULTILINE)
    record, task = cli.ask("show", "q", "a"), queue.task("a")
    assert record["enqueued_ms"] == task.enqueued_ms
    for name in ("enqueued_at", "ended_at"):
        assert datetime.fromisoformat(record[name]) == getattr(task, name)
    assert (record["claimed_at"], record["due_at"]) == (None, None)
    (attempt,) = record["history"]
    assert datetime.fromisoformat(attempt["ended_at"]).timestamp() * 1000 == pytest.approx(attempt["ended"])
    assert cli.ask("list", "q")["tasks"][0]["enqueued_at"] == record["enqueued_at"]


@pytest.mark.full
def test_a_task_has_a_retry_policy_of_its_own(cli: Cli) -> None:
    """`enqueue --attempts 1`: the first failure is the last, whatever the queue allows."""
    task_id = cli.ask("enqueue", "q", "x", "--attempts", "1")["id"]
    token = str(cli.ask("claim", "q")["token"])
    assert cli.ask("fail", "q", task_id, "--token", token, "--error", "no")["state"] == "dead"


@pytest.mark.full
def test_a_batch_is_written_waited_for_and_followed(cli: Cli, queue: Queue) -> None:
    """`--batch` with `--lines` and `--then`: counts while it runs, 4 on time-out, 0 when all is well, then the next."""
    queue.enqueue("before")
    answer = cli.ask("enqueue", "q", "--lines", "--batch", "b", "--then", "sum up", stdin=b"one\ntwo\n")
    assert (answer["batch"], answer["ids"]) == ("b", ["b.000000", "b.000001"])
    assert cli.ask("show", "q", "b.000001")["batch"] == "b"
    begun = {"queue": "q", "batch": "b", "total": 2, "open": 2, "failed": [], "done": False}
    begun |= {"written": True, "refused": None}
    assert cli.ask("batch", "q", "b") == begun
    late = cli.refused("batch", "q", "b", "--wait", "--timeout", "0.1", code=4)
    assert (late["error"], late["left"]) == ("WaitTimeout", answer["ids"])
    assert cli.ask("worker", "q", "--exec", "cat", "--until-empty")["finished"] == 4
    done = begun | {"open": 0, "done": True}
    assert cli.ask("batch", "q", "b", "--wait", "--timeout", "10") == done
    assert sorted(task.data for task in queue.tasks(state="finished")) == [b"before", b"one", b"sum up", b"two"]
    assert cli.refused("batch", "q", "unknown", code=1)["error"] == "TaskNotFound"
    again = cli.refused("enqueue", "q", "x", "--batch", "b", code=1)
    assert again["error"] == "DuplicateTask"


@pytest.mark.full
def test_a_batch_with_a_failed_task_is_5_for_who_waits(cli: Cli) -> None:
    """The members that ended dead or cancelled are named; only `--wait` makes it the exit code."""
    ids = cli.ask("enqueue", "q", "--lines", "--batch", "b", stdin=b"1\n2")["ids"]
    cli.ask("cancel", "q", ids[1])
    cli.ask("worker", "q", "--exec", "cat", "--until-empty")
    assert cli.ask("batch", "q", "b")["failed"] == [ids[1]]
    assert cli.ask("batch", "q", "b", "--wait", code=5)["done"] is True
    told = cli.run("batch", "q", "b", "--wait")
    assert (told.returncode, ids[1].encode() in told.stdout) == (5, True)


@pytest.mark.full
def test_progress_is_shown_while_the_claim_lasts(cli: Cli) -> None:
    """`progress` reports for a token, `show` tells it, a wrong value or token is refused, and a release ends it."""
    task_id = cli.ask("enqueue", "q", "x")["id"]
    token = str(cli.ask("claim", "q")["token"])
    cli.ask("progress", "q", task_id, "--token", token, "0.5", "--note", "half way")
    shown = cli.ask("show", "q", task_id)
    assert (shown["progress"], shown["note"]) == (0.5, "half way")
    assert re.search(rb"^progress +50%$", cli.run("show", "q", task_id).stdout, re.MULTILINE)
    assert cli.refused("progress", "q", task_id, "1.5", "--token", token, code=2)["error"] == "ConfigError"
    assert cli.refused("progress", "q", task_id, "1", "--token", "7", code=1)["error"] == "ClaimLost"
    cli.ask("release", "q", task_id, "--token", token)
    assert cli.ask("show", "q", task_id)["progress"] is None


@pytest.mark.full
def test_clear_deletes_only_when_told_yes(cli: Cli, queue: Queue) -> None:
    """Without --yes nothing is deleted and the code is 2; with it every task, or those in one state."""
    first, second = queue.enqueue("1"), queue.enqueue("2")
    cli.ask("cancel", "q", first)
    assert "--yes" in cli.refused("clear", "q", code=2)["message"]
    assert len(queue.tasks()) == 2
    assert cli.ask("clear", "q", "--state", "cancelled", "--yes") == {"queue": "q", "cleared": 1}
    token = str(cli.ask("claim", "q")["token"])
    assert cli.ask("clear", "q", "--yes")["cleared"] == 1
    assert queue.tasks() == []
    assert cli.refused("complete", "q", second, "--token", token, code=1)["error"] == "TaskNotFound"
    assert cli.refused("clear", "nowhere", "--yes", code=2)["error"] == "QueueNotFound"


@pytest.mark.full
def test_show_why_names_who_refuses_it_and_what_for(cli: Cli, queue: Queue) -> None:
    """The reasons of the queue and the task, and each live consumer's verdict: for people, and as `why` in JSON."""
    cli.ask("configure", "q", "--filter", "size=integer")
    task_id = cli.ask("enqueue", "q", "x", "--filter", "size=7")["id"]
    assert "no live consumer is registered" in cli.run("show", "q", task_id, "--why").stdout.decode()
    assert queue.claim(selector="size<=5") is None
    cli.ask("pause", "q")
    shown = cli.ask("show", "q", task_id, "--why")
    (verdict,) = shown["why"].pop("consumers")
    assert shown["data"] == "x"
    assert shown["why"]["status"] == "queued"
    assert any("paused" in reason for reason in shown["why"]["reasons"])
    assert (verdict["accepts"], verdict["in_hand"]) == (["size<=5"], 0)
    told = cli.run("show", "q", task_id, "--why").stdout.decode().splitlines()
    assert told[0] == f"task {task_id} is queued"
    assert f"  consumer {verdict['consumer']}: {verdict['refuses']}" in told
    cli.ask("resume", "q")
    assert queue.claim() is not None
    assert cli.ask("show", "q", task_id, "--why")["why"]["status"] == "locked"


def test_show_watch_tells_every_change_until_the_end(cli: Cli, queue: Queue) -> None:
    """A line of JSON for each change of status, attempt, progress or note, and 0 when the task finishes."""
    task_id = queue.enqueue("x")
    with cli.background("show", "q", task_id, "--watch", "--json") as process:
        assert process.stdout is not None

        def told() -> tuple[Any, ...]:
            line = json.loads(process.stdout.readline())  # type: ignore[union-attr]
            assert (line["queue"], line["id"]) == ("q", task_id)
            return tuple(line[name] for name in ("status", "attempt", "progress", "note"))

        assert told() == ("queued", 0, None, None)
        claim = queue.claim()
        assert claim is not None
        assert told() == ("locked", 1, None, None)
        claim.progress(0.25, "reading")
        assert told() == ("locked", 1, 0.25, "reading")
        claim.progress(0.25, "writing")
        assert told() == ("locked", 1, 0.25, "writing")
        claim.fail("once", backoff=0)
        assert told()[:2] == ("queued", 1)
        second = queue.claim()
        assert second is not None
        assert told()[:2] == ("locked", 2)
        second.complete("done")
        assert told()[:2] == ("done-awaiting-gc", 2)
        assert process.stdout.read() == b""
        assert process.wait(_LIMIT_S) == 0


@pytest.mark.full
def test_show_watch_is_5_for_a_dead_end_and_1_for_no_task(cli: Cli, queue: Queue) -> None:
    """What has ended already is told in one line; the exit code says how, as that of `wait`."""
    task_id = queue.enqueue("x")
    queue.cancel(task_id)
    told = cli.run("show", "q", task_id, "--watch")
    assert (told.returncode, told.stdout) == (5, b"cancelled  attempt 0\n")
    assert cli.refused("show", "q", "missing", "--watch", code=1)["error"] == "TaskNotFound"
    assert cli.refused("show", "q", "a/b", "--watch", code=2)["error"] == "ConfigError"


@pytest.mark.full
def test_a_duplicate_names_the_status_of_the_task(cli: Cli) -> None:
    """The error of an id in use has the status as a field, for scripts that decide by it."""
    cli.ask("enqueue", "q", "x", "--task-id", "t")
    answer = cli.refused("enqueue", "q", "y", "--task-id", "t", code=1)
    assert (answer["error"], answer["status"], answer["duplicates"]) == ("DuplicateTask", "queued", ["t"])


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


@pytest.mark.full
def test_worker_exec_upper_cases(cli: Cli, queue: Queue) -> None:
    """Each task is the command's input and its output the result; --until-empty ends with 0."""
    ids = [queue.enqueue(word) for word in ("one", "two", "three")]
    done = cli.ask("worker", "q", "--exec", "tr a-z A-Z", "--until-empty", "--threads", "2")
    assert (done["finished"], done["failed"]) == (3, 0)
    assert [task.result for task in queue.wait(ids, timeout=10)] == [b"ONE", b"TWO", b"THREE"]


@pytest.mark.full
def test_worker_exec_failure_fails_the_task(cli: Cli, queue: Queue) -> None:
    """A non-zero exit fails the task with the exit code and the last words; with one attempt it is dead."""
    cli.ask("configure", "q", "--attempts", "1")
    task_id = queue.enqueue("x")
    done = cli.ask("worker", "q", "--exec", "echo no water >&2; exit 7", "--until-empty")
    assert (done["finished"], done["failed"]) == (0, 1)
    task = queue.task(task_id)
    assert task.state is State.DEAD
    assert "exit code 7: no water" in (task.error or "")


@pytest.mark.full
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


@pytest.mark.full
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


@pytest.mark.full
@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
def test_a_stopped_worker_gives_back_what_outlasts_the_grace(cli: Cli, queue: Queue, tmp_path: Path, trap: str) -> None:
    """A command that outlasts the grace is ended with all its children, even if it ignores SIGTERM.

    Its task is to be tried again, the delivery counted as it has begun, and the worker ends with 0.
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
    assert (task.state, task.attempt, [one.outcome for one in task.history]) == (State.INSERTED, 1, ["failed"])
    assert "stopped" in (task.error or "")


def test_a_cancelled_task_ends_its_command(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    """A cancel ends the command with all its children, leaves the task cancelled, and the worker goes on."""
    gate, alive = tmp_path / "gate", tmp_path / "alive"
    os.mkfifo(gate)
    os.mkfifo(alive)
    task_id = queue.enqueue("stuck")
    stuck = f"exec 9>{shlex.quote(str(alive))}; while :; do cat {shlex.quote(str(gate))}; done"
    with cli.worker("q", "--exec", f"data=$(cat); test $data = stuck || exit 0; {stuck}") as process:
        queue.wait([task_id], "claim", timeout=30)
        with alive.open("rb") as pipe:
            queue.cancel(task_id)
            assert pipe.read() == b""
        assert queue.wait([queue.enqueue("next")], timeout=30)[0].state is State.FINISHED
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=_LIMIT_S)
    assert process.returncode == 0, errors.decode()
    task = queue.task(task_id)
    assert (task.state, task.attempt, task.error) == (State.CANCELLED, 1, None)


@pytest.mark.full
def test_a_killed_worker_s_command_ends_with_it(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    """After `kill -9` neither the command nor a child or grandchild of it goes on; another worker handles its task."""
    alive = tmp_path / "alive"
    os.mkfifo(alive)
    task_id = queue.enqueue("x")
    stuck = f"exec 9>{shlex.quote(str(alive))}; sh -c 'sleep 600; :' & setsid sleep 600 & sleep 600; :"
    command = f"test $ZKMQ_ATTEMPT = 1 || exec cat; {stuck}"
    with cli.worker("q", "--exec", command, "--session-timeout", "2") as process, alive.open("rb") as pipe:
        process.kill()
        assert pipe.read() == b""  # nobody holds it open any more
    with cli.worker("q", "--exec", command) as second:
        done = queue.wait([task_id], timeout=_LIMIT_S)[0]
        second.send_signal(signal.SIGTERM)
        _, errors = second.communicate(timeout=_LIMIT_S)
    assert second.returncode == 0, errors.decode()
    assert (done.state, done.attempt, done.result) == (State.FINISHED, 2, b"x")
    assert queue.counts()["finished"] == sum(queue.counts().values()) == 1


@pytest.mark.full
def test_a_command_has_no_credentials_unless_told(cli: Cli) -> None:
    """What opens the queue is the worker's; with --pass-credentials the command may use the queue itself."""
    cli.env["ZKMQ_AUTH"] = "ann:secret"
    for options, seen in (((), "none"), (("--pass-credentials",), "ann:secret")):
        task_id = cli.ask("enqueue", "q", "x")["id"]
        ended = cli.run("worker", "q", "--exec", "printf %s ${ZKMQ_AUTH-none}", "--until-empty", *options)
        assert ended.returncode == 0, ended.stderr.decode()
        assert cli.ask("show", "q", task_id)["result"] == seen


@pytest.mark.full
@pytest.mark.parametrize(("options", "attempts"), [((), 1), (("--no-heartbeat",), 2)])
def test_a_worker_keeps_a_lock_by_its_heartbeat_only(
    cli: Cli, queue: Queue, tmp_path: Path, options: tuple[str, ...], attempts: int
) -> None:
    """A command that outlasts its task's lock keeps the task; under --no-heartbeat another consumer gets it."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    task_id = cli.ask("enqueue", "q", "x", "--lock", "1")["id"]
    with cli.worker("q", "--exec", f"cat {shlex.quote(str(gate))}; cat", *options) as process:
        queue.wait([task_id], "claim", timeout=30)
        opened = os.open(gate, os.O_WRONLY)
        again = queue.claim(timeout=3 if attempts == 1 else 30)
        assert (again is None) == (attempts == 1)
        if again is not None:
            again.complete("by another")
        os.close(opened)
        queue.wait([task_id], timeout=30)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=_LIMIT_S)
    assert process.returncode == 0, errors.decode()
    task = queue.task(task_id)
    assert (task.attempt, task.result) == (attempts, b"x" if attempts == 1 else b"by another")


@pytest.mark.full
def test_a_leased_worker_s_claim_outlives_it(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    """With --lease the claim of a killed worker stands after its session has ended; a lease of 0 is refused."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    options = ("--lease", "600", "--throttle", "0.01", "--session-timeout", "1")
    task_id = queue.enqueue("x")
    with cli.worker("q", "--exec", f"cat {shlex.quote(str(gate))}", *options) as process:
        queue.wait([task_id], "claim", timeout=30)
        with gate.open("wb"):
            process.kill()
            eventually(lambda: cli.ask("status", "q")["consumers"] == 0)
            assert queue.claim() is None
    assert queue.task(task_id).state is State.CLAIMED
    assert (
        cli.refused("worker", "q", "--exec", "cat", "--lease", "0", "--until-empty", code=2)["error"] == "ConfigError"
    )


@pytest.mark.full
def test_a_transactional_worker_puts_with_its_task_or_not_at_all(
    cli: Cli, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler gets a transaction: what it puts stands with the completed task; a failure writes nothing."""
    code = (
        "def move(task, tx):\n"
        "    tx.put('out', b'of ' + task.data)\n"
        "    if task.data == b'bad': raise ValueError('no')\n"
    )
    (tmp_path / "movers.py").write_text(code)
    cli.env["PYTHONPATH"] = str(Path(__file__).parents[2])
    monkeypatch.chdir(tmp_path)
    cli.ask("configure", "q", "--final", "ValueError")
    good, bad = queue.enqueue("good"), queue.enqueue("bad")
    done = cli.ask("worker", "q", "--handler", "movers:move", "--transactional", "--until-empty")
    assert (done["finished"], done["failed"]) == (1, 1)
    assert (queue.task(good).state, queue.task(bad).state) == (State.FINISHED, State.DEAD)
    assert [task["data"] for task in cli.ask("list", "out")["tasks"]] == ["of good"]


@pytest.mark.full
def test_a_worker_without_threads_only_warns(cli: Cli, queue: Queue) -> None:
    """`--threads 0 --warn-size`: a warning once more tasks are pending, none is handled, and SIGTERM ends it."""
    ids = [queue.enqueue("x") for _ in range(3)]
    with cli.worker("q", "--threads", "0", "--warn-size", "2") as process:
        assert process.stderr is not None
        assert "queue 'q' has 3 pending tasks, more than 2" in process.stderr.readline().decode()
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
    assert {queue.task(one).state for one in ids} == {State.INSERTED}


def test_an_idle_worker_stops_at_once(cli: Cli, queue: Queue) -> None:
    """A worker that waits for tasks, and has shown that it works, ends on SIGTERM with 0."""
    with cli.worker("q", "--exec", "cat") as process:
        queue.wait([queue.enqueue("x")], timeout=30)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=15)
    assert process.returncode == 0, errors.decode()


@pytest.mark.full
def test_a_mistyped_queue_is_refused_with_the_names_that_come_close(cli: Cli) -> None:
    """By every verb but those that create queues; none is created."""
    cli.ask("configure", "census")
    for verb in (["claim"], ["pause"], ["resume"], ["status"], ["worker", "--exec", "cat", "--until-empty"]):
        answer = cli.refused(verb[0], "cencus", *verb[1:], code=2)
        assert (answer["error"], answer["similar"]) == ("QueueNotFound", ["census"])
        assert "did you mean 'census'?" in answer["message"]
    assert cli.ask("queues") == {"queues": ["census"]}


@pytest.mark.full
def test_a_worker_may_be_started_before_its_queue_is_there(cli: Cli) -> None:
    """It says so in its log, once, and handles what comes."""
    cli.ask("configure", "orders")
    with cli.worker("ordres", "--exec", "cat", "--threads", "3") as process:
        assert process.stderr is not None
        warning = process.stderr.readline().decode()
        assert "WARNING" in warning
        assert "queue 'ordres' does not exist" in warning
        assert "did you mean 'orders'?" in warning
        task_id = cli.ask("enqueue", "ordres", "x")["id"]
        assert cli.ask("wait", "ordres", task_id, "--timeout", "30")["tasks"][0]["result"] == "x"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert b"WARNING" not in process.stderr.read()


@pytest.mark.full
def test_a_queue_is_deleted_when_it_was_asked_once_more(cli: Cli, queue: Queue) -> None:
    """`--yes` where nobody can be asked; `--force` while it is used."""
    task_id = cli.ask("enqueue", "q", "x")["id"]
    assert "--yes" in cli.refused("delete", "q", code=2)["message"]
    token = cli.ask("claim", "q")["token"]
    assert cli.refused("delete", "q", "--yes", code=1)["error"] == "QueueError"
    assert queue.task(task_id).state == "claimed"
    assert cli.ask("delete", "q", "--yes", "--force") == {"queue": "q", "deleted": 1}
    assert cli.refused("complete", "q", task_id, "--token", str(token), code=2)["error"] == "QueueNotFound"
    assert cli.refused("delete", "q", "--yes", code=2)["error"] == "QueueNotFound"
    assert cli.ask("queues") == {"queues": []}


@pytest.mark.full
@pytest.mark.parametrize("typed", ["q", "p"])
def test_whoever_sits_at_a_terminal_is_asked_for_the_queue_s_name(cli: Cli, queue: Queue, typed: str) -> None:
    """What it holds is told first; another answer deletes nothing."""
    queue.enqueue(b"x")
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*_ZKMQ, "delete", "q"], env=cli.env, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        os.write(ours, f"{typed}\n".encode())
        _, told = process.communicate(timeout=_LIMIT_S)
    os.close(ours)
    os.close(theirs)
    assert b"queue 'q' holds 1 inserted; nothing of it comes back" in told
    assert (process.returncode, queue.exists()) == ((0, False) if typed == "q" else (2, True))
