"""What the README and the documentation show is executed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_zkmq import bridge, engine, spark
from airflow_provider_zkmq.engine import Claim, Message, Queue, Running, UnitOfWork, Worker, Zkmq
from airflow_provider_zkmq.hooks import settings, telemetry
from airflow_provider_zkmq.textqueue import TextQueue
from tests.promises import TOP, rows
from tests.support import fresh_root


def blocks(name: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (TOP / name).read_text(), re.DOTALL | re.MULTILINE)


def environment(hosts: str) -> dict[str, str]:
    """The test's ZooKeeper, and this interpreter's commands first on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "ZKMQ_HOSTS": hosts, "ZKMQ_ROOT": fresh_root(), "PATH": path}


def test_the_quickstart_s_shell_commands_run(zookeeper: str) -> None:
    """Every line of the shell section succeeds, and the task ends as the page says."""
    (script,) = blocks("docs/quickstart.md", "sh")
    done = subprocess.run(
        ["sh", "-eu", "-c", script],
        env=environment(zookeeper),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"finished"' in done.stdout


def test_the_quickstart_s_python_runs(zookeeper: str) -> None:
    """The Python section runs as it stands."""
    (code,) = blocks("docs/quickstart.md", "python")
    code = code.replace("/quickstart", fresh_root())
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(zookeeper),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("done-awaiting-gc")


def test_the_guide_runs(zookeeper: str) -> None:
    """The blocks of the guide are one program, and it runs as it stands."""
    code = "".join(blocks("docs/guide.md", "python")).replace("/guide", fresh_root())
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(zookeeper),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "the queue is paused" in done.stdout


def test_the_page_on_queue_files_redrives(zookeeper: str, tmp_path: Path) -> None:
    """Its shell commands export a dead letter, fix it with an editor's means, and import it."""
    (script,) = blocks("docs/textqueue.md", "sh")
    done = subprocess.run(
        ["sh", "-eu", "-c", script],
        env=environment(zookeeper),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"queued"' in done.stdout
    assert "Elm Street 7" in done.stdout


def test_the_page_on_queue_files_runs(tmp_path: Path) -> None:
    """The blocks are one program, and the first example reads as its words say."""
    code = "".join(blocks("docs/textqueue.md", "python"))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (tmp_path / "shown.tq").write_text("".join(blocks("docs/textqueue.md", "text")))
    with TextQueue.open(tmp_path / "shown.tq") as queue:
        shown = list(queue.messages("all"))
    assert [str(it.status) for it in shown] == ["queued", "processed", "error", "queued", "comment"]
    assert shown[3].variables[0].endswith("    ")


def test_the_page_on_scale_runs() -> None:
    """Queues are spread over ensembles as it says; its command is run by `test_scale.py`."""
    done = subprocess.run(
        [sys.executable, "-c", "".join(blocks("docs/scale.md", "python"))], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "groups move" in done.stdout


#: By what its test finds each block of the page on Spark, and where that test is.
ON_SPARK = {
    "spark.read.format": "test_data_source.py",
    "enqueue(df": "test_spark_write.py",
    "spark.readStream.format": "test_spark_stream.py",
    "run_pipeline(": "test_reports.py",
    "write_html(": "test_reports.py",
}


def test_each_block_of_the_page_on_spark_is_found_by_one_test() -> None:
    """Those tests have a session that they share with others, and so stand elsewhere; no block is left out."""
    found = [[mark for mark in ON_SPARK if mark in block] for block in blocks("docs/spark.md", "python")]
    assert sorted(found) == sorted([mark] for mark in ON_SPARK)
    for mark, name in ON_SPARK.items():
        assert mark in Path(__file__).with_name(name).read_text()


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/quickstart.md",
        "docs/acknowledge.md",
        "docs/guide.md",
        "docs/performance.md",
        "docs/architecture.md",
        "docs/contributing.md",
        "docs/airflow-provider.md",
        "docs/events.md",
        "docs/patterns.md",
        "docs/scale.md",
        "docs/semantics.md",
        "docs/simulator.md",
        "docs/spark.md",
        "docs/textqueue.md",
        "docs/tree.md",
    ],
)
def test_links_lead_somewhere(page: str) -> None:
    """Every relative link of a page names a file of the repository."""
    text = (TOP / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert all((TOP / page).parent.joinpath(link).exists() for link in links), links


def test_tests_named_in_the_architecture_exist() -> None:
    """A claim that names its test names one that is there."""
    names = re.findall(r"`(test_[a-z0-9_]+)`", (TOP / "docs/architecture.md").read_text())
    tests = "\n".join(path.read_text() for path in (TOP / "tests").rglob("test_*.py"))
    assert names
    assert all(f"def {name}(" in tests for name in names)


def test_every_row_of_the_semantics_names_a_test_that_exists() -> None:
    """Each statement has its test, by file and name."""
    named = [re.findall(r"`([\w/]+\.py)::(\w+)`", row[-1]) for row in rows("docs/semantics.md")]
    assert all(named), "a row names no test"
    for path, name in (pair for row in named for pair in row):
        assert f"def {name}(" in (TOP / "tests" / path).read_text(), f"{path}::{name}"


def test_every_call_of_the_semantics_exists() -> None:
    """Each call that a statement names is a public name, or Spark's own with our format."""
    homes = {
        "TextQueue": TextQueue,
        "bridge": bridge,
        "spark": spark,
        "q": Queue,
        "claim": Claim,
        "zk": Zkmq,
        "tx": UnitOfWork,
        "worker": Worker,
        "task": Running,
    }
    calls = [call for row in rows("docs/semantics.md") if len(row) > 3 for call in re.findall(r"`([^`]+)`", row[-2])]
    calls = [call for call in calls if not re.fullmatch(r'(spark\.read|df\.write)(Stream)?\.format\("zkmq"\)', call)]
    folders = [TOP / "airflow_provider_zkmq" / name for name in ("operators", "sensors", "triggers", "notifications")]
    airflow = "".join(path.read_text() for folder in folders for path in folder.glob("*.py"))
    assert calls
    for call in calls:
        names = re.match(r"(?:with )?(\w+)(?:\.(\w+))?", call)
        assert names is not None
        home, name = names.groups()
        known = hasattr(homes[home], name) if home in homes and name else hasattr(engine, home)
        assert known or f"class {home}(" in airflow, call


def test_the_readme_s_first_dag_is_a_dag() -> None:
    """The DAG of the README parses with the installed Airflow and has the tasks it shows."""
    (code,) = blocks("README.md", "python")
    assert shown(code + "print(sorted(send.dag.task_ids))\n").endswith("['send', 'wait']")


def test_the_event_driven_dag_of_its_page_is_a_dag() -> None:
    """It parses with the installed Airflow, and our trigger watches its asset."""
    code, _ = blocks("docs/events.md", "python")
    told = shown(code + "print(type(orders.watchers[0].trigger).__name__, take_orders().task_ids)\n")
    assert told.endswith("ZkmqEventTrigger ['handle']")


@pytest.mark.full
def test_the_dags_of_the_page_on_patterns_are_dags() -> None:
    """Each parses with the installed Airflow, and `@task.zkmq` is known to it."""
    fan_out, consume, _, pipeline = blocks("docs/patterns.md", "python")
    assert shown(fan_out + "print(sorted(fan_out().task_ids))\n").endswith("['send', 'wait']")
    told = shown(consume + "print([each.task_type for each in consume().tasks])\n")
    assert told.endswith("['ZkmqDecoratedOperator']")
    assert shown(pipeline + "print(sorted(pipeline().task_ids))\n").endswith("['check', 'store']")


def test_the_acknowledging_dags_of_their_page_are_dags() -> None:
    """They parse with the installed Airflow, and the group has laid what the page says around the work."""
    for code, names in zip(
        blocks("docs/acknowledge.md", "python"),
        (
            "ship_orders().task_ids, ['orders.claim', 'orders.ship', 'orders.settle', 'orders.keep']",
            "claim.dag.task_ids, ['claim', 'keep', 'ship', 'settle']",
        ),
        strict=True,
    ):
        told = shown(f"{code}ids, wanted = {names}\nprint(sorted(ids) == sorted(wanted))\n")
        assert told.endswith("True"), told


def test_claims_of_events_are_accepted_as_their_page_says(zookeeper: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that stand are completed by their first attempt; those that were lost are passed over."""
    root = fresh_root()
    host, _, port = zookeeper.rpartition(":")
    connection = {"conn_type": "zkmq", "host": host, "port": int(port), "extra": {"root": root}}
    monkeypatch.setenv("AIRFLOW_CONN_ZKMQ_DEFAULT", json.dumps(connection))
    _, code = blocks("docs/events.md", "python")
    with Zkmq.connect(zookeeper, root, gc=False) as zk:
        q = zk.queue("orders")
        q.enqueue_many([Message(b"x", task_id=name) for name in ("a", "b")])
        claims = q.claim_many(2, lease=60, ahead="all")
        told = [{"queue": "orders", "id": claim.task.id, "token": claim.token} for claim in claims]
        lost = [{**told[0], "token": 1}, {**told[0], "id": "gone"}]
        shown(
            f"{code}\nfrom types import SimpleNamespace\n"
            f"events = [SimpleNamespace(extra={{'payload': {{'claims': {lost + told}}}}})]\n"
            "accept(events, bytes.upper)\n"
        )
        tasks = q.tasks()
        assert {(task.state, task.attempt, task.result) for task in tasks} == {("finished", 1, b"X")}


def test_the_notifier_s_dag_of_its_page_is_a_dag() -> None:
    """It parses with the installed Airflow, and its callback is our notifier with the other one in it."""
    (code,) = blocks("docs/airflow-provider.md", "python")
    told = shown(code + "print(type(mail).__name__, letters_by_mail().task_ids)\n")
    assert told.endswith("SmtpNotifier ['look']")


def test_the_page_on_the_provider_names_what_there_is() -> None:
    """Its tables have every option of the section ``[zkmq]`` and every metric, and no others."""
    named = [row[0].strip("`") for row in rows("docs/airflow-provider.md")]
    metrics = re.findall(r"^``(zkmq\.\w+)``", telemetry.__doc__ or "", re.MULTILINE)
    assert [name for name in named if name.startswith("zkmq.")] == metrics
    assert [name for name in named if name in settings.DEFAULTS] == list(settings.DEFAULTS)


def shown(code: str) -> str:
    """What a piece of a page prints, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
