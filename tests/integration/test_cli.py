"""The command line against a real ZooKeeper, as a shell and an operator use it."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import socket
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zkmq.embedded import EmbeddedServer, server
from airflow_provider_zkmq.engine import Message, Queue, State
from tests.integration.command import LIMIT_S, Cli, Ended, cli, queue
from tests.integration.conftest import taken
from tests.support import eventually

__all__ = ["cli", "queue"]


def test_a_task_is_carried_through_its_life(cli: Cli) -> None:
    """By exit codes and answers alone, each command a session of its own; the task was written in one transaction."""
    cli.ask("configure jobs --filter class=enum:low,standard,high --filter size=integer --attempts 2")
    options = """--filter class=standard --filter size=7 --metadata '{"owner":"me"}'"""
    task_id = cli.told(f"enqueue jobs 'first work' {options}").strip()
    nothing = cli.run("claim", "jobs", "--node", "class=low", "--filter-method", "at_least")
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (3, "", "zkmq: nothing to claim in jobs\n")
    wanted = "--node class=high --filter-method at_least"
    token = cli.ask(f"claim jobs {wanted} --lease 60", id=task_id, data="first work")["token"]
    cli.ask(f"extend jobs {task_id} --token {token} --lease 120")
    cli.ask(f"complete jobs {task_id} --token {token} --result done")
    ended = {"state": "finished", "result": "done", "enqueue_transactions": 1, "metadata": {"owner": "me"}}
    show = cli.ask(f"show jobs {task_id}", **ended, filters={"class": "standard", "size": "7"})
    base = f"{cli.root}/jobs/tasks/{task_id}"
    parts = {node["path"].removeprefix(base) for node in show["znodes"]}
    assert {"", "/data", "/metadata", "/state", "/filters", "/filters/class", "/filters/size", "/result"} <= parts
    cli.ask(f"wait jobs {task_id} --timeout 10")
    after = cli.ask("status jobs", consumers=0)
    assert (after["counts"]["finished"], after["conf"]["policy"]["attempts"]) == (1, 2)
    assert after["conf"]["filters"] == {"class": "enum:low,standard,high", "size": "integer"}
    cli.ask("gc jobs --lifetime 0", collected=1)
    cli.ask(f"show jobs {task_id}", 1, error="TaskNotFound", says="task ")


#: What cannot be, by the error and a word that helps.
_REFUSED = {
    ("ConfigError", "low, high"): ("enqueue q x --filter class=extreme",),
    ("ConfigError", "not declared"): ("enqueue q x --filter colour=red",),
    ("ConfigError", "whole number"): ("enqueue q x --filter size=big", "enqueue q x --filter size=1.5"),
    ("ConfigError", "priority"): ("enqueue q x --priority 100000",),
    ("ConfigError", "a/b"): ("enqueue a/b x",),
    ("QueueNotFound", "zkmq queue create p, or --create"): ("enqueue p x",),
    ("ConfigError", "class"): ("claim q --node class=extreme", "claim q --selector 'class>'"),
    ("ConfigError", "lease"): ("claim q --lease 0", "worker q --exec cat --lease 0 --until-empty"),
    ("ConfigError", "backoff"): ("configure q --min-backoff 400",),
    ("ConfigError", "task id"): ("show q a/b --watch",),
    ("UsageError", "Invalid value for '--delay': "): tuple(
        f"enqueue q x --delay {text}" for text in ("-1", "nan", "soon")
    ),
    ("UsageError", "Invalid value for '--lock': "): ("enqueue q x --lock '1 month'",),
    ("UsageError", "has no zone"): ("enqueue q x --not-before 2026-11-22T10:31:05",),
    ("UsageError", "not allowed with"): ("enqueue q x --not-before 2026-11-22T10:31:05Z --delay 1m",),
    ("UsageError", "--yes"): ("clear q", "delete q"),
}
_NO_IDS = ("a/b", "..", "a..b", ".", "", "spa ce", "é", "x" * 129, "line\nend")


def test_what_cannot_be_is_refused_and_nothing_is_written(cli: Cli, queue: Queue, subtests: pytest.Subtests) -> None:
    """A bad filter, number, priority, time, name or id: code 2 and a word that helps; no task."""
    cli.ask("configure q --filter class=enum:low,high --filter size=integer")
    ids = [shlex.quote(each) for each in _NO_IDS]
    by_ids = [line for each in ids for line in (f"enqueue q x --task-id={each}", f"show q {each}", f"cancel q {each}")]
    for (error, says), lines in [*_REFUSED.items(), (("ConfigError", "task id"), by_ids)]:
        for line in lines:
            with subtests.test(msg=line):
                cli.ask(line, 2, error=error, says=says)
    assert queue.tasks() == []
    cli.ask("queues", queues=["q"])
    cli.ask("doctor", count=1, writable=True, open_above=[])
    hosts = f"127.0.0.1:{server.free_ports('127.0.0.1', 1)[0]}"
    Cli(hosts, "/x").ask("queues --timeout 0.5", 6, error="Unavailable", says=f"{hosts} within connect_timeout (0.5 s)")
    Cli(hosts, "/x").ask("wait q x --timeout 60", 6, error="Unavailable", says="(1 s)")


def test_data_are_bytes_from_the_command_line_standard_input_or_its_lines(cli: Cli, queue: Queue) -> None:
    """`-` takes them as they are, `--lines` one task a line, in order; what a request cannot hold is not sent."""
    task_id = cli.ask("enqueue q -", stdin=b"\xff\x00\n")["id"]
    assert queue.task(task_id).data == b"\xff\x00\n"
    cli.ask(f"show q {task_id}", data_base64="/wAK")
    ids = cli.ask("enqueue q --lines --priority 5", stdin=b"one\ntwo\n\nfour")["ids"]
    assert [queue.task(one).data for one in ids] == [b"one", b"two", b"", b"four"]
    cli.ask("enqueue q --lines", ids=[])
    assert [cli.ask("claim q")["data"] for _ in range(2)] == ["one", "two"]
    big, fits = b"x" * 1_100_000, b"\xff" * 1_000_000
    cli.ask("enqueue q -", 1, error="TaskTooLarge", says="1,100,000", stdin=big)
    assert len(queue.tasks()) == 5
    assert queue.task(cli.ask("enqueue q -", stdin=fits)["id"]).data == fits
    cli.ask(f"complete {cli.in_hand()} --result -", stdin=b"\xff")
    assert [task.result for task in queue.tasks(state="finished")] == [b"\xff"]


def test_a_claim_outlives_its_command_and_only_its_token_settles_it(cli: Cli, queue: Queue) -> None:
    """A wrong token is refused, and changes nothing; progress is shown while the claim lasts; a release ends it."""
    task_id = cli.ask("enqueue q x")["id"]
    claimed = cli.in_hand()
    cli.ask("claim q", 3, id=None)
    for verb in ("complete", "progress"):
        cli.ask(f"{verb} q {task_id} --token 7" + " 1" * (verb == "progress"), 1, error="ClaimLost")
    assert queue.task(task_id).state is State.CLAIMED
    cli.ask(f"progress {claimed} 0.5 --note 'half way'")
    cli.ask(f"show q {task_id}", progress=0.5, note="half way")
    assert re.search(r"^progress +50%$", cli.told(f"show q {task_id}"), re.MULTILINE)
    cli.ask(f"progress {claimed} 1.5", 2, error="ConfigError")
    cli.ask(f"release {claimed}", state="inserted")
    cli.ask(f"show q {task_id}", progress=None)
    assert cli.ask("claim q", id=task_id, attempt=1)["token"] > int(claimed.split()[-1])
    cli.ask(f"release {claimed}", 1, error="ClaimLost")


def refused_by(ended: Ended) -> set[str]:
    """The tasks that an answer says were refused, each with a reason."""
    return {each["id"] for each in json.loads(ended.stdout)["refused"] if each["reason"]}


def test_failures_dead_letters_and_redrive(cli: Cli, queue: Queue) -> None:
    """A final failure ends in the dead letters, where `wait` says 5; redrive --all brings the tasks back, in groups.

    Under `enqueue --attempts 1` the first failure is the last, whatever the queue allows.
    """
    task_id = cli.ask("enqueue q x")["id"]
    cli.ask(f"fail {cli.in_hand()} --error 'broken pump' --no-retry", state="dead")
    assert cli.ask(f"wait q {task_id} --timeout 10", 5)["tasks"][0]["error"] == "broken pump"
    assert [task["id"] for task in cli.ask("list q --state dead")["tasks"]] == [task_id]
    cli.ask("redrive q --all", redriven=[task_id])
    told = cli.run("redrive", "q", task_id, "nobody", "--json")
    assert (told.returncode, refused_by(told)) == (1, {task_id, "nobody"})
    cli.ask("redrive q --all", redriven=[])
    assert cli.ask(f"show q {task_id}")["history"][0]["error"] == "broken pump"
    cli.ask("enqueue q x --attempts 1 --priority 9")
    cli.ask(f"fail {cli.in_hand()} --error no", state="dead")


def test_what_has_ended_or_is_not_there_is_told_apart(cli: Cli, queue: Queue) -> None:
    """By exit codes and names: a time-out, a task in use, one that has ended, one that is unknown; the rest is done."""
    cli.ask("enqueue q x --task-id first")
    cli.ask("enqueue q x --task-id second")
    told = {"status": "queued", "duplicates": ["first"], "enqueued": []}
    cli.ask("enqueue q y --task-id first", 1, error="DuplicateTask", **told)
    cli.ask("wait q first --timeout 0.1", 4, error="WaitTimeout", left=["first"])
    cli.ask("wait q missing --timeout 5", 1, error="TaskNotFound")
    cli.ask("show q missing --watch", 1, error="TaskNotFound")
    cli.ask(f"complete {cli.in_hand()}")
    ended = cli.run("cancel", "q", "first", "second", "missing", "--json")
    answer = json.loads(ended.stdout)
    assert (ended.returncode, answer["cancelled"], refused_by(ended)) == (1, ["second"], {"first", "missing"})
    assert (answer["error"], ended.stderr.count("zkmq: ")) == ("IllegalTransition", 2)
    assert cli.ask("wait q second", 5)["tasks"][0]["state"] == "cancelled"
    assert cli.told("show q second --watch", 5) == "cancelled  attempt 0\n"


def test_credentials_come_from_the_environment_and_guard_the_queue(cli: Cli) -> None:
    """What ZKMQ_AUTH created opens to the same credentials only; others are refused with 2, the password untold."""
    cli.env["ZKMQ_AUTH"] = "me:right-secret"
    cli.ask("enqueue q x --create")
    assert cli.ask("status q")["counts"]["inserted"] == 1
    cli.env["ZKMQ_AUTH"] = "me:wrong-secret"
    assert "secret" not in cli.ask("claim q", 2, error="AccessDenied")["message"]
    cli.ask("--auth me:right-secret claim q", data="x")


def test_configure_changes_only_what_is_given(cli: Cli) -> None:
    """configure and status tell it, to programs and to people, who may write what they read; 0 and '' take it back."""
    first = cli.ask("configure q --filter a=string --attempts 3 --task-gc-lifetime 60")["conf"]
    assert (first["lock"], first["order"], first["archive"]) == (None, "default", False)
    cli.ask("configure q --lock 1h30m --order fifo --min-backoff 250ms --max-backoff 5m --backoff-factor 0.5")
    conf = cli.ask("configure q --final ValueError --final my.Error --task-gc-interval PT5M")["conf"]
    policy = {"attempts": 3, "factor": 0.5, "min_backoff": 0.25, "max_backoff": 300}
    changed = {"lock": 5_400, "order": "fifo", "task_gc_interval": 300}
    changed["policy"] = policy | {"final": ["ValueError", "my.Error"]}
    assert conf == first | changed
    cli.ask("status q", conf=conf)
    told = cli.told("status q")
    for line in (r"lock +1h30m", r"order +fifo", r"task gc lifetime +1m", r"task gc interval +5m"):
        assert re.search(rf"\b{line}$", told, re.MULTILINE), line
    assert "final=ValueError my.Error" in told
    conf = cli.ask("configure q --lock 0 --order default --final '' --attempts unbounded")["conf"]
    assert (conf["lock"], conf["order"]) == (None, "default")
    assert conf["policy"] == policy | {"attempts": None, "final": []}
    assert "final" not in cli.told("configure q")


def test_an_archived_queue_keeps_what_no_archive_has(cli: Cli) -> None:
    """--archive holds until --no-archive; status tells programs and people; so does --follow."""
    conf = cli.ask("configure q --archive")["conf"]
    assert (conf["archive"], conf["archived"]) == (True, 0)
    assert cli.ask("configure q --lock 3")["conf"]["archive"] is True
    assert re.search("^archived +0$", cli.told("status q"), re.MULTILINE)
    cli.ask("enqueue q x")
    cli.ask(f"complete {cli.in_hand('--lease 60')}")
    cli.ask("gc q --lifetime 0", collected=0, kept_unarchived=1)
    assert cli.ask("configure q --follow")["conf"]["follow"] is True
    assert cli.ask("configure q --no-archive")["conf"]["archive"] is False
    cli.ask("gc q --lifetime 0", collected=1)


def test_durations_and_moments_are_written_as_people_write_them(cli: Cli, queue: Queue) -> None:
    """Units, ISO 8601 and plain seconds are the same."""
    cli.ask("enqueue q later --task-id a --delay PT1H --lock 90s")
    cli.ask("enqueue q later --task-id b --not-before '2096-11-22 11:31:05+01:00'")
    cli.ask("enqueue q now --task-id c --not-before 2006-11-22T10:31:05Z")
    words = {"scheduled": 2, "queued-with-backoff": 2, "queued": 1, "inserted": 3, "done-awaiting-gc": 0}
    assert {word: len(cli.ask(f"list q --state {word}")["tasks"]) for word in words} == words
    later, moment = queue.task("a"), queue.task("b")
    assert 3_590_000 < (later.due_ms or 0) - later.enqueued_ms < 3_610_000
    assert str(moment.due_at) == "2096-11-22 10:31:05+00:00"
    token = cli.ask("claim q --timeout 1s --lease 2m", id="c", lease=120)["token"]
    cli.ask(f"snooze q c --token {token} --delay 1h")
    cli.ask("gc q --lifetime 2w", collected=0)


def test_times_are_told_with_zone_and_age(cli: Cli, queue: Queue) -> None:
    """People read UTC and how long ago it was; JSON has the time as text, with its zone."""
    queue.enqueue(b"x", task_id="a")
    taken(queue).fail("once", retry=False)
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, (now|\d+ s ago)"
    shown = cli.told("show q a")
    for line in (
        "enqueue transactions +1",
        f"enqueued +{time}",
        f"ended +{time}",
        rf"1 +failed +\S+ +{time} +- +{time} +once",
    ):
        assert re.search(rf"^{line}$", shown, re.MULTILINE), line
    assert re.search(rf"^a +dead +1 +0 +{time} ", cli.told("list q"), re.MULTILINE)
    task = queue.task("a")
    record = cli.ask("show q a", claimed_at=None, due_at=None)
    for name in ("enqueued_at", "ended_at"):
        assert datetime.fromisoformat(record[name]) == getattr(task, name)
    (attempt,) = record["history"]
    began, ended = (datetime.fromisoformat(attempt[name]) for name in ("claimed_at", "ended_at"))
    assert began <= ended
    # The attempt's end is what the client reckons the server's clock to be, the task's is the server's own.
    assert abs((datetime.fromisoformat(record["ended_at"]) - ended).total_seconds()) < 60
    assert (attempt["attempt"], attempt["outcome"]) == (1, "failed")
    assert cli.ask("list q")["tasks"][0]["enqueued_at"] == record["enqueued_at"]


def test_a_batch_is_written_waited_for_and_followed(cli: Cli, queue: Queue) -> None:
    """`--batch` with `--lines` and `--then`: counts while it runs, 4 on time-out, 0 when all is well, then the next.

    Members that ended dead or cancelled are named; only `--wait` makes them the exit code, which is 5.
    """
    queue.enqueue("before")
    ids = ["b.000000", "b.000001"]
    cli.ask("enqueue q --lines --batch b --then 'sum up'", stdin=b"one\ntwo\n", batch="b", ids=ids)
    cli.ask("show q b.000001", batch="b")
    begun = {"queue": "q", "batch": "b", "total": 2, "open": 2, "failed": [], "done": False}
    begun |= {"written": True, "refused": []}
    assert cli.ask("batch q b") == begun
    cli.ask("batch q b --wait --timeout 0.1", 4, error="WaitTimeout", left=ids)
    lost = cli.ask("enqueue q --lines --batch lost", stdin=b"1\n2")["ids"][1]
    cli.ask(f"cancel q {lost}")
    cli.ask("worker q --exec cat --until-empty", finished=5)
    assert cli.ask("batch q b --wait --timeout 10") == begun | {"open": 0, "done": True}
    assert {task.data for task in queue.tasks(state="finished")} == {b"before", b"one", b"sum up", b"two", b"1"}
    assert [task["result"] for task in cli.ask("list q --batch b")["tasks"]] == ["one", "two"]
    cli.ask("batch q lost", failed=[lost])
    cli.ask("batch q lost --wait", 5, done=True)
    assert lost in cli.told("batch q lost --wait", 5)
    cli.ask("batch q unknown", 1, error="TaskNotFound")
    cli.ask("enqueue q x --batch b", 1, error="DuplicateTask")


def test_show_why_names_who_refuses_it_and_what_for(cli: Cli, queue: Queue) -> None:
    """The reasons of the queue and the task, and each live consumer's verdict: for people, and as `why` in JSON.

    A queue that is paused hands out nothing, and says so in its status; resumed, it goes on.
    """
    cli.ask("configure q --filter size=integer")
    task_id = cli.ask("enqueue q x --filter size=7")["id"]
    assert "no live consumer is registered" in cli.told(f"show q {task_id} --why")
    assert queue.claim(selector="size<=5") is None
    assert cli.ask("pause q") == {"queue": "q", "paused": True, "changed": True}
    cli.ask("pause q", changed=False)
    cli.ask("status q", paused=True)
    assert cli.run("claim", "q").returncode in {1, 3}
    shown = cli.ask(f"show q {task_id} --why", data="x")
    (verdict, *_) = (each for each in shown["why"].pop("consumers") if each["accepts"] == ["size<=5"])
    assert (shown["why"]["status"], verdict["in_hand"]) == ("queued", 0)
    assert any("paused" in reason for reason in shown["why"]["reasons"])
    told = cli.told(f"show q {task_id} --why").splitlines()
    assert told[0] == f"task {task_id} is queued"
    assert f"  consumer {verdict['consumer']}: {verdict['refuses']}" in told
    cli.ask("resume q", changed=True)
    taken(queue)
    assert cli.ask(f"show q {task_id} --why")["why"]["status"] == "locked"


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
        claim = taken(queue)
        assert told() == ("locked", 1, None, None)
        for note in ("reading", "writing"):
            claim.progress(0.25, note)
            assert told() == ("locked", 1, 0.25, note)
        claim.fail("once", backoff=0)
        assert told()[:2] == ("queued", 1)
        claim = taken(queue)
        assert told()[:2] == ("locked", 2)
        claim.complete("done")
        assert told()[:2] == ("done-awaiting-gc", 2)
        assert process.stdout.read() == b""
        assert process.wait(LIMIT_S) == 0


def test_a_closed_pipe_is_quiet_and_an_unread_claim_is_given_back(cli: Cli, queue: Queue) -> None:
    """When nobody reads the answer there is no traceback; a claim whose token nobody learned is not kept."""
    task_id = queue.enqueue("x")
    reader, writer = os.pipe()
    os.close(reader)
    with cli.background("claim", "q", stdout=writer) as process:
        os.close(writer)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, errors) == (141, b"")
    assert (queue.task(task_id).state, queue.task(task_id).attempt) == (State.INSERTED, 0)


def test_a_mistyped_queue_is_refused_with_the_names_that_come_close(cli: Cli) -> None:
    """By every verb but those that create queues; none is created."""
    cli.ask("configure census")
    for verb in (
        "claim",
        "pause",
        "resume",
        "status",
        "clear --yes",
        "delete --yes",
        "worker --exec cat --until-empty",
    ):
        line = verb.replace(" ", " cencus ", 1) if " " in verb else f"{verb} cencus"
        cli.ask(line, 2, error="QueueNotFound", similar=["census"], says="did you mean 'census'?")
    cli.ask("queues", queues=["census"])


def test_tasks_and_queues_are_deleted_when_it_was_asked_once_more(cli: Cli, queue: Queue) -> None:
    """`--yes` where nobody can be asked: every task, or those in one state; `--force` for a queue that is used."""
    first, second = queue.enqueue("1"), queue.enqueue("2")
    cli.ask(f"cancel q {first}")
    cli.ask("clear q --state cancelled --yes", cleared=1)
    claimed = cli.in_hand()
    cli.ask("delete q --yes", 1, error="QueueError")
    assert queue.task(second).state == "claimed"
    cli.ask("clear q --yes", cleared=1)
    assert queue.tasks() == []
    cli.ask(f"complete {claimed}", 1, error="TaskNotFound")
    queue.enqueue("3")
    claimed = cli.in_hand()
    assert cli.ask("delete q --yes --force") == {"queue": "q", "deleted": 1}
    cli.ask(f"complete {claimed}", 2, error="QueueNotFound")
    cli.ask("queues", queues=[])


@pytest.mark.full
def test_whoever_sits_at_a_terminal_is_asked_for_the_queue_s_name(cli: Cli, queue: Queue) -> None:
    """What is for good is told first; another answer deletes nothing."""
    queue.enqueue(b"x")
    for typed, code, there in (("p", 2, True), ("q", 0, False)):
        ours, theirs = pty.openpty()
        with cli.background("delete", "q", stdin=theirs) as process:
            os.write(ours, f"{typed}\n".encode())
            _, told = process.communicate(timeout=LIMIT_S)
        os.close(ours)
        os.close(theirs)
        assert b"deleting queue 'q' with all its tasks is for good" in told
        assert (process.returncode, queue.exists()) == (code, there)


def test_the_overview_begins_with_the_queues_in_trouble(cli: Cli) -> None:
    """Dead letters first, then paused ones, then tasks that wait where nobody consumes; the rest by name."""
    for name in ("calm", "dead", "paused", "waiting"):
        cli.ask(f"queue create {name}")
    cli.ask("task enqueue dead x --attempts 1")
    claim = cli.ask("claim dead")
    cli.ask(f"fail dead {claim['id']} --token {claim['token']} --error broken")
    cli.ask("queue pause paused")
    cli.ask("enqueue waiting x")
    cli.ask("enqueue calm later --delay 90m")
    found = cli.ask("status")["queues"]
    assert [each["queue"] for each in found] == ["dead", "paused", "waiting", "calm"]
    assert (found[0]["counts"]["dead"], found[1]["paused"], found[2]["consumers"]) == (1, True, 0)
    *troubles, empty, head, _, _, waiting, calm = cli.told("status").splitlines()
    assert troubles == [
        "dead: 1 dead letter(s)  (zkmq dead list dead)",
        "paused: paused; 0 task(s) wait  (zkmq queue resume paused)",
        "waiting: 1 task(s) wait, and no consumer lives  (zkmq worker waiting)",
    ]
    assert (empty, head.split()[:7]) == (
        "",
        ["QUEUE", "PENDING", "SCHEDULED", "CLAIMED", "DEAD", "PAUSED", "CONSUMERS"],
    )
    assert waiting.split()[:7] == ["waiting", "1", "0", "0", "0", "no", "0"]
    assert calm.split() == ["calm", "0", "1", "0", "0", "no", "0", "-", "in", "1", "h"], "when the next is due"


def test_a_limit_is_shown_as_it_is_set(cli: Cli, queue: Queue) -> None:
    """The period with a rate alone, and in words; what is given replaces the whole limit, and one word lifts it."""
    cli.ask("configure q --filter size=integer")
    for given, shown in (
        ("rate=10,per=60,concurrency=2", "concurrency=2,rate=10,per=1m"),
        ("concurrency=2,by=size", "concurrency=2,by=size"),
        ("none", "none"),
    ):
        told = cli.told(f"configure q --limit {given}")
        assert re.search(f"^limit +{shown}$", told, re.MULTILINE)
        assert re.search(f"^limit +{shown}$", cli.told("status q"), re.MULTILINE)
    cli.ask("configure q --limit rate=1,per=1h")
    queue.enqueue_many([Message(b"")] * 2)
    cli.ask("claim q")
    (left,) = queue.tasks(state="inserted")
    assert re.search(r"the next may follow in (1h|59m\d+s)$", cli.told(f"show q {left.id} --why"), re.MULTILINE)


def test_whoever_watches_is_told_at_once_that_the_connection_is_lost(tmp_path: Path) -> None:
    """On standard error; the answers stay JSON."""
    with EmbeddedServer(tmp_path, force_sync=False) as running:
        watching = Cli(running.hosts, "/x").background("status", "--watch", "--interval", "0.01", "--json")
        with watching as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert [json.loads(process.stdout.readline()) for _ in range(3)] == [{"queues": []}] * 3
            running.stop()
            lost = b"zkmq: the connection to ZooKeeper is lost; it is opened again as soon as a server answers\n"
            assert process.stderr.readline() == lost


def test_the_consumers_of_a_queue_are_named(cli: Cli, queue: Queue) -> None:
    """Who lives, what it accepts, and what it has in hand; a claim under a lease outlives the process that made it."""
    assert cli.ask("consumers q")["consumers"] == []
    cli.ask("configure q --filter size=integer")
    queue.enqueue("x", {"size": 3})
    assert queue.claim(selector="size<=5") is not None
    (found,) = cli.ask("consumers q")["consumers"]
    assert (found["alive"], found["accepts"], found["in_hand"]) == (True, ["size<=5"], 1)
    (task,) = found["claims"]
    assert (task["claimed_at"][:2], task["progress"], task["hung"]) == ("20", None, False)
    head, row = (line.split() for line in cli.told("consumers q").splitlines())
    assert (head[:2], row[:2]) == (["CONSUMER", "ALIVE"], [found["consumer"], "yes"])
    assert row[row.index("size<=5") :][:2] == ["size<=5", task["id"]], "and since when it has that"
    assert "hung: nothing was heard of it for" in cli.told("consumers q --hung-after 0")
    assert "hung: nothing was heard of it for" in cli.told("status q --hung-after 0")
    leased = queue.enqueue("x", {"size": 7})
    cli.ask("claim q --lease 1h")
    gone = next(each for each in cli.ask("consumers q")["consumers"] if not each["alive"])
    assert [claim["id"] for claim in gone["claims"]] == [leased]
    assert "lease ends in 59 min" in cli.told("consumers q")
    cli.ask("consumers p", 2, error="QueueNotFound")


def test_dead_letters_are_counted_by_their_errors_and_redriven_by_them(cli: Cli, queue: Queue) -> None:
    """Ids and numbers are masked, so that the same errors meet; a pattern is found in the text as it is, or masked."""
    errors = ["TimeoutError: waited 5 s for 10.0.0.1", "TimeoutError: waited 17 s for 10.0.0.2", "no [paper]", ""]
    for number, error in enumerate(errors):
        queue.enqueue("x", task_id=f"t{number}")
        cli.ask(f"fail {cli.in_hand()} --no-retry --error {shlex.quote(error)}")
    groups = cli.ask("dead list q")["groups"]
    masked = "TimeoutError: waited <number> s for <address>"
    assert [(group["error"], group["count"]) for group in groups] == [
        (masked, 2),
        ("no [paper]", 1),
        ("no error told", 1),
    ]
    assert groups[0]["ids"] == ["t0", "t1"]
    head, row, *_ = cli.told("dead list q").splitlines()
    assert head.split() == ["COUNT", "ERROR", "LATEST", "TASKS"]
    assert (row.split()[0], masked in row, row.split()[-2:]) == ("2", True, ["t1", "t0"])
    for pattern, ids in {
        "waited 17": ["t1"],
        "<number> s": ["t0", "t1"],
        "w*10.0": ["t0", "t1"],
        "[paper]": ["t2"],
    }.items():
        chosen = cli.ask(f"dead list q --error {shlex.quote(pattern)}")["groups"]
        assert [task for group in chosen for task in group["ids"]] == ids
    cli.ask("dead redrive q --error nothing", redriven=[])
    cli.ask("dead redrive q --error 'waited 5'", redriven=["t0"])
    cli.ask("dead redrive q --error waited t1", 2, error="UsageError")
    assert sorted(cli.ask("dead redrive q --all")["redriven"]) == ["t1", "t2", "t3"]


def test_tasks_are_chosen_alike_by_each_verb(cli: Cli, queue: Queue) -> None:
    """By what they are or by their ids, never by both; who changes something must say which tasks."""
    cli.ask("configure q --filter size=integer")
    for number in range(4):
        queue.enqueue("x", {"size": number}, task_id=f"t{number}")
    for number in range(3):
        cli.ask(
            f"fail q {cli.ask(f'claim q --selector size=={number}')['id']} --force --no-retry --error 'E: {number} s'"
        )
    by = "--error 'E: <number>' --selector 'size<=1'"
    assert [task["id"] for task in cli.ask(f"list q {by}")["tasks"]] == ["t0", "t1"]
    assert [task["id"] for task in cli.ask("list q t3 t0")["tasks"]] == ["t3", "t0"]
    assert cli.ask(f"dead list q {by}")["groups"][0]["ids"] == ["t0", "t1"]
    shown = cli.run("show", "q", *shlex.split(by), "--json").stdout.splitlines()
    assert [json.loads(line)["id"] for line in shown] == ["t0", "t1"]
    cli.ask(f"dead drop q {by}", 2, error="UsageError", says="--yes")
    assert cli.ask(f"dead redrive q {by} --limit 1")["redriven"] == ["t0"]
    assert cli.ask(f"dead drop q {by} --yes")["dropped"] == ["t1"]
    assert cli.ask("task cancel q --selector 'size>=2'")["cancelled"] == ["t3"]
    assert cli.ask("redrive q --state cancelled --limit 9")["redriven"] == ["t3"]
    assert {task.id: str(task.state) for task in queue.tasks()} == {"t0": "inserted", "t2": "dead", "t3": "inserted"}
    for verb in ("redrive", "dead drop", "cancel", "show"):
        cli.ask(f"{verb} q", 2, says="needs to know which tasks")
    cli.ask("list q t0 --state dead", 2, says="goes without task ids")


def test_a_claim_whose_lease_has_ended_says_so_wherever_it_is_listed(cli: Cli, queue: Queue) -> None:
    """In the list, the story of the task, the status and the consumers; a release by force gives it back."""
    task_id = queue.enqueue("x")
    cli.ask("claim q --lease 1h")
    for line in (f"show q {task_id}", "list q"):
        assert re.search("ends 2.* UTC, in 59 min", cli.told(line)), line
    cli.ask(f"release q {task_id} --force")
    cli.ask("claim q --lease 10ms")
    eventually(lambda: queue.counts()["claimed"] == 0)
    assert re.search("ended 2.* UTC, (now|. s ago)", cli.told("list q"))
    assert re.search("lapsed +yes", cli.told(f"show q {task_id}"))
    assert "lease ended" in cli.told("consumers q")
    assert f"zkmq task release q {task_id} --force" in cli.told("status q")
    cli.ask(f"task release q {task_id} --force", state="inserted")
    assert cli.ask("status q")["claims"] == []


def test_a_release_by_force_stands_in_the_history(cli: Cli, queue: Queue) -> None:
    """Who had the task, from when to when, and that this delivery counts as no attempt."""
    task_id = queue.enqueue("x")
    for _ in range(2):
        claim = cli.ask("claim q --lease 1h")
        cli.ask(f"release q {task_id} --force")
    task = cli.ask(f"show q {task_id}")
    assert task["attempt"] == 0
    for past in task["history"]:
        assert (past["outcome"], past["attempt"], past["error"]) == ("revoked", 1, None)
        assert past["claimed_at"] <= past["ended_at"]
    assert len({past["consumer"] for past in task["history"]}) == 2
    assert claim["id"] == task_id
    assert len(re.findall(r"1 +revoked +\S+", cli.told(f"show q {task_id}"))) == 2


def test_watch_answers_again_and_again_until_ctrl_c(cli: Cli, queue: Queue) -> None:
    """In a pipe one answer a line, each as it is then."""
    with cli.background("status", "q", "--watch", "--interval", "50ms", "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["counts"]["inserted"] == 0
        queue.enqueue("x")
        while json.loads(process.stdout.readline())["counts"]["inserted"] == 0:
            pass
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, errors) == (130, b"")


def test_who_waits_for_a_silent_server_is_told_at_once_and_until_when(root: str) -> None:
    """What is in the way stands in the first line; the last says that it was in vain."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hosts = f"127.0.0.1:{silent.getsockname()[1]}"
        ended = Cli(hosts, root).run("status", "--timeout", "1200ms")
    first, last = ended.stderr.splitlines()
    trouble = f"{hosts} took the connection and did not answer"
    assert re.match(rf"zkmq: no answer yet: {trouble}.*; trying until \d\d:\d\d:\d\d \(1.2 s\)$", first)
    assert (ended.returncode, trouble in last) == (6, True)


def test_what_takes_longer_than_a_second_is_shown_on_a_terminal_alone(cli: Cli, queue: Queue) -> None:
    """On its standard error, and taken away at the end; the answer in the pipe is as ever."""
    task_id = queue.enqueue("x")
    ours, theirs = pty.openpty()
    with cli.background("wait", "q", task_id, stderr=theirs) as process:
        os.close(theirs)
        told = b""
        while b"waiting for 1 task(s)" not in told:
            told += os.read(ours, 10_000)
        taken(queue).complete()
        answer, _ = process.communicate(timeout=LIMIT_S)
    os.close(ours)
    assert (process.returncode, answer.split()[4:6]) == (0, [task_id.encode(), b"finished"])


def test_what_a_dead_consumer_had_in_hand_is_a_trouble(cli: Cli, queue: Queue) -> None:
    """Until somebody claims, nobody gives the task back: status, consumers and show all say so."""
    task = queue.enqueue("x")
    with cli.background("worker", "q", "--exec", "sleep 100", "--session-timeout", "2") as worker:
        eventually(lambda: queue.counts()["claimed"] == 1)
        worker.kill()
    eventually(lambda: [each["kind"] for each in cli.ask("status q")["troubles"]] == ["gone"], within=60)
    assert "1 task(s) in hand of consumers that are gone" in cli.told("status")
    (found,) = cli.ask("consumers q")["consumers"]
    assert (found["alive"], found["in_hand"], found["claims"][0]["gone"]) == (False, 1, True)
    assert "its consumer is gone" in cli.told("consumers q")
    assert "that consumer's session has ended" in cli.told(f"show q {task} --why")
    claim = queue.claim(timeout=20)
    assert claim is not None
    assert claim.task.id == task
    assert cli.ask("status q")["troubles"] == []


def test_tasks_that_wait_although_consumers_accept_them_are_a_trouble(cli: Cli, queue: Queue) -> None:
    """A consumer that lives and takes nothing may hang; one that has something in hand works, and so does a limit."""
    assert queue.claim() is None  # a consumer from now on
    queue.enqueue("x")
    eventually(lambda: [each["kind"] for each in cli.ask("status q --hung-after 1")["troubles"]] == ["stuck"])
    assert cli.ask("status q")["troubles"] == []
    assert queue.claim() is not None
    queue.enqueue("y")
    assert "stuck" not in {each["kind"] for each in cli.ask("status q --hung-after 1")["troubles"]}
