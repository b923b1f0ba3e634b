"""The on-call exercise: what is wrong with some queues is found, and mended where it can be, by six commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_zkmq.engine import Message, Queue, String, Zkmq
from tests.integration.command import Cli, cli
from tests.support import eventually

__all__ = ["cli"]
PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"
#: How often tasks failed for good, by the errors; what differs from task to task is in braces.
ERRORS = {
    "TimeoutError: the bank timed out after {} s": 25,
    "ValueError: no such street: '{} Elm Street'": 12,
    "exit code 137": 3,
}
MARS = 7


def transcript() -> list[tuple[str, str]]:
    """The commands of the page and what they answer."""
    (block,) = re.findall(r"^```console\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    parts = [part.partition("\n") for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [(command, answer) for command, _, answer in parts]


def masked(text: str) -> list[str]:
    """Lines without what differs from run to run: times, ages, names of consumers, and how wide columns are."""
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "<time>", text)
    text = re.sub(r"\d+ (s|min|h) ago|in \d+ (s|min|h)\b|\bnow\b", "<age>", text)
    text = re.sub(r"[\w.-]+-\d+-[0-9a-f]+-[0-9a-f]{8}\b", "<consumer>", text)
    return [re.sub("  +", "  ", line).rstrip() for line in text.strip().splitlines()]


@contextmanager
def trouble(cli: Cli) -> Iterator[Queue]:
    """300 tasks of `orders`, 40 of them dead, 7 that nobody accepts, one scheduled, one with a worker that hangs.

    `mails` is paused.
    """
    with Zkmq.connect(cli.hosts, cli.root, gc=False) as zk:
        orders, mails = zk.queue("orders"), zk.queue("mails")
        orders.configure(filters={"region": String()})
        ids = iter(range(1, 301))

        def enqueue(count: int, region: str = "eu", delay: float | None = None) -> list[str]:
            named = [f"order-{next(ids):03}" for _ in range(count)]
            orders.enqueue_many([Message(b"x", {"region": region}, task_id=name, delay=delay) for name in named])
            return named

        for error, count in ERRORS.items():
            enqueue(count)
            for number in range(count):
                claim = orders.claim(lease=60)
                assert claim is not None
                claim.fail(error.format(number), retry=False)
        enqueue(200)
        while claims := orders.claim_many(50, lease=60):
            for claim in claims:
                claim.complete()
        enqueue(MARS, "mars")
        enqueue(1, delay=2 * 3600)
        enqueue(300 - 40 - 200 - MARS - 1)
        mails.configure()
        mails.enqueue_many([Message(b"x") for _ in range(5)])
        mails.pause()
    arguments = ("worker", "orders", "--exec", "sleep 600", "--selector", "region==eu", "--prefetch", "0", "--no-gc")
    with (
        Zkmq.connect(cli.hosts, cli.root, gc=False) as zk,
        cli.background(*arguments, "--lease", "1s", "--session-timeout", "40s") as worker,
    ):
        orders = zk.queue("orders")
        eventually(lambda: orders.counts()["claimed"] == 1)
        os.kill(worker.pid, signal.SIGSTOP)
        eventually(lambda: orders.counts()["claimed"] == 0)  # its lease has ended
        yield orders


def test_six_commands_find_all_of_it_and_mend_what_can_be_mended(cli: Cli) -> None:
    """Those of the page, which answer what stands there; then every task is where the person on call wanted it."""
    commands = transcript()
    assert len(commands) <= 6
    with trouble(cli) as orders:
        for command, expected in commands:
            words = command.removeprefix("zkmq ")
            ended = cli.run(*shlex.split(words))
            assert ended.returncode == 0, ended.stderr
            assert masked(ended.stderr + ended.stdout) == masked(expected), command
        found = {each["queue"]: each for each in json.loads(cli.run("status", "--json").stdout)["queues"]}
        assert [trouble["kind"] for trouble in found["orders"]["troubles"]] == ["dead"], "what the bank did not cause"
        assert found["orders"]["counts"]["dead"] == 15
        assert found["orders"]["counts"]["cancelled"] == MARS
        assert [trouble["kind"] for trouble in found["mails"]["troubles"]] == ["unconsumed"], (
            "mails is not paused any more"
        )
        assert orders.counts()["inserted"] == 300 - 15 - 200 - MARS


def test_programs_find_the_same(cli: Cli) -> None:
    """Each trouble has its kind, and what it is about, in the answer of the first command."""
    with trouble(cli):
        answer = json.loads(cli.run("status", "--json").stdout)["queues"]
        orders, mails = answer
        assert (orders["queue"], mails["queue"]) == ("orders", "mails")
        assert [each["kind"] for each in orders["troubles"]] == ["dead", "hung", "unaccepted"]
        assert [each["kind"] for each in mails["troubles"]] == ["paused", "unconsumed"]
        assert orders["unaccepted"] == [{"filters": {"region": "mars"}, "count": MARS}]
        (claim,) = orders["claims"]
        assert (claim["lapsed"], claim["hung"], claim["id"]) == (True, True, "order-249")
        assert orders["next_due_at"] > orders["oldest_at"]
        groups = json.loads(cli.run("dead", "list", "orders", "--json").stdout)["groups"]
        assert [group["count"] for group in groups] == list(ERRORS.values())
