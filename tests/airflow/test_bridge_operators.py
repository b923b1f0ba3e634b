"""`ZkmqExportOperator`, `ZkmqImportOperator` and the DAG that uses them, against a real ZooKeeper."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pendulum
import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_zkmq.bridge import BadFile, exported_from, importing
from airflow_provider_zkmq.engine import ConfigError, OutcomeUnknown
from airflow_provider_zkmq.operators.bridge import ZkmqExportOperator, ZkmqImportOperator
from tests.airflow.conftest import instance, kill

of_airflow = pytest.mark.filterwarnings("ignore")  # its standard provider warns of its core
EXAMPLE = Path(__file__).parents[2] / "example_dags" / "zkmq_dead_letters.py"


def dead(queue, *names):
    """Dead tasks of these names."""
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
    """The export says where it is and how many tasks it has; the import does what was asked for, and reports it."""
    dead(queue, "a", "bb", "ccc")
    path = str(tmp_path / "dead.tq")
    export = ZkmqExportOperator(task_id="t", path=path, selector="size>=2", limit=5)
    assert export.execute(context) == {"path": path, "tasks": 2}
    with pytest.raises(FileExistsError):
        export.execute(context)
    mark(path, "-", "bb")
    report = ZkmqImportOperator(task_id="t", path=path).execute(context)
    assert report == {
        "queue": "jobs", "refused": [], "unchanged": 1, "dry_run": False,
        "applied": [{"id": "bb", "action": "redrive", "new_data": False}],
    }  # fmt: skip
    assert json.loads(json.dumps(report)) == report
    assert {task.id: task.state for task in queue.tasks()} == {"a": "dead", "bb": "inserted", "ccc": "dead"}


def test_refused_messages_fail_the_task_for_good(queue, context, tmp_path):
    """The others are carried out first; another try would be refused, too. `fail_on_refused=False` only reports."""
    dead(queue, "a", "b", "c")
    path = str(tmp_path / "dead.tq")
    ZkmqExportOperator(task_id="t", path=path).execute(context)
    mark(path, "=", "a", "b")
    mark(path, "-", "c")
    queue.redrive("a")
    with pytest.raises(
        AirflowFailException, match=r"1 message\(s\) of .* were refused, 2 were applied: line 14, task 'a'"
    ):
        ZkmqImportOperator(task_id="t", path=path).execute(context)
    assert {task.id: task.state for task in queue.tasks()} == {"a": "inserted", "c": "inserted"}
    report = ZkmqImportOperator(task_id="t", path=path, fail_on_refused=False).execute(instance(try_number=1))
    assert (report["applied"], len(report["refused"])) == ([], 3)


def test_an_import_that_was_cut_off_is_tried_again(queue, tmp_path, monkeypatch):
    """The retry says what was done before, does the rest, and succeeds; what somebody else changed is refused still."""
    dead(queue, "a", "b", "c", "d", "e")
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
    assert {task.id: task.state for task in queue.tasks()} == {"b": "finished", "c": "inserted", "e": "dead"}
    mark(path, "-", "e")
    queue.redrive("e", data="another's")
    with pytest.raises(AirflowFailException, match="task 'e'"):
        operator.execute(instance(try_number=3))


def test_a_dry_run_by_template(queue, context, tmp_path):
    """Path, queue and `dry_run` are templates; a dry run changes nothing."""
    dead(queue, "a")
    with DAG("d", schedule=None):
        export = ZkmqExportOperator(
            task_id="e", path="{{ dir }}/{{ word }}.tq", state="{{ word }}", zkmq_queue="{{ q }}"
        )
        load = ZkmqImportOperator(task_id="i", path="{{ dir }}/{{ word }}.tq", dry_run="{{ dry }}")
    values = {"dir": tmp_path, "word": "dead", "q": "jobs", "dry": True}
    export.render_template_fields(values)
    path = export.execute(context)["path"]
    mark(path, "=", "a")
    load.render_template_fields(values)
    report = load.execute(context)
    assert (report["dry_run"], len(report["applied"])) == (True, 1)
    assert queue.counts()["dead"] == 1


def test_the_queue_is_the_file_s_unless_said(queue, context, tmp_path):
    """Not the connection's; a file without a header needs `zkmq_queue`, and a hostile one is refused."""
    dead(queue, "a")
    path = tmp_path / "dead.tq"
    ZkmqExportOperator(task_id="t", path=str(path), zkmq_queue="jobs").execute(context)
    assert exported_from(path).queue == "jobs"
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


@pytest.fixture
def letters(tmp_path, monkeypatch):
    """The folder of the DAG's files."""
    monkeypatch.setenv("ZKMQ_DEAD_LETTERS_DIR", str(tmp_path / "letters"))
    return tmp_path / "letters"


@pytest.fixture
def dead_letters(letters):
    """The DAG, found in Airflow's own folder as the DAG processor finds it."""
    folder = Path(os.environ["AIRFLOW_HOME"]) / "dags"
    folder.mkdir(exist_ok=True)
    found = DagBag(shutil.copy(EXAMPLE, folder))
    assert not found.import_errors
    return found.dags["zkmq_dead_letters"]


@of_airflow
def test_the_dag_can_be_parsed(dead_letters):
    """One after the other: the file's path, the export, somebody's edits, the import; all but the first may retry."""
    order = [task.task_id for task in dead_letters.topological_sort()]
    assert order == ["place", "export", "edited", "import"]
    assert [dead_letters.get_task(name).retries for name in order[1:]] == [2, 2, 2]
    assert dead_letters.get_task("edited").mode == "reschedule"


@pytest.mark.full
@of_airflow
def test_the_dag_exports_and_imports_what_was_edited(dead_letters, letters, queue, context):
    """A run of the whole DAG: the file is there for its owner, and the edited one beside it is carried out."""
    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], check=True, capture_output=True)
    dead(queue, "a", "b")
    letters.mkdir()
    edited = letters / "jobs-20260301T000000.edited.tq"
    ZkmqExportOperator(task_id="t", path=str(edited)).execute(context)
    mark(edited, "-", "a")
    run = dead_letters.test(logical_date=pendulum.datetime(2026, 3, 1, tz="UTC"), run_conf={"queue": "jobs"})
    assert run.state == "success"
    assert sorted(it.name for it in letters.iterdir()) == ["jobs-20260301T000000.edited.tq", "jobs-20260301T000000.tq"]
    assert {task.id: task.state for task in queue.tasks()} == {"a": "inserted", "b": "dead"}
