"""`ZkmqDeadLetterNotifier`: what it tells, and to whom."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest
from airflow.sdk import AsyncCallback, BaseNotifier
from airflow.triggers.callback import CallbackTrigger

from airflow_provider_zkmq.engine import ConfigError, Message, QueueNotFound, Zkmq
from airflow_provider_zkmq.notifications.zkmq import ZkmqDeadLetterNotifier
from tests.airflow.conftest import kill

pytestmark = pytest.mark.filterwarnings("ignore")


def dead(queue, number):
    """Dead letters with payloads that nobody is to see; their ids in order."""
    queue.enqueue_many([Message("marker-payload") for _ in range(number)])
    return sorted(kill(queue, f"no customer\nnumber {each}") for each in range(number))


def test_it_tells_counts_reasons_and_what_to_type_next(queue):
    """The first few by their ids, each in a line, how many more there are, and the commands; no payload."""
    first, second, _ = dead(queue, 3)
    queue.enqueue("pending")
    told = []
    ZkmqDeadLetterNotifier(send=told.append, most=2)({"run_id": "r"})
    (text,) = told
    head, one, two, more, following = text.splitlines()
    assert head == "Queue jobs: 3 dead letter(s); 1 pending, 0 claimed, 0 finished."
    assert one.startswith(f"  {first}, after 1 attempt(s): no customer number ")
    assert two.startswith(f"  {second}, ")
    assert more == "  and 1 more"
    assert "zkmq redrive jobs ID" in following
    assert "marker-payload" not in text


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


def test_another_notifier_is_given_the_message(queue):
    """In its own templates, beside the context; the message itself is a template of the user's."""
    dead(queue, 1)
    notifier = ZkmqDeadLetterNotifier(send=Kept(), message="{{ zkmq.dead }} in {{ zkmq.queue }}, run {{ run_id }}")
    notifier({"run_id": "r", "dag_name": "d"})
    assert Kept.sent == ["d: 1 in jobs, run r"]
    with pytest.raises(ConfigError, match="send must be"):
        ZkmqDeadLetterNotifier(send=5)


def test_each_message_is_told_anew_and_none_is_a_template(queue, monkeypatch):
    """Of a notifier that is called again, as by two callbacks in one process; braces in an error are only text."""
    monkeypatch.setattr(Kept, "sent", [])
    queue.enqueue("x")
    kill(queue, "{{ secret }} no customer")
    notifier = ZkmqDeadLetterNotifier(send=Kept(), message="{{ zkmq.dead }}: {{ zkmq.tasks[0].reason }}")
    notifier({"dag_name": "d", "secret": "hidden"})
    queue.enqueue("x")
    kill(queue, "another")
    notifier({"dag_name": "e", "secret": "hidden"})
    first, second = Kept.sent
    assert first == "d: 1: {{ secret }} no customer"
    assert second.startswith("e: 2: ")
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
    trigger = CallbackTrigger(made.path, {**made.kwargs, "context": context})
    events = [event.payload async for event in trigger.run()]
    assert [str(event["state"]) for event in events] == ["running", "success"]
    assert "1 in jobs" in caplog.text + capsys.readouterr().out


async def test_awaited_twice_it_tells_of_the_queue_of_its_context_and_fails_as_a_call_does(queue):
    """Its templates stay templates, and whatever goes wrong is raised."""
    await asyncio.to_thread(dead, queue, 1)
    told = []
    notifier = ZkmqDeadLetterNotifier(zkmq_queue="{{ which }}", send=told.append, context={"which": "jobs"})
    await notifier
    notifier.context["which"] = "jobz"
    with pytest.raises(QueueNotFound):
        await notifier
    assert len(told) == 1


def test_what_goes_wrong_is_said(queue):
    """As a callback as in a task; Airflow logs what its callbacks raise, and no queue comes of a mistyped name."""
    notifier = ZkmqDeadLetterNotifier(zkmq_queue="jobz")
    for call in (notifier, notifier.notify):
        with pytest.raises(QueueNotFound):
            call({})
    assert queue.exists()


def test_how_many_are_told_of_is_airflows_to_configure(queue, monkeypatch):
    """The option of the section ``[zkmq]``, where the notifier is not told."""
    dead(queue, 2)
    told = []
    monkeypatch.setenv("AIRFLOW__ZKMQ__DEAD_LETTERS_SHOWN", "1")
    ZkmqDeadLetterNotifier(send=told.append)({})
    assert "and 1 more" in told[0]


@pytest.mark.parametrize("value", ["five", "-1", "1.5", ""])
def test_an_option_that_is_no_number_is_named(queue, monkeypatch, value):
    """With its section, and what would be one."""
    dead(queue, 1)
    monkeypatch.setenv("AIRFLOW__ZKMQ__DEAD_LETTERS_SHOWN", value)
    with pytest.raises(ConfigError, match=r"\[zkmq\] dead_letters_shown = .* a whole number, 0 or more"):
        ZkmqDeadLetterNotifier().notify({})


@pytest.mark.parametrize("most", [-1, True, 1.5, "some"])
def test_a_number_that_is_none_is_refused_where_the_dag_is_parsed(most):
    """By its name."""
    with pytest.raises(ConfigError, match="most = "):
        ZkmqDeadLetterNotifier(most=most)
