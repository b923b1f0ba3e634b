"""`ZkmqDeadLetterNotifier`: what it tells, and to whom."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest
from airflow.sdk import AsyncCallback, BaseNotifier
from airflow.triggers.callback import CallbackTrigger

from airflow_provider_zkmq.engine import ConfigError, Message, QueueNotFound, Zkmq
from airflow_provider_zkmq.notifications.zkmq import ZkmqDeadLetterNotifier
from tests.airflow.conftest import fire, kill

pytestmark = pytest.mark.filterwarnings("ignore")


def dead(queue, number, error="no customer\nnumber"):
    """Dead letters with payloads that nobody is to see; their ids in order."""
    queue.enqueue_many([Message("marker-payload") for _ in range(number)])
    return sorted(kill(queue, f"{error} {each}") for each in range(number))


def test_it_tells_counts_reasons_and_what_to_type_next(queue, monkeypatch):
    """The first few by their ids, each in a line, how many more there are, and the commands; no payload.

    How many are told of is Airflow's to configure, where the notifier is not told.
    """
    first, second, _ = dead(queue, 3)
    queue.enqueue("pending")
    told = []
    ZkmqDeadLetterNotifier(send=told.append, most=2)({"run_id": "r"})
    head, one, two, more, following = told[0].splitlines()
    assert head == "Queue jobs: 3 dead letter(s); 1 pending, 0 claimed, 0 finished."
    assert one.startswith(f"  {first}, after 1 attempt(s): no customer number ")
    assert two.startswith(f"  {second}, ")
    assert more == "  and 1 more"
    assert "zkmq redrive jobs ID" in following
    assert "marker-payload" not in told[0]
    monkeypatch.setenv("AIRFLOW__ZKMQ__DEAD_LETTERS_SHOWN", "1")
    ZkmqDeadLetterNotifier(send=told.append)({})
    assert len(told) == 2
    assert "and 2 more" in told[1]


def test_the_log_is_told_where_nobody_else_is(queue, capsys, caplog):
    """As a warning, by default; of a queue without dead letters nothing is told unless that is asked for."""
    notifier = ZkmqDeadLetterNotifier(zkmq_queue="{{ name }}")
    notifier({"name": "jobs"})
    assert "Queue jobs" not in caplog.text + capsys.readouterr().out
    ZkmqDeadLetterNotifier(always=True)({})
    assert "Queue jobs: 0 dead letter(s)" in caplog.text + capsys.readouterr().out


class Kept(BaseNotifier):
    """Another notifier, whose template names the message."""

    template_fields = ("text",)
    sent: ClassVar[list[str]] = []

    def __init__(self):
        super().__init__()
        self.text = "{{ dag_name }}: {{ zkmq_message }}"

    def notify(self, context):
        assert "zkmq_message" in context
        self.sent.append(self.text)


def test_another_notifier_is_given_each_message_anew(queue, monkeypatch):
    """In its own templates, beside the context; the message is a template of the user's, braces in an error are not."""
    monkeypatch.setattr(Kept, "sent", [])
    dead(queue, 1, "{{ secret }} no customer")
    message = "{{ zkmq.dead }} in {{ zkmq.queue }}, run {{ run_id }}: {{ zkmq.tasks[0].reason }}"
    notifier = ZkmqDeadLetterNotifier(send=Kept(), message=message)
    notifier({"run_id": "r", "dag_name": "d", "secret": "hidden"})
    dead(queue, 1, "another")
    notifier({"run_id": "s", "dag_name": "e", "secret": "hidden"})
    first, second = Kept.sent
    assert first == "d: 1 in jobs, run r: {{ secret }} no customer 0"
    assert second.startswith("e: 2 in jobs, run s: ")
    assert "hidden" not in second


def test_each_call_tells_of_the_queue_that_its_context_names(queue, zookeeper, root):
    """One notifier serves all tasks of a DAG: what a template was for one of them, it is not for the next."""
    dead(queue, 1)
    with Zkmq.connect(zookeeper, root, gc=False, connect_timeout=20) as zk:
        dead(zk.queue("other"), 2)
    told = []
    notifier = ZkmqDeadLetterNotifier(zkmq_queue="{{ which }}", send=told.append)
    for name in ("jobs", "other"):
        notifier({"which": name})
    assert [text.partition(" dead")[0] for text in told] == ["Queue jobs: 1", "Queue other: 2"]
    assert notifier.zkmq_queue == "{{ which }}"


async def test_it_tells_of_a_missed_deadline_in_the_triggerer(queue, caplog, capsys):
    """As Airflow's own trigger awaits it, by its path and arguments; the message is that of a call, in the log."""
    await asyncio.to_thread(dead, queue, 1)
    arguments = {"zkmq_queue": "{{ dag_run.queue }}", "message": "{{ zkmq.dead }} in {{ zkmq.queue }}"}
    made = AsyncCallback(ZkmqDeadLetterNotifier, kwargs=arguments)
    context = {"dag_run": {"queue": "jobs"}}
    events = await fire(CallbackTrigger(made.path, {**made.kwargs, "context": context}))
    assert [str(event["state"]) for event in events] == ["running", "success"]
    assert "1 in jobs" in caplog.text + capsys.readouterr().out


async def test_what_goes_wrong_is_said(queue):
    """As a callback, as in a task and as it is awaited; no queue comes of a mistyped name, and templates stay such."""
    notifier = ZkmqDeadLetterNotifier(zkmq_queue="jobz")
    for call in (notifier, notifier.notify):
        with pytest.raises(QueueNotFound):
            await asyncio.to_thread(call, {})
    assert queue.exists()
    await asyncio.to_thread(dead, queue, 1)
    told = []
    notifier = ZkmqDeadLetterNotifier(zkmq_queue="{{ which }}", send=told.append, context={"which": "jobs"})
    await notifier
    notifier.context["which"] = "jobz"
    with pytest.raises(QueueNotFound):
        await notifier
    assert len(told) == 1


def test_wrong_arguments_and_options_are_named(queue, monkeypatch, subtests):
    """Where the DAG is parsed by their names; an option with its section, and what would be a number."""
    with pytest.raises(ConfigError, match="send must be"):
        ZkmqDeadLetterNotifier(send=5)
    for most in (-1, True, 1.5, "some"):
        with subtests.test(most=most), pytest.raises(ConfigError, match="most = "):
            ZkmqDeadLetterNotifier(most=most)
    dead(queue, 1)
    wrong = r"\[zkmq\] dead_letters_shown = .* a whole number, 0 or more"
    for value in ("five", "-1", "1.5", ""):
        monkeypatch.setenv("AIRFLOW__ZKMQ__DEAD_LETTERS_SHOWN", value)
        with subtests.test(option=value), pytest.raises(ConfigError, match=wrong):
            ZkmqDeadLetterNotifier().notify({})
