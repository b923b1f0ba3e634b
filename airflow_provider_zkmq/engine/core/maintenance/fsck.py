"""`fsck`: what is not as it should be in the tree of a queue, said in a sentence each, and repaired.

A task's record says what stands of the task: its parts, where it is listed, whose claim it is. Each task is compared
with that between two readings of its record, so that a queue in use is judged right; it is repaired by one transaction
under the record's version. The rest, the layout, is compared with the names that `core.model.znode_names` knows;
what is found there is looked at twice before it counts.

What a crash of ours leaves is no damage: a dead consumer with its tasks, a batch without open members, an empty lane.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypedDict

from msgspec import structs

from ...errors import CorruptRecord
from .. import zk_operations as zk
from ..client_state import Context
from ..model import records, znode_names
from ..model.settings import MAX_RATE, Settings, load_settings
from ..model.states import ENDED, FAILED, State
from ..model.values import Count, Span, Zxid, dump, load, seconds
from ..read import bulk_read, queue_existence, server_clock
from ..read.configuration import DEFAULT_SETTINGS, DEFAULT_TIMES
from ..transaction_retries import transact
from ..write import batch_end, new_task, transitions
from ..write.commit import make_bucket
from ..write.new_task import WRITING
from ..zk_operations import Procedure

# --- The verb, and what it tells.

#: How often a queue is looked at that is repaired: one lost znode may have taken others with it.
PASSES: Final = 4
#: How often a task is looked at that somebody changes at the same moment.
LOOKS: Final = 20
DELETES_PER_MULTI: Final = 128
#: Of znodes that may hold a megabyte each, so many are read in one request.
HEAVY_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class Finding:
    """A znode that is not as it should be; ``what`` says why, ``repaired`` whether it is as it should be now."""

    path: str
    what: str
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class FsckReport:
    """What `fsck` has looked at and found. ``tasks``: how many tasks there are; ``findings``: sorted by path."""

    tasks: int
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _Fix:
    """Something found, and the operations that repair it; those of a task are in its `_TaskCheck`."""

    path: str
    what: str
    ops: tuple[zk.WriteOp, ...] = ()


def fsck(context: Context, *, repair: bool = False) -> Procedure[FsckReport]:
    """Find what is not as it should be in the queue, and repair it if asked to; consumers may go on meanwhile.

    Without `repair` nothing is written. A repair deletes what no queue has there. A task whose record or payload is
    lost becomes a dead letter that says so, unless it had ended; a claim that can never end is given back. Settings and
    times that cannot be read get their defaults. Raises `QueueNotFound` for what is no queue, or is being deleted.
    """
    found: dict[tuple[str, str], bool] = {}
    tasks = 0
    for _ in range(PASSES if repair else 1):
        tasks, fixes = yield from _look(context, repair=repair)
        present = {(fix.path, fix.what) for fix in fixes}
        found = {key: key not in present for key in (*found, *present)}
        if not fixes:
            break
    return FsckReport(tasks, tuple(Finding(path, what, found[path, what]) for path, what in sorted(found)))


def _look(context: Context, *, repair: bool) -> Procedure[tuple[int, list[_Fix]]]:
    """Go through the whole queue once, the layout first: how many tasks there are, and what was found."""
    nodes, fixes = yield from _check_layout(context, repair=repair)
    listed: dict[str, list[str]] = {}
    for path in nodes:
        listed_id = _listed_task(_below(context, path), nodes[path].data)
        if listed_id is not None:
            listed.setdefault(listed_id, []).append(path)
    (names,) = yield from bulk_read.list_children([context.paths.at("tasks")])
    now = (yield from server_clock.server_time(context)) if repair else 0
    for chunk in bulk_read.chunked(sorted({*names, *listed})):
        facts = yield from _read_tasks(context, chunk, listed)
        for task_id in chunk:
            if _TaskCheck(context, task_id, facts[task_id], listed.get(task_id, ()), now).fixes:
                fixes += yield from _examine(context, task_id, listed, now, repair=repair)
    return len(names), fixes


def _walk(context: Context, roots: Iterable[str]) -> Procedure[dict[str, zk.Node]]:
    """All znodes from `roots` down, by path, of a queue without what is below its tasks; without large payloads."""
    found: dict[str, zk.Node] = {}
    level = list(roots)
    while level:
        kinds: dict[str, list[str]] = {"bare": [], "heavy": [], "light": []}
        for path in level:
            match _below(context, path):
                case ["tasks", _, "data" | "result"]:
                    kinds["bare"].append(path)
                case ["tasks", _, "requeue"] | ["unarchived", _, _] | ["batches", _, "then"]:
                    kinds["heavy"].append(path)
                case _:
                    kinds["light"].append(path)
        stats = yield from bulk_read.read_stats(kinds["bare"])
        there = {path: zk.Node(b"", stat) for path, stat in zip(kinds["bare"], stats, strict=True) if stat is not None}
        for kind, read in (
            ("heavy", partial(bulk_read.read_nodes, at_once=HEAVY_AT_ONCE)),
            ("light", bulk_read.read_nodes),
        ):
            nodes = yield from read(kinds[kind])
            there |= {
                path: node
                if "/tasks/" in path or kind == "light"
                else zk.Node(node.data.partition(b"\n")[0], node.stat)
                for path, node in zip(kinds[kind], nodes, strict=True)
                if node is not None
            }
        found |= there
        parents = [each for each in there if there[each].stat.children and each != context.paths.at("tasks")]
        names = yield from bulk_read.list_children(parents)
        level = [f"{parent}/{name}" for parent, each in zip(parents, names, strict=True) for name in each]
    return found


def _below(context: Context, path: str) -> list[str]:
    """The names that lead from the queue to one of its znodes."""
    return path[len(context.paths.base) + 1 :].split("/")


def _subtree(nodes: Iterable[str], path: str) -> tuple[zk.Delete, ...]:
    """The deletes of a znode with all below, of those that were read."""
    return tuple(zk.Delete(each) for each in sorted(nodes, reverse=True) if each == path or each.startswith(f"{path}/"))


def _raises(read: Callable[[], object]) -> str | None:
    """What is the matter with a record: the error of whatever reads it; None for a good one."""
    try:
        read()
    except (CorruptRecord, ValueError) as error:
        return str(error)
    return None


def _unpacked(context: Context, nodes: Mapping[str, zk.Node], path: str) -> new_task.NewTask | None:
    """A task that waits to be written; None where there is none that can be read."""
    with suppress(CorruptRecord):
        return new_task.unpack(context, path, nodes[path].data) if path in nodes else None
    return None


# --- The layout: which znodes a queue has beside those of its tasks, and what they hold.

_BUCKETS: Final = ("scheduled", "requeued", "finished", "cancelled", "batches-done", "unarchived")
_FOREIGN: Final = "belongs to no queue"
_CONTENT: Final = "does not hold what belongs there"


class _GcRecord(TypedDict):
    collected: Count
    lifetime: Span


class _ArchiveMark(TypedDict):
    watermark: Zxid


class _ConsumerRecord(TypedDict):
    name: str
    accepts: list[str]


def _check_layout(context: Context, *, repair: bool) -> Procedure[tuple[dict[str, zk.Node], list[_Fix]]]:
    """The queue's znodes, and what is not as it should be among them; repaired, if that is asked for."""
    nodes = yield from _walk_queue(context)
    fixes = _Layout(context, nodes, (yield from _digested(context, nodes))).fixes
    if fixes:  # others may have changed it while it was read
        before, old = {(fix.path, fix.what) for fix in fixes}, nodes
        nodes = yield from _walk_queue(context)
        again = _Layout(context, nodes, (yield from _digested(context, nodes))).fixes
        now = yield from _walk(context, [context.paths.at("batches")])
        fixes = [fix for fix in again if (fix.path, fix.what) in before]
        fixes = [fix for fix in fixes if len({_batch_stat(context, fix, each) for each in (old, nodes, now)}) == 1]
    if fixes and repair:
        deleting, conf = context.paths.at("deleting"), context.paths.at(queue_existence.THERE)
        for fix in fixes:
            for op in fix.ops:
                if isinstance(op, zk.Create) and _below(context, op.path)[0] == "batches-done":
                    yield from make_bucket(context, op.path.rpartition("/")[0])
            # Unless the queue is deleted meanwhile; what is refused is found again by the next look.
            there = (zk.Create(deleting), zk.Delete(deleting)) if fix.path == conf else (zk.Check(conf),)
            for ops in bulk_read.chunked(fix.ops, DELETES_PER_MULTI):
                yield from transact(zk.Multi((*there, *ops)))
        nodes = yield from _walk_queue(context)
    return nodes, fixes


def _walk_queue(context: Context) -> Procedure[dict[str, zk.Node]]:
    """All znodes but those below tasks. Raises `QueueNotFound` for what is no queue, or is being deleted."""
    nodes = yield from _walk(context, [context.paths.base])
    top = {_below(context, path)[0] for path in nodes if path != context.paths.base}
    if not context.paths.resembles(top) or ("deleting" in top and queue_existence.THERE not in top):
        raise (yield from queue_existence.queue_missing(context))
    return nodes


def _batch_stat(context: Context, fix: _Fix, nodes: Mapping[str, zk.Node]) -> zk.Stat | None:
    """The Stat of the batch that a fix is about: one that changes while it is read is judged by nobody."""
    match _below(context, fix.path):
        case ["batches", name, *_]:
            path = context.paths.batch(name)
        case ["batches-done", _, entry]:
            path = context.paths.batch(znode_names.entry_task(entry) or "")
        case _:
            return None
    return nodes[path].stat if path in nodes else None


def _digested(context: Context, nodes: Mapping[str, zk.Node]) -> Procedure[dict[str, znode_names.Lane]]:
    """The lanes whose names are digests and whose data cannot be read, as the records of tasks in them tell."""
    lanes: dict[str, znode_names.Lane] = {}
    for path, node in nodes.items():
        parts = _below(context, path)
        if parts[0] != "queue" or len(parts) != 2 or not znode_names.is_shortened(parts[1]):
            continue
        if not _lane_error(path, node):
            continue
        tasks = [znode_names.entry_task(each.rpartition("/")[2]) for each in nodes if each.startswith(f"{path}/")]
        paths = [context.paths.task(task, "state") for task in tasks if task is not None]
        for record_path, record in zip(paths, (yield from bulk_read.read_nodes(paths)), strict=True):
            with suppress(CorruptRecord):
                state = records.TaskState.decode(record_path, b"" if record is None else record.data)
                lane = znode_names.Lane(state.priority, state.filters)
                lanes |= {lane.name: lane} if lane.name == parts[1] else {}
    return lanes


def _lane_error(path: str, node: zk.Node) -> str | None:
    name = path.rpartition("/")[2]
    try:
        return None if znode_names.Lane.decode(path, node.data).name == name else "it is another lane's"
    except CorruptRecord as error:
        return str(error)


class _Layout:
    """A queue's layout as it was read; ``fixes``: what is not as it should be there. Parents come before children."""

    def __init__(
        self, context: Context, nodes: Mapping[str, zk.Node], digested: Mapping[str, znode_names.Lane]
    ) -> None:
        self._context, self._paths, self._nodes, self._digested = context, context.paths, nodes, digested
        self._foreign: set[str] = set()
        self._runs: set[tuple[str, int]] = set()
        self.fixes: list[_Fix] = []
        wanted = dict.fromkeys(self._paths.skeleton()[1:], b"") | {
            self._paths.at(queue_existence.THERE): DEFAULT_SETTINGS.encode()
        }
        wanted |= {self._paths.at("conf", name): default for name, default in DEFAULT_TIMES.items()}
        for path, data in wanted.items():
            self._look_for(path, data)
        for path, node in sorted(nodes.items()):
            if path.rpartition("/")[0] in self._foreign:
                self._foreign.add(path)
                continue
            expected = node.data if path == self._paths.base else self._expected(path, _below(context, path), node)
            if expected is None:
                self._foreign.add(path)
                self._say(path, _FOREIGN, *_subtree(nodes, path))
            elif expected != node.data:
                self._say(path, _CONTENT, zk.SetData(path, expected, node.stat.version))
        for name in self._names("consumers"):
            self._look_for(self._paths.consumer(name, "current"))
        for name in self._names("live"):
            record = self._paths.consumer(name)
            if record not in nodes:
                made = zk.Create(record, dump({"name": name, "accepts": []})), zk.Create(f"{record}/current")
                self._say(record, "is missing, and its consumer lives", *made)
        for name in self._names("batches"):
            self._look_at_batch(name)
        for path, name in self._batches_done():
            if self._paths.batch(name) not in nodes:
                self._say(path, "lists a batch that is not there", zk.Delete(path))

    def _say(self, path: str, what: str, *ops: zk.WriteOp) -> None:
        self.fixes.append(_Fix(path, what, ops))

    def _names(self, *parts: str) -> list[str]:
        """The names below a znode, without what is foreign there."""
        prefix = f"{self._paths.at(*parts)}/"
        below = (path.removeprefix(prefix) for path in self._nodes if path.startswith(prefix))
        return sorted(name for name in below if "/" not in name and prefix + name not in self._foreign)

    def _look_for(self, path: str, data: bytes = b"") -> None:
        if path not in self._nodes:
            self._say(path, "is missing", zk.Create(path, data))

    def _expected(self, path: str, parts: Sequence[str], node: zk.Node) -> bytes | None:  # noqa: C901  it is a table
        """What a znode should hold: its own data, where they are good; None where there should be none.

        What lists a task is judged with that.
        """
        match parts:
            case ["conf"]:
                return _settings(path, node.data)
            case ["conf", "task_gc_lifetime" | "task_gc_interval" as name]:
                bad = _raises(lambda: seconds(name, float(node.data)))
                return DEFAULT_TIMES[name] if bad else node.data
            case ["gc"]:
                return _if_good(path, node.data, _GcRecord, b"") if node.data else b""
            case ["archive"]:
                return _if_good(path, node.data, _ArchiveMark, queue_existence.MARKS["archive"])
            case ["followed"]:
                return _followed(path, node)
            case ["lock"]:
                return node.data if node.stat.owner else None
            case ["unarchived"]:
                return b""
            case [_]:
                return b"" if path in self._paths.skeleton() else None
            case ["queue", lane] if znode_names.is_lane(lane):
                known = self._digested.get(lane) or znode_names.parse_lane(lane)
                right = node.data if known is None or not _lane_error(path, node) else known.encode()
                return None if known is None and _lane_error(path, node) else right
            case ["queue", _, segment] if znode_names.segments_of([segment]):
                return b""
            case ["unarchived", _, entry]:
                return self._run(path, entry, node.data)
            case [top, bucket] if top in _BUCKETS and znode_names.bucket_start(bucket) is not None:
                return b""
            case ["batches-done", _, entry] if znode_names.entry_time(entry) is not None:
                return b""
            case ["batches", _, "open", name] if name == WRITING:
                return b""
            case ["consumers", name]:
                return _if_good(path, node.data, _ConsumerRecord, dump({"name": name, "accepts": []}))
            case ["consumers", _, "current"] | ["batches", _, "open" | "failed"]:
                return b""
            case ["slots", _]:
                return b""
            case ["rates", _]:  # what is lost counts as much as there may be
                return _if_good(path, node.data, records.RecentClaims, dump(records.RecentClaims(latest=MAX_RATE)))
            case ["live", _]:
                return b"" if node.stat.owner else None
            case ["batches", _, "failed", name] if znode_names.is_name(name):
                return b""
            case ["batches", name] | ["batches", name, "then"] if znode_names.is_name(name):
                return node.data  # judged with the batch
        return node.data if _listed_task(parts, node.data) is not None else None

    def _run(self, path: str, entry: str, data: bytes) -> bytes | None:
        """A run that is kept for the archive, once, under a name that tells which it is."""
        name = records.parse_history_name(entry)
        with suppress(CorruptRecord):
            run = records.HistoryEntry.decode(path, data)
            known = run.task_id, run.version
            if name is None or known != (name.task_id, name.version) or (run.version and known in self._runs):
                return None
            self._runs.add(known)
            return data
        return None

    def _batches_done(self) -> list[tuple[str, str]]:
        """What lists batches that are done: the paths, and the batches."""
        top = f"{self._paths.at('batches-done')}/"
        paths = [path for path in self._nodes if path.startswith(top) and path not in self._foreign]
        entries = [path for path in paths if "/" in path.removeprefix(top)]
        return [(path, znode_names.entry_task(path.rpartition("/")[2]) or "") for path in entries]

    def _look_at_batch(self, name: str) -> None:
        base, nodes = self._paths.batch(name), self._nodes
        opened, then, writing = f"{base}/open", f"{base}/then", f"{base}/open/{WRITING}"
        self._look_for(f"{base}/failed")
        listed = [path for path, batch in self._batches_done() if batch == name]
        try:
            before = batch_end.load_batch(base, nodes[base].data)
        except CorruptRecord:
            before = None
        if before is not None and "total" not in before and opened not in nodes and not listed:
            return  # given up before it was written to its end: clean-up deletes what is left
        follow_up = _unpacked(self._context, nodes, then)
        after = self._batch_record(name, before, follow_up, listed)
        write = zk.SetData(base, dump(after), nodes[base].stat.version)
        if before is not None and after == before | {"refused": after.get("refused")} != before:
            self._say(then, f"is missing: task {after['then']!r} does not follow the batch", write)
        elif after != before:
            self._say(base, _CONTENT if before is None else "does not tell how its batch stands", write)
        done, same = after.get("done"), zk.Check(base, write.version)
        if done is None:
            self._look_for(opened)
        if writing in nodes and "total" in after:
            self._say(writing, "is there, and the batch is written to its end", same, zk.Delete(writing))
        right = follow_up is not None and follow_up.task_id == after.get("then") and not after.get("refused")
        if then in nodes and (done is not None or not right):
            self._say(then, "is no task that follows the batch", same, zk.Delete(then))
        index = None if done is None else self._paths.at(znode_names.index_path("batches-done", done, name))
        for path in listed:
            if path != index:
                self._say(path, "lists a batch that is not done, or was done at another time", zk.Delete(path))
        if index is not None:
            self._look_for(index)

    def _batch_record(
        self, name: str, before: dict[str, Any] | None, follow_up: new_task.NewTask | None, listed: Sequence[str]
    ) -> dict[str, Any]:
        """What the record of a batch should tell; a total that is lost counts the members that can be seen."""
        base = self._paths.batch(name)
        after: dict[str, Any] = {"then": follow_up and follow_up.task_id} if before is None else dict(before)
        if f"{base}/open/{WRITING}" not in self._nodes:
            members = self._names("batches", name, "open")
            after.setdefault("total", len(members) + len(self._names("batches", name, "failed")))
        if f"{base}/open" in self._nodes:
            after.pop("done", None)
        elif before is None and listed:
            after["done"] = znode_names.entry_time(listed[0].rpartition("/")[2])
        if "done" not in after and after.get("then") and not after.get("refused") and follow_up is None:
            after["refused"] = f"{base}/then was lost: task {after['then']!r} does not follow the batch"
        return after


def _settings(path: str, data: bytes) -> bytes:
    """Settings as they are stored; of some that cannot be read what can be, and else the defaults."""
    if not _raises(lambda: load_settings(path, data)):
        return data
    kept = DEFAULT_SETTINGS
    with suppress(CorruptRecord):
        for name, value in load(path, data).items():
            alone = dump({name: value})
            if name in Settings.__struct_fields__ and not _raises(partial(load_settings, path, alone)):
                kept = structs.replace(kept, **{name: getattr(load_settings(path, alone)[0], name)})
    return kept.encode()


def _followed(path: str, node: zk.Node) -> bytes:
    """The mark of a followed queue; of one that cannot be read, nothing was deleted since it was written."""
    with suppress(CorruptRecord):
        record = load(path, node.data)
        if not record or (record.keys() == {"truncated_at"} and isinstance(record["truncated_at"], int)):
            return node.data
    return dump({"truncated_at": node.stat.mzxid})


def _if_good(path: str, data: bytes, kind: type[Any], default: bytes) -> bytes:
    return default if _raises(lambda: load(path, data, kind, "a record")) else data


def _listed_task(parts: Sequence[str], data: bytes) -> str | None:
    """The task that a znode outside of its own tree stands for, by the names that lead there, or what it holds."""
    match parts:
        case ["queue", _, _, entry]:
            return znode_names.entry_task(entry)
        case ["scheduled" | "requeued" | "finished" | "cancelled", _, entry] if (
            znode_names.entry_time(entry) is not None
        ):
            return znode_names.entry_task(entry)
        case ["leases" | "locks", lease]:
            return znode_names.lease_task(lease)
        case ["slots", _, number] if number.isascii() and number.isdigit():
            return data.decode() if data.isascii() and znode_names.is_name(data.decode()) else None
        case ["dlq", name] | ["consumers", _, "current", name] | ["batches", _, "open", name] if znode_names.is_name(
            name
        ):
            return name
    return None


# --- Tasks: each is judged by what was read of it, and examined where something seems to be wrong.


def _read_tasks(
    context: Context, task_ids: Sequence[str], listed: Mapping[str, Sequence[str]]
) -> Procedure[dict[str, dict[str, zk.Node]]]:
    """For each task, by path: its tree, what lists it or should, and what these places stand in."""
    facts: dict[str, dict[str, zk.Node]] = {each: {} for each in task_ids}
    for path, node in (yield from _walk(context, [context.paths.task(each) for each in task_ids])).items():
        facts[_below(context, path)[1]][path] = node
    others = {each: set(listed.get(each, ())) for each in task_ids}
    for each in task_ids:
        state, _ = _decoded(context, each, facts[each])
        if state is None:
            continue
        others[each].update(_places_of(context, each, state))
        if state.consumer:
            others[each] |= {context.paths.live(state.consumer), context.paths.consumer(state.consumer, "current")}
        if state.batch:
            base = context.paths.batch(state.batch)
            others[each] |= {base, f"{base}/open", f"{base}/failed", f"{base}/failed/{each}"}
    paths = sorted(set().union(*others.values()))
    nodes = dict(zip(paths, (yield from bulk_read.read_nodes(paths)), strict=True))
    for each in task_ids:
        facts[each] |= {path: found for path in others[each] if (found := nodes[path]) is not None}
    return facts


def _decoded(context: Context, task_id: str, nodes: Mapping[str, zk.Node]) -> tuple[records.TaskState | None, str]:
    """A task's record, or why there is none."""
    path = context.paths.task(task_id, "state")
    if path not in nodes:
        return None, "it is missing"
    try:
        return records.TaskState.decode(path, nodes[path].data), ""
    except CorruptRecord as error:
        return None, str(error)


def _places_of(context: Context, task_id: str, state: records.TaskState) -> list[str]:
    """All that stands for a task outside of its own tree, as its record has it."""
    claimed, members = state.state is State.CLAIMED, bool(state.batch) and state.state not in ENDED
    places = transitions.notes_of(context, task_id, state) if claimed else [transitions.place_of(context, state)]
    places += [context.paths.at("slots", state.slot)] if claimed and state.slot is not None else []
    return [*places, *([context.paths.batch(state.batch or "", "open", task_id)] if members else [])]


def _examine(
    context: Context, task_id: str, listed: Mapping[str, Sequence[str]], now: int, *, repair: bool
) -> Procedure[list[_Fix]]:
    """Judge one task between two readings of its record; what is found is repaired in one transaction, if asked to."""
    path, found = context.paths.task(task_id, "state"), list[_Fix]()
    before: list[_Fix] | None = None
    for _ in range(LOOKS):
        (first,) = yield from bulk_read.read_stats([path])
        nodes = (yield from _read_tasks(context, [task_id], listed))[task_id]
        (last,) = yield from bulk_read.read_stats([path])
        if not first == last == (nodes[path].stat if path in nodes else None):
            continue  # somebody changed the task meanwhile
        check = _TaskCheck(context, task_id, nodes, listed.get(task_id, ()), now)
        if check.fixes and check.fixes != before:
            before = check.fixes
            yield zk.Sync(path)
            continue  # what is true is so twice; a batch, say, may be on its way to be collected
        if not check.fixes or not repair:
            return check.fixes
        found = check.fixes
        for bucket in check.buckets():
            yield from make_bucket(context, bucket)
        outcome: zk.Outcome = yield from transact(zk.Multi(check.multi()))
        if outcome.committed:
            yield from batch_end.close_after(context, check.batch)
            break
    return found


#: What an entry outside of a lane may hold: a rank, of which the record tells.
_RANK: Final = re.compile(rb"\d{0,19}")


class _TaskCheck:
    """What is not as it should be with one task, as it was read, and the transaction that repairs it.

    ``fixes``: what was found; nothing, where everything is as the record says. ``batch``: the one that it may end.
    """

    def __init__(
        self, context: Context, task_id: str, nodes: Mapping[str, zk.Node], listed: Sequence[str], now: int
    ) -> None:
        self._context, self._id, self._nodes, self._now = context, task_id, nodes, now
        self._listed = [
            path
            for path in listed
            if path in nodes and _listed_task(_below(context, path), nodes[path].data) == task_id
        ]
        self._base, self._path = context.paths.task(task_id), context.paths.task(task_id, "state")
        self._own = [each for each in nodes if each == self._base or each.startswith(f"{self._base}/")]
        self._contents: dict[str, bytes] = {}
        self._ops: list[zk.WriteOp] = []
        self._rerun = False
        self.fixes: list[_Fix] = []
        self._state, why = _decoded(context, task_id, nodes)
        run = _unpacked(context, nodes, self._at("requeue"))
        self._run = run if run is not None and run.task_id == task_id else None
        if not znode_names.is_name(task_id):
            self._after = None
            self._say(self._base, _FOREIGN)
        elif self._base not in nodes:
            self._after = None
            for path in self._listed:
                self._say(path, f"stands for task {task_id!r}, which is not there")
        elif self._state is None:
            self._after = self._restored(why)
        else:
            self._after = self._corrected(self._state)
        self.batch = None if self._state is None else self._state.batch
        if self._after is None:
            self._ops += [zk.Delete(path) for path in self._listed]
            self._ops += [each for each in _subtree(self._own, self._base) if each.path != self._path]
        else:
            self._compare(self._after)

    def multi(self) -> tuple[zk.WriteOp, ...]:
        """The operations of the repair, under the record as it was read."""
        path, node, after = self._path, self._nodes.get(self._path), self._after
        if after is not None:
            # By a mark of its own; and a run that has ended stays the run that it was.
            nonce, before, ended = self._context.marks.nonce(), self._state, after.ended_zxid
            if before is not None and node is not None and after.state in ENDED and after.state is before.state:
                ended = before.ended_zxid or node.stat.mzxid
            settled = (*after.settled, nonce)[-records.KEPT_NONCES :]
            record = structs.replace(after, nonce=nonce, settled=settled, ended_zxid=ended).encode()
            return (
                zk.Create(path, record) if node is None else zk.SetData(path, record, node.stat.version),
                *self._ops,
            )
        if node is not None:
            return (zk.Delete(path, node.stat.version), *self._ops)
        free = path if self._base in self._nodes else self._base
        return (zk.Create(free), zk.Delete(free), *self._ops)

    def buckets(self) -> list[str]:
        """The buckets in which it writes."""
        tops = {"scheduled", "requeued", "finished", "cancelled", "slots"}
        made = [op.path for op in self._ops if isinstance(op, zk.Create)]
        return [path.rpartition("/")[0] for path in made if _below(self._context, path)[0] in tops]

    def _say(self, path: str, what: str) -> None:
        self.fixes.append(_Fix(path, what))

    def _at(self, part: str) -> str:
        return f"{self._base}/{part}"

    def _has(self, part: str) -> bool:
        return self._at(part) in self._nodes

    def _restored(self, why: str) -> records.TaskState | None:
        """A record for a task that has lost it, by what is left: as it is listed among what ended, else a dead letter.

        None where nothing is left that could be handled. A run in escrow takes the place of the one that is lost.
        """
        if not self._has("data"):
            self._say(self._path, f"cannot be read, and the payload of task {self._id!r} is lost, too: {why}")
            return None
        self._say(self._path, f"cannot be read: {why}")
        if self._run is not None:
            return self._next_run(self._run, result=self._has("result"))
        found = {_below(self._context, path)[0]: _below(self._context, path) for path in self._listed}
        entry = found.get("queue")
        lane = None if entry is None else znode_names.parse_lane(entry[1])
        lost = records.TaskState(
            State.DEAD, self._place() if entry is None else "/".join(entry[1:]), "",
            priority=0 if lane is None else lane.priority, filters=self._stored_filters(), index=f"dlq/{self._id}",
            error=f"its record was lost: {why}", ended=self._now,
            batch=found["batches"][1] if "batches" in found else None,
        )  # fmt: skip
        for top in ("finished", "cancelled"):
            if top in found:
                lost = structs.replace(lost, state=State(top), index="/".join(found[top]), error=None)
                lost = structs.replace(lost, ended=znode_names.entry_time(found[top][-1]))
        return self._parts(lost)

    def _place(self) -> str:
        """A place without a segment, by its entry's name."""
        lane, stamp = znode_names.Lane(0, self._stored_filters()), self._context.marks.stamp(self._now)
        return f"{lane.name}//{znode_names.entry_name(stamp, self._id)}"

    def _stored_filters(self) -> dict[str, str]:
        """The filters that stand in the tree."""
        prefix = f"{self._at('filters')}/"
        below = [path for path in self._own if path.startswith(prefix)]
        paths = [path for path in below if znode_names.is_name(path.removeprefix(prefix))]
        return {path.removeprefix(prefix): self._nodes[path].data.decode(errors="replace") for path in paths}

    def _corrected(self, state: records.TaskState) -> records.TaskState:
        """The record as it should be."""
        after = state
        if state.requeue and self._run is None:
            self._say(self._at("requeue"), f"holds no run of task {self._id!r} to come: that run is lost")
            after = structs.replace(after, requeue=False)
        if not self._has("data"):
            self._say(self._at("data"), f"is missing: the payload of task {self._id!r} is lost")
            if self._run is not None and state.requeue and state.state not in ENDED:
                return self._next_run(self._run, result=state.result)
            if after.state is State.CLAIMED:
                after = after.with_attempt("rescued", self._now, "its payload was lost")
            if after.state not in {State.FINISHED, State.CANCELLED}:
                after = structs.replace(
                    after, state=State.DEAD, index=f"dlq/{self._id}", due=None, error="its payload was lost",
                    ended=self._now, consumer=None, claimed=None, started=None, lease=None, bound=False, slot=None,
                    requeue=False,
                )  # fmt: skip
        after = self._parts(after)
        if after.state is State.CLAIMED:
            after = self._claim(after)
        after = self._listed_rightly(after)
        if after.batch is not None and after.state not in ENDED:
            base = self._context.paths.batch(after.batch)
            if base not in self._nodes:
                self._say(base, f"is missing: task {self._id!r} counts for no batch any more")
                after = structs.replace(after, batch=None)
            elif f"{base}/open" not in self._nodes:
                self._ops.append(zk.Create(f"{base}/open"))
        record = self._nodes[self._path].stat.mzxid
        for part in ("data", "metadata", "result", "requeue"):  # these were written with the record, or before
            if self._has(part) and self._nodes[self._at(part)].stat.mzxid > record:
                self._say(self._at(part), f"was written over by somebody; task {self._id!r} goes on with it as it is")
        return after

    def _next_run(self, new: new_task.NewTask, *, result: bool) -> records.TaskState:
        """The record of the run in escrow, where the one before it is lost: due now, as it was asked for."""
        self._rerun = True
        self._contents[self._at("data")] = new.data
        self._contents[self._at("metadata")] = new.metadata
        place, index = f"{new.lane.name}//{new.entry}", znode_names.index_path("scheduled", self._now, self._id)
        record = new.record(place, index, self._now)
        return structs.replace(record, result=result and self._has("result"), metadata=True)

    def _given_back(self, state: records.TaskState, why: str) -> records.TaskState:
        """A task that nobody holds: it is delivered again, and a run in escrow follows that, as after a rescue."""
        state = state.with_attempt("rescued", self._now, why)
        back = structs.replace(
            state,
            state=State.INSERTED,
            error=why,
            consumer=None,
            claimed=None,
            started=None,
            lease=None,
            bound=False,
            slot=None,
        )
        return self._due_now(back)

    def _due_now(self, state: records.TaskState) -> records.TaskState:
        """Pending, without an entry in its lane: whoever promotes it puts it there, in its old place."""
        node = self._nodes.get(self._path)
        rank = state.rank or (None if node is None else node.stat.czxid)
        index = znode_names.index_path("scheduled", self._now, self._id)
        return structs.replace(state, due=self._now, index=index, was_due=None, rank=rank)

    def _parts(self, state: records.TaskState) -> records.TaskState:
        """The record with what stands beside it: metadata, a result."""
        metadata = self._at("metadata")
        good = metadata in self._nodes and not _raises(lambda: load(metadata, self._nodes[metadata].data))
        if state.metadata and not good:
            self._say(metadata, f"holds no metadata, and task {self._id!r} had some: they are lost")
        result = self._has("result")
        if state.result and not result:
            self._say(self._at("result"), f"is missing: the result of task {self._id!r} is lost")
        return structs.replace(state, metadata=good, result=result or state.state is State.FINISHED)

    def _claim(self, state: records.TaskState) -> records.TaskState:
        """A claim that stands, with the notes by which it ends; else the task is given back.

        Without its ephemeral claim a task waits for the rescue of a dead consumer: that is no damage.
        """
        path, paths, consumer = self._at("claim"), self._context.paths, state.consumer or ""
        leased, claim = state.lease is not None and not state.bound, self._nodes.get(path)
        if state.lease is not None and znode_names.lease_task(state.lease) != self._id:
            self._say(self._path, f"names a deadline of another task than {self._id!r}")
            return self._given_back(state, "its claim was lost")
        note = paths.current(consumer, self._id)
        if claim is None and not leased and paths.live(consumer) not in self._nodes and note in self._nodes:
            return state
        if claim is None:
            self._say(path, f"is missing: nobody can end the claim of task {self._id!r} as its holder")
            return self._given_back(state, "its claim was lost")
        if (claim.stat.owner == 0) is not leased:
            self._say(path, f"is not the claim of task {self._id!r}: it ends otherwise than its record says")
            return self._given_back(state, "its claim was lost")
        if not leased and not {paths.live(consumer), paths.consumer(consumer, "current")} & self._nodes.keys():
            self._say(note, f"is missing, with all of its consumer: the claim of task {self._id!r} could never end")
            return self._given_back(state, "its consumer was lost")
        span = self._span(state, path, claim)
        for lease in set(transitions.notes_of(self._context, self._id, state)) - {note}:
            if lease not in self._nodes or _raises(lambda: records.load_span(lease, self._nodes[lease].data)):  # noqa: B023
                self._contents[lease] = dump({"seconds": span, "consumer": consumer})
        return state

    def _span(self, state: records.TaskState, path: str, claim: zk.Node) -> float:
        """For how many seconds a claim holds, as it tells itself; 0, which ends it, where it cannot be read."""
        try:
            record = records.load_claim(path, claim.data)
        except CorruptRecord:
            record = {}
        if record.get("consumer") == state.consumer:
            return record.get("lease") or 0.0
        nonce = {} if state.lease is None else {"nonce": state.lease.rpartition("~")[2]}
        self._contents[path] = dump({"consumer": state.consumer, "lease": state.lock, **nonce})
        return state.lock or 0.0

    def _listed_rightly(self, state: records.TaskState) -> records.TaskState:
        """The record with a place in which the task can be."""
        if znode_names.entry_task(state.entry) != self._id:
            self._say(self._path, "names the place of another task")
            state = structs.replace(state, place=self._place())
        if state.state is State.INSERTED and state.index is None:
            entry = transitions.place_of(self._context, state)
            if state.placed and entry in self._nodes:
                return structs.replace(state, due=None)
            before = self._state
            if before is not None and (state.state, state.place) == (before.state, before.place):
                self._say(entry, f"is missing: nobody would find task {self._id!r}")
            return self._due_now(state)
        if self._is_index(state):
            return state
        if self._state is not None and state.state is self._state.state and state.requeue is self._state.requeue:
            self._say(self._path, f"names {state.index} as its place, where a task that is {state.state} cannot be")
        if state.state is State.INSERTED:
            return self._due_now(state)
        if state.state is State.CLAIMED:
            return structs.replace(state, index=None, due=None)
        if state.requeue:
            due = state.due or self._now
            return structs.replace(state, due=due, index=znode_names.index_path("requeued", due, self._id))
        dead = state.state is State.DEAD
        ended = state.ended or self._now
        index = f"dlq/{self._id}" if dead else znode_names.index_path(str(state.state), ended, self._id)
        return structs.replace(state, due=None, index=index)

    def _is_index(self, state: records.TaskState) -> bool:
        """Whether a task can stand where its record says that it is listed."""
        if state.state is State.CLAIMED or state.index is None:
            return state.state is State.CLAIMED and state.index is None
        top, _, entry = state.index.partition("/")
        if state.state is State.DEAD:
            return state.index == f"dlq/{self._id}"
        if state.state is State.INSERTED or state.requeue:
            timed = "scheduled" if state.state is State.INSERTED else "requeued"
            return state.due is not None and state.index == znode_names.index_path(timed, state.due, self._id)
        when = znode_names.entry_time(entry.rpartition("/")[2])
        return top == state.state and when is not None and state.index == znode_names.index_path(top, when, self._id)

    def _standing(self, state: records.TaskState) -> dict[str, bytes | None]:
        """What stands of a task by its record: each znode's data; None: whatever it holds."""
        parts: dict[str, bytes | None] = {"data": None, "state": None}
        parts |= {name: None for name in ("metadata", "result", "requeue") if getattr(state, name)}
        parts |= {"filters": b""} if state.filters else {}
        parts |= {f"filters/{name}": value.encode() for name, value in state.filters.items()}
        if state.state is State.CLAIMED and self._has("claim"):
            parts["claim"] = None
        standing = {self._base: b"", **{self._at(part): data for part, data in parts.items()}}
        return standing | {path: self._listing(path, state) for path in _places_of(self._context, self._id, state)}

    def _listing(self, path: str, state: records.TaskState) -> bytes | None:
        """What a znode holds that lists the task."""
        node, (top, *_) = self._nodes.get(path), _below(self._context, path)
        if top in {"leases", "locks"}:
            return None
        if top == "consumers":
            return None if node is not None and znode_names.is_prefetched(path, node.data) else b""
        if top == "slots":
            return self._id.encode()
        if top == "queue":
            return b"" if state.rank is None else str(state.rank).encode()
        return None if top != "batches" and node is not None and _RANK.fullmatch(node.data) else b""

    def _compare(self, after: records.TaskState) -> None:
        """Say what differs from the record, and make the operations that bring the tree to what it should be.

        What follows from a change of the record is not said as well.
        """
        standing = self._standing(after)
        before = standing if self._state is None else self._standing(self._state)
        present = {*self._own, *self._listed, *(path for path in standing if path in self._nodes)}
        for path in sorted(present - standing.keys(), reverse=True):
            if path not in before and self._state is not None:
                self._say(path, f"is nothing that the record of task {self._id!r} tells of")
            self._ops.append(zk.Delete(path))
        for path in sorted(standing):
            if path == self._path:
                continue
            node, data = self._nodes.get(path), self._contents.get(path, standing[path])
            said = path not in before or self._rerun or self._state is None
            said = said or any(fix.path == path for fix in self.fixes)
            if node is None:
                if not said:
                    self._say(path, f"is missing, and belongs to task {self._id!r}")
                self._ops.append(zk.Create(path, data or b""))
            elif data is not None and data != node.data:
                if not said:
                    self._say(path, f"does not hold what it should for task {self._id!r}")
                self._ops.append(zk.SetData(path, data))
        if after.batch is not None and after.state in FAILED:
            self._note_failure(after)
        elif self._rerun and self._state is not None and self._state.batch is not None:
            self._note_failure(self._state)  # the run that was cut off counts for its batch

    def _note_failure(self, state: records.TaskState) -> None:
        """Have a batch tell of a member that ended in failure, as long as it is open."""
        base = self._context.paths.batch(state.batch or "")
        failed, batch, record = f"{base}/failed/{self._id}", self._nodes.get(base), self._nodes.get(self._path)
        if failed in self._nodes or f"{base}/failed" not in self._nodes:
            return
        if self._state is not None and self._state.state in FAILED:
            same = batch is not None and record is not None and batch.stat.czxid < record.stat.mzxid
            if not same or f"{base}/open" not in self._nodes:
                return  # another batch of its name, or one that is on its way to be collected
            self._say(failed, f"is missing, although task {self._id!r} has failed")
        self._ops.append(zk.Create(failed))
