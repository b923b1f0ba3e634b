"""Each verb: an example in its help, an answer that keeps the schema of the page, and bad input told in a sentence."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from airflow_provider_zkmq.engine import Message, OrderedEnum, Zkmq
from tests.integration.answers_schema import Schema
from tests.integration.command import Cli, Ended, cli
from tests.verbs import VERBS

__all__ = ["cli"]

#: What is asked, by the answer's name in the schema: Q is a queue with a task in each state.
ASKED = {
    "status": ["", "--hung-after 0"],
    "status QUEUE": ["Q", "Q --hung-after 0"],
    "consumers": ["Q", "Q --hung-after 0"],
    "doctor": [""],
    "queue list": [""],
    "queue configure": ["Q --filter size=integer --attempts 3 --lock 1h", "Q --attempts unbounded --final ValueError"],
    "queue pause": ["Q"],
    "queue resume": ["Q"],
    "queue clear": ["Q --yes", "Q --yes --state dead"],
    "queue delete": ["Q --yes --force"],
    "queue gc": ["Q --lifetime 0"],
    "queue fsck": ["Q", "Q --repair"],
    "task enqueue": ["Q x", "Q x --batch many", "Q x --task-id queued --only-new", "Q --lines"],
    "task list": ["Q", "Q --state dead", "Q --error brok*", "Q --batch b", "Q queued", "Q --selector size==small"],
    "task show": ["Q queued", "Q claimed", "Q dead --why", "Q finished", "Q binary"],
    "task show --watch": ["Q finished --watch"],
    "task wait": ["Q finished", "Q claimed --event claim"],
    "task cancel": ["Q queued", "Q --selector size==small", "Q --all"],
    "task claim": ["Q", "Q --lease 5m"],
    "task complete": ["Q claimed --token TOKEN --result r"],
    "task fail": ["Q claimed --token TOKEN --error e", "Q claimed --force --error e"],
    "task release": ["Q claimed --token TOKEN", "Q claimed --force"],
    "task snooze": ["Q claimed --token TOKEN --delay 1h"],
    "task extend": ["Q claimed --token TOKEN --lease 1h"],
    "task progress": ["Q claimed --token TOKEN 0.5 --note half"],
    "batch": ["Q b"],
    "dead list": ["Q", "Q --error broken", "Q --error nothing"],
    "dead redrive": ["Q dead", "Q --all", "Q --error broken --limit 1", "Q --state cancelled"],
    "dead drop": ["Q dead --yes", "Q --error broken --yes", "Q --error nothing"],
    "dead export": ["Q FILE", "Q FILE --state cancelled", "Q FILE --error broken", "Q FILE dead"],
    "dead import": ["EXPORTED --dry-run", "EXPORTED --queue Q"],
    "worker": ["Q --exec cat --until-empty"],
    "examples": ["", "--to FOLDER zkmq_events"],
}
#: What is wrong, and the code; each error is in the same words on both streams.
REFUSED = {
    "status": [("nowhere", 2), ("--hung-after soon", 2)],
    "consumers": [("nowhere", 2), ("", 2)],
    "doctor": [("more", 2)],
    "queue list": [("more", 2)],
    "queue configure": [("Q --filter a", 2), ("Q --lock soon", 2)],
    "queue pause": [("nowhere", 2)],
    "queue resume": [("nowhere", 2)],
    "queue clear": [("Q", 2), ("Q --state lost --yes", 2)],
    "queue delete": [("Q", 2), ("Q --yes", 1)],
    "queue gc": [("nowhere", 2)],
    "queue fsck": [("nowhere", 2), ("Q --repair --dry-run", 2)],
    "task enqueue": [("Q", 2), ("nowhere x", 2), ("Q x --task-id queued", 1), ("Q x --priority high", 2)],
    "task list": [("Q --state lost", 2), ("Q queued --state dead", 2), ("Q --selector size", 2)],
    "task show": [("Q", 2), ("Q nothing", 1)],
    "task wait": [("Q", 2), ("Q queued --timeout 0", 4), ("Q nothing", 1)],
    "task cancel": [("Q", 2), ("Q a/b", 2)],
    "task claim": [("Q --selector size", 2), ("nowhere", 2)],
    "task complete": [("Q claimed", 2), ("Q claimed --token 1", 1)],
    "task fail": [("Q claimed --token 1", 2), ("Q claimed --token 1 --error e", 1)],
    "task release": [("Q claimed", 2), ("Q queued --force", 1)],
    "task snooze": [("Q claimed --token 1", 2)],
    "task extend": [("Q claimed --token TOKEN --lease soon", 2), ("Q claimed --token 1 --lease 9", 1)],
    "task progress": [("Q claimed --token TOKEN 2", 2)],
    "batch": [("Q nothing", 1), ("Q b --timeout 1", 2)],
    "dead list": [("nowhere", 2), ("Q dead --error x", 2)],
    "dead redrive": [("Q", 2), ("Q dead --all", 2)],
    "dead drop": [("Q", 2), ("Q dead", 2)],
    "dead export": [("Q", 2), ("Q /nowhere/at/all", 1), ("Q FILE --state claimed", 2)],
    "dead import": [("/nowhere/at/all", 1)],
    "worker": [("Q", 2), ("Q --exec cat --threads -1", 2)],
    "server": [("--port high", 2), ("--hosts h:1", 2)],
    "report": [("", 2), ("Q --directory /nowhere", 2)],
    "examples": [("nothing", 2)],
}
#: Verbs whose answers other tests look at: they run a server, or need an archive.
ELSEWHERE = {"server", "report"}
numbers = itertools.count()


def names() -> Iterator[str]:
    """Each verb by its longest name, once."""
    functions = {function: name for name, function in sorted(VERBS.items(), key=lambda each: len(each[0]))}
    yield from functions.values()


class Prepared:
    """A queue with a task in each state, whose ids are their states, and what a command line may name."""

    def __init__(self, cli: Cli, zk: Zkmq, folder: Path) -> None:
        self.cli, number = cli, next(numbers)
        self.queue = zk.queue(f"q{number}")
        self.queue.configure(filters={"size": OrderedEnum("small", "large")})
        self.queue.enqueue_many([Message(b"x", task_id=name) for name in ("finished", "dead", "cancelled", "claimed")])
        self.claims("finished", lambda claim: claim.complete(b"done"))
        self.claims("dead", lambda claim: claim.fail("broken", retry=False))
        self.queue.cancel("cancelled")
        self.token = self.queue.claim_task("claimed", lease=600).token
        self.queue.enqueue_many([Message(b"x", {"size": "small"}, task_id="queued")])
        self.queue.enqueue_many([Message(b"x"), Message(b"y")], batch="b")
        self.queue.enqueue(b"\xff\xfe", task_id="binary")
        self.named = {"Q": self.queue.name, "TOKEN": str(self.token)}
        self.named |= {name: str(folder / f"{name}{number}") for name in ("FILE", "EXPORTED", "FOLDER")}

    def claims(self, task: str, then: Any) -> None:
        then(self.queue.claim_task(task, lease=600))

    def edits(self, task: str, mark: str) -> None:
        """A file of dead letters whose only message is marked; the task has changed since it was written."""
        path = Path(self.named["FILE"])
        self.run("dead export", "Q FILE")
        path.write_bytes(path.read_bytes().replace(b"\n!", f"\n{mark}".encode()))
        self.queue.redrive(task)
        self.claims(task, lambda claim: claim.fail("broken again", retry=False))

    def ends_a_batch_with_a_damaged_follower(self, name: str) -> None:
        """Nothing can follow the batch, whose task was finished."""
        (task,) = self.queue.enqueue_many([Message(b"x")], batch=name, then=Message(b"more"))
        damaging = KazooClient(self.cli.hosts)
        damaging.start()
        damaging.set(f"{self.cli.root}/{self.queue.name}/batches/{name}/then", b"[]")
        damaging.stop()
        damaging.close()
        self.claims(task, lambda claim: claim.complete())

    def run(self, verb: str, words: str, *more: str, stdin: bytes = b"") -> Ended:
        if "EXPORTED" in words:
            self.cli.run("export", self.queue.name, self.named["EXPORTED"])
        named = [self.named.get(word, word) for word in shlex.split(words)]
        return self.cli.run(*verb.split(), *named, *more, stdin=stdin)


@pytest.fixture
def prepared(cli: Cli, tmp_path: Path) -> Iterator[Any]:
    """Makes a queue with a task in each state."""
    with Zkmq.connect(cli.hosts, cli.root, gc=False) as zk:
        yield lambda: Prepared(cli, zk, tmp_path)


def verb_of(answer: str) -> str:
    """The verb of an answer of the schema."""
    return next(name for name in sorted(VERBS, key=len, reverse=True) if f"{answer} ".startswith(f"{name} "))


def test_each_answer_keeps_the_schema_of_the_page(prepared: Any, subtests: pytest.Subtests) -> None:
    """Each field is there with its type, and no other; what people read ends with the same code."""
    schema = Schema()
    assert schema.answers == ASKED.keys() | ELSEWHERE
    assert {VERBS[verb_of(name)] for name in schema.answers} == set(VERBS.values()), "a verb has no schema"
    for answer, lines in ASKED.items():
        for line in lines:
            with subtests.test(answer, line=line):
                as_json = prepared().run(verb_of(answer), line, "--json", stdin=b"one\ntwo")
                values = [json.loads(text) for text in as_json.stdout.splitlines()]
                assert values
                for value in values:
                    schema.check(answer, value)
                plain = prepared().run(verb_of(answer), line, stdin=b"one\ntwo")
                assert (as_json.returncode, plain.returncode) == (0, 0), as_json.stderr + plain.stderr
                assert "Traceback" not in plain.stderr


def test_what_was_refused_is_told_in_one_shape_by_each_verb(prepared: Any, subtests: pytest.Subtests) -> None:
    """A list of reasons with ids, also for a message of a file, and for what should have followed a batch."""
    for answer, line, name in (
        ("task cancel", "Q finished queued", "finished"),
        ("dead redrive", "Q queued", "queued"),
        ("dead drop", "Q claimed --yes", "claimed"),
        ("dead import", "FILE", "dead"),
        ("batch", "Q led", None),
    ):
        with subtests.test(answer):
            one = prepared()
            if answer == "dead import":
                one.edits("dead", mark="-")
            if answer == "batch":
                one.ends_a_batch_with_a_damaged_follower("led")
            ended = one.run(answer, line, "--json")
            value = json.loads(ended.stdout)
            Schema().check(answer, value)
            assert [each["id"] for each in value["refused"]] == [name]
            assert all(each["reason"] for each in value["refused"])
            assert ended.returncode == (0 if answer == "batch" else 1)


def test_bad_input_is_one_sentence_and_the_right_code(prepared: Any, subtests: pytest.Subtests) -> None:
    """On standard error, and the same with its kind as JSON on standard output; nothing else is there."""
    schema, one = Schema(), prepared()
    assert {VERBS[name] for name in REFUSED} == set(VERBS.values()), "a verb is missing"
    for verb, lines in REFUSED.items():
        for words, code in lines:
            with subtests.test(verb, words=words):
                plain = one.run(verb, words)
                assert (plain.returncode, plain.stdout) == (code, ""), plain.stderr
                assert re.fullmatch(r"zkmq: [^\n]+\n", plain.stderr)
                if verb != "server" or "--hosts" not in words:
                    ended = one.run(verb, words, "--json")
                    value = json.loads(ended.stdout)
                    schema.check("Error", value)
                    assert (ended.returncode, ended.stderr) == (code, f"zkmq: {value['message']}\n")


def test_the_help_of_each_verb_ends_with_an_example_that_is_understood(cli: Cli, subtests: pytest.Subtests) -> None:
    """The example names the verb, and takes no option that is not there: refused is at most what it is about."""
    for verb in VERBS:
        with subtests.test(verb):
            told = cli.run(*verb.split(), "--help").stdout
            (example,) = re.findall(r"Example: (zkmq .*(?:\n .*)*)", told)
            words = shlex.split(" ".join(example.split()))[1:]
            assert VERBS[verb_of(" ".join(words))] is VERBS[verb]
            if words[0] not in {"worker", "server", "examples"}:
                ended = cli.run(*words, "--hosts", "127.0.0.1:1", "--connect-timeout", "0.1")
                assert ended.returncode in {1, 2, 6}, ended.stderr
                assert "(see zkmq" not in ended.stderr, ended.stderr


BASH = """
source "$1"
COMP_WORDS=("${@:2}"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
$(complete -p zkmq | sed 's/.*-F \\([^ ]*\\) .*/\\1/') zkmq
printf '%s\\n' "${COMPREPLY[@]}"
"""


def test_bash_completes_verbs_options_words_and_names_of_queues(prepared: Any, tmp_path: Path) -> None:
    """By the script that zkmq itself writes, in a real bash; names of queues are the servers'."""
    one = prepared()
    script = tmp_path / "zkmq.bash"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**one.cli.env, "PATH": path}

    def ran(*words: str, **more: str) -> str:
        done = subprocess.run(words, env=env | more, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout

    script.write_text(ran("zkmq", _ZKMQ_COMPLETE="source_bash"))
    for line, offered in (
        ("zkmq task sh", {"show"}),
        ("zkmq de", {"dead"}),
        ("zkmq list Q --sta", {"--state"}),
        ("zkmq dead redrive Q --err", {"--error"}),
        ("zkmq list Q --state sch", {"scheduled"}),
        ("zkmq status q", {one.queue.name}),
        ("zkmq task wait q", {one.queue.name}),
    ):
        found = ran("bash", "-c", BASH, "bash", str(script), *line.split()).split()
        assert set(found) == offered, line


def test_zsh_is_offered_the_same_with_what_it_means(prepared: Any) -> None:
    """As the script for zsh asks for it; each word comes with its help."""
    env = {**prepared().cli.env, "_ZKMQ_COMPLETE": "complete_zsh"}
    command = [sys.executable, "-m", "airflow_provider_zkmq"]

    def ran(**more: str) -> str:
        done = subprocess.run(command, env=env | more, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout

    assert "compdef" in ran(_ZKMQ_COMPLETE="source_zsh")
    assert '"show":"Show all there is to a task' in ran(_TYPER_COMPLETE_ARGS="zkmq task sh")
    assert '"--state"' in ran(_TYPER_COMPLETE_ARGS="zkmq list q --sta")
