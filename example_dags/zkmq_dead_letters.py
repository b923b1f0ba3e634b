"""Dead letters for people: export them to a file, wait for somebody's edits, import what they say.

The file is ``<queue>-<the run's date and time>.tq``. Whoever is on call copies it, edits the copy and, when it is
complete, renames it to ``<the same>.edited.tq`` in the same folder: a rename is never seen half done. A run whose
queue has no dead letters, or whose file nobody edits in time, is skipped; the next one exports them again.

Parameters: ``queue`` (none: the connection's), ``directory`` of the files (none: the Airflow Variable
``zkmq_dead_letters_dir``, else the environment variable ``ZKMQ_DEAD_LETTERS_DIR``), ``dry_run``: import nothing, only
report. It runs daily; the environment variable ``ZKMQ_DEAD_LETTERS_SCHEDULE`` sets another schedule, empty: none.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pendulum
from airflow.sdk import Param, PokeReturnValue, Variable, dag, get_current_context, task
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_zkmq.operators.export_import import ZkmqExportOperator, ZkmqImportOperator


def letters_directory(given: str | None) -> Path:
    """Where the files are. Raises ValueError where nobody says it."""
    directory = given or Variable.get("zkmq_dead_letters_dir", default=None) or os.environ.get("ZKMQ_DEAD_LETTERS_DIR")
    if not directory:
        message = "say where the files go: param directory, Variable zkmq_dead_letters_dir or ZKMQ_DEAD_LETTERS_DIR"
        raise ValueError(message)
    return Path(directory)


def edited_path(exported: str) -> Path:
    """Return what an edited export is called."""
    return Path(exported).with_suffix(".edited.tq")


@dag(
    dag_id="zkmq_dead_letters",
    schedule=os.environ.get("ZKMQ_DEAD_LETTERS_SCHEDULE", "@daily") or None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["zkmq"],
    params={
        "queue": Param(None, type=["null", "string"], description="name of the queue; none: the connection's"),
        "directory": Param(None, type=["null", "string"], description="folder of the files"),
        "dry_run": Param(False, type="boolean", description="import nothing, only report"),
    },
    doc_md=__doc__,
)
def zkmq_dead_letters() -> None:
    """Export, wait for edits, import."""

    @task
    def place() -> str:
        """Return the file's path: one for each run, so that a second try replaces it."""
        context = get_current_context()
        folder = letters_directory(context["params"]["directory"])
        folder.mkdir(parents=True, exist_ok=True)
        moment = context["dag_run"].logical_date or context["dag_run"].run_after
        return str(folder / f"{context['params']['queue'] or 'queue'}-{moment:%Y%m%dT%H%M%S}.tq")

    @task.sensor(
        mode="reschedule",
        poke_interval=30,
        timeout=12 * 3_600,
        soft_fail=True,
        retries=2,
        retry_delay=pendulum.duration(seconds=30),
    )
    def edited(exported: dict[str, Any]) -> PokeReturnValue:
        """Wait for the edited file; its XCom is the path."""
        if not exported["tasks"]:
            message = "there are no dead letters"
            raise AirflowSkipException(message)
        path = edited_path(exported["path"])
        return PokeReturnValue(is_done=path.exists(), xcom_value=str(path))

    exported = ZkmqExportOperator(
        task_id="export",
        path=place(),
        zkmq_queue="{{ params.queue or '' }}",
        force=True,
        retries=2,
        retry_delay=pendulum.duration(seconds=30),
    )
    ZkmqImportOperator(
        task_id="import",
        path=edited(exported.output),
        dry_run="{{ params.dry_run }}",
        retries=2,
        retry_delay=pendulum.duration(seconds=30),
    )


zkmq_dead_letters()
