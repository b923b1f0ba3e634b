"""What must hold after each transaction, and the history that the other oracles judge by."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Final

from airflow_provider_zkmq.engine.core.client_state import Claimed, Context
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.settings import Limit
from airflow_provider_zkmq.engine.core.model.states import ENDED, TRANSITIONS, State
from airflow_provider_zkmq.engine.core.model.znode_names import entry_task
from airflow_provider_zkmq.engine.core.write.new_task import WRITING
from airflow_provider_zkmq.engine.core.write.transitions import notes_of
from airflow_provider_zkmq.engine.core.zk_operations import Check, Create, Delete, Multi, SetData
from tests.simulation.changes import judge_change
from tests.simulation.ended import Book, may_be_gone
from tests.simulation.limits import LimitBook
from tests.simulation.marks import Marks
from tests.simulation.parts import AN_HOUR, Call, Client, Violation
from tests.simulation.world import World

DEPTHS: Final = {
    "queue": 3, "scheduled": 2, "requeued": 2, "finished": 2, "cancelled": 2, "dlq": 1, "leases": 1, "locks": 1,
}  # fmt: skip
ALLOWED: Final = frozenset({(before, after) for (before, _), after in TRANSITIONS.items()} | {(s, s) for s in State})
SETTLING: Final = frozenset({"complete", "fail", "release", "snooze", "settle", "commit", "rollback"})
#: Seconds without trouble in which a keeper extends whatever has a deadline.
CALM: Final = 7.0
#: Seconds for which the keeper has had it at least.
KEPT: Final = 3.5
#: Calls that claim; the step of a loop settles as well.
CLAIMING: Final = frozenset({"claim", "claim_many", "claim_task", "next"})
#: Calls that sleep until there is work.
LOOKING: Final = frozenset({"claim", "claim_many", "next", "ready"})
#: Calls that change tasks of others on their way.
CARETAKING: Final = frozenset({*CLAIMING, *LOOKING, "gc", "tend", "pay"})
#: Who claims under a bound leaves the queue with no more leases.
MOST_LEASES: Final = 1
BOUNDED_LEASE: Final = 5.5
#: How many slashes there are in the path of a slot.
SLOT_DEPTH: Final = 5
REMOVING: Final = frozenset({"drop", "clear"})
#: What is not taken back with the servers.
FOR_GOOD: Final = frozenset({"world", "paths_of", "picky", "in_loops", "excused", "seen_over", "doubted"})
Key = tuple[str, str]


def listed_task(top: str, rest: list[str]) -> str | None:
    """The task that a znode stands for, outside the tasks themselves; its path below the queue is `top` and `rest`."""
    depth = DEPTHS.get(top)
    if depth == len(rest):
        if top == "dlq":
            return rest[0]
        return rest[0].rpartition("~")[0] if depth == 1 else entry_task(rest[-1])
    if top == "consumers" and len(rest) == 3:
        return rest[2]
    if top == "batches" and len(rest) == 3 and rest[1] == "open" and rest[2] != WRITING:
        return rest[2]
    return None


def places_of(context: Context, task: str, state: TaskState) -> set[str]:
    """All znodes that stand for a task, as its record has it."""
    if state.state is State.CLAIMED:
        expected = set(notes_of(context, task, state))
        expected |= {context.paths.at("slots", state.slot)} if state.slot is not None else set()
    else:
        expected = {context.paths.entry(state.place) if state.index is None else context.paths.at(state.index)}
    if state.batch and state.state not in ENDED:
        expected.add(context.paths.batch(state.batch, "open", task))
    return expected


class History:
    """The history of one world, and what is checked of it."""

    def __init__(self, world: World, attempts: int, order: str, limit: Limit) -> None:
        self.world, self.attempts, self.order = world, attempts, order
        self.paths_of = Client(world, "observer")
        self.records: dict[Key, TaskState] = {}
        self.versions: dict[Key, int] = {}
        self.nonces: dict[tuple[Key, int], str] = {}
        """Of each version of a record the nonce: the same one where an enqueue was sent again."""
        self.places: dict[Key, set[str]] = {}
        self.pending_until: dict[Key, tuple[float, TaskState]] = {}
        """When a task was pending last, and its record then."""
        self.claims: dict[Key, int] = {}
        self.notes: dict[Key, bytes] = {}
        """What each claim's znode held at first."""
        self.picky: set[str] = set()
        self.tokens: set[tuple[Key, int]] = set()
        self.ended: dict[tuple[Key, int], State] = {}
        self.ended_by: dict[tuple[Key, int], Call] = {}
        self.ended_at: dict[tuple[Key, int], tuple[int, float]] = {}
        """When claims ended: the transaction, and the time."""
        self.seen_over: set[tuple[Key, int]] = set()
        """Claims that had ended before the servers went back to when they had not."""
        self.handed: set[tuple[Key, int]] = set()
        self.in_loops: list[Claimed] = []
        self.excused: set[Any] = set()
        """Calls, and claims that were put down, of which nothing is promised: the servers went back meanwhile."""
        self.doubted: set[str] = set()
        """Batches that were being written when the servers went back, or that clean-up gave up: nothing tells which."""
        self.created: dict[Key, int] = {}
        self.payloads: dict[bytes, set[str]] = {}
        self.removed: set[Key] = set()
        self.closed: dict[str, int] = {}
        self.book = Book()
        self.marks = Marks()
        self.letters: dict[str, int] = {}
        self.bounded: set[str] = set()
        self.slots: dict[str, str] = {}
        self.limits = LimitBook(limit)
        self.members: dict[Key, int] = {}
        world.zk.committed = self.on_commit
        world.sends = self.on_send
        world.posted = self._posted

    def _posted(self, client: Client, multi: Multi) -> None:
        self.marks.posted(client, multi)  # they are others once the servers went back

    def stands(self, key: Key, claimed: Claimed) -> bool:
        """Whether a claim is the current one."""
        return self.is_of(claimed, key, self.claims.get(key))

    def promised(self, key: Key, claimed: Claimed) -> bool:
        """Whether a claim is the current one, and never was over: what its client saw end may be told as lost."""
        return self.stands(key, claimed) and (key, claimed.token) not in self.seen_over

    def is_of(self, claimed: Claimed, key: Key, token: int | None) -> bool:
        """Whether a claim is the latest of its task: where the servers went back, another one may have its token."""
        return claimed.token == token and claimed.claim["nonce"].encode() in self.notes[key]

    def back_up(self) -> dict[str, Any]:
        """A copy of what the tree tells, and what was promised."""
        calls = {id(call): call for call in self.ended_by.values()}
        return deepcopy({name: each for name, each in vars(self).items() if name not in FOR_GOOD}, calls)

    def go_back(self, kept: dict[str, Any]) -> None:
        """The servers went back to an older state: what came after it is promised no more, nor what is under way."""
        self.seen_over |= self.ended.keys() - kept["ended"].keys()
        limits = self.limits
        vars(self).update(deepcopy(kept, {id(call): call for call in kept["ended_by"].values()}))
        self.limits.go_back(limits)
        self.excused.update(fiber.call for fiber in self.world.fibers if fiber.call is not None)
        calls = [fiber.call for fiber in self.world.fibers if fiber.call is not None]
        self.doubted.update(call.about["batch"] for call in calls if call.about.get("batch"))
        for client in self.world.clients:
            self.excused.update(leaving.claimed for leaving in client.context().claims.deferred.values())
            marked = {one for one in client.begun if ("q", one[0]) not in self.marks.prefetched}
            client.begun = {one for one in marked if one[1] <= self.world.zk.zxid}

    def fail(self, oracle: str, detail: str) -> None:
        """An oracle does not hold."""
        raise Violation(oracle, detail)

    # --- each request

    def on_send(self, client: Client, op: Any) -> None:
        """Remember which claims are not of the first task that there is: their callers ask for some tasks only."""
        claims = [one.path for one in op.ops if isinstance(one, Create)] if isinstance(op, Multi) else ()
        claimed = {path.removesuffix("/claim") for path in claims if path.endswith("/claim")}
        if not claimed or self._all_want_everything(client):
            return
        for one in op.ops:
            task = one.path.removesuffix("/state")
            if isinstance(one, SetData) and task in claimed:
                self.picky.add(TaskState.decode(task, one.data).nonce)

    @staticmethod
    def _all_want_everything(client: Client) -> bool:
        """Whether the calls of a client that claim, which may go together, take whatever is first.

        A claim that nobody got is sent once more to be given back: of whoever asked for it nothing is known any more.
        """
        if any(note.caller.left for context in client.contexts.values() for note in context.claims.handovers.values()):
            return False
        calls = [fiber.call for fiber in client.world.fibers if fiber.client is client]
        claiming = [call for call in calls if call is not None and call.verb in CLAIMING]
        return all(call.about.get("selector") == "everything" for call in claiming)

    # --- each transaction

    def on_commit(self, txn: Any) -> None:
        """Judge one committed transaction by the tasks it touches."""
        touched: dict[Key, None] = {}
        claims_before = {}
        data_before: dict[Key, bytes] = {}
        for op in txn.ops:
            parts = op.path.split("/")
            if parts[3:4] == ["leases"] and len(parts) == 5 and isinstance(op, Create):
                self._judge_bound(op)
            if len(parts) > 5:
                self.marks.noted(parts, op, txn.zxid)
            if len(parts) < 5 or isinstance(op, Check) or (isinstance(op, SetData) and parts[3] != "tasks"):
                continue
            queue, top, rest = parts[2], parts[3], parts[4:]
            if top == "tasks":
                key = (queue, rest[0])
                data_before.setdefault(key, self.book.data.get(key, b""))
                self._note(key, rest, op, txn)
                if rest[1:] == ["claim"] and isinstance(op, Delete):
                    claims_before[key] = self.claims.pop(key, None)
                if rest[1:] == ["state"]:
                    touched[key] = None
                continue
            if top == "unarchived" and len(rest) == 2:
                self._note_letter(queue, op, txn)
            task = self._note_slot(op) if top == "slots" else listed_task(top, rest)
            if task is not None:
                key = (queue, task)
                touched[key] = None
                found = self.places.setdefault(key, set())
                (found.add if isinstance(op, Create) else found.discard)(op.path)
            if top == "batches" and rest[1:] == ["open"]:
                self._judge_batch(rest[0], op, txn)
        for key in touched:
            self._judge(key, txn, claims_before, data_before.get(key, self.book.data.get(key, b"")))

    def _judge_bound(self, op: Create) -> None:
        """Those who claim under a bound have no more leases; others', told apart by their spans, may come on top."""
        path, _, name = op.path.rpartition("/")
        if f'"seconds":{BOUNDED_LEASE}'.encode() not in op.data:
            return
        self.bounded = {*self.bounded, name} & set(self.world.zk.leader.names(path))
        if len(self.bounded) > MOST_LEASES:
            self.fail("no more leases than the bound", path)

    def _note_slot(self, op: Any) -> str | None:
        """Whose slot is taken, or freed; None of what holds slots."""
        if op.path.count("/") != SLOT_DEPTH:
            return None
        if isinstance(op, Create):
            self.slots[op.path] = op.data.decode()
            return self.slots[op.path]
        return self.slots.pop(op.path)

    def _note_letter(self, queue: str, op: Any, txn: Any) -> None:
        """Remember when a letter was written; one that is deleted was trimmed, if the queue is followed."""
        if isinstance(op, Create):
            self.letters[op.path] = txn.zxid
        elif isinstance(op, Delete):
            self.book.deleted(queue, op.path, self.letters.pop(op.path), self._may_be_gone(queue))

    def _may_be_gone(self, queue: str) -> int | None:
        nodes, at = self.world.zk.leader.nodes, self.paths_of.context(queue).paths.at
        return may_be_gone(nodes.get(at("archive")), nodes.get(at("followed")))

    def _note(self, key: Key, rest: list[str], op: Any, txn: Any) -> None:
        """Remember what a create in a task's tree tells: that the task is new, claimed, or holds a payload."""
        if rest[1:] == ["data"] and isinstance(op, Create | SetData):
            self.book.data[key] = op.data
        if not isinstance(op, Create):
            return
        self._judge_load(key, rest)
        if len(rest) == 1:
            self.created[key] = self.created.get(key, 0) + 1
        if rest[1:] == ["claim"]:
            self.claims[key], self.notes[key] = txn.zxid, op.data
        if rest[1:] == ["data"]:
            self.payloads.setdefault(op.data, set()).add(rest[0])

    def _judge_load(self, key: Key, rest: list[str]) -> None:
        """A load leaves alone what is there; as a batch it writes each member once, clean-up or not."""
        call = self.world.executing.call if self.world.executing is not None else None
        if call is None or call.verb != "load":
            return
        if rest[1:] == ["data"] and key in self.records:
            self.fail("a load leaves alone what is there", rest[0])
        batch = self.world.zk.leader.nodes.get(self.paths_of.context(key[0]).paths.batch(call.about["batch"] or "-"))
        if len(rest) == 1 and batch is not None:
            if self.members.get(key) == batch.czxid:
                self.fail("a member of a batch is written once", rest[0])
            self.members[key] = batch.czxid

    def _judge_batch(self, name: str, op: Any, txn: Any) -> None:
        """A batch is closed once: the last of its open members is off, and the record says that it is done."""
        if isinstance(op, Create):
            self.closed[name] = 0
        elif isinstance(op, Delete) and any(isinstance(other, SetData) for other in txn.ops):
            self.closed[name] = self.closed.get(name, 0) + 1
            if self.closed[name] > 1:
                self.fail("a batch ends once", name)
        elif isinstance(op, Delete):
            self.doubted.add(name)

    def _judge(self, key: Key, txn: Any, claims_before: dict[Key, int | None], data: bytes) -> None:
        queue, task = key
        context = self.paths_of.context(queue)
        node = self.world.zk.leader.nodes.get(context.paths.task(task, "state"))
        before = self.records.get(key)
        call = self.world.executing.call if self.world.executing is not None else None
        if call is not None and call.verb not in CARETAKING and not self._shared():
            call.wrote += 1
        after = None if node is None else TaskState.decode(task, node.data)
        self._judge_log(key, before, after, data, txn)
        judge_change(self.world.zk.leader.nodes, context.paths, task, before, after)
        self._judge_version(key, call, node, before, after)
        if before and after and (before.due or 0) > txn.ms and not after.due and call and call.verb in CARETAKING:
            self.fail("nothing comes before its time", f"{task} is due in {before.due - txn.ms} ms")
        if before is not None and before.state is State.INSERTED:
            self.pending_until[key] = (self.world.now, before)
        if after is None:
            self.records.pop(key, None)
            if before is not None:
                self._judge_removal(key, before, call, txn)
            if self.places.get(key):
                self.fail("no entry without its task", f"{task}: {sorted(self.places[key])}")
            return
        self.records[key] = after
        if before is None:
            before = after
            if abs((int(after.entry[:16], 16) >> 16) - txn.ms) > AN_HOUR / 2:
                self.fail("new tasks are put in order by the server's clock", f"{task}: {after.entry} at {txn.ms}")
        if (before.state, after.state) not in ALLOWED:
            self.fail("the state table", f"{task}: {before.state} -> {after.state}")
        self._judge_places(key, after)
        if after.state is State.CLAIMED and before.state is State.INSERTED:
            self._judge_claim(key, before, after, txn)
        if before.state is State.CLAIMED and after.state is not State.CLAIMED:
            self._judge_end(key, before, after, call, claims_before.get(key))
            self.marks.ended(key, before, after, self.world.clients)

    def _judge_version(
        self, key: Key, call: Call | None, node: Any, before: TaskState | None, after: TaskState | None
    ) -> None:
        """Who asks for a change of what was read changes nothing else; what an enqueue writes twice is the same.

        It gives back what has lapsed, whatever it asks for.
        """
        requested = call.about.get("version") if call is not None and call.about.get("task") == key[1] else None
        was = self.versions.get(key, 0)
        same = requested == was or self.nonces.get((key, requested or 0), "") == self.nonces.get((key, was))
        given_back = before is not None and before.state is State.CLAIMED and after is not None
        if requested is not None and not same and not given_back:
            self.fail("only what was read is changed", f"{key[1]}: {requested}, it was {was}")
        self.versions[key] = 0 if node is None else node.mzxid
        if after is not None:
            self.nonces[key, self.versions[key]] = after.nonce

    def _shared(self) -> bool:
        """Whether what is carried out may be another call's: it goes together with the one that sent it, or is owed.

        Of a claim that was cut off a later call finds out what became of it by sending it again, and gives it back.
        """
        client = None if self.world.executing is None else self.world.executing.client
        contexts = () if client is None else client.contexts.values()
        owed = (handover for context in contexts for handover in context.claims.handovers.values())
        return any(context.group.carried for context in contexts) or any(one.busy is not None for one in owed)

    def _judge_log(self, key: Key, before: TaskState | None, after: TaskState | None, data: bytes, txn: Any) -> None:
        """In a queue that is archived or followed no run that ended is lost to those who read what ended."""
        gone = self._may_be_gone(key[0])
        if gone is not None:
            self.book.judge(key, before, after, data, txn, gone)

    def _judge_places(self, key: Key, state: TaskState) -> None:
        queue, task = key
        expected = places_of(self.paths_of.context(queue), task, state)
        if expected != self.places.get(key, set()):
            self.fail("each task in one place", f"{task} is {state.state}: {expected} != {self.places.get(key)}")

    def _judge_claim(self, key: Key, before: TaskState, after: TaskState, txn: Any) -> None:
        call = self.world.executing.call if self.world.executing is not None else None
        if call is not None and call.verb == "ready" and not self._shared():
            self.fail("who only looks claims nothing", key[1])
        self.tokens.add((key, txn.zxid))
        if after.attempt != before.attempt + 1 or after.attempt > self.attempts:
            self.fail("the attempt is counted before the hand-out", f"{key[1]}: {before.attempt} -> {after.attempt}")
        if key[0] == "q":
            claimed = [state for (queue, _), state in self.records.items() if queue == "q"]
            if not self.limits.holds(after, claimed, txn.ms):
                self.fail("no more claims than the limit", f"{key[1]} under {self.limits.limit}")
            if self.order == "fifo":
                self._judge_order(key, after)

    def _judge_order(self, key: Key, claimed: TaskState) -> None:
        """Nothing that was never handed out, and committed before, is passed by."""
        leader, paths = self.world.zk.leader, self.paths_of.context(key[0]).paths
        if claimed.nonce in self.picky or self.world.sender in self.excused:
            return
        for other, state in self.records.items():
            if (
                other[0] != key[0]
                or state.state is not State.INSERTED
                or state.index
                or state.priority != claimed.priority
                or self.limits.limit.key(state.filters) != self.limits.limit.key(claimed.filters)
            ):
                continue
            node = leader.nodes.get(paths.entry(state.place))
            if node is None:
                continue  # the same transaction claims it, too
            if not node.data and state.attempt == 0 and node.czxid < (claimed.rank or 0):
                self.fail("strict order", f"{other[1]} ({node.czxid}) was passed by {key[1]} ({claimed.rank})")

    def _judge_end(self, key: Key, before: TaskState, after: TaskState, call: Call | None, token: int | None) -> None:
        claimed = call.about.get("held") if call is not None and call.verb in SETTLING else None
        mine = claimed is None or claimed.task_id != key[1] or token is None or self.is_of(claimed, key, token)
        if not mine:
            self.fail("a stale owner changes nothing", f"{key[1]}: token {claimed.token}, the claim's is {token}")
        if after.history != before.history and "its lease ended" in (after.history[-1].error or ""):
            self._judge_expiry(key, token)
        if token is not None:
            self.ended[key, token] = after.state
            self.ended_at[key, token] = self.world.zk.zxid, self.world.now
            if self.world.sender is not None:
                self.ended_by[key, token] = self.world.sender

    def _judge_expiry(self, key: Key, token: int | None) -> None:
        """A lease or lock that its owner's keeper could extend does not end; what is in no hand is not extended."""
        claim = key[1], token
        for client in self.world.clients:
            calm = client.alive and client.connected and client.troubled_at < self.world.now - CALM
            kept = calm and claim in client.hands and client.kept.get(claim, self.world.now) < self.world.now - KEPT
            if kept:
                self.fail("what a keeper extends does not end", f"{key[1]} ({token}) of {client.name}")

    def _judge_removal(self, key: Key, before: TaskState, call: Call | None, txn: Any) -> None:
        self.removed.add(key)
        verb = call.verb if call is not None else "late"
        if call is None or verb in REMOVING:
            self.members.pop(key, None)  # what an operator deletes may be loaded again, also where he went away
        if verb in REMOVING or verb == "late":
            return
        if before.state not in {State.FINISHED, State.CANCELLED} or before.requeue or (before.dedupe or 0) > txn.ms:
            self.fail("clean-up keeps what must stay", f"{key[1]} was {before.state} (by {verb})")
