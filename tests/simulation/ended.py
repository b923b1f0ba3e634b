"""The log of ended runs as it must be: which runs ended, what became of each, and what readers of the log are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_zkmq.engine.core.model.records import TaskState, parse_history_name
from airflow_provider_zkmq.engine.core.model.states import ENDED, State
from airflow_provider_zkmq.engine.core.model.values import load
from airflow_provider_zkmq.engine.core.zk_operations import Create
from tests.simulation.parts import Call, Violation

Key = tuple[str, str]
_GONE: Final = "a run that leaves is kept for who reads what ended"


@dataclass(slots=True)
class Run:
    """A run that ended: how, with which payload; whether clean-up has deleted it since."""

    state: State
    data: bytes
    truncated_at: bool = False


def may_be_gone(archive: Any, followed: Any) -> int | None:
    """Up to which end runs may leave a queue, as both marks say; None: nobody wants any."""
    marks = {"archive": ("watermark", archive), "followed": ("truncated_at", followed)}
    return min((load(kind, node.data).get(field, 0) for kind, (field, node) in marks.items() if node), default=None)


class Book:
    """Every run that ended in a followed or archived queue, by queue, id and version."""

    def __init__(self) -> None:
        self.runs: dict[tuple[str, str, int], Run] = {}
        self.standing: dict[Key, int] = {}
        self.data: dict[Key, bytes] = {}
        self.latest: dict[tuple[str, str], int] = {}

    def judge(
        self, key: Key, before: TaskState | None, after: TaskState | None, old: bytes, txn: Any, gone: int | None
    ) -> None:
        """A task has changed, in a queue whose runs are kept; `gone`: what ended up to there may leave it."""
        letters = [op for op in txn.ops if isinstance(op, Create) and "/unarchived/" in op.path]
        mine = [
            name
            for op in letters
            if (name := parse_history_name(op.path.rpartition("/")[2])) and name.task_id == key[1]
        ]
        version = self.standing.get(key)
        stays = after is not None and after.state in ENDED
        if version is not None and not stays:
            self._leaves(key, version, mine, gone)
            del self.standing[key]
        elif before is not None and before.requeue and after is not None and not after.requeue and not stays:
            self._ends_unseen(key, before, old, mine, txn)
        elif mine:
            raise Violation(_GONE, f"{key[1]} leaves a letter, and nothing has left")
        if stays and key not in self.standing and after is not None:
            self.standing[key] = txn.zxid
            self.runs[*key, txn.zxid] = Run(after.state, self.data.get(key, b""))

    def _leaves(self, key: Key, version: int, mine: list[Any], gone: int | None) -> None:
        """What stood is kept as a letter; or is in the archive, and told as trimmed to those who follow."""
        if [name.version for name in mine] == [version]:
            return
        if mine or version > (gone or 0):
            raise Violation(_GONE, f"{key[1]} ({version}): {mine}, gone may be what ended until {gone}")
        self.runs[*key, version].truncated_at = True

    def _ends_unseen(self, key: Key, before: TaskState, old: bytes, mine: list[Any], txn: Any) -> None:
        """A run ends as the one in escrow is inserted: its letter has the version of that transaction."""
        if before.state is State.FINISHED or len(mine) != 1 or mine[0].version != 0:
            raise Violation(_GONE, f"{key[1]} is followed at once: {mine}")
        self.runs[*key, txn.zxid] = Run(State.INSERTED, old)

    def deleted(self, queue: str, path: str, letter: Any, gone: int | None) -> None:
        """A letter is deleted: it is in the archive, and told as trimmed."""
        name = parse_history_name(path.rpartition("/")[2])
        version = (name.version if name else None) or letter
        run = self.runs.get((queue, name.task_id if name else "", version))
        if gone is not None and gone < version:
            raise Violation("what is trimmed is told before", f"{path} ({version})")
        if run is not None:
            run.truncated_at = True

    # --- what readers are told

    def told_latest_end(self, call: Call, reader: str) -> None:
        """It goes up, and nothing that had ended when it was asked for is above it."""
        at = call.about["queue"], reader
        if call.value < self.latest.get(at, 0):
            raise Violation("the latest end goes up", f"{call.value} after {self.latest[at]}")
        self.latest[at] = call.value
        before = [version for queue, _, version in self.runs if queue == at[0] and version <= call.about["zxid"]]
        kept = [version for version in before if version > call.value]
        if kept:
            raise Violation("the latest end is behind none", f"{call.value} < {kept}")

    def told_ended_between(self, call: Call) -> None:
        """Every run that ended in between and was not trimmed, once, in order; and no other."""
        queue, after, until = call.about["queue"], call.about["after"], call.about["until"]
        told = [(each.id, each.version) for each in call.value]
        if len(set(told)) < len(told) or [version for _, version in told] != sorted(version for _, version in told):
            raise Violation("each end is told once, in order", f"{told}")
        wanted = {
            (task, version) for (name, task, version), run in self.runs.items()
            if name == queue and after < version <= until and not run.truncated_at
        }  # fmt: skip
        if missing := wanted - set(told):
            raise Violation("no end is missed", f"{missing} between {after} and {until}")
        if invented := {each for each in told if (queue, *each) not in self.runs}:
            raise Violation("only what ended is told", f"{invented}")

    def told_read_ended(self, call: Call) -> None:
        """Each run that was not trimmed is read, with its own payload and state."""
        queue, read = call.about["queue"], {(task.id, task.version): task for task in call.value}
        for each in call.about["ended"]:
            run, task = self.runs.get((queue, each.id, each.version)), read.get((each.id, each.version))
            if run is None:  # it was told before the servers went back
                continue
            if task is None and not run.truncated_at:
                raise Violation("what ended can be read", f"{each}")
            good = task is None or (task.data == run.data and run.state in {task.state, State.INSERTED})
            if not good:
                raise Violation("a run is read as it ended", f"{each}: {task} is not {run}")
