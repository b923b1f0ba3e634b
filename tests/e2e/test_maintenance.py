"""The maintenance DAG, the connection's *Test* button and ``airflow zkmq``, on a real Airflow."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from airflow_provider_zkmq.engine import Message, Queue
from airflow_provider_zkmq.engine.queue_internals import internals
from tests.e2e.conftest import PASSWORD, Airflow

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("heavy")]
DAG = "zkmq_maintenance"
DAGS = ("zkmq_maintenance",)
SETTINGS = {"AIRFLOW__CORE__TEST_CONNECTION": "Enabled"}


def work(q: Queue) -> None:
    """Leave one finished task, one dead letter, and one that a consumer without a lease's time left holds."""
    q.enqueue_many([Message(b"marker-payload", task_id=name) for name in ("done", "dead", "held")])
    for name, settle in (("done", "complete"), ("dead", "fail")):
        claim = q.claim_task(name, lease=60)
        assert claim is not None
        claim.complete("marker-payload") if settle == "complete" else claim.fail("no such customer", retry=False)
    assert q.claim_task("held", lease=1) is not None


def test_maintenance_of_all_queues_of_a_root(airflow: Airflow) -> None:
    """A dry run of all queues changes nothing; a queue is tended, archived and told of, whatever became of another.

    The run is red for the queue in trouble, and only for that; the history has an event for the archived queue, and
    nothing shows a payload. The *Test* button connects by the form that the API itself suggests, and ``airflow zkmq``
    by the connection that was made there.
    """
    api, a = airflow.api, airflow.zk.queue("a")
    for name in ("a", "b"):
        work(airflow.zk.queue(name))
    connection_is_tested(api, airflow.server.hosts)
    told = command(airflow.environment, "--conn-id", "by_form", "queues", "--json")
    assert {"a", "b"} <= set(json.loads(told)["queues"])
    airflow.unpause(DAG)

    airflow.trigger(DAG, "dry", dry_run=True, lifetime=0)
    assert airflow.ended(DAG, "dry") == "success", airflow.said()
    seen = api.returned(DAG, "dry", "report")["a"]
    assert (seen["to_archive"], seen["to_delete"], seen["dead"]) == (2, 1, 1)
    assert not a.conf().archive
    assert a.counts()["finished"] == 1

    airflow.trigger(DAG, "real", queues=["missing", "a"], lifetime=0)
    assert airflow.ended(DAG, "real") == "failed"
    told = airflow.instances(DAG, "real")
    bad = {(each["task_id"], each["map_index"]) for each in told if each["state"] != "success"}
    assert bad == {
        ("report", -1),
        *((f"maintain.{step}", 0) for step in ("rescue", "archive", "collect", "dead_letters")),
    }
    numbers = api.returned(DAG, "real", "report")["a"]
    expected = {"archived": 2, "collected": 1, "kept": 0, "dead": 1}
    assert numbers | expected == numbers, airflow.said()
    assert (internals(a).ids("inserted"), internals(a).ids("dead")) == (["held"], ["dead"])
    assert airflow.zk.queue("b").counts()["finished"] == 1
    assert [(told["queue"], told["rows"]) for told in airflow.told("zkmq_history")] == [("a", 2)]
    assert not airflow.zk.queue("missing").exists()
    logs = airflow.logs("*.log")
    assert "Queue a: 1 dead letter(s)" in logs
    assert "dead, after 1 attempt(s): no such customer" in logs
    assert "queue 'missing' does not exist" in logs
    assert "marker-" not in logs


def connection_is_tested(api: Any, hosts: str) -> None:
    """Fill in the form as it suggests, save it, and press the button as the list of connections does."""
    host, _, port = hosts.rpartition(":")
    api.call("POST", "/api/v2/connections", {
        "connection_id": "by_form", "conn_type": "zkmq", "host": host, "port": int(port),
        "login": "airflow", "password": PASSWORD, "extra": json.dumps({"root": "/zkmq", "allow_open": True}),
    })  # fmt: skip
    shown = api.call("GET", "/api/v2/connections/by_form")
    posted = {name: shown[name] or "" for name in ("connection_id", "conn_type", "host", "login", "password", "extra")}
    told = api.call("POST", "/api/v2/connections/test", {**posted, "port": shown["port"] or 0})
    assert told["status"], told
    assert re.search(r"[0-9]+ queue\(s\) under /zkmq", told["message"]), told


def command(environment: dict[str, str], *words: str) -> str:
    """What ``airflow zkmq`` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "airflow", "zkmq", *words],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]
