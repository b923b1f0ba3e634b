"""The example units in docs/deploy: what they say is what `zkmq worker` takes, and their parts agree."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from airflow_provider_zkmq.engine import Queue, Zkmq, parse_duration
from tests.integration.command import LIMIT_S, Cli, cli
from tests.integration.test_dashboard import parts
from tests.integration.test_worker_metrics import fetched
from tests.support import eventually

__all__ = ["cli"]
TOP = Path(__file__).parents[2]
DEPLOY = TOP / "docs/deploy"
UNIT = (DEPLOY / "zkmq-worker@.service").read_text()


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def deployments() -> dict[str, dict[str, Any]]:
    """The containers of the Deployments, and their pods, by name."""
    return {each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in documents("kubernetes.yaml")}


def setting(name: str) -> str:
    """The value of a setting of the systemd unit."""
    (value,) = re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)
    return str(value)


def command_lines() -> dict[str, list[str]]:
    """What follows `zkmq worker` in each of the units."""
    words = shlex.split(setting("ExecStart").replace("%i", "orders").replace("${ZKMQ_LISTEN}", "127.0.0.1:9100"))
    lines = {"systemd": words[words.index("worker") + 1 :]}
    lines |= {name: pod["containers"][0]["args"] for name, pod in deployments().items()}
    return lines


def option(line: list[str], name: str) -> str:
    """The value of an option."""
    return next(iter(re.findall(rf"{name}[= ](\S+)", " ".join(line))))


def test_each_unit_s_worker_works_as_it_is_written_there(
    cli: Cli, zookeeper: str, root: str, tmp_path, subtests
) -> None:
    """With its own options, the port aside; it is ready, and SIGTERM ends it with 0."""
    (tmp_path / "handlers.py").write_text("def handle(task): return task.data.upper()\n")
    cli.env |= {"PYTHONPATH": str(TOP)}
    with Zkmq.connect(zookeeper, root=root, gc=False) as client:
        orders: Queue = client.queue("orders")
        orders.configure()
        for name, line in command_lines().items():
            with subtests.test(name):
                line = re.sub(r"[\d.]+:9100", "127.0.0.1:0", " ".join(line)).split()
                with cli.background("worker", *line, cwd=tmp_path) as process:
                    assert process.stderr is not None
                    address = re.findall(r"served at (\S+?)\"", process.stderr.readline().decode())[0]
                    eventually(lambda at=address: fetched(at, "/readyz")[0] == 200, within=LIMIT_S)
                    if "--threads=0" not in line:
                        assert orders.wait([orders.enqueue("x")], timeout=LIMIT_S)[0].result == b"X"
                    process.send_signal(signal.SIGTERM)
                    assert process.wait(LIMIT_S) == 0


def test_each_unit_leaves_the_worker_its_grace() -> None:
    """Whoever stops it waits for longer than the worker may take."""
    lines = command_lines()
    pod = deployments()["orders-worker"]["terminationGracePeriodSeconds"]
    for line, limit in ((lines["systemd"], parse_duration(setting("TimeoutStopSec"))), (lines["orders-worker"], pod)):
        assert limit >= parse_duration(option(line, "--grace")) + 10


def test_systemd_finds_no_fault_with_its_unit(tmp_path: Path) -> None:
    """It says nothing about it; where systemd is not here, the lines that matter stand there all the same."""
    assert (setting("KillMode"), setting("KillSignal"), setting("Type")) == ("mixed", "SIGTERM", "exec")
    assert (setting("ExecReload"), setting("Restart")) == ("/bin/kill -HUP $MAINPID", "always")
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze here")
    unit = tmp_path / "zkmq-worker@orders.service"
    unit.write_text(UNIT.replace("/usr/bin/python3", sys.executable))
    checked = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_parts_of_the_kubernetes_files_agree() -> None:
    """Probes ask the pages where the worker listens; KEDA scales a Deployment, by a metric that is shown."""
    for name, pod in deployments().items():
        (container,) = pod["containers"]
        port = int(option(container["args"], "--listen").rpartition(":")[2])
        assert container["ports"] == [{"name": "metrics", "containerPort": port}]
        probes = {each: container[f"{each}Probe"]["httpGet"] for each in ("liveness", "readiness")}
        assert probes == {
            "liveness": {"path": "/livez", "port": "metrics"}, "readiness": {"path": "/readyz", "port": "metrics"},
        }, name  # fmt: skip
    (scaled,) = documents("keda.yaml")
    assert scaled["spec"]["scaleTargetRef"] == {"kind": "Deployment", "name": "orders-worker"}
    (trigger,) = scaled["spec"]["triggers"]
    query = promql_parser.parse(trigger["metadata"]["query"])
    (selector,) = [each for each in parts(query) if isinstance(each, promql_parser.VectorSelector)]
    assert selector.name == "zkmq_tasks"
    assert {each.name: each.value for each in selector.matchers.matchers} == {
        "queue": "orders", "state": "inserted|claimed",
    }  # fmt: skip
    for each in (*documents("kubernetes.yaml"), scaled):
        assert each.keys() == {"apiVersion", "kind", "metadata", "spec"}


@pytest.mark.full
def test_the_commands_of_the_container_file_make_a_worker(tmp_path: Path) -> None:
    """Each step is done in a folder in place of the container: what is copied is there, and the entry point runs."""
    source, made = tmp_path / "src", tmp_path / "zkmq"
    source.mkdir()
    words: dict[str, list[str]] = {}
    for line in (DEPLOY / "Containerfile").read_text().splitlines():
        word, _, rest = line.partition(" ")
        if word == "COPY" and "--from" not in rest:
            *files, to = rest.split()
            for each in files:
                path = source / (to if to != "./" and not to.endswith("/") else f"{to}{Path(each).name}")
                path.parent.mkdir(exist_ok=True)
                copy = shutil.copytree if (TOP / each).is_dir() else shutil.copy
                copy(TOP / each, path)  # type: ignore[operator]
        elif word == "RUN":
            command = rest.replace("/opt/zkmq", str(made)).replace("python -m", f"{sys.executable} -m")
            done = subprocess.run(command, shell=True, cwd=source, capture_output=True, text=True, check=False)  # noqa: S602
            assert done.returncode == 0, done.stderr
        else:
            words.setdefault(word, []).append(rest)
    assert words["COPY"] == ["--from=build /opt/zkmq /opt/zkmq"]
    program, *arguments = yaml.safe_load(words["ENTRYPOINT"][0]) + yaml.safe_load(words["CMD"][0])
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [made / "bin" / program, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, "Handle tasks until told to stop" in ran.stdout) == (0, True), ran.stderr
