"""Reports on made-up histories, whose numbers are known, and on an archive by the command line."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import statistics
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

pytest.importorskip("pyspark")

from airflow_provider_zkmq.cli import main
from airflow_provider_zkmq.engine import ConfigError, Message
from airflow_provider_zkmq.error_texts import TASK, masked
from airflow_provider_zkmq.location import Location
from airflow_provider_zkmq.spark import job, report
from airflow_provider_zkmq.spark.history.gold import summarise
from airflow_provider_zkmq.spark.history.silver import refine
from airflow_provider_zkmq.spark.reporting import sections
from airflow_provider_zkmq.spark.reporting.capacity import Load, Target
from airflow_provider_zkmq.spark.reporting.report import answer
from airflow_provider_zkmq.spark.reporting.tables import OTHERS
from tests.integration.answers import START, History, Try
from tests.integration.histories import HOUR, Histories, runs_by_pandas, write_bronze
from tests.integration.histories import START as EPOCH
from tests.integration.spark_programs import TOP, shown
from tests.unit.queueing import Simulation, Staff

pytestmark = pytest.mark.filterwarnings("ignore")
ERRORS = (
    "ValueError: bad value '{n}' in /data/x{n}.csv",
    "exit code 137: Killed",
    "a.b.HTTPError: 503 Server Error for url: https://x.y/{n}?a=1",
    "no 'quote', no \"end\" of task-{n} at 0x{n:08x}, 10.0.0.{n}:2181",
)


def mixed() -> History:
    """Three queues; one with two classes, tries that fail in four ways, and a class without filters."""
    history = History()
    for n in range(120):
        began, worker = n * 60.0, f"worker-{n % 4}"
        tries = [Try(began + 1 + n / 10, began + 31, worker)]
        if n % 5 == 0:
            lost, error = ("failed", ERRORS[n // 10 % 4].format(n=n)) if n % 10 == 0 else ("rescued", None)
            tries = [Try(began + 1, began + 2, worker, lost, error)]
            tries += [Try(began + 30, began + 40, worker)] if n % 15 else []
        history.add(f"size={'large' if n % 3 else 'small'}", began, tries, queue="census")
    for n in range(30):
        history.add("", n * 10.0, [Try(n * 10 + 2.0, n * 10 + 3.0, "mail-1")], queue="mail")
    history.add("", 5.0, [], queue="mail", state="cancelled")
    return history.add("one=1", 0.0, [Try(1.0, 2.0)], queue="single")


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The tables of the mixed history."""
    return mixed().tables(tmp_path_factory.mktemp("mixed"))


@pytest.fixture(scope="module")
def answered(tables):
    """The rows of each table of each section on the mixed history."""
    made = answer(tables, recent=3_600, target=Target(60.0), top=20)
    return {(section.name, table.name): table.rows for section in made for table in section.tables}


def test_what_ended_and_waited_is_what_the_rows_say(answered) -> None:
    """Counts and percentiles of each queue and class, the longest wait first, also without filters and of one task."""
    runs = mixed().runs
    queues = {row["queue"]: row for row in answered["overview", "queues"]}
    assert {queue: row["runs"] for queue, row in queues.items()} == Counter(run["queue"] for run in runs)
    assert (queues["census"]["dead"], queues["mail"]["cancelled"]) == (8, 1)
    classes = answered["waiting", "classes"]
    assert [row["wait_p95"] for row in classes] == sorted((row["wait_p95"] for row in classes), reverse=True)
    for row in classes:
        own = [run for run in runs if (run["queue"], run["class"]) == (row["queue"], row["class"])]
        waits = [run["wait_ms"] / 1000 for run in own if run["wait_ms"] is not None]
        assert (row["runs"], row["wait_max"]) == (len(own), max(waits))
        assert row["wait_mean"] == pytest.approx(statistics.mean(waits))
        if len(waits) > 1:
            cuts = statistics.quantiles(waits, n=100, method="inclusive")
            assert [row[f"wait_p{point}"] for point in (50, 95, 99)] == pytest.approx([cuts[49], cuts[94], cuts[98]])
    assert ("mail", "") in {(row["queue"], row["class"]) for row in classes}
    retries = {row["class"]: row for row in answered["retries", "retries"]}
    assert {name: row["retries"] for name, row in retries.items()} == {"size=large": 16, "size=small": 0}
    assert retries["size=small"]["dead"] == 8


def test_failures_meet_by_kind_and_masked_text(answered) -> None:
    """Each group has its tasks, the latest as examples."""
    lost = [each for each in mixed().deliveries if each["outcome"] != "finished"]
    told = [each["error"] or f"{each['outcome']}, no error told" for each in lost]
    expected = Counter(masked(error, each["task_id"]) for error, each in zip(told, lost, strict=True))
    assert len(expected) == 5
    groups = answered["failures", "groups"]
    assert {(row["kind"], row["text"]): row["failures"] for row in groups} == expected
    assert [row["failures"] for row in groups] == sorted(expected.values(), reverse=True)
    killed = next(row for row in groups if row["kind"] == "exit code 137")
    own = [each["task_id"] for each in lost if each["error"] == "exit code 137: Killed"]
    assert killed["examples"].split() == own[::-1][:3]
    assert killed["tasks"] == len(set(own))
    assert answered["failures", "worst"][0]["failures"] == 1
    assert groups[0]["error"] in told


def test_consumers_hours_and_capacity_are_those_of_the_rows(answered) -> None:
    """How busy each consumer was; gold's hours, summed over classes; every class, also without filters, of one task."""
    rows = {(row["queue"], row["consumer"]): row for row in answered["consumers", "consumers"]}
    deliveries = mixed().deliveries
    assert set(rows) == {(each["queue"], each["consumer"]) for each in deliveries}
    for key, row in rows.items():
        own = [each for each in deliveries if (each["queue"], each["consumer"]) == key]
        assert (row["deliveries"], row["failed"]) == (len(own), sum(each["outcome"] != "finished" for each in own))
        assert row["run_p50"] == pytest.approx(statistics.median(each["run_ms"] for each in own) / 1000)
        assert 0 <= row["utilisation"] < 1

    hours = [row for row in answered["depth", "hours"] if row["queue"] == "census"]
    assert [row["arrivals"] for row in hours] == [60, 60]
    assert sum(row["ended"] for row in hours) == 120
    assert all(row["depth_mean"] > 0 for row in hours)
    assert {row["queue"] for row in answered["depth", "trends"]} == {"census", "mail", "single"}

    rows = {row["queue"]: row for row in answered["capacity", "capacity"]}
    served = {"census": "size=large, size=small", "mail": "", "single": "one=1"}
    assert {queue: row["serves"] for queue, row in rows.items()} == served
    census = rows["census"]
    assert (census["servers"], census["classes"]) == (4, ["size=large", "size=small"])
    assert census["rate"] == pytest.approx((80 + 16 + 40) / 7200, rel=0.1), "each retry is one more arrival"
    assert census["needed"] in {1, 2}
    assert rows["mail"]["needed"] == rows["single"]["needed"] == 1


def test_what_is_too_much_for_a_table_is_summed(tables) -> None:
    """Two rows of each table, and one for all others; nothing is lost from the sums."""
    assert [(row["queue"], row["runs"]) for row in sections.queues(tables, 1)] == [("census", 120), (OTHERS, 32)]
    named = replace(tables, classes=sections.largest(tables, "runs", ["queue", "class"], 2))
    assert sorted((row["queue"], row["class"], row["runs"]) for row in sections.class_waits(named)) == [
        *(("census", "size=large", 80), ("census", "size=small", 40)),
        *(("mail", OTHERS, 31), ("single", OTHERS, 1)),
    ]
    groups = sections.groups(sections.failed(tables), 1)
    assert (groups[-1]["queue"], sum(row["failures"] for row in groups)) == (OTHERS, 24)


def test_the_capacity_read_from_a_history_is_that_of_the_simulated_queue(tmp_path) -> None:
    """Arrival rates, who serves what, how many, and run times are read off the rows: the waits are within 20 %."""
    staff = [Staff("c", 2, 10.0), Staff("ab", 3, 12.0)]
    queue = Simulation({"a": 0.12, "b": 0.08, "c": 0.14}, staff, seed=2)
    simulation = replace(queue, served=[]).run(12_000)
    load = Load(History().simulated(simulation.served).tables(tmp_path), 1e9)
    alone, both = frozenset({"class=c"}), frozenset({"class=a", "class=b"})
    assert {frozenset(crew.seen): crew.servers for crew in load.crews()["q"]} == {alone: 2, both: 3}
    target = Target(120.0)
    rows = {"".join(name[-1] for name in row["classes"]): row for row in load.rows(target)}
    for crew, name in ("c", "c"), ("ab", "a"), ("ab", "b"):
        for mean in ("model_mean", "measured_mean"):
            assert rows[crew][mean] == pytest.approx(simulation.mean(name), rel=0.2)
    tried = next(
        more
        for more in range(1, 8)
        if replace(queue, staff=[staff[0], staff[1]._replace(servers=more)], served=[]).run(40_000).quantile("b", 0.95)
        <= target.wait
    )
    assert abs(rows["ab"]["needed"] - tried) <= 1


def test_tasks_of_no_time_and_errors_of_no_words_are_told(tmp_path) -> None:
    """Somebody serves a class of no measurable run time, and one is enough; one task is spelt as one.

    Blank errors are no group without a name: they are told by how the delivery ended.
    """
    tables = History().add("a=1", 0.0, [Try(1.0, 1.0)]).tables(tmp_path)
    made = {section.name: section for section in answer(tables, recent=3_600, target=Target(60.0), top=20)}
    (row,) = made["capacity"].tables[0].rows
    assert (row["verdict"], row["servers"], row["needed"]) == ("enough", 1, 1)
    assert made["depth"].said == ["q was deepest: 1 task waited after 2026-11-22 06:00 UTC."]
    history = History()
    for n, error in enumerate((None, "", " \n")):
        history.add("a=1", n, [Try(n, n + 1, outcome="failed", error=error)])
    (group,) = sections.groups(sections.failed(history.tables(tmp_path)), 20)
    (said,) = sections.section([group | {"failures": 1}], []).said
    assert said.endswith("most often, once in 3 tasks of q: failed, no error told")
    assert (group["kind"], group["text"], group["failures"]) == ("", "failed, no error told", 3)


def test_the_task_s_own_id_parts_no_errors_and_no_time_is_negative(tmp_path) -> None:
    """Whatever an id looks like it is taken out of the error first, but not out of other words and codes.

    A try that ended before it began took no time, and one whose claim came before the enqueue waited for none.
    """
    history = History()
    for task in ("alpha", "beta.gamma", "503", "run:2026-11-22+x=1", "a"):
        error = f"{task}: cannot read /data/{task}.csv of {task}, status 503"
        history.add("a=1", 10.0, [Try(9.0, 8.0, outcome="failed", error=error)], task=task)
    tables = history.tables(tmp_path)
    (group,) = sections.groups(sections.failed(tables), 20)
    assert (group["kind"], group["text"]) == ("", f"{TASK}: cannot read <path> of {TASK}, status 503")
    assert group["tasks"] == 5
    assert {row["run_ms"] for row in tables.rows("select run_ms from deliveries")} == {0}
    assert sections.class_waits(tables)[0]["wait_max"] == sections.class_waits(tables)[0]["run_p50"] == 0
    tables = history.add("a=1", 20.0, [Try(20.0, 21.0)]).tables(tmp_path)
    (row,) = Load(tables, 3_600).rows(Target(60.0))
    assert row["service"] == pytest.approx(1 / 6)
    assert 0 < row["utilisation"] < 1


def test_an_archive_answers_in_python_and_on_the_command_line(tmp_path, capsys) -> None:
    """A part of its time, and one in which there is nothing; as JSON, as text and as a page; a part that is lost."""
    histories, home = Histories(7, days=1.0), tmp_path / "census"
    histories.number(histories.make(20), 1)
    write_bronze(home, histories.rows, 10_000)
    refine(Location.of(home))
    summarise(Location.of(home))
    runs = runs_by_pandas(histories.rows)
    none = report(tmp_path, "census", since=START + timedelta(days=900))
    assert none.section("overview").said == ["No task ended in this time."]
    assert "No delivery failed." in none.text(80)
    assert "no delivery failed" in none.text(80, full=True)
    with pytest.raises(ConfigError, match="must be before until"):
        report(tmp_path, "census", since=START, until=START)

    page = tmp_path / "report.html"
    where = ["--directory", str(tmp_path), "--html", str(page), "--since", "2026-01-01T12:00:00Z"]
    assert main.main(["report", "census", *where, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    noon = EPOCH + 12 * HOUR
    assert told["overview"]["queues"][0]["runs"] == (runs["ended"] >= noon).sum()
    assert told["since"] == "2026-01-01T12:00:00+00:00"
    dead = [row["ended"] >= noon for row in histories.rows if row["state"] == "dead"]
    assert sum(row["dead"] for row in told["retries"]["retries"]) == told["overview"]["queues"][0]["dead"] == sum(dead)
    assert page.read_text().count("<svg") >= 4
    assert main.main(["report", "census", "--directory", str(tmp_path), "--full"]) == 0
    assert "CONSUMERS SIDE BY SIDE" in capsys.readouterr().out

    (lost,) = {path.parent for path in (tmp_path / "census" / "silver").glob("runs/*/day=*") if path.is_dir()}
    shutil.rmtree(lost)
    assert main.main(["report", "census", *where]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"zkmq: the history in {tmp_path} cannot be read: ")
    assert told.count("\n") == 1


def test_a_report_says_how_many_wait_now_where_zookeeper_is_named(q, where, tmp_path, capsys, monkeypatch) -> None:
    """By the queues' counts, and not by what has ended; without a server the archive is read all the same."""
    histories = Histories(7, days=1.0)
    histories.number(histories.make(5), 1)
    home = Location.of(tmp_path / "census")
    write_bronze(home, histories.rows, 10_000)
    refine(home)
    summarise(home)
    q.enqueue_many([Message(b"")] * 3)
    q.claim(timeout=5)
    line = ["report", "census", "--directory", str(tmp_path), "--json"]
    assert main.main([*line, "--hosts", where["hosts"], "--root", where["root"]]) == 0
    told = json.loads(capsys.readouterr().out)["depth"]
    assert "Now 2 tasks wait, 1 are in hand." in told["said"]
    assert told["now"] == [{"queue": "census"} | q.counts()]
    monkeypatch.setenv("ZKMQ_HOSTS", "127.0.0.1:1")
    assert main.main(line) == 0
    told = capsys.readouterr()
    assert "now" not in json.loads(told.out)["depth"]
    assert told.err.startswith("zkmq: how many tasks wait now is not known: ")
    monkeypatch.delenv("ZKMQ_HOSTS")
    assert main.main(line) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.full
@pytest.mark.xdist_group("spark")
def test_the_page_s_pipeline_and_reports_run(zk, where, tmp_path, capsys) -> None:
    """What it shows in Python and as commands, but for addresses and folders, one after the other."""
    zk.queue("census").enqueue(b"x")
    zk.queue("census").claim(timeout=5).complete(b"y")
    real = {
        '{"hosts": "127.0.0.1:2181"}': repr(where),
        "--conn-id zkmq_default": "--hosts {hosts} --root {root}".format(**where),
        "/var/lib/zkmq/archive": str(tmp_path / "archive"),
        "/archive": str(tmp_path / "archive"),
        "report.html": str(tmp_path / "report.html"),
    }
    for word in ("run_pipeline(", "history import table", "write_html("):
        exec(compile(shown(word, real), "docs/spark-history.md", "exec"), {})  # noqa: S102
    assert "queue census: bronze: 1 rows, 1 in all" in capsys.readouterr().out
    lines = [line for word in ("spark.job pipeline", "zkmq report") for line in shown(word, real, "sh").splitlines()]
    for line in lines:
        run, arguments = (main.main, line.removeprefix("zkmq ")) if line.startswith("zkmq ") else (job.main, line)
        words = shlex.split(arguments.removeprefix("python -m airflow_provider_zkmq.spark.job"))
        assert run(words) == 0, capsys.readouterr().err
    assert len(set(lines)) == 3
    assert (tmp_path / "report.html").is_file()


@pytest.mark.full
@pytest.mark.xdist_group("spark")
@pytest.mark.usefixtures("spark")
def test_the_reference_of_spark_runs(where, tmp_path, monkeypatch) -> None:
    """Its blocks are one program, but for addresses and folders."""
    monkeypatch.chdir(tmp_path)
    page = (TOP / "docs/reference/spark.md").read_text()
    code = "".join(re.findall(r"(?ms)^```python\n(.*?)^```", page))
    real = {
        'Zkmq.connect("127.0.0.1:2181")': "Zkmq.connect({hosts!r}, {root!r})".format(**where),
        '{"hosts": "127.0.0.1:2181"}': repr(where),
        'hosts="127.0.0.1:2181"': "hosts={hosts!r}, root={root!r}".format(**where),
        '"/archive"': repr(str(tmp_path / "archive")),
    }
    for shown_there, stands_here in real.items():
        assert shown_there in code
        code = code.replace(shown_there, stands_here)
    exec(compile(code, "docs/reference/spark.md", "exec"), {})  # noqa: S102
    assert "letters waits longest" in (tmp_path / "letters.html").read_text()
