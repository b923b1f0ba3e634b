"""The maintenance DAG, step by step, and what it does for a queue."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from airflow.sdk.definitions.taskgroup import MappedTaskGroup
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_zkmq import spark
from airflow_provider_zkmq.engine import ConfigError, Message
from airflow_provider_zkmq.engine.queue_internals import internals
from airflow_provider_zkmq.hooks.maintenance import bring_back, collect, foresee
from airflow_provider_zkmq.location import Location
from airflow_provider_zkmq.maintenance_dag import maintenance_dag
from airflow_provider_zkmq.notifications.dead_letters import dead_letters
from airflow_provider_zkmq.spark import Retention
from airflow_provider_zkmq.spark.history.pipeline import PipelineReport, QueueReport
from tests.airflow.conftest import example, finish, kill
from tests.support import eventually

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow's standard provider warns of its core


@pytest.fixture(scope="session")
def maintenance():
    return example("zkmq_maintenance")


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
    """In a mapped group, between the queues' names and the report; the form explains and checks each parameter."""
    order = [task.task_id for task in maintenance.topological_sort()]
    assert order == [
        "queues",
        "maintain.rescue",
        "maintain.archive",
        "maintain.collect",
        "maintain.dead_letters",
        "report",
    ]
    assert isinstance(maintenance.task_group_dict["maintain"], MappedTaskGroup)
    assert maintenance.get_task("report").trigger_rule == "all_done"

    for name in maintenance.params:
        schema = maintenance.params.get_param(name)
        assert schema.schema["title"], name
        assert schema.schema.get("description") or schema.description, name
        assert schema.schema["type"], name


def test_its_first_steps_name_the_queues_and_keep_what_no_archive_holds(run, queue, tmp_path):
    """A blank line of the form names no queue, a mistyped name makes none; from then on what has ended is kept.

    But not where the archive's folder cannot be written to: that is found out before Spark starts, too.
    """
    for form, names in (
        ({}, ["jobs"]),
        ({"queues": ["b", "a", "b"]}, ["b", "a"]),
        ({"queues": ["other", "", " \t", " other "]}, ["other"]),
        ({"queues": ["", "  "]}, ["jobs"]),
        ({"queues": []}, ["jobs"]),
    ):
        assert run("queues", **form) == names
    for step in ("maintain.rescue", "maintain.dead_letters"):
        with pytest.raises(AirflowFailException, match="does not exist"):
            run(step, "jobz")
    assert run("queues") == ["jobs"]
    queue.enqueue("x", task_id="a")
    finish(queue)
    (tmp_path / "file").touch()
    for step in ("maintain.rescue", "maintain.archive"):
        with pytest.raises(ConfigError, match="cannot be written to"):
            run(step, "jobs", directory=str(tmp_path / "file" / "folder"))
    assert not queue.conf().archive
    run("maintain.rescue", "jobs", directory=str(tmp_path))
    eventually(lambda: queue.conf().archive)  # another client has set it
    eventually(lambda: queue.collect_garbage(lifetime=0).kept_unarchived == 1)
    assert internals(queue).ids() == ["a"]


def test_a_dry_run_tells_and_changes_nothing(run, queue):
    """What the archive would take, of what it does not hold, and what would be deleted; no later step does anything."""
    queue.enqueue_many([Message(each) for each in "abcd"])
    finish(queue)
    kill(queue, "no")
    queue.cancel(internals(queue).ids("inserted")[0])
    said = run("maintain.rescue", "jobs", dry_run=True, lifetime=0)
    assert (said["to_archive"], said["counts"]["finished"]) == (len(internals(queue).ended_between(0)), 1) == (3, 1)
    eventually(lambda: foresee(queue, 0)["to_delete"] == 2)
    assert foresee(queue, 3_600)["to_delete"] == 0
    for step in ("maintain.archive", "maintain.collect"):
        with pytest.raises(AirflowSkipException):
            run(step, "jobs", dry_run=True)
    assert (queue.conf().archive, queue.counts()["finished"]) == (False, 1)
    queue.configure(archive=True)
    internals(queue).publish_archive(replace(internals(queue).archive(), watermark=internals(queue).zxid()))
    finish(queue)
    assert foresee(queue, None)["to_archive"] == 1


def test_what_is_due_comes_back_and_what_is_over_goes(run, queue):
    """Without the archive: leases that ended and delays that are over are pending again, what ended is deleted."""
    queue.enqueue_many([Message(each) for each in "abc"])
    first = finish(queue)
    claim = queue.claim(lease=1)
    queue.enqueue("later", delay=1)

    def is_back():
        after = bring_back(queue)["after"]
        return (after["inserted"], after["claimed"], after["scheduled"]) == (3, 0, 0)

    eventually(is_back)
    assert claim.task.id in internals(queue).ids("inserted")
    eventually(lambda: run("maintain.collect", "jobs", archive=False, lifetime=0)["deleted"] == 1)
    assert first not in internals(queue).ids()
    eventually(lambda: collect(queue, 0)["rescued"] == 0)  # counts have as pending what is due in a moment
    assert collect(queue, 0) == {"queue": "jobs", "ran": True, "deleted": 0, "kept": 0, "rescued": 0}


def test_dead_letters_are_told_of_without_payloads_and_control_characters(run, queue):
    """The first few by their ids, with attempt and reason in a line; an escape sequence reaches no terminal or XCom."""
    queue.enqueue_many([Message(f"marker-payload-{number}") for number in range(3)])
    ids = sorted(kill(queue, "\x1b]0;owned\x07 \x9b31m\x00 bad\u202e\r\nline\n  two") for _ in range(3))
    said = run("maintain.dead_letters", "jobs", dead_letters_shown=2)
    assert (said["dead"], [each["id"] for each in said["tasks"]]) == (3, ids[:2])
    reason = "\ufffd]0;owned\ufffd \ufffd31m\ufffd bad\ufffd line two"
    assert said["tasks"][0] == {"id": ids[0], "attempt": 1, "batch": None, "reason": reason}
    assert "marker-payload" not in str(said)
    assert len(dead_letters(queue, 0)["tasks"]) == 0


def pulled(**said):
    """A task instance whose run has told this much."""
    pushed = {}
    return SimpleNamespace(
        xcom_pull=lambda task_ids: said.get(task_ids.removeprefix("maintain.")),
        xcom_push=lambda key, value: pushed.update({key: value}),
        pushed=pushed,
    )


def test_the_report_tells_of_all_and_fails_for_those_in_trouble(run):
    """A queue without trouble has its numbers, also where another one fails the run; that one is named."""
    a, b = {"queue": "a"}, {"queue": "b"}
    good = {
        "rescue": [a | {"before": {}, "after": {}}, b | {"before": {}, "after": {}}],
        "archive": [a | {"archived": 3, "archive_rows": 5, "collected": 3, "kept": 0, "runs": 3, "deliveries": 4}],
        "collect": [a | {"ran": True, "deleted": 1, "kept": 0, "rescued": 0}],
        "dead_letters": [a | {"dead": 2}, b | {"dead": 0}],
    }
    ti = pulled(queues=["a", "b"], **good)
    with pytest.raises(AirflowFailException, match="1 of 2 queues had trouble, see their tasks: b"):
        run("report", ti=ti)
    numbers = {"archived": 3, "archive_rows": 5, "collected": 4, "kept": 0, "runs": 3, "deliveries": 4, "dead": 2}
    assert ti.pushed["return_value"] == {"a": numbers, "b": {"dead": 0}}
    assert run("report", ti=pulled(queues=["a"], **good)) == {"a": numbers}
    seen = {"to_archive": 1, "to_delete": 2, "held_by_the_dead": 0}
    looked = {"rescue": a | {"counts": {}} | seen, "dead_letters": a | {"dead": 0}}
    assert run("report", ti=pulled(queues=["a"], **looked), dry_run=True) == {"a": seen | {"dead": 0}}
    with pytest.raises(AirflowFailException, match="could not be listed"):
        run("report", ti=pulled())
    assert run("report", ti=pulled(queues=[])) == {}


def test_the_pipeline_runs_with_progress_in_the_log(run, monkeypatch, queue, tmp_path, capsys):
    """Its step hands the parameters on, tells the history of its rows, and leaves a report beside the tables."""
    requested, silver = {}, {"runs": 3, "deliveries": 4}

    def pipeline(connect, names, directory, *, progress, **rest):
        requested.update(rest, names=names, directory=directory, hosts=connect["hosts"])
        progress("queue jobs: bronze: 3 rows, 0.1 s")
        steps = {"bronze": {"rows": 3, "in all": 5}, "gc": {"deleted": 3, "kept": 0}, "silver": silver}
        return PipelineReport((QueueReport("jobs", steps),))

    page = SimpleNamespace(write_html=lambda page: page.write(b"<html>"))
    monkeypatch.setattr(spark, "run_pipeline", pipeline, raising=False)
    monkeypatch.setattr(spark, "report", lambda *_a, **_k: page, raising=False)
    numbers = run("maintain.archive", "jobs", directory=str(tmp_path), keep_bronze=7)
    assert (requested["names"], requested["directory"]) == (["jobs"], Location(str(tmp_path)))
    assert (requested["keep"], requested["lifetime"]) == (Retention(bronze=7), None)
    assert numbers == {"queue": "jobs", "archived": 3, "archive_rows": 5, "collected": 3, "kept": 0} | silver
    assert run.events == [{"queue": "jobs", "directory": str(tmp_path), "rows": 3}]
    log = capsys.readouterr().out
    assert "queue jobs: bronze: 3 rows, 0.1 s" in log
    assert (tmp_path / "report-jobs-manual__1-2.html").as_uri() in log


def test_an_archive_in_s3_has_its_keys_from_a_connection(run, monkeypatch, queue, bucket, s3, capsys):
    """The form names it; the page is written beside the tables there, and no key is in the run's results or its log."""
    extra = {"endpoint_url": s3, "region_name": "eu-west-1"}
    store = {"conn_type": "aws", "login": "key", "password": "marker", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(store))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    queue.enqueue("x")
    finish(queue)
    form = {"directory": bucket.address, "directory_connection": "store"}
    run("maintain.rescue", "jobs", **form)
    eventually(lambda: queue.conf().archive)
    numbers = run("maintain.archive", "jobs", **form)
    assert (numbers["archived"], run.events[0]["directory"]) == (1, bucket.address)
    with pytest.raises(ConfigError, match="is a folder: connection 'store' opens none"):
        run("maintain.archive", "jobs", directory="/archive", directory_connection="store")
    log = capsys.readouterr().out
    assert f"report: {bucket}/report-jobs-manual__1-2.html" in log
    assert "marker" not in log + str((numbers, run.events))


def test_the_page_of_a_run_with_a_long_id_can_be_written(maintenance, tmp_path):
    """Airflow allows ids that are no file's name; two runs whose ids begin alike have a page each."""
    name = maintenance.get_task("maintain.archive").python_callable.__globals__["in_file_name"]
    pages = {tmp_path / f"report-{'q' * 128}-{name('ü/' * 120 + number)}.html" for number in "01"}
    for page in pages:
        page.write_text("")
    assert {*tmp_path.iterdir()} == pages
    assert (len(pages), name("manual__2026-01-01T00:00:00+00:00")) == (2, "manual__2026-01-01T00-00-00-00-00")


def test_the_archives_folder_is_looked_for_in_order(run, queue, maintenance, monkeypatch):
    """Each place is asked before the one before it; where nobody says it, nothing is archived, nor kept for that."""
    monkeypatch.delenv("ZKMQ_ARCHIVE_DIR", raising=False)
    with pytest.raises(ValueError, match="say where the archive is"):
        run("maintain.archive", "jobs")
    queue.enqueue("x")
    finish(queue)
    assert run("maintain.rescue", "jobs")["after"]["finished"] == 1
    assert not queue.conf().archive
    eventually(lambda: queue.collect_garbage(lifetime=0).collected == 1)
    look = maintenance.get_task("maintain.archive").python_callable.__globals__["said_directory"]
    for variable, value in (
        ("AIRFLOW__ZKMQ__ARCHIVE_DIRECTORY", "/by/configuration"),
        ("ZKMQ_ARCHIVE_DIR", "/by/environment"),
        ("AIRFLOW_VAR_ZKMQ_ARCHIVE_DIR", "/by/variable"),
    ):
        monkeypatch.setenv(variable, value)
        assert look(None) == value
    assert look("/by/parameter") == "/by/parameter"


def test_the_forms_defaults_are_the_dags():
    """Each root has an archive of its own: a DAG for each, with what its form says."""
    made = maintenance_dag("eu", "@hourly", defaults={"connection": "zkmq_eu", "directory": "/eu"}, tags=["eu"])
    values = {name: made.params.get_param(name).value for name in ("connection", "directory", "archive")}
    assert values == {"connection": "zkmq_eu", "directory": "/eu", "archive": True}
    assert (made.dag_id, made.schedule, made.tags) == ("eu", "@hourly", {"eu"})
    with pytest.raises(ValueError, match="no field 'folder': its fields are connection, queues"):
        maintenance_dag(defaults={"folder": "/eu"})
