"""The connection form and its *Test* button, by Airflow's own API."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from airflow_provider_zkmq.engine import Zkmq

TOP = Path(__file__).parents[2]


def test_a_form_that_is_filled_as_it_suggests_can_be_tested(zookeeper: str, root: str) -> None:
    """Hosts and a port, hosts with ports of their own and port 0 or any: the button connects, and shows no password.

    The form itself suggests the first of these. An empty port is Airflow's to get wrong: its API compares what its page
    posts for nothing, 0, with nothing, and refuses (3.3.2) or forgets the stored password (3.3.1).
    """
    extra = json.dumps({"root": root, "connect_timeout": 20})
    host, _, port = zookeeper.rpartition(":")
    with Zkmq.connect(zookeeper, root, gc=False, auth="ann:marker-password", connect_timeout=20) as zk:
        zk.queue("jobs").configure()
    ann = {"login": "ann", "password": "marker-password", "extra": extra}
    forms = [
        {"connection_id": "suggested", "host": f"{host},{host}", "port": int(port), **ann},
        {"connection_id": "zero", "host": f"{zookeeper},{zookeeper}", "port": 0, **ann},
        {"connection_id": "both", "host": zookeeper, "port": 1, **ann},
        {"connection_id": "empty", "host": zookeeper, **ann},
        {"connection_id": "wrong", "host": host, "port": int(port), **ann, "password": "marker-wrong"},
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.airflow.api_server", json.dumps(forms)],
        cwd=TOP, env={**os.environ, "PYTHONPATH": str(TOP)}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    for name in ("suggested", "zero", "both"):
        code, told = answer["told"][name]
        assert (code, told["status"]) == (200, True), told
        assert "1 queue(s)" in told["message"]
    code, told = answer["told"]["empty"]
    assert (code == 400 and "differs from the stored connection" in str(told)) or code == 200
    code, told = answer["told"]["wrong"]
    assert (code, told["status"]) == (200, False)
    assert "ann" in told["message"]
    assert "marker-" not in done.stdout + done.stderr
    (form,) = answer["form"]
    assert ":" not in form["standard_fields"]["host"]["placeholder"]
    assert form["standard_fields"]["port"]["placeholder"] == "2181"
