"""`ZkmqExportOperator`, `ZkmqImportOperator` and the DAG that uses them, against a real ZooKeeper."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pendulum
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_zkmq.editing import BadFile, importing, queue_named_in
from airflow_provider_zkmq.engine import ConfigError, OutcomeUnknown
from airflow_provider_zkmq.operators.export_import import ZkmqExportOperator, ZkmqImportOperator
from tests.airflow.conftest import example, instance, kill


def dead(queue, *names):
    for name in names:
        queue.enqueue(name, {"size": len(name)}, task_id=name)
        kill(queue, "broken")


def mark(path, sign, *names):
    """Give the messages of these tasks another sign."""
    text = Path(path).read_text()
    for name in names:
        text, count = re.subn(rf"(?m)^[-=!](?={name}$)", sign, text)
        assert count == 1
    Path(path).write_text(text)


def test_export_and_import(queue, context, tmp_path):
    """The export tells its tasks, the import what it did; their fields are templates, and a dry run changes nothing."""
    dead(queue, "a", "bb", "ccc")
    path = str(tmp_path / "dead.tq")
    with DAG("d", schedule=None):
        selected = {"selector": "size>=2", "limit": 5, "state": "{{ word }}", "zkmq_queue": "{{ q }}"}
        export = ZkmqExportOperator(task_id="e", path="{{ dir }}/{{ word }}.tq", **selected)
        load = ZkmqImportOperator(task_id="i", path="{{ dir }}/{{ word }}.tq", dry_run="{{ dry }}")
    for operator in (export, load):
        operator.render_template_fields({"dir": tmp_path, "word": "dead", "q": "jobs", "dry": True})
    assert export.execute(context) == {"path": path, "tasks": 2}
    with pytest.raises(FileExistsError):
        export.execute(context)
    mark(path, "-", "bb")
    report = {"queue": "jobs", "refused": [], "unchanged": 1}
    report["applied"] = [{"id": "bb", "action": "redrive", "new_data": False}]
    assert load.execute(context) == report | {"dry_run": True}
    assert queue.counts()["dead"] == 3
    said = ZkmqImportOperator(task_id="t", path=path).execute(context)
    assert json.loads(json.dumps(said)) == said == report | {"dry_run": False}
    assert {task.id: task.state for task in queue.tasks()} == {"a": "dead", "bb": "inserted", "ccc": "dead"}


def test_an_import_that_was_cut_off_is_tried_again(queue, tmp_path, monkeypatch):
    """The retry does the rest, and tells both; what somebody else changed fails it for good, or is only reported."""
    dead(queue, "a", "b", "c", "d", "e", "f")
    path = str(tmp_path / "dead.tq")
    ZkmqExportOperator(task_id="t", path=path).execute(instance())
    mark(path, "=", "a", "d")
    mark(path, "-", "b", "c")
    left = iter([False, False, True])
    carry_out = importing._carry_out

    def cut_off(*arguments):
        if next(left, False):
            raise OutcomeUnknown("the connection is gone")
        carry_out(*arguments)

    monkeypatch.setattr(importing, "_carry_out", cut_off)
    operator = ZkmqImportOperator(task_id="t", path=path)
    with pytest.raises(OutcomeUnknown, match=r"2 message\(s\) were applied before"):
        operator.execute(instance(try_number=1))
    queue.worker(lambda _: "ran").run(until_empty=True)
    report = operator.execute(instance(try_number=2))
    assert (report["before"], [each["id"] for each in report["applied"]]) == (["a", "b"], ["c", "d"])
    mark(path, "-", "e", "f")
    queue.redrive("e", data="another's")
    with pytest.raises(AirflowFailException, match=r"1 message\(s\) of .* were refused, 1 were .*: line \d+, task 'e'"):
        operator.execute(instance(try_number=3))
    states = {task.id: task.state for task in queue.tasks()}
    assert states == {"b": "finished", "c": "inserted", "e": "inserted", "f": "inserted"}
    report = ZkmqImportOperator(task_id="t", path=path, fail_on_refused=False).execute(instance(try_number=1))
    assert (report["applied"], len(report["refused"])) == ([], 6)


def test_the_queue_is_the_file_s_unless_said(queue, context, tmp_path):
    """Not the connection's; a file without a header needs `zkmq_queue`, and a hostile one is refused."""
    dead(queue, "a")
    path = tmp_path / "dead.tq"
    ZkmqExportOperator(task_id="t", path=str(path), zkmq_queue="jobs").execute(context)
    assert queue_named_in(path) == "jobs"
    path.write_text(path.read_text().replace("\\queue=jobs", "\\queue=absent"))
    with pytest.raises(ConfigError, match="'absent' does not exist"):
        ZkmqImportOperator(task_id="t", path=str(path)).execute(context)
    assert ZkmqImportOperator(task_id="t", path=str(path), zkmq_queue="jobs").execute(context)["unchanged"] == 1
    path.write_text(path.read_text().replace("\\queue=absent\n", ""))
    with pytest.raises(ConfigError, match="give zkmq_queue"):
        ZkmqImportOperator(task_id="t", path=str(path)).execute(context)
    path.write_bytes(b"-\0")
    with pytest.raises(BadFile, match="NUL"):
        ZkmqImportOperator(task_id="t", path=str(path)).execute(context)


@pytest.mark.filterwarnings("ignore")  # Airflow's standard provider warns of its core
def test_the_dag_can_be_parsed():
    """One after the other: the file's path, the export, somebody's edits, the import; all but the first may retry."""
    dag = example("zkmq_dead_letters")
    order = [task.task_id for task in dag.topological_sort()]
    assert order == ["place", "export", "edited", "import"]
    assert [dag.get_task(name).retries for name in order[1:]] == [2, 2, 2]
    assert dag.get_task("edited").mode == "reschedule"


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("database")
def test_the_dag_exports_and_imports_what_was_edited(queue, context, tmp_path, monkeypatch):
    """A run of the whole DAG: the file is there for its owner, and the edited one beside it is carried out."""
    dead(queue, "a", "b")
    monkeypatch.setenv("ZKMQ_DEAD_LETTERS_DIR", str(tmp_path))
    edited = tmp_path / "jobs-20260301T000000.edited.tq"
    ZkmqExportOperator(task_id="t", path=str(edited)).execute(context)
    mark(edited, "-", "a")
    moment = pendulum.datetime(2026, 3, 1, tz="UTC")
    run = example("zkmq_dead_letters").test(logical_date=moment, run_conf={"queue": "jobs"})
    assert run.state == "success"
    assert sorted(file.name for file in tmp_path.iterdir()) == [edited.name, "jobs-20260301T000000.tq"]
    assert {task.id: task.state for task in queue.tasks()} == {"a": "inserted", "b": "dead"}
