"""`ZkmqDeadLetterNotifier`: what it tells, and to whom."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest
from airflow.sdk import AsyncCallback, BaseNotifier
from airflow.triggers.callback import CallbackTrigger

from airflow_provider_zkmq.engine import ConfigError, Message, QueueNotFound, Zkmq
from airflow_provider_zkmq.notifications.dead_letters import ZkmqDeadLetterNotifier
from tests.airflow.conftest import fire, kill

pytestmark = pytest.mark.filterwarnings("ignore")


def dead(queue, number, error="no customer\nnumber"):
    """Dead letters with payloads that nobody is to see; their ids in order."""
    queue.enqueue_many([Message("marker-payload") for _ in range(number)])
    return sorted(kill(queue, f"{error} {each}") for each in range(number))


def test_it_tells_counts_reasons_and_what_to_type_next(queue, monkeypatch, capsys, caplog):
    """Of the first few, each in a line, without payloads; the log where nobody else is told, nothing of none."""
    ZkmqDeadLetterNotifier(zkmq_queue="{{ name }}")({"name": "jobs"})
    assert "Queue jobs" not in caplog.text + capsys.readouterr().out
    ZkmqDeadLetterNotifier(always=True)({})
    assert "Queue jobs: 0 dead letter(s)" in caplog.text + capsys.readouterr().out
    first, second, _ = dead(queue, 3)
    queue.enqueue("pending")
    said = []
    ZkmqDeadLetterNotifier(send=said.append, most=2)({"run_id": "r"})
    head, one, two, more, following = said[0].splitlines()
    assert head == "Queue jobs: 3 dead letter(s); 1 pending, 0 claimed, 0 finished."
    assert one.startswith(f"  {first}, after 1 attempt(s): no customer number ")
    assert two.startswith(f"  {second}, ")
    assert more == "  and 1 more"
    assert "airflow zkmq --conn-id zkmq_default redrive jobs ID" in following
    assert "marker-payload" not in said[0]
    monkeypatch.setenv("AIRFLOW__ZKMQ__DEAD_LETTERS_SHOWN", "1")
    ZkmqDeadLetterNotifier(send=said.append)({})
    assert len(said) == 2
    assert "and 2 more" in said[1]


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


def test_another_notifier_is_given_each_message_anew(queue, zookeeper, root, monkeypatch):
    """In its own templates, beside the context, of the queue that this names; braces in an error are no template."""
    monkeypatch.setattr(Kept, "sent", [])
    dead(queue, 1, "{{ secret }} no customer")
    with Zkmq.connect(zookeeper, root, gc=False, connect_timeout=20) as zk:
        dead(zk.queue("other"), 2, "another")
    message = "{{ zkmq.dead }} in {{ zkmq.queue }}, run {{ run_id }}: {{ zkmq.tasks[0].reason }}"
    notifier = ZkmqDeadLetterNotifier(zkmq_queue="{{ which }}", send=Kept(), message=message)
    for run_id, name in (("r", "jobs"), ("s", "other")):
        notifier({"run_id": run_id, "dag_name": f"dag of {name}", "secret": "hidden", "which": name})
    first, second = Kept.sent
    assert first == "dag of jobs: 1 in jobs, run r: {{ secret }} no customer 0"
    assert second.startswith("dag of other: 2 in other, run s: another ")
    assert (notifier.zkmq_queue, "hidden" in second) == ("{{ which }}", False)


async def test_it_tells_in_the_triggerer(queue, zookeeper, root, caplog, capsys):
    """Of a missed deadline, as Airflow's trigger awaits it; a mistyped queue is told of, and none is made."""
    await asyncio.to_thread(dead, queue, 1)
    arguments = {"zkmq_queue": "{{ dag_run.queue }}", "message": "{{ zkmq.dead }} in {{ zkmq.queue }}"}
    made = AsyncCallback(ZkmqDeadLetterNotifier, kwargs=arguments)
    context = {"dag_run": {"queue": "jobs"}}
    events = await fire(CallbackTrigger(made.path, {**made.kwargs, "context": context}))
    assert [str(event["state"]) for event in events] == ["running", "success"]
    assert "1 in jobs" in caplog.text + capsys.readouterr().out
    said = []
    awaited = ZkmqDeadLetterNotifier(zkmq_queue="{{ which }}", send=said.append, context={"which": "jobs"})
    await awaited
    awaited.context["which"] = "jobz"
    with pytest.raises(QueueNotFound):
        await awaited
    mistyped = ZkmqDeadLetterNotifier(zkmq_queue="jobz")
    for call in (mistyped, mistyped.notify):
        with pytest.raises(QueueNotFound):
            await asyncio.to_thread(call, {})
    assert len(said) == 1
    with Zkmq.connect(zookeeper, root, gc=False, connect_timeout=20) as zk:
        assert zk.queues() == ["jobs"]


def test_wrong_arguments_and_options_are_named(queue, monkeypatch, subtests):
    """Where the DAG is parsed by their names; an option with its section, and what would be a number."""
    for arguments in ({"send": 5}, *({"most": most} for most in (-1, True, 1.5, "some"))):
        with subtests.test(arguments=arguments), pytest.raises(ConfigError, match="send must be|most = "):
            ZkmqDeadLetterNotifier(**arguments)
    dead(queue, 1)
    wrong = r"\[zkmq\] dead_letters_shown = .* a whole number, 0 or more"
    for value in ("five", "-1", "1.5", ""):
        monkeypatch.setenv("AIRFLOW__ZKMQ__DEAD_LETTERS_SHOWN", value)
        with subtests.test(option=value), pytest.raises(ConfigError, match=wrong):
            ZkmqDeadLetterNotifier().notify({})
