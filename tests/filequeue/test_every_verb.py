"""Each verb of the command line, and each name of a queue, a claim and a client, over a file and over ZooKeeper.

Over a file it works, or says in one line that a file has no such thing. What there is, is asked of the code itself, so
that a new verb is either here or fails here.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zkmq.cli import main as cli
from airflow_provider_zkmq.engine import (
    Archive,
    Claim,
    FilterType,
    Message,
    OrderedEnum,
    Queue,
    Unsupported,
    WaitTimeout,
    Zkmq,
)
from airflow_provider_zkmq.engine.fronts.methods import Twins
from airflow_provider_zkmq.engine.fronts.verbs import ClaimVerbs, QueueVerbs
from airflow_provider_zkmq.filequeue import FileClaim, FileClient, FileQueue
from tests.support import fresh_root

TYPES: dict[str, FilterType] = {"size": OrderedEnum("small", "large")}
QUEUE = "q"


def public(kind: type) -> set[str]:
    """The public names of a class."""
    return {name for name in dir(kind) if not name.startswith("_")}


class Side:
    """A queue with a task in each state that both kinds have: claimed, dead, finished and queued."""

    def __init__(self, hosts: str, root: str | None) -> None:
        self.arguments: dict[str, Any] = {"hosts": hosts} if root is None else {"hosts": hosts, "root": root}
        self.argv = ["--hosts", hosts, *([] if root is None else ["--root", root])]
        self.zk: Any = Zkmq.connect(**self.arguments, gc=False)
        self.q: Any = self.zk.queue(QUEUE)
        self.q.configure(filters=TYPES)
        self.q.enqueue_many([Message("x", task_id=name) for name in ("finished", "dead", "claimed")])
        self.q.claim(lease=60).complete("result")
        self.q.claim(lease=60).fail("broken", retry=False)
        self.claim = self.q.claim(lease=60)
        self.token = self.claim.token
        self.q.enqueue("x", {"size": "large"}, task_id="queued")

    def ended_batch(self) -> None:
        """A batch `b`, whose only task was cancelled; a file has none."""
        if not isinstance(self.q, FileQueue):
            for task_id in self.q.enqueue_many([Message("x")], batch="b"):
                self.q.cancel(task_id)

    def states(self) -> dict[str, str]:
        return {task.id: str(task.state) for task in self.q.tasks()}


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Side]:
    side = Side(f"textqueue://{tmp_path}/queues", None)
    yield side
    side.zk.close()


@pytest.fixture
def zookeeper_side(zookeeper: str) -> Iterator[Side]:
    side = Side(zookeeper, fresh_root())
    yield side
    side.zk.close()


@pytest.fixture(params=["file", "zookeeper"])
def side(request: pytest.FixtureRequest) -> Side:
    side: Side = request.getfixturevalue("file" if request.param == "file" else "zookeeper_side")
    return side


# --- the methods

#: How each name of a queue is used.
CALLS: dict[str, Callable[[Side], object]] = {
    "archive": lambda side: side.q.archive(),
    "batch": lambda side: side.ended_batch() or side.q.batch("b"),
    "begin": lambda side: side.q.begin("claimed", side.token),
    "cancel": lambda side: side.q.cancel("queued"),
    "changes": lambda side: side.q.changes,
    "check_wanted": lambda side: side.q.check_wanted(selector="size==large") and None,
    "claim": lambda side: side.q.claim(selector="size==large", lease=60),
    "claim_many": lambda side: side.q.claim_many(3, selector="size==large", lease=60),
    "claim_task": lambda side: side.q.claim_task("queued", lease=60, attempt=1),
    "claims": lambda side: [claim.task for claim in side.q.claims(selector="size==large", timeout=0)],
    "clear": lambda side: side.q.clear("finished"),
    "closed": lambda side: side.q.closed,
    "collect_garbage": lambda side: side.q.collect_garbage(0),
    "complete": lambda side: side.q.complete("claimed", side.token, "r"),
    "conf": lambda side: side.q.conf(),
    "configure": lambda side: side.q.configure(lock=5, order="fifo"),
    "consumers": lambda side: side.q.consumers(),
    "counts": lambda side: side.q.counts(),
    "delete": lambda side: (side.q.delete(confirm=True, force=True), side.q.configure(filters=TYPES))[0],
    "departed_between": lambda side: side.q.departed_between(0, 1),
    "drop": lambda side: side.q.drop("dead"),
    "ended_between": lambda side: side.q.ended_between(0, 1),
    "enqueue": lambda side: side.q.enqueue("x", {"size": "small"}, task_id="new"),
    "enqueue_many": lambda side: side.q.enqueue_many([Message("x", task_id="new")]),
    "enqueue_new": lambda side: side.q.enqueue_new([Message("x", task_id=name) for name in ("new", "finished")]),
    "exists": lambda side: side.q.exists(),
    "explain": lambda side: side.q.explain("queued"),
    "extend": lambda side: side.q.extend("claimed", side.token, 60),
    "fail": lambda side: side.q.fail("claimed", side.token, "broken"),
    "find": lambda side: side.q.find("size==large"),
    "follow": lambda side: side.q.follow("finished", print),
    "ids": lambda side: side.q.ids("dead"),
    "look_after": lambda side: side.q.look_after(),
    "name": lambda side: side.q.name,
    "now": lambda side: bool(side.q.now().utcoffset()),
    "open_batch": lambda side: side.q.open_batch("b").written,
    "latest_end": lambda side: side.q.latest_end(),
    "pause": lambda side: side.q.pause(),
    "progress": lambda side: side.q.progress("claimed", side.token, 0.5),
    "publish_archive": lambda side: side.q.publish_archive(Archive(0, "/nowhere", 0)),
    "read_departed": lambda side: side.q.read_departed([]),
    "read_ended": lambda side: side.q.read_ended([]),
    "read_many": lambda side: side.q.read_many(["queued"], parts=["data"]),
    "ready": lambda side: side.q.ready(selector="size==large"),
    "redrive": lambda side: side.q.redrive("dead"),
    "release": lambda side: side.q.release("claimed", side.token),
    "replace": lambda side: side.q.replace("queued", b"y"),
    "resume": lambda side: side.q.resume(),
    "root": lambda side: side.q.root,
    "seal_batch": lambda side: side.ended_batch() or side.q.seal_batch("b"),
    "scan": lambda side: side.q.scan(["queued", "gone"], ["id", "state", "data"], selector="size==large"),
    "snooze": lambda side: side.q.snooze("claimed", side.token, 5),
    "take_over": lambda side: side.q.take_over("claimed", side.token),
    "task": lambda side: side.q.task("queued"),
    "tasks": lambda side: side.q.tasks(state="inserted", selector="size==large", limit=5),
    "trimmed": lambda side: side.q.trimmed(),
    "tree": lambda side: side.q.tree("queued"),
    "wait": lambda side: side.q.wait(["finished"], timeout=5),
    "wait_batch": lambda side: side.ended_batch() or side.q.wait_batch("b", 5),
    "wait_for_change": lambda side: bool(side.q.wait_for_change(side.q.changes - 1, 0)) or True,
    "wake": lambda side: side.q.wake(),
    "worker": lambda side: side.q.worker(print),
    "zxid": lambda side: side.q.zxid(),
}

#: What a file has not.
NOT_IN_FILES = {
    "archive", "batch", "cancel", "clear", "collect_garbage", "consumers", "departed_between", "drop", "ended_between",
    "explain", "find", "open_batch", "pause", "progress", "publish_archive", "read_departed", "redrive", "replace",
    "resume", "seal_batch", "tree", "wait_batch", "zxid",
    "latest_end", "read_ended", "trimmed",
}  # fmt: skip


def test_no_name_of_a_queue_is_forgotten() -> None:
    """What both fronts describe as verbs, and whatever else a queue has, is tried below; a file's queue has it all."""
    verbs = {name for name, value in vars(QueueVerbs).items() if isinstance(value, Twins)}
    assert verbs <= public(Queue) <= set(CALLS) == public(Queue) | {"name"}
    assert public(Queue) - public(FileQueue) <= {"name"}  # an attribute of the object


def test_no_name_of_a_claim_or_a_client_is_forgotten(file: Side) -> None:
    """A claim out of a file and a client of files have what the others have."""
    assert {name for name, value in vars(ClaimVerbs).items() if isinstance(value, Twins)} <= public(Claim)
    assert [name for name in public(Claim) if name not in dir(file.claim)] == []
    assert isinstance(file.claim, FileClaim)
    assert public(Zkmq) <= public(FileClient)
    assert (file.zk.start(), file.zk.closed, file.zk.requests) == (file.zk, False, {})
    with pytest.raises(Unsupported, match="servers"):
        _ = file.zk.session_id
    assert (file.claim.closed, file.claim.over) == (False, False)


@pytest.mark.parametrize("name", CALLS)
def test_each_name_of_a_queue(name: str, side: Side) -> None:
    """It works, or says in one line that a file has no such thing, and changes nothing; the queue goes on."""
    before = side.states()
    if isinstance(side.q, FileQueue) and name in NOT_IN_FILES:
        with pytest.raises(Unsupported, match=r"^refused: a queue file .* has no .*ZooKeeper has it[^\n]*$"):
            CALLS[name](side)
        assert side.states() == before
    else:
        CALLS[name](side)
    assert side.q.enqueue("more", task_id="more") == "more"


@pytest.mark.parametrize("name", sorted(set(CALLS) - NOT_IN_FILES))
def test_a_file_gives_the_same_kind_of_answer(name: str, file: Side, zookeeper_side: Side) -> None:
    """What is returned is of the same type, and the states of the tasks are the same afterwards."""
    kinds = [type(CALLS[name](side)).__name__.removeprefix("File") for side in (file, zookeeper_side)]
    assert kinds[0] == kinds[1]
    assert file.states() == zookeeper_side.states()


@pytest.mark.parametrize(
    "name", sorted(name for name in set(CALLS) - NOT_IN_FILES if callable(getattr(Queue, name, 0)))
)
def test_a_file_takes_the_same_arguments(name: str) -> None:
    """By the same names, and in the same order."""
    ours, theirs = (inspect.signature(getattr(kind, name)).parameters for kind in (FileQueue, Queue))
    assert list(ours) == list(theirs)


# --- the command line

#: How each verb of the command line is used; FILE is a file that is not there, DEAD an export of the dead letters.
COMMANDS: dict[str, list[list[str]]] = {
    "queues": [[]],
    "configure": [
        [QUEUE, "--lock", "7", "--attempts", "3", "--final", "ValueError"],
        ["another", "--filter", "size=integer", "--order", "fifo"],
        [QUEUE, "--task-gc-lifetime", "60"],
        [QUEUE, "--archive"],
        [QUEUE, "--follow"],
    ],
    "enqueue": [
        [
            QUEUE,
            "data",
            "--filter",
            "size=small",
            "--delay",
            "5",
            "--metadata",
            '{"a": 1}',
            "--attempts",
            "2",
            "--lock",
            "5",
        ],
        [QUEUE, "data", "--not-before", "2100-01-01T00:00:00Z"],
        [QUEUE, "data", "--priority", "3"],
        [QUEUE, "data", "--task-id", "queued", "--update"],
        [QUEUE, "data", "--task-id", "claimed", "--requeue"],
        [QUEUE, "data", "--task-id", "finished", "--only-new"],
        [QUEUE, "data", "--batch", "b", "--then", "more"],
    ],
    "claim": [[QUEUE, "--selector", "size==large", "--lease", "5"]],
    "complete": [
        [QUEUE, "claimed", "--token", "TOKEN", "--result", "r"],
        [QUEUE, "claimed", "--token", "TOKEN", "--dedupe", "5"],
    ],
    "fail": [[QUEUE, "claimed", "--token", "TOKEN", "--error", "e", "--backoff", "5"]],
    "release": [[QUEUE, "claimed", "--token", "TOKEN"]],
    "snooze": [[QUEUE, "claimed", "--token", "TOKEN", "--delay", "5"]],
    "extend": [[QUEUE, "claimed", "--token", "TOKEN", "--lease", "5"]],
    "progress": [[QUEUE, "claimed", "--token", "TOKEN", "0.5", "--note", "half"]],
    "status": [[QUEUE]],
    "show": [[QUEUE, "queued"], [QUEUE, "finished", "--watch"], [QUEUE, "queued", "--why"]],
    "list": [[QUEUE], [QUEUE, "--state", "inserted", "--selector", "size==large", "--limit", "1"]],
    "wait": [[QUEUE, "finished", "--timeout", "5"], [QUEUE, "claimed", "--event", "claim", "--timeout", "5"]],
    "batch": [[QUEUE, "b"], [QUEUE, "b", "--wait", "--timeout", "5"]],
    "gc": [[QUEUE, "--lifetime", "0"]],
    "redrive": [[QUEUE, "dead"], [QUEUE, "--all"]],
    "export": [[QUEUE, "FILE"], [QUEUE, "FILE", "--state", "inserted", "--selector", "size==large", "--limit", "1"]],
    "import": [["DEAD"], ["DEAD", "--dry-run"]],
    "cancel": [[QUEUE, "queued"]],
    "clear": [[QUEUE, "--yes"], [QUEUE, "--yes", "--state", "dead"]],
    "delete": [[QUEUE, "--yes", "--force"]],
    "pause": [[QUEUE]],
    "resume": [[QUEUE]],
    "worker": [
        [QUEUE, "--exec", "cat", "--until-empty", "--warn-size", "5"],
        [QUEUE, "--exec", "cat", "--until-empty", "--lease", "9"],
    ],
}
LINES = [(verb, words) for verb, lines in COMMANDS.items() for words in lines]

#: Command lines that ask for what a file has not, by the verb and what stands in them.
REFUSED = {
    ("configure", "--task-gc-lifetime"), ("configure", "--archive"), ("configure", "--follow"),
    ("enqueue", "--priority"), ("enqueue", "--update"), ("enqueue", "--requeue"),
    ("enqueue", "--batch"), ("complete", "--dedupe"), ("show", "--why"), ("progress", QUEUE), ("batch", QUEUE),
    ("gc", QUEUE), ("redrive", QUEUE), ("cancel", QUEUE), ("clear", QUEUE), ("pause", QUEUE), ("resume", QUEUE),
}  # fmt: skip


def test_no_verb_of_the_command_line_is_forgotten() -> None:
    """All but those that are about something else than queues."""
    assert set(COMMANDS) == set(cli.VERBS) - {"server", "report", "bench"}  # of archives and servers, not of queues


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A worker sets up the log of its process, which is ours here."""
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    logger = logging.getLogger("airflow_provider_zkmq")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.mark.parametrize("as_json", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize(("verb", "words"), LINES, ids=[" ".join([verb, *words]) for verb, words in LINES])
def test_each_verb_of_the_command_line(
    verb: str,
    words: list[str],
    as_json: list[str],
    side: Side,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    logs: None,
) -> None:
    """It works, or says in one line, and with 2 for its exit code, that a file has no such thing; nothing changes."""
    dead, argv = tmp_path / "dead.tq", [verb, *words, *as_json, *side.argv]
    if verb == "import":
        assert cli.main(["export", QUEUE, str(dead), *side.argv]) == 0
        dead.write_text(dead.read_text().replace("\n!x\n", "\n=x\n" if "--dry-run" not in words else "\n!x\n"))
    if verb == "batch":
        side.ended_batch()
    names = {"TOKEN": str(side.token), "FILE": str(tmp_path / "new.tq"), "DEAD": str(dead)}
    before = side.states()
    capsys.readouterr()
    code = cli.main([names.get(word, word) for word in argv])
    answer = capsys.readouterr()
    refused = any((verb, word) in REFUSED for word in words) or (verb == "import" and "--dry-run" not in words)
    if isinstance(side.q, FileQueue) and refused:
        assert code == 2
        assert answer.err.startswith("zkmq: refused: a queue file")
        assert answer.err.count("\n") == 1
        assert side.states() == before
    else:
        assert code == (5 if verb == "batch" and "--wait" in words else 0), answer.err
        assert answer.out
    if as_json:
        for line in answer.out.splitlines():
            assert isinstance(json.loads(line), dict)


def test_status_and_show_tell_what_there_is(file: Side, capsys: pytest.CaptureFixture[str]) -> None:
    """A file has no register of consumers and no znodes, of which nothing is said then."""
    assert cli.main(["status", QUEUE, "--json", *file.argv]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["consumers"], status["counts"]["dead"], status["conf"]["lock"]) == (None, 1, 60.0)
    assert cli.main(["show", QUEUE, "dead", "--json", *file.argv]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["state"], shown["error"], "znodes" in shown) == ("dead", "broken", False)
    for verb in (["status", QUEUE], ["show", QUEUE, "dead"]):
        assert cli.main([*verb, *file.argv]) == 0
        assert not {"consumers", "ZNODE", "ATTEMPT"} & set(capsys.readouterr().out.split())


def test_a_wait_is_over_in_time_on_both(side: Side) -> None:
    """And the queue can be waited for again."""
    with pytest.raises(WaitTimeout):
        side.q.wait(["queued"], timeout=0.05)
    assert side.q.wait(["finished"], timeout=5)[0].id == "finished"
