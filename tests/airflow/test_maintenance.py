"""The maintenance DAG, step by step, and what it does for a queue."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.definitions.taskgroup import MappedTaskGroup
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_zkmq.engine import Message, Zkmq
from airflow_provider_zkmq.hooks.upkeep import bring_back, collect, dead_letters, foresee
from tests.airflow.conftest import finish, kill
from tests.support import eventually

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow's standard provider warns of its core
EXAMPLE = Path(__file__).parents[2] / "example_dags" / "zkmq_maintenance.py"


@pytest.fixture
def maintenance():
    """The DAG, found in Airflow's own folder as the DAG processor finds it."""
    folder = Path(os.environ["AIRFLOW_HOME"]) / "dags"
    folder.mkdir(exist_ok=True)
    found = DagBag(shutil.copy(EXAMPLE, folder))
    assert not found.import_errors
    return found.dags["zkmq_maintenance"]


@pytest.fixture
def run(maintenance, monkeypatch):
    """What a step does in a run whose parameters are the form's, but for those that are given."""

    def call(step, *arguments, ti=None, **changed):
        function = maintenance.get_task(step).python_callable
        params = maintenance.params.dump()
        events = {function.__globals__["HISTORY"]: SimpleNamespace(extra={})}
        context = {"params": params | changed, "run_id": "manual__1:2", "ti": ti, "outlet_events": events}
        monkeypatch.setitem(function.__globals__, "get_current_context", lambda: context)
        call.events = [event.extra for event in events.values()]
        return function(*arguments)

    return call


def test_each_queue_has_steps_of_its_own(maintenance):
    """The queues are named first; each one's steps are a mapped group, in order; the report comes last, in any case."""
    order = [task.task_id for task in maintenance.topological_sort()]
    assert order == ["queues", "upkeep.tend", "upkeep.archive", "upkeep.collect", "upkeep.letters", "report"]
    assert isinstance(maintenance.task_group_dict["upkeep"], MappedTaskGroup)
    assert maintenance.get_task("report").trigger_rule == "all_done"


def test_the_form_explains_each_field(maintenance):
    """A title, a description and a type that the form can check, for each parameter."""
    for name in maintenance.params:
        schema = maintenance.params.get_param(name)
        assert schema.schema["title"], name
        assert schema.schema.get("description") or schema.description, name
        assert schema.schema["type"], name


def test_its_first_step_keeps_what_no_archive_holds(run, queue, tmp_path):
    """All queues, or those that are named; whoever cleans up from then on keeps what has ended."""
    queue.enqueue("x", task_id="a")
    finish(queue)
    assert run("queues") == ["jobs"]
    assert run("queues", queues=["b", "a", "b"]) == ["b", "a"]
    run("upkeep.tend", "jobs", directory=str(tmp_path))
    assert queue.conf().archive
    eventually(lambda: queue.collect_garbage(lifetime=0).kept_unarchived == 1)
    assert queue.ids() == ["a"]


def test_a_blank_line_of_the_form_names_no_queue(run, queue):
    """It would stand for the connection's own queue, which nobody has named; nothing but blank lines is all queues."""
    assert run("queues", queues=["other", "", " \t", " other "]) == ["other"]
    assert run("queues", queues=["", "  "]) == run("queues", queues=[]) == ["jobs"]


def test_a_queue_that_does_not_exist_is_not_made(run, queue):
    """A mistyped name is refused in its own task, and no queue comes of it."""
    for step in ("upkeep.tend", "upkeep.letters"):
        with pytest.raises(AirflowFailException, match="does not exist"):
            run(step, "jobz")
    assert run("queues") == ["jobs"]


def test_a_dry_run_tells_and_changes_nothing(run, queue):
    """What would be archived and deleted is told; the queue is as it was, and no later step does anything."""
    queue.enqueue("x", task_id="a")
    finish(queue)
    told = run("upkeep.tend", "jobs", dry_run=True, lifetime=0)
    assert (told["to_archive"], told["counts"]["finished"]) == (1, 1)
    eventually(lambda: foresee(queue, 0)["to_delete"] == 1)
    assert foresee(queue, 3_600)["to_delete"] == 0
    for step in ("upkeep.archive", "upkeep.collect"):
        with pytest.raises(AirflowSkipException):
            run(step, "jobs", dry_run=True)
    assert not queue.conf().archive
    assert queue.counts()["finished"] == 1


def test_a_dry_run_tells_what_the_archive_would_take(queue):
    """Dead letters, too, and nothing that it holds already."""
    queue.enqueue_many([Message(each) for each in "abcd"])
    finish(queue)
    kill(queue, "no")
    queue.cancel(queue.ids("inserted")[0])
    assert foresee(queue, None)["to_archive"] == len(queue.ended_between(0)) == 3
    queue.configure(archive=True)
    queue.publish_archive(replace(queue.archive(), watermark=queue.zxid()))
    finish(queue)
    assert foresee(queue, None)["to_archive"] == 1


def test_what_is_due_comes_back_and_what_is_over_goes(run, queue):
    """Without the archive: leases that ended and delays that are over are pending again, what ended is deleted."""
    queue.enqueue_many([Message(each) for each in "abc"])
    first = finish(queue)
    claim = queue.claim(lease=1)
    queue.enqueue("later", delay=1)
    eventually(lambda: bring_back(queue)["after"] | {"finished": 0} == pending(3))
    assert claim.task.id in queue.ids("inserted")
    eventually(lambda: run("upkeep.collect", "jobs", archive=False, lifetime=0)["deleted"] == 1)
    assert first not in queue.ids()
    assert collect(queue, 0) == {"queue": "jobs", "ran": True, "deleted": 0, "kept": 0, "rescued": 0}


def test_two_runs_at_once_do_everything_once(queue, zookeeper, root):
    """What one deletes or gives back the other does not: each task is counted once, and every other one is left."""
    ids = queue.enqueue_many([Message("x") for _ in range(40)])
    for _ in ids[:20]:
        finish(queue)
    held = [claim.task.id for claim in queue.claim_many(20, lease=1)]
    deleted = []
    with Zkmq.connect(zookeeper, root, gc=False, connect_timeout=20) as other, ThreadPoolExecutor(2) as pool:
        both = (queue, other.queue("jobs"))

        def all_is_done():
            looked = pool.map(lambda each: bring_back(each) and collect(each, 0), both)
            deleted.extend(done["deleted"] for done in looked)
            return queue.counts() == pending(20)

        eventually(all_is_done)
    assert sum(deleted) == 20
    assert sorted(queue.ids()) == sorted(held)
    assert {queue.task(task_id).attempt for task_id in held} == {1}


def pending(number):
    """Counts of a queue of which so many tasks are pending."""
    return {"inserted": number, "scheduled": 0, "claimed": 0, "finished": 0, "dead": 0, "cancelled": 0}


def test_dead_letters_are_told_of_without_payloads(run, queue):
    """The first few by their ids, with attempt and reason in a line."""
    queue.enqueue_many([Message(f"marker-payload-{number}") for number in range(3)])
    ids = sorted(kill(queue, "no such\n  customer") for _ in range(3))
    told = run("upkeep.letters", "jobs", letters_shown=2)
    assert (told["dead"], [each["id"] for each in told["tasks"]]) == (3, ids[:2])
    assert told["tasks"][0] == {"id": ids[0], "attempt": 1, "batch": None, "reason": "no such customer"}
    assert "marker-payload" not in str(told)
    assert len(dead_letters(queue, 0)["tasks"]) == 0


def test_the_reason_of_a_dead_letter_sends_nothing_to_a_terminal(queue):
    """Escape sequences and other control characters of an error are replaced where it is told, in logs and XComs."""
    queue.enqueue("x")
    kill(queue, "\x1b]0;owned\x07 \x9b31m\x00 bad\u202e\r\nline")
    (told,) = dead_letters(queue, 5)["tasks"]
    assert told["reason"] == "\ufffd]0;owned\ufffd \ufffd31m\ufffd bad\ufffd line"


class Pulled:
    """A task instance whose run has told this much."""

    def __init__(self, **told):
        self.told = told
        self.pushed = {}

    def xcom_pull(self, task_ids):
        return self.told.get(task_ids.removeprefix("upkeep."))

    def xcom_push(self, key, value):
        self.pushed[key] = value


def one(queue, **numbers):
    return {"queue": queue, **numbers}


def test_the_report_tells_of_all_and_fails_for_those_in_trouble(run):
    """A queue without trouble has its numbers, also where another one fails the run; that one is named."""
    good = {
        "tend": [one("a", before={}, after={}), one("b", before={}, after={})],
        "archive": [one("a", archived=3, archive_rows=5, collected=3, kept=0, runs=3, deliveries=4)],
        "collect": [one("a", ran=True, deleted=1, kept=0, rescued=0)],
        "letters": [one("a", dead=2), one("b", dead=0)],
    }
    ti = Pulled(queues=["a", "b"], **good)
    with pytest.raises(AirflowFailException, match="1 of 2 queues had trouble, see their tasks: b"):
        run("report", ti=ti)
    numbers = {"archived": 3, "archive_rows": 5, "collected": 4, "kept": 0, "runs": 3, "deliveries": 4, "dead": 2}
    assert ti.pushed["return_value"] == {"a": numbers, "b": {"dead": 0}}
    assert run("report", ti=Pulled(queues=["a"], **good)) == {"a": numbers}
    looked = {"tend": one("a", counts={}, to_archive=1, to_delete=2, held_by_the_dead=0), "letters": one("a", dead=0)}
    told = run("report", ti=Pulled(queues=["a"], **looked), dry_run=True)
    assert told == {"a": {"to_archive": 1, "to_delete": 2, "held_by_the_dead": 0, "dead": 0}}
    with pytest.raises(AirflowFailException, match="could not be listed"):
        run("report", ti=Pulled())
    assert run("report", ti=Pulled(queues=[])) == {}


def test_the_pipeline_runs_with_progress_in_the_log(run, monkeypatch, queue, tmp_path, capsys):
    """Its step hands the parameters on; lines of progress are the log's, the report is a page beside the tables.

    The event of the history says which queue, where, and how many rows.
    """
    from airflow_provider_zkmq import spark
    from airflow_provider_zkmq.spark import Retention
    from airflow_provider_zkmq.spark.history.pipeline import PipelineReport, QueueReport

    asked = {}

    def pipeline(connect, names, directory, session, *, progress, **rest):
        asked.update(rest, names=names, directory=directory, hosts=connect["hosts"])
        progress("queue jobs: bronze: 3 rows, 0.1 s")
        steps = {"bronze": {"rows": 3, "in all": 5}, "gc": {"deleted": 3, "kept": 0}}
        return PipelineReport((QueueReport("jobs", steps | {"silver": {"runs": 3, "deliveries": 4}}),))

    class Session:
        def stop(self):
            asked["stopped"] = True

    class Page:
        def write_html(self, path):
            path.write_text("<html>")

    for name, value in (
        ("run_pipeline", pipeline),
        ("spark_session", lambda _name: Session()),
        ("report", lambda *_a, **_k: Page()),
    ):
        monkeypatch.setattr(spark, name, value, raising=False)
    numbers = run("upkeep.archive", "jobs", directory=str(tmp_path), keep_bronze=7)
    assert (asked["names"], asked["directory"], asked["stopped"]) == (["jobs"], str(tmp_path), True)
    assert (asked["keep"], asked["lifetime"], asked["delta"]) == (Retention(bronze=7), None, False)
    assert numbers == {
        "queue": "jobs", "archived": 3, "archive_rows": 5, "collected": 3, "kept": 0, "runs": 3, "deliveries": 4
    }  # fmt: skip
    assert run.events == [{"queue": "jobs", "directory": str(tmp_path), "rows": 3}]
    log = capsys.readouterr().out
    assert "queue jobs: bronze: 3 rows, 0.1 s" in log
    assert (tmp_path / "report-jobs-manual__1-2.html").as_uri() in log


def test_the_page_of_a_run_with_a_long_id_can_be_written(maintenance, tmp_path):
    """Airflow allows ids that are no file's name; two runs whose ids begin alike have a page each."""
    name = maintenance.get_task("upkeep.archive").python_callable.__globals__["in_file_name"]
    ids = [f"{'ü/' * 120}{number}" for number in range(2)]
    for run_id in ids:
        (tmp_path / f"report-{'q' * 128}-{name(run_id)}.html").write_text("")
    assert len(list(tmp_path.iterdir())) == 2
    assert name("manual__2026-01-01T00:00:00+00:00") == "manual__2026-01-01T00-00-00-00-00"


def test_where_nobody_says_where_the_archive_is_the_step_says_who_could(run, monkeypatch):
    """Nothing is archived into a folder that was guessed."""
    monkeypatch.delenv("ZKMQ_ARCHIVE_DIR", raising=False)
    with pytest.raises(ValueError, match="say where the archive is"):
        run("upkeep.archive", "jobs")


def test_where_nobody_says_where_the_archive_is_nothing_is_kept_for_it(run, queue, monkeypatch):
    """The queue is tended all the same, and clean-up deletes as before: no archive would ever take what it kept."""
    monkeypatch.delenv("ZKMQ_ARCHIVE_DIR", raising=False)
    queue.enqueue("x")
    finish(queue)
    assert run("upkeep.tend", "jobs")["after"]["finished"] == 1
    assert not queue.conf().archive
    eventually(lambda: queue.collect_garbage(lifetime=0).collected == 1)


def test_the_archives_folder_is_looked_for_in_order(maintenance, monkeypatch):
    """Airflow's configuration, the environment, the Variable, the run's parameter: each before the one before it."""
    look = maintenance.get_task("upkeep.archive").python_callable.__globals__["archive_directory"]
    monkeypatch.delenv("ZKMQ_ARCHIVE_DIR", raising=False)
    found = []
    for variable, value in (
        ("AIRFLOW__ZKMQ__ARCHIVE_DIRECTORY", "/by/configuration"),
        ("ZKMQ_ARCHIVE_DIR", "/by/environment"),
        ("AIRFLOW_VAR_ZKMQ_ARCHIVE_DIR", "/by/variable"),
    ):
        monkeypatch.setenv(variable, value)
        found.append(look(None))
    assert found == ["/by/configuration", "/by/environment", "/by/variable"]
    assert look("/by/parameter") == "/by/parameter"
