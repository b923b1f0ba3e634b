"""What the README and the documentation show is executed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zkmq import editing, engine, history, spark
from airflow_provider_zkmq.engine import Claim, Message, Queue, Running, UnitOfWork, Worker, Zkmq
from airflow_provider_zkmq.engine.api.internal_methods import QueueInternals
from airflow_provider_zkmq.hooks import metrics, settings
from airflow_provider_zkmq.textqueue import TextQueue
from tests import promises
from tests.integration.pages import dag_files, pages
from tests.integration.spark_programs import PAGES
from tests.promises import TOP, rows
from tests.support import fresh_root

DOCS = TOP / "docs"


def blocks(name: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (TOP / name).read_text(), re.DOTALL | re.MULTILINE)


def ran(*command: str, hosts: str = "", folder: Path | None = None, stdin: str = "") -> str:
    """What a command prints: with the test's ZooKeeper, and this interpreter's commands first on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "ZKMQ_HOSTS": hosts, "ZKMQ_ROOT": fresh_root(), "PATH": path}
    done = subprocess.run(
        command, env=env, cwd=folder, input=stdin, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def python(code: str, **options: Any) -> str:
    """What a piece of a page prints, in a process of its own."""
    return ran(sys.executable, "-c", code, **options)


def test_the_quickstart_runs(zookeeper: str) -> None:
    """Every line of the shell section succeeds, and the task ends as the page says; Python runs as it stands."""
    (script,) = blocks("docs/quickstart.md", "sh")
    assert '"finished"' in ran("sh", "-eu", "-c", script, hosts=zookeeper)
    (code,) = blocks("docs/quickstart.md", "python")
    assert python(code.replace("/quickstart", fresh_root()), hosts=zookeeper).startswith("done-awaiting-gc")


def test_pages_that_are_one_program_run(zookeeper: str, tmp_path: Path, subtests: pytest.Subtests) -> None:
    """As they stand."""
    for page, told in (
        ("docs/scale.md", "groups move"),
        ("docs/textqueue.md", ""),
        ("docs/reference/errors.md", ""),
        ("docs/reference/files.md", ""),
        ("docs/reference/metrics.md", ""),
        ("docs/reference/python.md", ""),
        ("docs/reference/python-async.md", ""),
        ("docs/reference/python-queue.md", ""),
        ("docs/reference/python-records.md", "task invoice-7 is"),
        ("docs/reference/python-values.md", ""),
        ("docs/reference/python-work.md", "queue 'orders' has 2000 pending tasks"),
    ):
        with subtests.test(msg=page):
            code = "".join(blocks(page, "python")).replace("/reference", fresh_root())
            assert told in python(code, hosts=zookeeper, folder=tmp_path)


def test_the_commands_of_the_configuration_are_carried_out(zookeeper: str) -> None:
    """A connection in the environment is JSON that Airflow takes; a queue is configured from the shell."""
    connection, commands = blocks("docs/reference/configuration.md", "sh")
    shown = ran("sh", "-eu", "-c", f'{connection}\nprintf %s "$AIRFLOW_CONN_ZKMQ_DEFAULT"')
    assert json.loads(shown)["extra"] == {"root": "/zkmq"}
    told = ran("sh", "-eu", "-c", commands, hosts=zookeeper)
    assert json.loads(told.splitlines()[-1])["queue"] == "orders"


def test_the_first_example_of_queue_files_reads_as_its_words_say(tmp_path: Path) -> None:
    """Each line has the status that it tells of."""
    (tmp_path / "shown.tq").write_text("".join(blocks("docs/textqueue.md", "text")))
    with TextQueue.open(tmp_path / "shown.tq") as queue:
        shown = list(queue.messages("all"))
    assert [str(it.status) for it in shown] == ["queued", "processed", "error", "queued", "comment"]
    assert shown[3].variables[0].endswith("    ")


#: By what its test finds each block of the pages on Spark, and where that test is.
ON_SPARK = {
    "spark.read.format": "test_data_source.py",
    "enqueue(df": "test_data_source.py",
    "spark.readStream.format": "test_spark_stream.py",
    "run_pipeline(": "test_reports.py",
    "history import table": "test_reports.py",
    "Location(": "test_s3_archive.py",
    "write_html(": "test_reports.py",
}


def test_each_block_of_the_pages_on_spark_is_found_by_one_test() -> None:
    """Those tests have a session that they share with others, and so stand elsewhere; no block is left out."""
    found = [[mark for mark in ON_SPARK if mark in block] for page in PAGES for block in blocks(page, "python")]
    assert sorted(found) == sorted([mark] for mark in ON_SPARK)
    for mark, name in ON_SPARK.items():
        assert mark in Path(__file__).with_name(name).read_text()


def test_links_lead_somewhere(subtests: pytest.Subtests) -> None:
    """Every relative link of a page names a file of the repository."""
    found = [TOP / "README.md", *(TOP / "docs").rglob("*.md")]
    assert len(found) >= 40
    for page in found:
        with subtests.test(msg=str(page.relative_to(TOP))):
            links = [link for link in re.findall(r"\]\(([^)]+)\)", page.read_text()) if "://" not in link]
            missing = [link for link in links if not page.parent.joinpath(link.partition("#")[0]).exists()]
            assert not missing


def test_tests_named_in_the_architecture_exist() -> None:
    """A claim that names its test names one that is there."""
    pages = [
        path.read_text() for word in ("architecture", "protocol", "internals*") for path in DOCS.glob(f"{word}.md")
    ]
    assert len(pages) == 6
    names = re.findall(r"`(test_[a-z0-9_]+)`", "\n".join(pages))
    tests = "\n".join(path.read_text() for path in (TOP / "tests").rglob("test_*.py"))
    assert names
    assert all(f"def {name}(" in tests for name in names)


def test_every_promise_names_a_test_that_exists() -> None:
    """Each statement has its test, by file and name."""
    named = [re.findall(r"`([\w/]+\.py)::(\w+)`", row[-1]) for page in promises.PAGES for row in rows(page)]
    assert all(named), "a row names no test"
    for path, name in (pair for row in named for pair in row):
        assert f"def {name}(" in (TOP / "tests" / path).read_text(), f"{path}::{name}"


def test_every_call_of_a_promise_exists() -> None:
    """Each call that a statement names is a public name, or Spark's own with our format."""
    homes = {
        "TextQueue": TextQueue,
        "editing": editing,
        "history": history,
        "internals": QueueInternals,
        "spark": spark,
        "q": Queue,
        "claim": Claim,
        "zk": Zkmq,
        "tx": UnitOfWork,
        "worker": Worker,
        "task": Running,
    }
    cells = [row[-2] for page in promises.PAGES for row in rows(page) if len(row) > 3 or "reference" in page]
    not_ours = re.compile(r'zkmq .*|(GET|POST) .*|(spark\.read|df\.write)(Stream)?\.format\("zkmq"\)')
    calls = [call for cell in cells for call in re.findall(r"`([^`]+)`", cell) if not not_ours.fullmatch(call)]
    folders = ("operators", "sensors", "triggers", "notifications", "plugins")
    modules = [path for folder in folders for path in (TOP / "airflow_provider_zkmq" / folder).glob("*.py")]
    airflow = "".join(path.read_text() for path in modules)
    assert calls
    for call in calls:
        names = re.match(r"(?:with )?(\w+)(?:\(q\))?(?:\.(\w+))?", call)
        assert names is not None
        home, name = names.groups()
        known = hasattr(homes[home], name) if home in homes and name else hasattr(engine, home)
        assert known or f"class {home}(" in airflow, call


#: Runs pieces of pages, each by itself, and tells what their expressions are.
_EACH = """
import json, sys
told = []
for page, code, expression in json.load(sys.stdin):
    names = {"__name__": page}
    exec(compile(code, page, "exec"), names)
    told.append(eval(expression, names))
print(json.dumps(told))
"""


#: The DAG files of tutorials and how-to pages: what tells which tasks each has, and these.
DAG_FILES: dict[str, tuple[str, list[str]]] = {
    "how-to/acknowledge-dag-runs.md dags/ship_orders.py": (
        "sorted(ship_orders().task_ids)",
        ["orders.claim", "orders.keep", "orders.pack", "orders.settle", "orders.ship"],
    ),
    "how-to/delays.md dags/nightly.py": ("nightly().task_ids", ["enqueue"]),
    "tutorials/event-driven-dag.md dags/ship_orders.py": (
        "sorted(orders.dag.task_ids)",
        ["orders.claim", "orders.keep", "orders.settle", "orders.ship"],
    ),
    "tutorials/first-dag.md dags/first_dag.py": ("sorted(send.dag.task_ids)", ["send", "show", "wait"]),
}


def test_the_dags_of_the_pages_are_dags(subtests: pytest.Subtests) -> None:
    """They parse with the installed Airflow: tasks, our trigger of an asset, `@task.zkmq`, groups, a callback."""
    files = {
        f"{page.removeprefix('docs/')} {name}": text
        for page in (*pages("how-to"), *pages("tutorials"))
        for name, text in dag_files(page).items()
    }
    assert sorted(files) == sorted(DAG_FILES)
    (readme,), (event, _), (upkeep, mail) = (
        blocks(page, "python") for page in ("README.md", "docs/events.md", "docs/airflow-provider.md")
    )
    fan_out, consume, _, pipeline = blocks("docs/patterns.md", "python")
    grouped, single = blocks("docs/acknowledge.md", "python")
    asset = "[type(orders.watchers[0].trigger).__name__, *take_orders().task_ids]"
    cases = (
        ("README.md", readme, "sorted(send.dag.task_ids)", ["send", "wait"]),
        ("events.md", event, asset, ["ZkmqEventTrigger", "handle"]),
        ("patterns.md", fan_out, "sorted(fan_out().task_ids)", ["send", "wait"]),
        ("patterns.md", consume, "[each.task_type for each in consume().tasks]", ["ZkmqDecoratedOperator"]),
        ("patterns.md", pipeline, "sorted(pipeline().task_ids)", ["check", "store"]),
        (
            "acknowledge.md",
            grouped,
            "sorted(ship_orders().task_ids)",
            ["orders.claim", "orders.keep", "orders.settle", "orders.ship"],
        ),
        ("acknowledge.md", single, "sorted(claim.dag.task_ids)", ["claim", "keep", "settle", "ship"]),
        ("reference/airflow.md", "".join(blocks("docs/reference/airflow.md", "python")), "wait.dag.dag_id", "wait"),
        ("airflow-provider.md", upkeep, "[dag.dag_id, dag.schedule]", ["zkmq_maintenance", "@daily"]),
        ("airflow-provider.md", mail, "[type(mail).__name__, *letters_by_mail().task_ids]", ["SmtpNotifier", "look"]),
        *((name, files[name], *DAG_FILES[name]) for name in DAG_FILES),
    )
    told = json.loads(python(_EACH, stdin=json.dumps([case[:3] for case in cases])).splitlines()[-1])
    for (page, _, expression, wanted), value in zip(cases, told, strict=True):
        with subtests.test(msg=f"{page}: {expression}"):
            assert value == wanted


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
        claims = q.claim_many(2, lease=60, prefetch="all")
        told = [{"queue": "orders", "id": claim.task.id, "token": claim.token} for claim in claims]
        lost = [{**told[0], "token": 1}, {**told[0], "id": "gone"}]
        python(
            f"{code}\nfrom types import SimpleNamespace\n"
            f"events = [SimpleNamespace(extra={{'payload': {{'claims': {lost + told}}}}})]\n"
            "accept(events, bytes.upper)\n"
        )
        tasks = q.tasks()
        assert {(task.state, task.attempt, task.result) for task in tasks} == {("finished", 1, b"X")}


def test_the_page_on_the_provider_names_what_there_is() -> None:
    """Its tables have every option of the section ``[zkmq]`` and every metric, and no others."""
    named = [row[0].strip("`") for row in rows("docs/airflow-provider.md")]
    counted = re.findall(r"^``(zkmq\.\w+)``", metrics.__doc__ or "", re.MULTILINE)
    assert [name for name in named if name.startswith("zkmq.")] == counted
    assert [name for name in named if name in settings.DEFAULTS] == list(settings.DEFAULTS)
