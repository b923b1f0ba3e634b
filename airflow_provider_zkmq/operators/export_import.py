"""`ZkmqExportOperator` and `ZkmqImportOperator`: tasks as a file that people edit, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException

from ..hooks import arguments, connection_options, xcom_results
from ..hooks.zkmq import ZkmqHook

_SHOWN = 5
#: So many refusals have a line of their own in the log; all are in the XCom.
_LINES = 20


class ZkmqExportOperator(BaseOperator):
    """Writes a queue's dead letters to a file that a person can read and edit; its XCom is ``{"path", "tasks"}``.

    The file is on the worker's machine, readable for its user alone, and appears whole or not at all.

    Args:
        path: the file, by custom ``….tq``.
        state: ``"dead"``, ``"cancelled"`` or ``"inserted"``.
        selector: only tasks whose filters it accepts.
        limit: so many tasks at the most.
        force: replace a file that is there already, as a second try of the task finds it; else that is an error.
        zkmq_queue: the queue's name; None: the connection's. (``queue`` is the executor's queue, as in every operator.)
        zkmq_conn_id: the Airflow connection.
    """

    template_fields: Sequence[str] = ("path", "state", "selector", "zkmq_queue", "zkmq_conn_id")
    ui_color = "#e8f0e4"

    def __init__(
        self,
        *,
        path: str,
        state: str = "dead",
        selector: str | None = None,
        limit: int | None = None,
        force: bool = False,
        zkmq_queue: str | None = None,
        zkmq_conn_id: str = connection_options.DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.path = path
        self.state = state
        self.selector = selector
        self.limit = limit
        self.force = force
        self.zkmq_queue = zkmq_queue
        self.zkmq_conn_id = zkmq_conn_id

    def execute(self, context: Context) -> dict[str, object]:  # noqa: ARG002
        """Write the file. Raises what `editing.export_queue` does."""
        from ..editing import export_queue  # it loads the engine: reading a DAG does without

        with ZkmqHook(self.zkmq_conn_id, self.zkmq_queue) as hook:
            queue = hook.queue()
            count = export_queue(
                queue, self.path, self.state, selector=self.selector or None, limit=self.limit, force=self.force
            )
        self.log.info("Exported %d %s task(s) of queue %r to %s", count, self.state, queue.name, self.path)
        return {"path": str(self.path), "tasks": count}


class ZkmqImportOperator(BaseOperator):
    """Does what an edited export asks for; its XCom is ``{"queue", "applied", "refused", "unchanged", "dry_run"}``.

    A message whose task has changed since the export is refused: a second import of a file does nothing twice. A retry,
    or a clear, may follow upon a try that was cut off: what had been done by then is no refusal but is reported, in the
    log and as ``"before"``.

    Args:
        path: the file.
        dry_run: write nothing, report what would be done; a template may give the text of a truth value.
        fail_on_refused: fail, without another try, when a message was refused; the others are carried out first.
        zkmq_queue: import into this queue, whichever the file is from; None: the queue that the file names, which must
            be under the connection's root.
        zkmq_conn_id: the Airflow connection.
    """

    template_fields: Sequence[str] = ("path", "dry_run", "zkmq_queue", "zkmq_conn_id")
    ui_color = "#e8f0e4"

    def __init__(
        self,
        *,
        path: str,
        dry_run: bool | str = False,
        fail_on_refused: bool = True,
        zkmq_queue: str | None = None,
        zkmq_conn_id: str = connection_options.DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.path = path
        self.dry_run = dry_run
        self.fail_on_refused = fail_on_refused
        self.zkmq_queue = zkmq_queue
        self.zkmq_conn_id = zkmq_conn_id

    def execute(self, context: Context) -> dict[str, object]:
        """Import the file. Raises what `editing.import_file` does; `AirflowFailException` for refused messages."""
        from ..editing import import_file, queue_named_in

        dry_run = arguments.flag("dry_run", self.dry_run)
        with ZkmqHook(self.zkmq_conn_id, self.zkmq_queue or queue_named_in(self.path)) as hook:
            again = context["ti"].try_number > 1
            done = import_file(hook.queue(), self.path, dry_run, elsewhere=bool(self.zkmq_queue), again=again)
        applied, refused = len(done.applied), len(done.refused)
        verb = "Would apply" if done.dry_run else "Applied"
        what = "%s %d message(s) of %s; %d refused, %d unchanged"
        self.log.info(what, verb, applied, self.path, refused, done.unchanged)
        if done.before:
            what = "%d message(s) had been applied before, by a try that was cut off: %s"
            self.log.info(what, len(done.before), ", ".join(done.before[:_SHOWN]))
        for refusal in done.refused[:_LINES]:
            self.log.warning("Line %d, task %r: %s", refusal.line, refusal.id, refusal.reason)
        if refused and self.fail_on_refused:
            lines = [f"line {refusal.line}, task {refusal.id!r}: {refusal.reason}" for refusal in done.refused]
            ended = "would be applied" if done.dry_run else "were applied"
            raise AirflowFailException(
                f"{refused} message(s) of {self.path} were refused, {applied} {ended}: {xcom_results.few(lines)}"
            )
        return done.as_dict()
