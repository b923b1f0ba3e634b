"""What clients do in a simulated world that read: archivers, who move the archive's mark, followers, and inspectors."""

from __future__ import annotations

import random
from dataclasses import replace

from airflow_provider_zkmq.engine.core.maintenance.fsck import fsck
from airflow_provider_zkmq.engine.core.read import completion_log, configuration, server_clock
from airflow_provider_zkmq.engine.core.tasks import admin
from tests.simulation.parts import Call, Client, Pause
from tests.simulation.producers import Program


def archiver(client: Client, rand: random.Random, rounds: int) -> Program:
    """Archives what has ended since the last time, and moves the archive's mark."""
    context = client.context()
    for _ in range(3 * rounds):
        yield Pause(rand.choice([0.3, 2.0, 20.0]))
        mark = yield Call("archive", configuration.archive(context))
        until = yield Call("zxid", server_clock.zxid(context))
        if mark is None or until is None or not (mark.ok and until.ok) or mark.value.version is None:
            continue
        span = {"queue": "q", "after": mark.value.watermark, "until": until.value}
        ended = yield Call("ended_between", completion_log.ended_between(context, span["after"], span["until"]), span)
        if ended is not None and ended.ok:
            reached = replace(mark.value, watermark=until.value)
            yield Call("publish", admin.publish_archive(context, reached))


def follower(client: Client, rand: random.Random, rounds: int) -> Program:
    """Reads what ended, as a stream does: from where it stopped to the latest end, and the same again now and then."""
    context, offset, reader = client.context(), 0, f"{client.name} {rand.random()}"
    for _ in range(rounds):
        yield Pause(rand.choice([0, 0.3, 2.0]))
        requested = {"queue": "q", "reader": reader, "zxid": client.world.zk.leader.zxid}
        until = yield Call("latest_end", completion_log.latest_end(context), requested)
        if until is None or not until.ok:
            continue
        span = {"queue": "q", "after": offset, "until": until.value}
        ended = yield Call("ended_between", completion_log.ended_between(context, offset, until.value), span)
        if ended is None or not ended.ok:
            continue
        yield Pause(rand.choice([0, 0, 1.0]))
        which = [each._replace(place=None) if rand.random() < 0.3 else each for each in ended.value]
        yield Call("read_ended", completion_log.read_ended(context, which), {"queue": "q", "ended": which})
        if rand.random() < 0.6:
            offset = until.value


def inspector(client: Client, rand: random.Random, rounds: int) -> Program:
    """Looks for damage while others are at work, and would repair what it finds now and then: there is none."""
    for _ in range(rounds):
        yield Pause(rand.choice([0, 0.1, 1.0]))
        yield Call("fsck", fsck(client.context(), repair=rand.random() < 0.5), {"queue": "q"})
