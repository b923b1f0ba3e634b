"""From Airflow to the page of queues: the extra links of operators, and the address that a notifier tells."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException

from airflow_provider_zkmq.engine.api.queue import Queue
from airflow_provider_zkmq.hooks.page_address import page_url, read_url
from airflow_provider_zkmq.hooks.task_instance import LINKS
from airflow_provider_zkmq.notifications.dead_letters import ZkmqDeadLetterNotifier
from airflow_provider_zkmq.operators.zkmq import ZkmqClaimOperator, ZkmqEnqueueOperator, ZkmqSettleOperator
from airflow_provider_zkmq.sensors.zkmq import ZkmqTaskSensor
from tests.airflow.conftest import kill

BASE = "https://airflow.example/air"


@pytest.fixture(autouse=True)
def base_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", BASE)


def links(operator: Any) -> dict[str, str]:
    """The links of an operator, as Airflow asks for them when its task has ended."""
    return {link.name: link.get_link(operator, ti_key=object()) for link in LINKS}


@pytest.mark.parametrize("kind", [ZkmqEnqueueOperator, ZkmqTaskSensor, ZkmqClaimOperator, ZkmqSettleOperator])
def test_each_operator_has_both_links(kind: Any) -> None:
    assert kind.operator_extra_links == LINKS
    assert [link.name for link in LINKS] == ["Queue", "Task"]


def test_an_address_is_read_as_it_was_made() -> None:
    """Whatever stands in it, and wherever Airflow stands; a part that is not given is left out."""
    url = page_url(BASE, "c 1", "q+&=", task="t", view=None, error="no <such> 'street' % #")
    assert url.startswith(f"{BASE}/plugin/zkmq-queues/air/zkmq/?")
    assert read_url(url) == {"connection": "c 1", "queue": "q+&=", "task": "t", "error": "no <such> 'street' % #"}
    assert page_url("", "c").startswith("/plugin/zkmq-queues/zkmq/?")


def test_an_enqueued_task_is_linked(queue: Queue, context: dict[str, Any]) -> None:
    operator = ZkmqEnqueueOperator(task_id="t", data="x")
    before = read_url(links(operator)["Queue"])
    assert before == {"connection": "zkmq_default"}
    assert links(operator)["Task"] == ""
    made = operator.execute(context)
    assert read_url(links(operator)["Queue"]) == {"connection": "zkmq_default", "queue": "jobs"}
    told = read_url(links(operator)["Task"])
    assert told == {"connection": "zkmq_default", "queue": "jobs", "task": made, "how": "enqueued", "of": made}
    assert queue.task(str(made)).state == "inserted"


def test_many_are_linked_as_a_list(queue: Queue, context: dict[str, Any]) -> None:
    """Of very many the first fifty are named; of a batch its name."""
    operator = ZkmqEnqueueOperator(task_id="t", messages=["x"] * 70)
    ids = operator.execute(context)
    told = read_url(links(operator)["Task"])
    assert told["of"].split(",") == list(ids[:50])
    assert told["view"] == "tasks"
    assert "task" not in told
    batch = ZkmqEnqueueOperator(task_id="u", messages=["x"], batch="night")
    batch.execute(context)
    assert read_url(links(batch)["Task"])["batch"] == "night"
    assert queue.counts()["inserted"] == 71


@pytest.mark.parametrize("deferrable", [True, False])
def test_a_red_sensor_leads_to_the_task_that_failed(queue: Queue, context: dict[str, Any], deferrable: bool) -> None:
    good, bad = queue.enqueue(b"x", priority=1), queue.enqueue(b"x")
    claim = queue.claim()
    assert claim is not None
    claim.complete()
    kill(queue, "no paper")
    sensor = ZkmqTaskSensor(task_id="t", task_ids=[good, bad], deferrable=deferrable, timeout=60)
    with pytest.raises(AirflowException, match="no paper"):
        sensor.execute(context)
    told = read_url(links(sensor)["Task"])
    assert (told["task"], told["how"]) == (bad, "waited for")
    assert set(told["of"].split(",")) == {good, bad}


def test_a_waiting_enqueue_that_fails_leads_to_the_task_that_failed(queue: Queue, context: dict[str, Any]) -> None:
    operator = ZkmqEnqueueOperator(task_id="t", messages=["x", "y"], wait_for_completion=True)
    event = {"status": "done", "ids": [queue.enqueue(b"x"), queue.enqueue(b"y")]}
    bad = {kill(queue, "no paper") for _ in range(2)}
    with pytest.raises(AirflowException, match="no paper"):
        operator.execute_complete(context, event)
    assert read_url(links(operator)["Task"])["task"] in bad


def test_what_was_claimed_is_linked(queue: Queue, context: dict[str, Any]) -> None:
    task = queue.enqueue(b"x")
    with DAG("d", schedule=None):
        operator = ZkmqClaimOperator(task_id="t")
    operator.execute(context)
    assert read_url(links(operator)["Task"]) | {"of": ""} == {
        "connection": "zkmq_default", "queue": "jobs", "task": task, "how": "claimed", "of": "",
    }  # fmt: skip


def test_a_notifier_tells_where_the_dead_letters_are_seen(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, context: dict[str, Any]
) -> None:
    """Only where Airflow knows its own address."""
    queue.enqueue(b"x")
    kill(queue, "no paper")
    sent: list[str] = []
    notifier = ZkmqDeadLetterNotifier(send=sent.append)
    notifier(context)
    assert f"{BASE}/plugin/zkmq-queues/air/zkmq/?connection=zkmq_default&queue=jobs&view=dead" in sent[-1]
    monkeypatch.delenv("AIRFLOW__API__BASE_URL")
    notifier(context)
    assert "plugin" not in sent[-1]
