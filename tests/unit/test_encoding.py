"""What an enqueue costs its client: each task's record is encoded once, whatever the record is needed for."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Final

import pytest

from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.model.records import Attempt, TaskState, replace
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.tasks import enqueue
from tests.fake_zookeeper import FakeZooKeeper, drive, new_context

TASKS = 50


@pytest.mark.parametrize("delay", [None, 60])
def test_a_task_s_record_is_encoded_once(monkeypatch: pytest.MonkeyPatch, delay: float | None) -> None:
    """Judging the size, grouping into transactions and sending share one encoding."""
    encode, encoded = TaskState.encode, []
    monkeypatch.setattr(TaskState, "encode", lambda state: encoded.append(state.nonce) or encode(state))
    zk = FakeZooKeeper()
    session = zk.connect()
    context = new_context(zk, session)
    ids = drive(zk, session, enqueue.enqueue_many(context, [Message(b"x", delay=delay) for _ in range(TASKS)]))
    assert len(ids) == len(set(encoded)) == TASKS
    assert len(encoded) == TASKS


PLAIN: Final = TaskState(State.INSERTED, 'p0;"\\/1/0~a', "n\n", filters={})
#: A value for each field that needs care, or says something although it is false.
CARE: Final[dict[str, list[Any]]] = {
    "filters": [{"größe": 'a"b'}],
    "priority": [-3],
    "attempt": [2],
    "due": [0, 1_700_000_000_000],
    "claimed": [0],
    "consumer": ["", "host\u2028-\ud800"],
    "settled": [("a", 'b"')],
    "error": ["", "\x00\x7f\ud83d"],
    "policy": [{"attempts": None, "factor": 0.5, "final": ["ValueError"]}],
    "history": [(Attempt(1, "c", 0, 5, "failed", 'e"'), Attempt(0, "", 0, 0, ""))],
    "lock": [1.5, 1e-7, 3],
    "bound": [True],
    "requeue": [True],
    "result": [True],
    "rank": [0, 1 << 62],
    "ended_zxid": [0],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in CARE.items() for value in values])
def test_a_record_is_spelt_as_json_spells_it(name: str, value: Any) -> None:
    """Whatever a field holds: the bytes are those of Python's own encoder, and what is empty is left out."""
    state = replace(PLAIN, **{name: value})
    if name == "history":
        value = [{key: part for key, part in dataclasses.asdict(each).items() if part is not None} for each in value]
    record = {"v": 1, "state": "inserted", "place": PLAIN.place, "nonce": PLAIN.nonce, name: value}
    told = json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "backslashreplace")
    assert state.encode() == told
    assert PLAIN.encode() == state.encode().replace(told[len(PLAIN.encode()) - 1 : -1], b"")


@pytest.mark.parametrize(("name", "value"), [(name, values[0]) for name, values in CARE.items()])
def test_a_record_is_replaced_as_any_dataclass(name: str, value: Any) -> None:
    """The others keep what they had, the one before is what it was, and no field can be made up."""
    before = replace(PLAIN, **{other: values[-1] for other, values in CARE.items()})
    kept = dataclasses.replace(before)
    assert replace(before, **{name: value}) == dataclasses.replace(before, **{name: value})
    assert before == kept
    with pytest.raises(KeyError):
        replace(before, nothing=value)
