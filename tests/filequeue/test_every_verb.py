"""Each verb of the command line, and each name of a queue, a claim and a client, over a file and over ZooKeeper.

Over a file it works, or says in one line that a file has no such thing. What there is, is asked of the code itself, so
that a new verb is either here or fails here.
"""

from __future__ import annotations

import inspect
import itertools
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zkmq.cli import main
from airflow_provider_zkmq.engine import (
    Archive,
    AsyncZkmq,
    Claim,
    ConfigError,
    FilterType,
    Message,
    OrderedEnum,
    Queue,
    SessionLost,
    Unsupported,
    Zkmq,
)
from airflow_provider_zkmq.engine.api.internal_methods import QueueInternals
from airflow_provider_zkmq.engine.queue_internals import internals
from airflow_provider_zkmq.filequeue import FileClaim, FileClient, FileQueue
from airflow_provider_zkmq.filequeue.queue_internals import FileQueueInternals
from tests.support import fresh_root
from tests.verbs import VERBS

TYPES: dict[str, FilterType] = {"size": OrderedEnum("small", "large")}
numbers = itertools.count()


def public(kind: type) -> set[str]:
    """The public names of a class."""
    return {name for name in dir(kind) if not name.startswith("_")}


class Side:
    """A new queue with a task in each state that both kinds have: claimed, dead, finished and queued."""

    def __init__(self, zk: Any) -> None:
        self.zk = zk
        self.q: Any = zk.queue(f"q{next(numbers)}")
        self.internals: Any = internals(self.q)
        self.q.configure(filters=TYPES)
        self.q.enqueue_many([Message("x", task_id=name) for name in ("finished", "dead", "claimed")])
        self.q.claim(lease=60).complete("result")
        self.q.claim(lease=60).fail("broken", retry=False)
        self.claim = self.q.claim(lease=60)
        self.token = self.claim.token
        self.q.enqueue("x", {"size": "large"}, task_id="queued")

    @property
    def argv(self) -> list[str]:
        """What tells the command line where the queue is."""
        hosts = ["--hosts", self.zk.config.hosts]
        return hosts if isinstance(self.q, FileQueue) else [*hosts, "--root", self.zk.config.root]

    def ended_batch(self) -> None:
        """A batch `b`, whose only task was cancelled; a file has none."""
        if not isinstance(self.q, FileQueue):
            for task_id in self.q.enqueue_many([Message("x")], batch="b"):
                self.q.cancel(task_id)

    def states(self) -> dict[str, str]:
        return {task.id: str(task.state) for task in self.q.tasks()}


@pytest.fixture
def on_zookeeper(zookeeper: str) -> Iterator[Zkmq]:
    with Zkmq.connect(zookeeper, root=fresh_root(), gc=False) as zk:
        yield zk


# --- the methods

#: How each name of a queue is used.
CALLS: dict[str, Callable[[Side], object]] = {
    "batch": lambda side: side.ended_batch() or side.q.batch("b"),
    "cancel": lambda side: side.q.cancel("queued"),
    "claim": lambda side: side.q.claim(selector="size==large", lease=60),
    "claim_handle": lambda side: side.q.claim_handle("claimed", side.token).task,
    "claim_many": lambda side: side.q.claim_many(3, selector="size==large", lease=60),
    "claim_task": lambda side: side.q.claim_task("queued", lease=60, attempt=1),
    "claims": lambda side: [claim.task for claim in side.q.claims(selector="size==large", timeout=0)],
    "clear": lambda side: side.q.clear("finished"),
    "consumer": lambda side: bool(side.q.consumer),
    "collect_garbage": lambda side: side.q.collect_garbage(0),
    "conf": lambda side: side.q.conf(),
    "configure": lambda side: side.q.configure(lock=5, order="fifo"),
    "consumers": lambda side: side.q.consumers(),
    "counts": lambda side: side.q.counts(),
    "delete": lambda side: (side.q.delete(confirm=True, force=True), side.q.configure(filters=TYPES))[0],
    "drop": lambda side: side.q.drop("dead"),
    "enqueue": lambda side: side.q.enqueue("x", {"size": "small"}, task_id="new"),
    "enqueue_many": lambda side: side.q.enqueue_many(
        [Message("x", task_id=name) for name in ("new", "finished")], on_conflict="skip"
    ),
    "exists": lambda side: side.q.exists(),
    "explain": lambda side: side.q.explain("queued"),
    "follow": lambda side: side.q.follow("finished", print),
    "fsck": lambda side: side.q.fsck().findings,
    "name": lambda side: side.q.name,
    "open_batch": lambda side: side.q.open_batch("b").written,
    "pause": lambda side: side.q.pause(),
    "ready": lambda side: side.q.ready(selector="size==large"),
    "redrive": lambda side: side.q.redrive("dead"),
    "redrive_many": lambda side: side.q.redrive_many(["dead"]),
    "revoke": lambda side: side.q.revoke("claimed"),
    "resume": lambda side: side.q.resume(),
    "root": lambda side: side.q.root,
    "seal_batch": lambda side: side.ended_batch() or side.q.seal_batch("b"),
    "task": lambda side: side.q.task("queued"),
    "tasks": lambda side: side.q.tasks(
        ids=["queued"], state="inserted", status="queued", selector="size==large", parts=["data"], limit=5
    ),
    "wait": lambda side: side.q.wait(["finished"], timeout=5),
    "wait_batch": lambda side: side.ended_batch() or side.q.wait_batch("b", 5),
    "worker": lambda side: side.q.worker(print),
}
#: The same of what is not public.
INTERNALS: dict[str, Callable[[Side], object]] = {
    "archive": lambda side: side.internals.archive(),
    "changes": lambda side: side.internals.changes,
    "check_wanted": lambda side: side.internals.check_wanted(selector="size==large") and None,
    "closed": lambda side: side.internals.closed,
    "ended_between": lambda side: side.internals.ended_between(0, 1),
    "enqueue_new": lambda side: side.internals.enqueue_new([Message("x", task_id=n) for n in ("new", "finished")]),
    "held_claims": lambda side: side.internals.held_claims(),
    "overview": lambda side: side.internals.overview(),
    "activity": lambda side: side.internals.activity(),
    "page": lambda side: side.internals.page("dead"),
    "find": lambda side: side.internals.find("size==large"),
    "ids": lambda side: side.internals.ids("dead"),
    "latest_end": lambda side: side.internals.latest_end(),
    "now": lambda side: bool(side.internals.now().utcoffset()),
    "pending": lambda side: side.internals.pending(),
    "publish_archive": lambda side: side.internals.publish_archive(Archive(0, "/nowhere", 0)),
    "read_ended": lambda side: side.internals.read_ended([]),
    "replace": lambda side: side.internals.replace("queued", b"y"),
    "run_maintenance": lambda side: side.internals.run_maintenance(),
    "scan": lambda side: side.internals.scan(["queued", "gone"], ["id", "state", "data"], selector="size==large"),
    "tree": lambda side: side.internals.tree("queued"),
    "truncated_at": lambda side: side.internals.truncated_at(),
    "wait_for_change": lambda side: bool(side.internals.wait_for_change(side.internals.changes - 1, 0)) or True,
    "wake": lambda side: side.internals.wake(),
    "zxid": lambda side: side.internals.zxid(),
}

#: What a file has not.
NOT_IN_FILES = {
    "batch", "cancel", "clear", "collect_garbage", "consumers", "drop", "explain", "fsck", "open_batch", "pause",
    "redrive", "redrive_many", "resume", "revoke", "seal_batch", "wait_batch",
}  # fmt: skip
INTERNALS_NOT_IN_FILES = {
    "archive", "ended_between", "find", "latest_end", "publish_archive", "read_ended", "replace", "tree",
    "truncated_at", "zxid",
}  # fmt: skip

#: Arguments that a file does not take, by the words of the refusal.
ARGUMENTS: dict[str, Callable[[Side], object]] = {
    "priorities": lambda side: side.q.enqueue("x", priority=1),
    "updates": lambda side: side.q.enqueue("x", task_id="a", on_conflict="replace"),
    "run in escrow": lambda side: side.q.enqueue("x", task_id="a", on_conflict="requeue"),
    "batches": lambda side: side.q.enqueue_many([Message("x")], batch="b"),
    "batches.*then": lambda side: side.q.enqueue_many([Message("x")], then=Message("y")),
    "dedupe windows": lambda side: side.q.claim_handle("claimed", side.token).complete(dedupe=5),
    "progress.*on_progress": lambda side: side.q.wait(["finished"], on_progress=print),
    "progress reports": lambda side: side.claim.progress(0.5),
    "transactions": lambda side: side.q.worker(print, transactional=True),
    "clean-up.*task_gc": lambda side: side.q.configure(task_gc_lifetime=1),
    "claims that end with a session": lambda side: side.q.configure(lock=0),
    "archive .*configure": lambda side: side.q.configure(archive=True),
    "stream .configure": lambda side: side.q.configure(follow=True),
}


def test_no_name_of_a_queue_a_claim_or_a_client_is_forgotten(files: FileClient) -> None:
    """Whatever there is, is tried below; that of a file has it all."""
    assert public(Queue) == set(CALLS)
    assert public(Queue) - public(FileQueue) - {"name"} == NOT_IN_FILES  # the name is an attribute of the object
    assert public(QueueInternals) == set(INTERNALS)
    assert public(QueueInternals) - public(FileQueueInternals) == INTERNALS_NOT_IN_FILES
    claim = Side(files).claim
    assert [name for name in public(Claim) if name not in dir(claim)] == []
    assert isinstance(claim, FileClaim)
    assert claim.over is False
    assert public(Zkmq) <= public(FileClient)
    assert (files.start(), files.closed, files.requests) == (files, False, {})
    with pytest.raises(Unsupported, match="servers"):
        _ = files.session_id
    for of_files, kind in ((FileQueue, Queue), (FileQueueInternals, QueueInternals)):
        for name in public(of_files) & public(kind):
            if callable(getattr(kind, name)):
                ours, theirs = (inspect.signature(getattr(each, name)).parameters for each in (of_files, kind))
                assert list(ours) == list(theirs), name


def refused(side: Side, call: Callable[[Side], object], words: str) -> None:
    """One line names what is refused, and who has it; the file stays as it was."""
    before = side.q.path.read_bytes()
    with pytest.raises(Unsupported, match=rf"^refused: a queue file .* has no .*{words}.*ZooKeeper has it[^\n]*$"):
        call(side)
    assert side.q.path.read_bytes() == before


def test_each_name_of_a_queue(files: FileClient, on_zookeeper: Zkmq, subtests: pytest.Subtests) -> None:
    """Over a file it gives the same kind of answer and leaves the same states as over ZooKeeper, or is refused."""
    for name, call in (CALLS | INTERNALS).items():
        with subtests.test(name):
            file, other = Side(files), Side(on_zookeeper)
            answer = call(other)
            if name in NOT_IN_FILES | INTERNALS_NOT_IN_FILES:
                assert not hasattr(file.q, name)
                refused(file, call, name)
            else:
                assert type(call(file)).__name__.removeprefix("File") == type(answer).__name__
                assert file.states() == other.states()
            assert [side.q.enqueue("more", task_id="more") for side in (file, other)] == ["more", "more"]


def test_each_argument_that_a_file_does_not_take(files: FileClient, folder: Path, subtests: pytest.Subtests) -> None:
    """What a file cannot promise is refused by its name: of a queue, a claim, a client and a connection."""
    for words, call in ARGUMENTS.items():
        with subtests.test(words):
            refused(Side(files), call, words)
    url = f"textqueue://{folder}"
    with pytest.raises(ConfigError, match=r"transactions over several queues.*ZooKeeper has it"):
        files.transaction()
    for options in ({"auth": "a:b"}, {"tls": True}, {"session_timeout": 5}, {"root": "/elsewhere"}):
        with pytest.raises(ConfigError, match=r"servers to speak to .*ZooKeeper has it"):
            Zkmq.connect(url, **options)
    with pytest.raises(ConfigError, match=r"asynchronous.*ZooKeeper has it"):
        AsyncZkmq.connect(url)
    for bad in ("textqueue://host/dir", "textqueue://dir", "textqueue://"):
        with pytest.raises(ConfigError, match="textqueue:///path/dir"):
            Zkmq.connect(bad)


def test_a_closed_connection_does_nothing(folder: Path) -> None:
    """After `close`, which may be repeated, calls raise `SessionLost`."""
    client = Zkmq.connect(f"textqueue://{folder}")
    queue = client.queue("a")
    client.close()
    client.close()
    with pytest.raises(SessionLost):
        queue.enqueue("x")
    assert list(folder.iterdir()) == []


# --- the command line

#: How each verb of the command line is used; what a file refuses begins with !. Capital words are put in by the test.
#: What stands behind an arrow is the state of a task after it.
COMMANDS = """
queues
doctor
configure QUEUE --lock 7 --attempts 3 --final ValueError
configure another --filter size=integer --order fifo
!configure QUEUE --task-gc-lifetime 60
!configure QUEUE --archive
!configure QUEUE --follow
enqueue QUEUE data --filter size=small --delay 5 --metadata {"a":1} --attempts 2 --lock 5
enqueue QUEUE data --not-before 2100-01-01T00:00:00Z
!enqueue QUEUE data --priority 3
!enqueue QUEUE data --task-id queued --update
!enqueue QUEUE data --task-id claimed --requeue
enqueue QUEUE data --task-id finished --only-new => finished=finished
enqueue QUEUE data --idempotency-key k
!enqueue QUEUE data --batch b --then more
claim QUEUE --selector size==large --lease 5 => queued=claimed
complete QUEUE claimed --token TOKEN --result r => claimed=finished
!complete QUEUE claimed --token TOKEN --dedupe 5 => claimed=finished
fail QUEUE claimed --token TOKEN --error e --backoff 5 => claimed=inserted
fail QUEUE claimed --token TOKEN --error e --no-retry => claimed=dead
release QUEUE claimed --token TOKEN => claimed=inserted
snooze QUEUE claimed --token TOKEN --delay 5 => claimed=inserted
extend QUEUE claimed --token TOKEN --lease 5 => claimed=claimed
!progress QUEUE claimed --token TOKEN 0.5 --note half => claimed=claimed
status QUEUE
status
!consumers QUEUE
dead list QUEUE --error brok*
queue list
task list QUEUE --state dead
show QUEUE queued
show QUEUE finished --watch
!show QUEUE queued --why
list QUEUE
list QUEUE --error brok*
list QUEUE --state inserted --selector size==large --limit 1
wait QUEUE finished --timeout 5
wait QUEUE claimed --event claim --timeout 5
!batch QUEUE b
!batch QUEUE b --wait --timeout 5
!fsck QUEUE --repair
!gc QUEUE --lifetime 0
!redrive QUEUE dead => dead=inserted
!redrive QUEUE --all => dead=inserted
!dead redrive QUEUE --error broken => dead=inserted
!dead drop QUEUE --error broken --yes => dead=None
export QUEUE FILE
export QUEUE FILE --state inserted --selector size==large --limit 1
!import EDITED
import EXPORTED --dry-run
!cancel QUEUE queued => queued=cancelled
!clear QUEUE --yes => claimed=None
!clear QUEUE --yes --state dead => dead=None
delete QUEUE --yes --force
!pause QUEUE
!resume QUEUE
worker QUEUE --exec cat --until-empty --warn-size 5 => queued=finished
worker QUEUE --exec cat --until-empty --lease 9 => queued=finished
"""


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A worker sets up the log of its process, which is ours here."""
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    logger = logging.getLogger("airflow_provider_zkmq")
    level = logger.level
    yield
    logger.setLevel(level)


def verbs_in(line: str) -> Iterator[str]:
    """What may be the verb of a line: its first two words, or its first."""
    words = line.lstrip("!").split()
    return (" ".join(words[:count]) for count in (2, 1))


def test_each_verb_of_the_command_line(
    files: FileClient,
    on_zookeeper: Zkmq,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    logs: None,
    subtests: pytest.Subtests,
) -> None:
    """It works, or says in one line, with exit code 2, that a file has no such thing; as text and as JSON."""
    lines = COMMANDS.strip().splitlines()
    used = {VERBS[next(name for name in verbs_in(line) if name in VERBS)] for line in lines}
    unused = {name for name, function in VERBS.items() if function not in used}
    assert unused == {"server", "report", "examples"}  # of archives, servers and DAGs, not of queues
    for line, (zk, as_json) in itertools.product(lines, ((files, False), (files, True), (on_zookeeper, True))):
        with subtests.test(line, kind=type(zk).__name__, as_json=as_json):
            side, exported, edited = Side(zk), tmp_path / f"{next(numbers)}", tmp_path / f"edited{next(numbers)}"
            told, _, after = line.lstrip("!").partition(" => ")
            verb = next(name for name in verbs_in(line) if name in VERBS)
            words = told.split()[len(verb.split()) :]
            if verb == "import":
                main.main(["export", side.q.name, str(exported), *side.argv])
                edited.write_text(exported.read_text().replace("\n!x\n", "\n=x\n" if as_json else "\n-x\n"))
            if verb == "batch":
                side.ended_batch()
            before = side.states()
            capsys.readouterr()
            named = {"QUEUE": side.q.name, "TOKEN": side.token, "EXPORTED": exported, "EDITED": edited}
            named["FILE"] = tmp_path / f"new{next(numbers)}"
            code = main.main(
                [*verb.split(), *(str(named.get(it, it)) for it in words), *["--json"] * as_json, *side.argv]
            )
            answer = capsys.readouterr()
            if zk is files and line.startswith("!"):
                assert (code, answer.err.count("\n"), side.states()) == (2, 1, before)
                assert answer.err.startswith("zkmq: refused: a queue file")
                assert verb != "import" or ("drop" if as_json else "redrive") in answer.err
            else:
                assert code == (5 if verb == "batch" and "--wait" in words else 0), answer.err
                assert answer.out
                if after:
                    task_id, _, state = after.partition("=")
                    assert str(side.states().get(task_id)) == state
            if as_json:
                assert all(isinstance(json.loads(said), dict) for said in answer.out.splitlines())


def test_status_and_show_tell_what_there_is(files: FileClient, capsys: pytest.CaptureFixture[str]) -> None:
    """A file has no register of consumers and no znodes, of which nothing is said then."""
    side = Side(files)
    answers = []
    for verb in (["status", side.q.name], ["show", side.q.name, "dead"]):
        assert main.main([*verb, "--json", *side.argv]) == 0
        answers.append(json.loads(capsys.readouterr().out))
        assert main.main([*verb, *side.argv]) == 0
        assert not {"consumers", "ZNODE", "ATTEMPT"} & set(capsys.readouterr().out.split())
    status, shown = answers
    assert (status["consumers"], status["counts"]["dead"], status["conf"]["lock"]) == (None, 1, 60.0)
    assert (shown["state"], shown["error"], "znodes" in shown) == ("dead", "broken", False)
