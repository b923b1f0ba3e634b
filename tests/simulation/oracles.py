"""What must hold, whatever the schedule: judged from each transaction, from what each call returned, and at rest."""

from __future__ import annotations

from typing import Final

from airflow_provider_zkmq.engine.core.client_state import Claimed
from airflow_provider_zkmq.engine.core.maintenance.due_work import has_pending
from airflow_provider_zkmq.engine.core.model.records import TaskState
from airflow_provider_zkmq.engine.core.model.settings import Limit, load_settings
from airflow_provider_zkmq.engine.core.model.states import ENDED, State
from airflow_provider_zkmq.engine.core.tasks.settle_by_outcome import Settlement
from airflow_provider_zkmq.engine.core.write.transitions import KEPT_NONCES
from airflow_provider_zkmq.engine.errors import (
    ClaimLost,
    CorruptRecord,
    DuplicateTask,
    OutcomeUnknown,
    TaskNotFound,
    TransportError,
    Unavailable,
    ZkmqError,
)
from tests.simulation.history import CALM, CLAIMING, LOOKING, SETTLING, History, Key
from tests.simulation.parts import Call, Client, Fiber
from tests.simulation.world import World

#: Seconds that somebody may sleep beyond what it waits for, and a call beyond its own limit.
LATE: Final = 0.5
BEYOND: Final = 2.0


class Oracles(History):
    """The history of one world, and what is checked of what callers get and of who sleeps."""

    def __init__(self, world: World, attempts: int, order: str, limit: Limit) -> None:
        super().__init__(world, attempts, order, limit)
        world.returned = self.on_return
        world.told_later = self.on_told

    # --- each call

    def on_return(self, _fiber: Fiber, call: Call) -> None:
        """Judge what a caller got."""
        error = call.error
        if error is not None and not isinstance(error, ZkmqError):
            self.fail("errors are the library's own", f"{call.verb}: {error!r}")
        if isinstance(error, CorruptRecord):
            self.fail("nothing is corrupt", f"{call.verb}: {error}")
        if isinstance(error, Unavailable) and call.wrote and call not in self.excused:
            self.fail("never 'nothing was written' once something was", f"{call.verb}: {error}")
        if self.world.quiet and call.began >= self.quiet_since and self.world.now - call.began > call.limit + BEYOND:
            self.fail("each call returns within its limit", f"{call.verb} took {self.world.now - call.began:.1f} s")
        if call in self.excused and call.verb != "enqueue":
            self.in_loops += call.about["loop"].ready if "loop" in call.about else ()
            return
        if call.ok and call.verb in {"ended_between", "read_ended"}:
            getattr(self.book, f"told_{call.verb}")(call)
        judge = getattr(self, f"told_{call.verb}", None)
        if judge is not None:
            judge(call)
        elif call.verb in SETTLING:
            self.on_settle(call)

    quiet_since = float("inf")

    def told_enqueue(self, call: Call) -> None:
        """What is acknowledged is there, or was; what was asked for once is there once.

        A call that wrote nothing tells what it has read: servers that went back meanwhile may have lost that.
        """
        if call.ok and (call.wrote or call not in self.excused):
            ids = call.value if isinstance(call.value, list) else [call.value]
            for task in ids:
                if (call.about["queue"], task) not in self.created:
                    self.fail("an acknowledged enqueue is somewhere", task)
        for payload in call.about.get("once", ()):
            if len(self.payloads.get(payload, ())) > 1:
                self.fail("nothing is enqueued twice", repr(payload))
        if (
            call.about.get("once")
            and isinstance(call.error, DuplicateTask)
            and call.about.get("batch") not in self.doubted
        ):
            self.fail("an enqueue made again is known", str(call.error))
        if isinstance(call.error, TransportError) and not isinstance(call.error, OutcomeUnknown) and call.wrote:
            self.fail("never 'nothing was written' once something was", f"enqueue: {call.error!r}")

    def told_latest_end(self, call: Call) -> None:
        """It goes up for each reader, and has missed nothing that had ended before it was asked for."""
        if call.ok:
            self.book.told_latest_end(call, call.about["reader"])

    def told_fsck(self, call: Call) -> None:
        """Whatever was under way while it looked: nobody has damaged the queue."""
        if call.ok and call.value.findings:
            self.fail("what nobody has damaged is found whole", "; ".join(map(str, call.value.findings)))

    def told_load(self, call: Call) -> None:
        """What is told to be written, or to be there, was written once."""
        for task in (*call.value.written, *call.value.existing) if call.ok else ():
            if (call.about["queue"], task) not in self.created:
                self.fail("an acknowledged enqueue is somewhere", task)
        if isinstance(call.error, TransportError) and not isinstance(call.error, OutcomeUnknown) and call.wrote:
            self.fail("never 'nothing was written' once something was", f"load: {call.error!r}")

    def told_claim(self, call: Call) -> None:
        """A claim is handed out once, and is what its token says."""
        if call.ok and call.value is not None:
            self._handed_out(call, call.value)

    def told_claim_task(self, call: Call) -> None:
        """A claim by id is the one that was asked for."""
        self.told_claim(call)
        claimed = call.value if call.ok else None
        if claimed is None:
            return
        if claimed.task_id != call.about["task"] or call.about["attempt"] not in {None, claimed.state.attempt}:
            self.fail("a claim by id is that of the task", f"{call.about['task']}: {claimed.task_id}")

    def told_ready(self, call: Call) -> None:
        """Who is told of work is told of a task that was pending, and fitted, while it looked."""
        if not call.ok or not call.value or len(self.world.zk.servers) > 1:  # a server that lags knows what was
            return
        known = [(key, state) for key, state in self.records.items() if state.state is State.INSERTED]
        known += [(key, state) for key, (when, state) in self.pending_until.items() if when >= call.began]
        fits = call.about["wanted"].selector.matches
        if not any(key[0] == call.about["queue"] and fits(state.filters, call.about["types"]) for key, state in known):
            self.fail("who is told of work finds some", str(call.about["selector"]))

    def told_claim_many(self, call: Call) -> None:
        """So is each of several."""
        for claimed in call.value if call.ok else ():
            self._handed_out(call, claimed)

    def told_next(self, call: Call) -> None:
        """A loop hands out each claim once; what its step says of the claim before is so."""
        loop, former = call.about["loop"], call.about["former"]
        if call.ok and not call.value and loop.handled:
            self.fail("a loop ends when all is settled", str(list(loop.handled)))
        for claimed in loop.ready:
            if claimed not in self.in_loops:
                self._handed_out(call, claimed)
                self.in_loops.append(claimed)
        key = None if former is None else (call.about["queue"], former.task_id)
        if former is None or (former.task_id, former.token) in loop.handled or loop.errors:
            return  # not known yet, or told by a step to come
        if call.ok and not former.lost:
            self.fail("no success is told that did not happen", f"{former.task_id} is in hand after its loop went on")
        if call.ok and former.nonces.keys() == {"complete"} and (key, former.token) not in self.ended:
            self.fail("no success is told that did not happen", f"a step after {former.task_id}")
        about_it = isinstance(call.error, ClaimLost) and former.task_id in str(call.error)
        if about_it and self.promised(key, former):
            self.fail("a claim is lost only when it is", f"a step after {former.task_id}: {call.error}")

    def on_told(self, client: Client, claimed: Claimed, progress: Settlement, error: Exception | None) -> None:
        """What was put down is told to be settled when it is, and to be lost when it is."""
        key = ("q", claimed.task_id)
        if claimed in self.excused:
            return
        if error is None and (key, claimed.token) not in self.ended:
            self.fail("no success is told that did not happen", f"{claimed.task_id} as {progress.outcome}")
        if isinstance(error, ClaimLost):
            if self.promised(key, claimed):
                self.fail("a claim is lost only when it is", f"{claimed.task_id}, put down: {error}")
        elif error is not None:
            self.fail("what is put down is settled", f"{claimed.task_id} of {client.name}: {error!r}")

    def told_begin(self, call: Call) -> None:
        """A handler is kept from its task only where that is another's."""
        claimed = call.about["held"]
        if isinstance(call.error, ClaimLost) and self.promised((call.about["queue"], claimed.task_id), claimed):
            self.fail("a claim is lost only when it is", f"begin of {claimed.task_id}: {call.error}")

    def told_claim_handle(self, call: Call) -> None:
        """Who takes a claim over gets that one, and no other of its task.

        Servers that went back know nothing of it; its client does while what became of its settlement was not told.
        """
        claim = (call.about["queue"], call.about["task"]), call.about["token"]
        for claimed in call.value if call.ok else ():
            known = claim in self.tokens or claimed.unsure or claimed.forgotten
            if (claimed.task_id, claimed.token) != (claim[0][1], claim[1]) or not known:
                self.fail("a claim by its token is that claim", f"{claim}: {claimed.task_id} {claimed.token}")

    def told_extend(self, call: Call) -> None:
        """A claim that was over before is not extended; a server that lags knows what was."""
        claimed = call.about["held"]
        ended, _ = self.ended_at.get(((call.about["queue"], claimed.task_id), claimed.token), (None, 0))
        if call.ok and ended is not None and ended <= call.about["zxid"] and len(self.world.zk.servers) == 1:
            self.fail("no success is told that did not happen", f"extend of {claimed.task_id} ({claimed.token})")

    def _handed_out(self, call: Call, claimed: Claimed) -> None:
        claim = ((call.about["queue"], claimed.task_id), claimed.token)
        if claim in self.handed:
            self.fail("a claim is handed out once", f"{claimed.task_id} {claimed.token}")
        if not call.about["wanted"].selector.matches(claimed.state.filters, call.about["types"]):
            self.fail("a claim is of what was asked for", f"{claimed.task_id} {claimed.state.filters}")
        if claim not in self.tokens:
            self.fail("a token is its claim's transaction", f"{claimed.task_id} {claimed.token}")
        self.handed.add(claim)

    def on_settle(self, call: Call) -> None:
        """Success, refusal and loss are told as they are."""
        claimed = call.about["held"]
        key = (call.about["queue"], claimed.task_id)
        if call.ok and call.verb != "rollback" and (key, claimed.token) not in self.ended:
            self.fail("no success is told that did not happen", f"{call.verb} of {claimed.task_id}")
        if isinstance(call.error, ClaimLost):
            if self.promised(key, claimed):
                self.fail("a claim is lost only when it is", f"{call.verb} of {claimed.task_id}: {call.error}")
            by = self.ended_by.get((key, claimed.token))
            mine = by is not None and by.about.get("held") is claimed and by.verb == call.verb
            if mine and key not in self.removed and not self._forgotten(key, claimed):
                self.fail("asking again tells what happened", f"{call.verb} of {claimed.task_id}: {call.error}")

    def _forgotten(self, key: Key, claimed: Claimed) -> bool:
        """Whether the caller was told that nobody can tell, and so it is: others have settled the task since."""
        settled = self.records[key].settled
        return claimed.forgotten and len(settled) >= KEPT_NONCES and not set(claimed.nonces.values()) & set(settled)

    def told_wait(self, call: Call) -> None:
        """Who waits for a task that is there is not told that it is not, unless the servers went back since it knew."""
        client, restored = call.about.get("acknowledged", (None, 0))
        for task in call.about["ids"] if client is not None and client.restored == restored else ():
            key = (call.about["queue"], task)
            known = key in self.created and key not in self.removed
            if isinstance(call.error, TaskNotFound) and known and task in str(call.error):
                self.fail("what is there is found", f"{task}: {call.error}")

    # --- at rest

    def at_rest(self) -> None:
        """Nobody can move before time passes: nobody sleeps over what it waits for."""
        world = self.world
        self.begun_is_marked()
        self.handled_is_settled()
        self.cancels_are_heard_of()
        for fiber in world.fibers:
            client, call = fiber.client, fiber.call
            awake = client.alive and client.connected and client.paused_until <= world.now >= client.stalled_until
            if not awake or call is None or fiber.state != "waiting" or client.session not in world.zk.at:
                continue
            if fiber.until <= world.now + LATE:
                continue
            if call.verb in LOOKING and not self._seen_to(fiber) and (missed := self._missed(call)):
                self.fail("nobody sleeps over work", f"{fiber.name} while {missed} is there")
            if call.verb == "wait" and self._reached(call):
                self.fail("nobody sleeps over what it waits for", f"{fiber.name} waits for {call.about['ids']}")
            if call.verb == "wait_batch" and not self._closing(fiber) and self._batch_is_done(call):
                self.fail("nobody sleeps over what it waits for", f"{fiber.name} waits for batch {call.about['batch']}")

    def begun_is_marked(self) -> None:
        """What has begun says so, or its client knows that it does not yet. Asked when nothing is under way."""
        for client in self.world.clients:
            if not client.alive or client.send_queue or client.session not in self.world.zk.at:
                continue
            for (task, token), claimed in client.hands.items():
                key, owed = ("q", task), client.context().pending.unmarked_starts
                held = self.stands(key, claimed) and (task, token) in client.begun and not claimed.lost
                if held and key in self.marks.prefetched and (task, token) not in owed:
                    self.fail("what has begun is marked", f"{task} ({token}) of {client.name}")

    def handled_is_settled(self) -> None:
        """What was handled and put down is settled soon, also where its client claims nothing any more."""
        for client in self.world.clients:
            calm = client.alive and client.connected and client.troubled_at < self.world.now - CALM
            for (task, token), leaving in client.context().claims.deferred.items() if calm else ():
                if leaving.waits and leaving.due < self.world.zk.ms / 1000 - BEYOND:
                    self.fail("what was handled is settled soon", f"{task} ({token}) of {client.name}")

    def cancels_are_heard_of(self) -> None:
        """Who keeps a claim learns soon that its task was cancelled, as long as that stands there."""
        for client in self.world.clients:
            calm = client.alive and client.connected and client.troubled_at < self.world.now - CALM
            for claim in filter(client.hands.__contains__, client.kept if calm else ()):
                key, claimed = (("q", claim[0]), claim[1]), client.hands[claim]
                cancelled = self.ended.get(key) is State.CANCELLED and self.ended_at[key][1] < self.world.now - BEYOND
                stands = key[0] in self.records and self.records[key[0]].state is State.CANCELLED
                if cancelled and stands and claimed.session == client.session and not claimed.lost:
                    self.fail("who works hears of a cancel", f"{claim} of {client.name}")

    def _seen_to(self, waiter: Fiber) -> bool:
        """Whether another call of the client, after the same tasks, looks now: it calls the others, see `WaitQueue`."""
        mine, now = waiter.call, self.world.now
        return any(
            one is not waiter
            and one.client is waiter.client
            and one.call is not None
            and one.call.about.get("queue") == mine.about["queue"]
            and "wanted" in one.call.about
            and one.call.verb in LOOKING
            and (one.call.verb == "ready") is (mine.verb == "ready")  # they sit apart
            and one.call.about["wanted"].kind == mine.about["wanted"].kind
            and one.until <= now + LATE
            for one in self.world.fibers
        )

    def _closing(self, waiter: Fiber) -> bool:
        """Whether somebody may be about to end the batch, or died over it: then a burial or a clean-up does."""
        if any(self._owes(client) for client in self.world.clients):
            return True
        calls = [one for one in self.world.fibers if one is not waiter and one.call is not None]
        idle = {"wait", "wait_batch"} | (CLAIMING if self.world.quiet else set())
        return any(not client.alive for client in self.world.clients) or any(
            one.call is not None and one.call.verb not in idle for one in calls
        )

    def _owes(self, client: Client) -> bool:
        """Whether a client that is cut off remembers a batch that it is to end once it is back.

        Or puts something right in the background, which may have been cut off between a member's end and the batch's:
        between two of its tries it pauses. One that never comes to an end is found at the schedule's end.
        """
        now, contexts = self.world.now, client.contexts.values()
        cut_off = not client.connected or client.paused_until > now or client.stalled_until > now
        if cut_off and any(context.pending.batches for context in contexts):
            return True
        return client.alive and any(context.pending.finishing and has_pending(context) for context in contexts)

    def _missed(self, call: Call) -> str | None:
        queue = call.about["queue"]
        context = self.paths_of.context(queue)
        nodes = self.world.zk.leader.nodes
        if load_settings("conf", nodes[context.paths.at("conf")].data)[0].paused:
            return None
        wanted = call.about["wanted"]
        for (name, task), state in self.records.items():
            if name != queue or state.state is not State.INSERTED:
                continue
            if state.due is not None and state.due > self.world.zk.ms - 1000 * LATE:
                continue
            if wanted.selector.matches(state.filters, call.about["types"]) and self._has_room(queue, state):
                return task
        return None

    def _has_room(self, queue: str, state: TaskState) -> bool:
        mine = [each for (name, _), each in self.records.items() if name == queue]
        return queue != "q" or self.limits.has_room(state.filters, mine, self.world.zk.ms, int(1000 * LATE))

    def _reached(self, call: Call) -> bool:
        states = [self.records.get((call.about["queue"], task)) for task in call.about["ids"]]
        return all(state is not None and state.state in ENDED for state in states)

    def _batch_is_done(self, call: Call) -> bool:
        paths = self.paths_of.context(call.about["queue"]).paths
        nodes = self.world.zk.leader.nodes
        name = call.about["batch"]
        found = nodes.get(paths.batch(name, "open"))
        return paths.batch(name) in nodes and (found is None or not found.children)

    def lost_claims(self) -> None:
        """Each claimed task of a living session is in its client's hands. Asked when every client has claimed since."""
        nodes = self.world.zk.leader.nodes
        by_session = {client.session: client for client in self.world.clients if client.alive}
        for (queue, task), token in self.claims.items():
            node = nodes.get(self.paths_of.context(queue).paths.task(task, "claim"))
            if node is None:
                continue
            client = by_session.get(node.owner) if node.owner else self._leaseholder(self.records.get((queue, task)))
            if client is not None and (task, token) not in client.hands:
                self.fail("no claimed task in nobody's hand", f"{task} ({token}) of {client.name}")

    def _leaseholder(self, state: TaskState | None) -> Client | None:
        """The living client that has a leased claim; consumers are named after their clients."""
        name = "" if state is None else (state.consumer or "").partition("-")[0]
        return next((client for client in self.world.clients if client.alive and client.name == name), None)

    def tables(self) -> None:
        """At the end no client remembers anything under way: every call has put right what it began."""
        for client in self.world.clients:
            for context in client.contexts.values() if client.alive else ():
                tables = {
                    "handovers": context.claims.handovers,
                    "owed": context.claims.unsettled,
                    "leaving": context.claims.deferred,
                    "trying": context.claims.trying,
                    "joining": context.registration.joining,
                    "batches to be ended": context.pending.batches,
                    "begun and not marked": context.pending.unmarked_starts,
                    "unburied": context.known_consumers.unrescued,
                    "limits": [name for name, each in context.limited_keys.keys.items() if each.in_use],
                }
                left = {name: list(table) for name, table in tables.items() if table}
                if left or context.maintenance.left or context.maintenance.busy:
                    self.fail("nothing is left under way", f"{client.name}, {context.queue}: {left}")

    def left(self) -> list[str]:
        """The tasks that have not ended."""
        return [
            f"{task}: {state.state}{', a run in escrow' if state.requeue else ''}"
            for (_, task), state in self.records.items()
            if state.state not in ENDED or state.requeue
        ]
