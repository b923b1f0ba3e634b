"""The maintenance DAG, the connection's *Test* button and ``airflow zkmq``, on a real Airflow."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from airflow_provider_zkmq.embedded import EmbeddedServer
from airflow_provider_zkmq.engine import Message, Queue, Zkmq
from tests.e2e.test_airflow import airflow, demo, said
from tests.support import eventually

__all__ = ["demo"]
TOP = Path(__file__).parents[2]
pytestmark = pytest.mark.full
DAG = "zkmq_maintenance"


def work(q: Queue) -> None:
    """Leave one finished task, one dead letter, and one that a consumer without a lease's time left holds."""
    q.enqueue_many([Message(b"marker-payload", task_id=name) for name in ("done", "dead", "held")])
    for name, settle in (("done", "complete"), ("dead", "fail")):
        claim = q.claim_task(name, lease=60)
        assert claim is not None
        claim.complete("marker-payload") if settle == "complete" else claim.fail("no such customer", retry=False)
    assert q.claim_task("held", lease=1) is not None


def test_maintenance_of_all_queues_of_a_root(demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run changes nothing; then each queue is tended, archived and told of, whatever became of another.

    The run is red for the queue in trouble, and only for that; the history has an event for each archived queue, and
    nothing shows a payload. The *Test* button connects by the form that the API itself suggests, and ``airflow zkmq``
    by the connection that was made there.
    """
    monkeypatch.setattr(demo, "DAGS", tmp_path / "dags")
    monkeypatch.setenv("ZKMQ_MAINTENANCE_SCHEDULE", "")
    monkeypatch.setenv("ZKMQ_ARCHIVE_DIR", str(tmp_path / "archive"))
    monkeypatch.setattr(demo, "airflow_environment", with_test_button(demo.airflow_environment))
    demo.DAGS.mkdir()
    shutil.copy(TOP / "example_dags" / "zkmq_maintenance.py", demo.DAGS)
    with (
        EmbeddedServer(tmp_path / "zk", force_sync=False) as server,
        Zkmq.connect(server.hosts, "/zkmq", gc=False) as zk,
        airflow(demo, tmp_path, server.hosts) as (api, processes, environment),
    ):
        for name in ("a", "b"):
            work(zk.queue(name))
        connection_is_tested(api, server.hosts)
        told = command(environment, "--conn-id", "by_form", "queues", "--json")
        assert json.loads(told)["queues"] == ["a", "b"]
        demo.wait_until("the DAG", processes, lambda: api.knows(DAG))
        api.call("PATCH", f"/api/v2/dags/{DAG}", {"is_paused": False})

        def run(name: str, **conf: object) -> str:
            api.call("POST", f"/api/v2/dags/{DAG}/dagRuns", {"dag_run_id": name, "logical_date": None, "conf": conf})
            eventually(lambda: api.run_state(DAG, name) in {"success", "failed"}, within=900)
            return str(api.run_state(DAG, name))

        assert run("dry", dry_run=True, lifetime=0) == "success", said(tmp_path)
        seen = api.returned(DAG, "dry", "report")["a"]
        assert (seen["to_archive"], seen["to_delete"], seen["dead"]) == (2, 1, 1)
        assert not zk.queue("a").conf().archive
        assert zk.queue("a").counts()["finished"] == 1

        assert run("real", queues=["a", "missing", "b"], lifetime=0) == "failed"
        states = [
            (each["task_id"], each["map_index"], each["state"])
            for each in api.call("GET", f"/api/v2/dags/{DAG}/dagRuns/real/taskInstances?limit=100")["task_instances"]
        ]
        bad = {(task, index) for task, index, state in states if state != "success"}
        assert bad == {("report", -1), *((f"upkeep.{step}", 1) for step in ("tend", "archive", "collect", "letters"))}
        numbers = api.returned(DAG, "real", "report")
        for name in ("a", "b"):
            assert {key: numbers[name][key] for key in ("archived", "collected", "kept", "dead")} == {
                "archived": 2, "collected": 1, "kept": 0, "dead": 1
            }, said(tmp_path)  # fmt: skip
            assert zk.queue(name).ids("inserted") == ["held"]
            assert zk.queue(name).ids("dead") == ["dead"]
        events = api.call("GET", "/api/v2/assets/events")["asset_events"]
        assert sorted((event["extra"]["queue"], event["extra"]["rows"]) for event in events) == [("a", 2), ("b", 2)]
        assert not zk.queue("missing").exists()
    logs = "".join(log.read_text(errors="replace") for log in tmp_path.rglob("*.log") if log.is_file())
    assert "Queue a: 1 dead letter(s)" in logs
    assert "dead, after 1 attempt(s): no such customer" in logs
    assert "queue 'missing' does not exist" in logs
    assert "marker-" not in logs


def with_test_button(plain):  # type: ignore[no-untyped-def]
    """The demo's environment, with the *Test* button switched on."""

    def switched_on(*arguments: object) -> dict[str, str]:
        return {**plain(*arguments), "AIRFLOW__CORE__TEST_CONNECTION": "Enabled"}

    return switched_on


def connection_is_tested(api, hosts: str) -> None:  # type: ignore[no-untyped-def]
    """Fill in the form as it suggests, save it, and press the button as the list of connections does."""
    host, _, port = hosts.rpartition(":")
    api.call("POST", "/api/v2/connections", {
        "connection_id": "by_form", "conn_type": "zkmq", "host": host, "port": int(port),
        "login": "ann", "password": "marker-password", "extra": json.dumps({"root": "/zkmq", "allow_open": True}),
    })  # fmt: skip
    shown = api.call("GET", "/api/v2/connections/by_form")
    posted = {name: shown[name] or "" for name in ("connection_id", "conn_type", "host", "login", "password", "extra")}
    told = api.call("POST", "/api/v2/connections/test", {**posted, "port": shown["port"] or 0})
    assert told["status"], told
    assert "2 queue(s) under /zkmq" in told["message"]


def command(environment: dict[str, str], *words: str) -> str:
    """What ``airflow zkmq`` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "airflow", "zkmq", *words],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]
