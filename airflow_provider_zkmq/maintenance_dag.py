"""Maintenance of all queues of a root, or of those that are named: a DAG with mapped tasks for each queue.

For each queue: what dead consumers and ended leases held comes back, and what is due is promoted (``rescue``); what
ended goes into the archive, is collected and made into tables of runs, deliveries and hours (``archive``); what is left
of it that is old enough is deleted (``collect``); dead letters are reported (``dead_letters``). One queue's trouble
ends no other's turn: ``report`` tells of all, and fails where there was any, so that the run is red.

From its first run on a queue counts as archived, unless ``archive`` is switched off, or nobody says where the archive
is: clean-up keeps what the archive does not hold yet. Each archived queue is an event of the asset ``zkmq_history``,
with ``queue``, ``directory`` and ``rows`` as its extra.
A dry run tells for each queue what would be done, and does none of it.

Runs may overlap, with each other and with ``python -m airflow_provider_zkmq.spark.job pipeline``: what is rescued or
promoted changes hands in one transaction of ZooKeeper; clean-up is one client's at a time by a lock there, and the
others pass; of two runs on the archive of one queue the second to commit to a table is refused, and a pointer in
ZooKeeper refuses who was overtaken, which is tried again. Spark starts only where a step has many rows; a DAG
has one session at a time, whatever the number of queues.

Parameters: see the form. ``directory`` of the archive is, where none is given, the Airflow Variable
``zkmq_archive_dir``, else the environment variable ``ZKMQ_ARCHIVE_DIR``, else ``archive_directory`` of the section
``[zkmq]`` of Airflow's configuration. The log of ``archive`` shows each step with counts and seconds, and the path of a
page on what the tables tell.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pendulum
from airflow.sdk import DAG, Asset, Param, Variable, get_current_context, task, task_group
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from .hooks.settings import setting
from .hooks.zkmq import ZkmqHook
from .notifications.dead_letters import ZkmqDeadLetterNotifier

if TYPE_CHECKING:
    from .location import Location

#: What depends on the history is scheduled on it.
HISTORY = Asset("zkmq_history")
AGAIN: dict[str, Any] = {"retries": 2, "retry_delay": pendulum.duration(seconds=30)}
STEPS = ("rescue", "archive", "collect", "dead_letters")
DAYS = "Days that the table keeps what ended; empty: for ever."


def said_directory(given: str | None) -> str:
    """Where the archive is; empty where nobody says it."""
    said = given or Variable.get("zkmq_archive_dir", default=None) or os.environ.get("ZKMQ_ARCHIVE_DIR")
    return said or setting("archive_directory")


def archive_location() -> Location | None:
    """Where the archive is; None where nobody says it. Raises `ConfigError`."""
    from .location import Location

    directory = said_directory(param("directory"))
    return Location(directory, param("directory_connection") or None) if directory else None


def param(name: str) -> Any:
    """Return a parameter of the run."""
    return get_current_context()["params"][name]


@contextlib.contextmanager
def one_try_if_it_is_missing() -> Iterator[None]:
    """Fail without another try where there is no such queue: trying again makes none."""
    from .engine import QueueNotFound

    try:
        yield
    except QueueNotFound as error:
        raise AirflowFailException(str(error)) from None


def days(title: str) -> Param:
    """Return the field of the form for how long a table is kept."""
    return Param(None, type=["null", "integer"], minimum=1, title=title, description=DAYS, section="Archive")


@task(**AGAIN)
def queues() -> list[str]:
    """Return the names of the queues; one that is named and is not there has trouble of its own later.

    A form's blank line names none: it would stand for the connection's own queue. Raises `AirflowFailException` where
    the connection's root has no queues: it is another one that is meant.
    """
    if names := [name for line in param("queues") or () if (name := line.strip())]:
        return list(dict.fromkeys(names))
    with ZkmqHook(param("connection")) as hook:
        client = hook.get_conn()
        if not (names := sorted(client.queues())):
            raise AirflowFailException(f"there is no queue under {client.config.root!r}: correct the connection's root")
        return names


@task(**AGAIN)
def rescue(name: str) -> dict[str, Any]:
    """Have clean-up keep what no archive holds, rescue and promote; in a dry run tell what would be done."""
    from .hooks.maintenance import bring_back, foresee

    with ZkmqHook(param("connection"), name) as hook:
        queue = hook.queue()
        with one_try_if_it_is_missing():  # configure() would make it
            archived = queue.conf().archive
        done = foresee(queue, param("lifetime")) if param("dry_run") else bring_back(queue)
        if param("archive") and not (archived or param("dry_run")) and (location := archive_location()):
            # Long before its turn to be archived has come, perhaps; what no archive will ever take would only grow.
            location.check_writable()
            queue.configure(archive=True)
    print(f"queue {name}: {done}")  # noqa: T201  the task's log
    return done


@task(outlets=[HISTORY], max_active_tis_per_dag=1, **AGAIN)
def archive(name: str) -> dict[str, Any]:
    """Archive, collect, and bring the tables up to date; an event of the history."""
    if param("dry_run") or not param("archive"):
        raise AirflowSkipException("nothing is archived by this run")
    from .hooks.lineage import record_lineage

    context = get_current_context()
    location = archive_location()
    if location is None:
        message = "say where the archive is: param directory, Variable zkmq_archive_dir, ZKMQ_ARCHIVE_DIR or [zkmq]"
        raise ValueError(message)
    numbers = archived(name, location, context["params"], context["run_id"])
    record_lineage(param("connection"), name, (location / name).uri)
    extra = {"queue": name, "directory": str(location), "rows": numbers["archived"]}
    context["outlet_events"][HISTORY].extra.update(extra)
    return numbers


@task(trigger_rule="none_failed", **AGAIN)
def collect(name: str) -> dict[str, Any]:
    """Delete what is old enough and, where the queue is archived, in the archive."""
    from .hooks.maintenance import collect as collect_garbage

    if param("dry_run"):
        raise AirflowSkipException("nothing is deleted by a dry run")
    with ZkmqHook(param("connection"), name) as hook:
        return collect_garbage(hook.queue(), param("lifetime"))


@task(trigger_rule="all_done", **AGAIN)
def dead_letters(name: str) -> dict[str, Any]:
    """Tell of the dead letters."""
    notifier = ZkmqDeadLetterNotifier(
        zkmq_queue=name, zkmq_conn_id=param("connection"), most=param("dead_letters_shown")
    )
    with one_try_if_it_is_missing():
        return notifier.report(get_current_context())


@task_group
def maintain(name: str) -> None:
    """Do what one queue needs."""
    rescue(name) >> archive(name) >> collect(name) >> dead_letters(name)


@task(trigger_rule="all_done")
def report() -> dict[str, dict[str, int]]:
    """Return numbers by queue. Raises `AirflowFailException` naming those that had trouble, once all are told of."""
    context = get_current_context()
    params, ti = context["params"], context["ti"]
    names = ti.xcom_pull(task_ids="queues")
    if names is None:
        raise AirflowFailException("the queues could not be listed")
    steps = {step: by_queue(ti.xcom_pull(task_ids=f"maintain.{step}")) for step in STEPS}
    summary = {name: numbers(name, steps) for name in names}
    for name, known in summary.items():
        print(f"queue {name}: {known}")  # noqa: T201  the task's log
    needed = ["rescue", "dead_letters", *needed_steps(params)]
    trouble = [name for name in names if any(name not in steps[step] for step in needed)]
    if trouble:
        ti.xcom_push("return_value", summary)
        some = ", ".join(trouble[:5])
        raise AirflowFailException(f"{len(trouble)} of {len(names)} queues had trouble, see their tasks: {some}")
    return summary


def needed_steps(params: dict[str, Any]) -> list[str]:
    """Return the steps that have something to tell of each queue, besides looking at it."""
    if params["dry_run"]:
        return []
    return ["archive", "collect"] if params["archive"] else ["collect"]


def by_queue(pulled: Any) -> dict[str, dict[str, Any]]:
    """Return what mapped tasks told, by queue; those that failed told nothing."""
    found = pulled if isinstance(pulled, list) else [pulled]
    return {each["queue"]: each for each in found if each is not None}


def numbers(name: str, steps: dict[str, dict[str, dict[str, Any]]]) -> dict[str, int]:
    """Return what is known of a queue in the end."""
    rescued, done, collected, dead = (dict(steps[step].get(name, ())) for step in STEPS)
    foreseen = ("to_archive", "to_delete", "held_by_the_dead")
    known: dict[str, Any] = {what: rescued[what] for what in foreseen if what in rescued}
    known |= {what: number for what, number in done.items() if what != "queue"}
    if collected:
        known |= {"collected": known.get("collected", 0) + collected["deleted"], "kept": collected["kept"]}
    return known | ({"dead": dead["dead"]} if dead else {})


def archived(name: str, location: Location, params: dict[str, Any], run_id: str) -> dict[str, Any]:
    """Run the pipeline for one queue; returns its numbers. Raises `PipelineFailed`."""
    from .spark import Retention, run_pipeline

    location.check_writable()
    keep = Retention(*(params[f"keep_{table}"] for table in ("bronze", "silver", "gold")))
    with ZkmqHook(params["connection"]) as hook:
        connect = connection_arguments(hook.get_conn().config)
        progress = partial(print, flush=True)
        done = run_pipeline(connect, [name], location, lifetime=params["lifetime"], keep=keep, progress=progress)
        write_report(location, name, run_id, hook.get_conn())
    steps = done.queues[0].steps
    bronze, collected, silver = (steps[step] for step in ("bronze", "gc", "silver"))
    return {
        "queue": name,
        "archived": bronze["rows"],
        "archive_rows": bronze["in all"],
        "collected": collected["deleted"],
        "kept": collected["kept"],
        "runs": silver["runs"],
        "deliveries": silver["deliveries"],
    }


def write_report(location: Location, name: str, run_id: str, client: Any) -> None:
    """Write a page on what the tables tell, beside them, and its path into the log."""
    from .engine import ZkmqError
    from .spark import report

    try:
        made = report(location, [name], counts=lambda queue: client.queue(queue).counts())
        page = location / f"report-{name}-{in_file_name(run_id)}.html"
        made.write_html(page)
    except ZkmqError as error:  # nothing has ended yet, say
        print(f"no report: {error}")  # noqa: T201  the task's log
    else:
        print(f"report: {page.uri}")  # noqa: T201  the task's log


def in_file_name(run_id: str) -> str:
    """Return a run's id as a part of a file's name, which no system bears as long as Airflow bears ids."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "-", run_id)
    return plain if len(plain) <= 80 else f"{plain[:63]}-{hashlib.sha256(run_id.encode()).hexdigest()[:16]}"


def connection_arguments(config: Any) -> dict[str, Any]:
    """What Spark's Python workers need to connect as the hook does."""
    return {
        "hosts": config.hosts,
        "root": config.root,
        "auth": config.auth,
        "tls": config.tls,
        "session_timeout": config.session_timeout,
        "connect_timeout": config.connect_timeout,
        "request_timeout": config.request_timeout,
        "allow_open": config.allow_open,
    }


def maintenance_dag(
    dag_id: str = "zkmq_maintenance",
    schedule: Any = "@daily",
    *,
    defaults: Mapping[str, Any] | None = None,
    **options: Any,
) -> DAG:
    """Make the DAG, in a file of Airflow's folder of DAGs, which keeps it as a variable.

    `defaults`: values of the form's fields, such as ``{"connection": "zkmq_eu", "directory": "/archive/eu"}``: each
    root has an archive of its own. `options` are those of Airflow's `DAG`. Raises ValueError for an unknown field.
    """
    params = form()
    for name, value in (defaults or {}).items():
        if name not in params:
            raise ValueError(f"the maintenance form has no field {name!r}: its fields are {', '.join(params)}")
        params[name].value = value
    usual = {
        "start_date": pendulum.datetime(2026, 1, 1, tz="UTC"),
        "catchup": False,
        "max_active_runs": 1,
        "tags": ["zkmq"],
        "doc_md": __doc__,
    }
    with DAG(dag_id, schedule=schedule, params=params, **usual | options) as made:
        maintain.expand(name=queues()) >> report()
    return made


def form() -> dict[str, Param]:
    """The parameters of a run."""
    return {
        "connection": Param("zkmq_default", type="string", title="Connection", description="The Airflow connection."),
        "queues": Param(
            None,
            type=["null", "array"],
            items={"type": "string"},
            title="Queues",
            description="Names of queues, one a line; empty: all of the connection's root.",
        ),
        "dry_run": Param(
            False, type="boolean", title="Dry run", description="Change nothing, only tell what would be done."
        ),
        "lifetime": Param(
            None,
            type=["null", "number"],
            minimum=0,
            title="Lifetime",
            description="Seconds after which what ended is deleted; empty: each queue's task_gc_lifetime.",
        ),
        "dead_letters_shown": Param(
            None,
            type=["null", "integer"],
            minimum=0,
            title="Dead letters shown",
            description="So many of each queue; empty: dead_letters_shown of the section [zkmq].",
        ),
        "archive": Param(
            True,
            type="boolean",
            title="Archive",
            description="Archive (extra [spark]); else only rescue, promote, delete and tell.",
            section="Archive",
        ),
        "directory": Param(
            None,
            type=["null", "string"],
            title="Directory",
            description="Folder of the archive, or s3://bucket/prefix; empty: the Variable zkmq_archive_dir, then "
            "ZKMQ_ARCHIVE_DIR, then [zkmq] archive_directory.",
            section="Archive",
        ),
        "directory_connection": Param(
            None,
            type=["null", "string"],
            title="Connection to S3",
            description="Connection of type aws with the keys to s3://…; empty: the worker's environment or role.",
            section="Archive",
        ),
        "keep_bronze": days("Keep bronze"),
        "keep_silver": days("Keep silver"),
        "keep_gold": days("Keep gold"),
    }
