"""`ZkmqDeadLetterNotifier`: tells of a queue's dead letters, in the log or by whatever else Airflow can tell by."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from airflow.sdk import BaseNotifier, Context

from ..engine import ConfigError, State
from ..engine.queue_internals import internals
from ..hooks import connection_options, settings, task_instance, xcom_results
from ..hooks.xcom_results import one_line
from ..hooks.zkmq import ZkmqHook

if TYPE_CHECKING:
    from ..engine import AnyQueue

Send: TypeAlias = Callable[[str], object]

#: The message, as long as nobody gives another one. Its variable `zkmq` is what `dead_letters` tells.
MESSAGE: Final = """\
Queue {{ zkmq.queue }}: {{ zkmq.dead }} dead letter(s); \
{{ zkmq.counts.inserted }} pending, {{ zkmq.counts.claimed }} claimed, {{ zkmq.counts.finished }} finished.
{% for task in zkmq.tasks %}  {{ task.id }}, after {{ task.attempt }} attempt(s): {{ task.reason }}
{% endfor %}{% if zkmq.dead > zkmq.tasks | length %}  and {{ zkmq.dead - zkmq.tasks | length }} more
{% endif %}Next: {{ zkmq.command }} list {{ zkmq.queue }} --state dead; {{ zkmq.command }} show {{ zkmq.queue }} ID; \
{{ zkmq.command }} redrive {{ zkmq.queue }} ID, or --all; \
{{ zkmq.command }} export {{ zkmq.queue }} FILE.tq to edit them.\
{% if zkmq.page %} On the page: {{ zkmq.page }}{% endif %}"""


class ZkmqDeadLetterNotifier(BaseNotifier):
    """Tells how many dead letters a queue has, why the first few died, and what to type next; never a payload.

    It is a callback of DAGs and tasks (``on_failure_callback=ZkmqDeadLetterNotifier(…)``); in a task,
    ``report(context)`` also returns what was read. For a deadline it is ``AsyncCallback(ZkmqDeadLetterNotifier, {…})``,
    in the triggerer. Nothing is said of a queue without dead letters, unless `always`. What goes wrong is raised; of
    callbacks Airflow logs it.

    Args:
        zkmq_queue: the queue's name; None: the connection's.
        message: a Jinja template, with Airflow's context and ``zkmq``: ``queue``, ``dead`` (their number), ``counts``
            by state, ``tasks``, the first few: ``id``, ``attempt``, ``batch``, ``reason``; ``command``, to type, and
            ``page``, the address of the dead letters by their errors, where ``[api] base_url`` is set.
        send: who is given the message: a function of the text, or another notifier, in whose templates it is
            ``{{ zkmq_message }}``; None: the log.
        most: so many dead letters are named; None: the option ``dead_letters_shown`` of the section ``[zkmq]``.
        always: say also that there are none.
        zkmq_conn_id: the Airflow connection.
        context: what Airflow knows of a deadline that was missed, for the templates.

    Raises `ConfigError`, where the DAG is parsed, for a `send` or a `most` that is none.
    """

    template_fields: Sequence[str] = ("zkmq_queue", "zkmq_conn_id")

    def __init__(
        self,
        *,
        zkmq_queue: str | None = None,
        message: str = MESSAGE,
        send: BaseNotifier | Send | None = None,
        most: int | None = None,
        always: bool = False,
        zkmq_conn_id: str = connection_options.DEFAULT_CONN_ID,
        context: Context | None = None,
    ) -> None:
        super().__init__(context)
        if send is not None and not callable(send):
            raise ConfigError(f"send must be a notifier or a function of the text, not {type(send).__name__}")
        if most is not None:
            settings.how_many("most", most)
        self.zkmq_queue = zkmq_queue
        self.message = message
        self.send = send
        self.most = most
        self.always = always
        self.zkmq_conn_id = zkmq_conn_id

    def __call__(self, *args: Any) -> None:
        """Do what `notify` does, on a copy: rendering puts the texts in the templates' places, for good."""
        super(ZkmqDeadLetterNotifier, copy.copy(self)).__call__(*args)

    def __await__(self) -> Generator[Any, None, None]:
        """Do what a call does, with the context that was given to begin with."""
        yield from super(ZkmqDeadLetterNotifier, copy.copy(self)).__await__()

    async def async_notify(self, context: Context) -> None:
        """Do what `notify` does, in a thread: neither ZooKeeper nor `send` stops the triggerer's loop."""
        await asyncio.to_thread(self.report, context)

    def notify(self, context: Context) -> None:
        """Read the queue and tell of it. Raises `ZkmqError`, and what `send` does."""
        self.report(context)

    def report(self, context: Context) -> dict[str, Any]:
        """Do what `notify` does, and return what was read; see `dead_letters`."""
        with ZkmqHook(self.zkmq_conn_id, self.zkmq_queue) as hook:
            found = dead_letters(hook.queue(), settings.how_many("dead_letters_shown", self.most))
        if found["dead"] or self.always:
            page = task_instance.page_of(self.zkmq_conn_id, found["queue"], view="dead")
            command = xcom_results.typed(self.zkmq_conn_id)
            values: Any = {**context, "zkmq": {**found, "command": command, "page": page}}
            text = str(self.render_template(self.message, values))
            if self.send is None:
                self.log.warning("%s", text)
            elif isinstance(self.send, BaseNotifier):
                # Rendering puts the texts in the templates' places: a second time, one notifier would send the first
                # message again, and what a task's error says would be a template.
                copy.copy(self.send)({**context, "zkmq_message": text})
            else:
                self.send(text)
        return found


def dead_letters(queue: AnyQueue, most: int) -> dict[str, Any]:
    """Tell of a queue's dead letters: ``{"queue", "dead", "counts", "tasks"}``, without payloads.

    ``tasks`` has the first `most` by their ids: ``id``, ``attempt``, ``batch`` and ``reason``, in one line and clipped,
    U+FFFD in the place of control characters.
    """
    ids = internals(queue).ids(State.DEAD)
    read = internals(queue).scan(ids[:most], ["id", "attempt", "batch", "error"]).columns
    rows = zip(read["id"], read["attempt"], read["batch"], read["error"], strict=True)
    tasks = [
        {"id": task_id, "attempt": attempt, "batch": batch, "reason": one_line(error or "no reason was given", 200)}
        for task_id, attempt, batch, error in rows
    ]
    return {"queue": queue.name, "dead": len(ids), "counts": queue.counts(), "tasks": tasks}
