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
#: The XCom of a task that has run to its end; its value is its map index.
END_KEY: Final = "zkmq_ended"
_MOST_TEXT: Final = 2_000
_MOST_ASKED: Final = 5
#: In the place of the state of work that is a success without having run to its end.
MARKED: Final = "marked"
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
        fields["ti"].task.log.warning("Why it failed is not kept for the queue: %s", refused)


def note_end(context: Context) -> None:
    """Keep that a task has run to its end, as an XCom of it: an ``on_success_callback``, which no user's mark calls."""
    instance: Any = context["ti"]
    try:
        instance.xcom_push(key=END_KEY, value=instance.map_index)
    except Exception as refused:  # noqa: BLE001  what it did is done
        instance.task.log.warning("That it has ended by itself is not kept for the queue: %s", refused)


def have_noted(task: Any) -> None:
    """Have a task note its exception, or its end, beside what its author has called where it fails or succeeds.

    What may end without a worker notes no end: nobody would be there to do it.
    """
    task.on_failure_callback = _with(note_error, task.on_failure_callback)
    if not _may_end_elsewhere(task):
        task.on_success_callback = _with(note_end, task.on_success_callback)


def notes_its_end(task: Any) -> bool:
    """Whether a task that is a success, and has noted no end, was marked so by a user."""
    return note_end in _listed(task.on_success_callback)


def _may_end_elsewhere(task: Any) -> bool:
    """Whether a scheduler or a triggerer may end a task: empty ones, and those whose deferral ends them."""
    given = task.partial_kwargs if task.is_mapped else vars(task)
    return bool(task.inherits_from_empty_operator or given.get("end_from_trigger") or given.get("start_from_trigger"))


def _listed(callbacks: Any) -> list[Any]:
    known = callbacks or []
    return list(known) if isinstance(known, list | tuple) else [known]


def _with(callback: Any, callbacks: Any) -> list[Any]:
    known = _listed(callbacks)
    return known if callback in known else [*known, callback]


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


def judge(
    work: Sequence[Work], on_skipped: str, reasons: Mapping[tuple[str, int], str], on_marked: str = "release"
) -> Verdict:
    """Return what its states mean for a claim: a failure before all, then what a user marked, then what was skipped.

    `reasons`: the exceptions of failed tasks, as far as they are known.
    """
    bad = [each for each in work if each.state not in {"success", "skipped", MARKED}]
    if bad:
        first = sorted(bad, key=lambda each: (each.task_id, each.map_index) not in reasons)
        return Verdict("fail", few([_told(each, reasons) for each in first]))
    if marked := [_named(each) for each in work if each.state == MARKED]:
        return Verdict(on_marked, f"marked as success, and not done: {few(marked)}")
    if any(each.state == "skipped" for each in work):
        skipped = [_named(each) for each in work if each.state == "skipped"]
        return Verdict(on_skipped, f"skipped: {few(skipped)}")
    return Verdict("complete")


def told_from_marked(context: Context, work: Sequence[Work], noting: Iterable[str]) -> list[Work]:
    """Return the work, with `MARKED` for what is a success and has not noted its end, as those tasks do otherwise."""
    asked = {each.task_id for each in work if each.state == "success"}.intersection(noting)
    instance: Any = context["ti"]
    ended: set[tuple[str, int]] = set()
    for task_id in sorted(asked):
        told = instance.xcom_pull(task_ids=task_id, key=END_KEY)
        ended |= {(task_id, index) for index in (told if isinstance(told, list) else [told])}

    def marked(each: Work) -> bool:
        return each.state == "success" and each.task_id in asked and (each.task_id, each.map_index) not in ended

    return [each._replace(state=MARKED) if marked(each) else each for each in work]


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
