"""What became of a DAG run's work, by the states of its tasks: what its claims are settled by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider_zkmq.hooks.outcomes import few, storable

if TYPE_CHECKING:
    from airflow.sdk import Context

#: The XCom of a failed task that tells its exception.
ERROR_KEY: Final = "zkmq_error"
_MOST_TEXT: Final = 2_000
_MOST_ASKED: Final = 5
#: Of a mapped task that has fewer instances than in an earlier try.
_GONE: Final = "removed"


def note_error(context: Context) -> None:
    """Keep the exception's type and text, as an XCom of the task that failed: an ``on_failure_callback``.

    Where there is no way to keep it, as in the callback for a process that was killed, the reason is its absence.
    """
    fields: dict[str, Any] = dict(context)
    error = fields.get("exception")
    if error is None:
        return
    text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
    try:
        fields["ti"].xcom_push(key=ERROR_KEY, value=storable(text)[:_MOST_TEXT])
    except Exception as refused:  # noqa: BLE001  it is a reason less, and no reason to fail
        fields["ti"].log.warning("Why it failed is not kept for the queue: %s", refused)


def have_noted(task: Any) -> None:
    """Have a task note its exception, beside what its author has called where it fails."""
    known = task.on_failure_callback or []
    callbacks = list(known) if isinstance(known, list | tuple) else [known]
    if note_error not in callbacks:
        task.on_failure_callback = [*callbacks, note_error]


class Work(NamedTuple):
    """One instance of a task: its id, its map index (-1 if it is not mapped), and its state, None before it ran."""

    task_id: str
    map_index: int
    state: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """`kind`: ``"complete"``, ``"fail"`` or ``"release"``; `reason`: why, of what failed."""

    kind: str
    reason: str = ""


def apart(task_ids: Iterable[str]) -> list[list[str]]:
    """Return ids in groups that Airflow is asked for one by one.

    It tells an instance's state by a name, ``task_id_index``, that may be another task's id: then it tells one of both.
    """
    known = sorted(set(task_ids))
    parts = {task_id: task_id.rpartition("_") for task_id in known}
    alone = [task_id for task_id, (head, _, index) in parts.items() if index.isdecimal() and head in parts]
    return [[task_id for task_id in known if task_id not in alone], *([task_id] for task_id in alone)]


def share(work: Sequence[Work], index: int) -> list[Work]:
    """Return the work of one index, and what is not mapped; a mapped task that has no such instance is not done."""
    mine = [each for each in work if each.map_index in {-1, index}]
    missing = {each.task_id for each in work} - {each.task_id for each in mine}
    return mine + [Work(task_id, index, None) for task_id in sorted(missing)]


def uneven(work: Sequence[Work], count: int) -> str:
    """Return which mapped tasks have not one instance for each of `count` claims; empty where all have.

    Airflow leaves out what returned nothing when a task is mapped over what another returned, and multiplies what is
    mapped over several lists: then an index tells nobody whose work an instance is.
    """
    counts = Counter(each.task_id for each in work if each.map_index >= 0)
    odd = [f"{task_id} has {number}" for task_id, number in sorted(counts.items()) if number != count]
    return f"whose work it is is not known: {few(odd)} instance(s) for {count} claim(s)" if odd else ""


def instances(states: Mapping[str, str | None], task_ids: Iterable[str]) -> list[Work]:
    """Return the instances of tasks, from states by ``task_id`` or ``task_id_index``; one that is missing has none."""
    found: list[Work] = []
    known = set(task_ids)
    for task_id in sorted(known):
        mine = [Work(task_id, -1, states[task_id])] if task_id in states else []
        for name, state in states.items():
            index = name.removeprefix(f"{task_id}_")
            if name != index and index.isdecimal() and name not in known:
                mine.append(Work(task_id, int(index), state))
        kept = [work for work in mine if work.state != _GONE]
        found += kept or [Work(task_id, -1, None)]
    return found


def judge(work: Sequence[Work], on_skipped: str, reasons: Mapping[tuple[str, int], str]) -> Verdict:
    """Return what its states mean for a claim: a failure before all, then what was skipped.

    `reasons`: the exceptions of failed tasks, as far as they are known.
    """
    bad = [each for each in work if each.state not in {"success", "skipped"}]
    if bad:
        first = sorted(bad, key=lambda each: (each.task_id, each.map_index) not in reasons)
        return Verdict("fail", few([_told(each, reasons) for each in first]))
    if any(each.state == "skipped" for each in work):
        skipped = [_named(each) for each in work if each.state == "skipped"]
        return Verdict(on_skipped, f"skipped: {few(skipped)}")
    return Verdict("complete")


def reasons_of(context: Context, work: Iterable[Work]) -> dict[tuple[str, int], str]:
    """Return the exceptions that `note_error` kept of the first tasks that failed."""
    failed = [(each.task_id, each.map_index) for each in work if each.state == "failed"][:_MOST_ASKED]
    instance: Any = context["ti"]
    texts = [instance.xcom_pull(task_ids=name, key=ERROR_KEY, map_indexes=index) for name, index in failed]
    return {key: str(text) for key, text in zip(failed, texts, strict=True) if text is not None}


def _named(work: Work) -> str:
    return work.task_id if work.map_index < 0 else f"{work.task_id}[{work.map_index}]"


def _told(work: Work, reasons: Mapping[tuple[str, int], str]) -> str:
    reason = reasons.get((work.task_id, work.map_index))
    state = work.state or "not done"
    return f"{_named(work)} {state}" if reason is None else f"{_named(work)}: {reason}"
