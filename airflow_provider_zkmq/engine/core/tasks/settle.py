"""What the holder of a claim does: extend, complete, fail, release; at once, or together with its next claim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from msgspec import structs

from ... import errors
from .. import zk_operations as zk
from ..client_state import Claimed, Context, DeferredCompletion, Sender, Turn
from ..model.handler_outcomes import Follows
from ..model.new_message import encode_data
from ..model.records import TaskState, clip
from ..model.settings import Conf
from ..model.states import Event, State
from ..model.values import Duration, dump, optional_seconds, seconds
from ..read import bulk_read, claim_status, server_clock
from ..read.configuration import read_conf
from ..transaction_retries import Tries, failed_at, refused, transact
from ..write import batch_end, next_run, transitions
from ..write.commit import Chain, CommitResult, Plan, Refusal, Settling, Why, alone, commit, send
from ..write.transitions import Current, beginning, notes_of, result_write
from ..zk_operations import Procedure

# --- Deferred completions: sent with the client's next claim, or soon by themselves.

#: How long a deferred completion waits for a claim to go with.
TOGETHER_SECONDS: Final = 0.05
#: The pause before a completion that no server answered is tried again.
RETRY_SECONDS: Final = 0.5


def settle_later(
    context: Context,
    claimed: Claimed,
    settle: Callable[[], Procedure[Any]],
    on_settled: Callable[[Any, Exception | None], None],
) -> DeferredCompletion:
    """Defer a settlement; `on_settled` is called with how it ended. It is tried again while no server answers."""
    completion = DeferredCompletion(claimed, settle, on_settled, context.run.monotonic() + TOGETHER_SECONDS)
    # A second call for the same claim changes nothing: the first one was interrupted before it could return.
    completion = context.claims.deferred.setdefault((claimed.task_id, claimed.token), completion)
    context.run.finish_later()
    return completion


def _settled(completion: DeferredCompletion) -> Procedure[Any]:
    """Its settlement; whatever that raises, it raises when it is carried out."""
    return (yield from completion.settle())


def has_overdue(context: Context) -> bool:
    """Whether a deferred completion has waited long enough."""
    now = context.run.monotonic()
    return any(completion.waits and completion.due <= now for completion in context.claims.deferred.values())


def seconds_until_deferred(context: Context, most: float) -> float:
    """Seconds until a deferred completion is due; one that another call sends is looked at soon, should it fail."""
    now = context.run.monotonic()
    spans = (max(0.0, each.due - now) if each.waits else TOGETHER_SECONDS for each in context.claims.deferred.values())
    return min(spans, default=most)


def settle_deferred(context: Context) -> Procedure[None]:
    """Send the deferred completions. Those that no server answered stay deferred."""
    deferred = DeferredCompletions(context)
    try:
        yield from deferred.finish()
    finally:
        deferred.sender.over = True
        deferred.close()


def settle_last(context: Context) -> Procedure[None]:
    """Before the client is closed: settle all deferred completions, also another call's. Raises `TransportError`."""
    yield from settle_deferred(context)
    while True:
        under_way = (each.claimed.settling for each in context.claims.deferred.values() if not each.waits)
        settling = next((each for each in under_way if each is not None), None)
        if settling is None:
            break
        yield zk.Wait(settling.end(context), 0, turn=True)
    yield from settle_deferred(context)


@dataclass(slots=True, eq=False)
class DeferredCompletions:
    """The deferred completions that one call sends with its own transactions.

    When the call ends it sets ``sender.over``, a single statement: from then on others send what is left, whatever
    interrupts this one. Then it is closed.
    """

    context: Context
    sender: Sender = field(default_factory=Sender)
    chain: Chain = field(default_factory=lambda: Chain([]))
    taken: list[DeferredCompletion] = field(default_factory=list)

    def send(self, context: Context, make: Callable[[], zk.Multi]) -> Procedure[tuple[zk.Multi, zk.Outcome]]:
        """Send a transaction together with deferred completions; how it ended, as if it had been sent alone."""
        return self._send(context, make) if self._take_deferred() else send(context, make)

    def _send(self, context: Context, make: Callable[[], zk.Multi]) -> Procedure[tuple[zk.Multi, zk.Outcome]]:
        try:
            return (yield from self.chain.send(context, make))
        finally:
            self._notify()

    def finish(self) -> Procedure[bool]:
        """Settle what went with no transaction; whether anything was settled. Errors go to `on_settled`."""
        if not self._take_deferred():
            return False
        try:
            yield from self.chain.finish(self.context)
        finally:
            on_settled = self._notify()
        return on_settled

    def close(self) -> None:
        """Give up what it has not settled, so that other calls send it."""
        if self.taken:
            self.chain.close()
            for completion in self.taken:
                completion.claimed.chained = False
            self.context.run.finish_later()
            self.context.settled.fire()

    def _take_deferred(self) -> bool:
        """Take what no other call has, also what an interrupted one settled without a word; whether there is any."""
        for completion in [each for each in self.context.claims.deferred.values() if each.waits]:
            completion.sender = self.sender
            completion.claimed.chained = True
            if completion.settling is None or not completion.settling.over:
                record = self.context.paths.task(completion.claimed.task_id, "state")
                completion.settling = Settling(_settled(completion), record)
            self.taken.append(completion)
        self.chain.settlings = [completion.settling for completion in self.taken]
        return bool(self.taken)

    def _notify(self) -> bool:
        """Call `on_settled` for what is settled; what no server answered is deferred again. Whether any is settled."""
        over = [completion for completion in self.taken if completion.settling.over]
        for completion in over:
            self._end(completion, completion.settling)
        self.taken = [completion for completion in self.taken if completion.settling is not None]
        self.chain.settlings = [completion.settling for completion in self.taken]
        if over:
            self.context.settled.fire()
        return any((each.claimed.task_id, each.claimed.token) not in self.context.claims.deferred for each in over)

    def _end(self, completion: DeferredCompletion, settling: Settling) -> None:
        """One is settled. It stays deferred until `on_settled` has returned, whatever interrupts that."""
        completion.error = settling.error
        completion.claimed.chained = False
        if isinstance(settling.error, errors.TransportError) and not isinstance(settling.error, errors.SessionLost):
            completion.due = self.context.run.monotonic() + RETRY_SECONDS
            completion.settling = completion.sender = None
            self.context.run.finish_later()
            return
        try:
            completion.on_settled(settling.value, settling.error)
        except Exception as error:  # noqa: BLE001  it must not keep others from being told
            path = self.context.paths.task(completion.claimed.task_id)
            self.context.run.report(path, f"it is settled, and whoever had it cannot be told: {error!r}")
        self.context.claims.deferred.pop((completion.claimed.task_id, completion.claimed.token), None)
        completion.settling = None


# --- Whose a claim is after its holder was refused: another's by now, or the holder's still, in a tree that is damaged.


@dataclass(slots=True)
class Holding:
    """The tries of one call that writes as the holder of a claim."""

    context: Context
    claimed: Claimed
    what: str
    tries: Tries | None = None

    def after(self, outcome: zk.Outcome, multi: zk.Multi, tried: int, verb: str = "") -> Procedure[TaskState | None]:
        """After a refusal: see `still_held`. One that says that the claim's note is gone has it written anew.

        `tried`: the version that was refused; another thread with the same claim may have learnt of a newer one
        meanwhile. Raises `CorruptRecord` for what is refused again and again although the claim is ours.
        """
        claimed = self.claimed
        ended = yield from still_held(self.context, claimed, verb)
        if ended is None and claimed.version == tried:
            self.tries = self.tries or Tries(self.what)
            yield from self.tries.refused(outcome, multi, tried)
            path = failed_at(outcome, multi)
            if outcome.failure is zk.Failure.NO_NODE and path in notes_of(self.context, claimed.task_id, claimed.state):
                # A rescue takes it off together with the record's state: without it nobody would ever end the claim.
                span = {"seconds": claimed.span, "consumer": claimed.state.consumer}
                note = zk.Create(path, b"" if claimed.state.lease is None or "/current/" in path else dump(span))
                state = zk.Check(self.context.paths.task(claimed.task_id, "state"), claimed.version)
                again: zk.Outcome = yield zk.Multi((state, note))
                if again.committed:
                    why = f"the note of a claim of task {claimed.task_id!r} was missing; made anew"
                    self.context.warn_once(path, why)
        return ended


def still_held(context: Context, claimed: Claimed, verb: str = "") -> Procedure[TaskState | None]:
    """After a refusal: ours still, as `claimed` then says, or lost; the record if an earlier try of `verb` ended it."""
    try:
        now = yield from claim_status.current_claim(context, claimed.task_id, claimed.token, claimed.claim.get("nonce"))
    except (errors.ClaimLost, errors.TaskNotFound) as error:
        happened = yield from settled_before(context, claimed, verb)
        context.claims.let_go(claimed)
        if happened is not None:
            return happened
        if claimed.state.lease is None and claimed.session == context.run.session():
            note = context.paths.current(claimed.state.consumer or "", claimed.task_id)
            context.pending.lost_claims[note] = claimed.task_id
        raise over(claimed) from error
    claimed.version, claimed.state = now.version, now.state
    return None


def settled_before(context: Context, claimed: Claimed, verb: str) -> Procedure[TaskState | None]:
    """The record, if an earlier call of the same verb ended this claim, else None. Raises `OutcomeUnknown`."""
    if not claimed.unsure:
        return None
    path = context.paths.task(claimed.task_id, "state")
    node: zk.Node | None = yield zk.Get(path)
    state = None if node is None else TaskState.decode(path, node.data)
    known = (*claimed.state.settled[-1:], *claimed.nonces.values())
    if state is None or state.may_have_dropped(known):
        context.claims.let_go(claimed)  # asked once more it is lost: no later look would tell more
        claimed.unsure, claimed.forgotten = False, True
        raise errors.OutcomeUnknown(str(over(claimed)))
    return state if claimed.nonces.get(verb) in state.settled else None


def cancel_note(context: Context, state: TaskState) -> Procedure[list[zk.WriteOp]]:
    """What tells the consumer of a claimed task, which watches this znode, that it loses it; a dead one is not told."""
    path = context.paths.consumer(state.consumer or "", "current")
    there = state.state is State.CLAIMED and (yield zk.Exists(path)) is not None
    return [zk.SetData(path, b"")] if there else []


def over(claimed: Claimed) -> errors.ClaimLost:
    """The error for a claim that is not the current one, which says so where a call of ours may have ended it."""
    if not claimed.forgotten:
        return claim_status.claim_lost(claimed.task_id, claimed.token)
    which = f"claim {claimed.token} of task {claimed.task_id!r}"
    return errors.ClaimLost(f"{which} is over; whether it was settled by us cannot be told any more")


# --- What the holder of a claim does besides settling it: extend it, report its progress.


def progress(context: Context, claimed: Claimed, value: float, note: str = "") -> Procedure[None]:
    """Report how far the handling has come: `value` from 0 to 1, and a note. Raises `ClaimLost`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        msg = f"progress {value!r} is not allowed: a number from 0 to 1"
        raise errors.ConfigError(msg)
    path = context.paths.task(claimed.task_id, "claim")
    record = dump(claimed.claim | {"progress": value, "note": clip(str(note))})
    # The record's version alone may be that of another run of the same id; the claim's note is this one's.
    notes = [zk.Check(note) for note in notes_of(context, claimed.task_id, claimed.state)]
    yield from check_and_set(context, claimed, zk.SetData(path, record), notes)


def extend(context: Context, claimed: Claimed, lease: Duration) -> Procedure[None]:
    """Hold the claim for `lease` more seconds from now; a session-bound one is only checked. Raises `ClaimLost`."""
    span = seconds("lease", lease)
    if claimed.lost:
        raise claim_status.claim_lost(claimed.task_id, claimed.token)
    if claimed.state.lease is None:
        yield from claim_status.current_claim(context, claimed.task_id, claimed.token, claimed.claim.get("nonce"))
        return
    record = dump({"seconds": span, "consumer": claimed.state.consumer})
    # The deadline outlives the ephemeral of a session that has ended: until a rescue, only the claim's znode tells.
    held = [zk.Check(context.paths.task(claimed.task_id, "claim"))]
    yield from check_and_set(
        context, claimed, zk.SetData(claim_status.lease_path(context, claimed.state), record), held
    )


def check_and_set(
    context: Context, claimed: Claimed, op: zk.SetData, more: Sequence[zk.WriteOp] = ()
) -> Procedure[None]:
    """Write to a znode of the claim while it is the current one; `more`: what else has to hold for that."""
    if claimed.lost:
        raise claim_status.claim_lost(claimed.task_id, claimed.token)
    holding = Holding(context, claimed, f"writing to the claim of task {claimed.task_id!r}")
    while True:
        tried = claimed.version
        multi = zk.Multi((zk.Check(context.paths.task(claimed.task_id, "state"), tried), *more, op))
        outcome = yield from transact(multi)
        if outcome.committed:
            context.clock.learn(outcome)
            return
        if outcome.failure is zk.Failure.OTHER:
            raise refused("writing to the claim", outcome, multi)
        yield from holding.after(outcome, multi, tried)


# --- Saying that the handler of a claim prefetched begins: from then on the delivery counts.
#
# Until then the death of its consumer, or the end of its lock or lease, counts no attempt. Where the claim is almost
# certainly still ours the write is not waited for: what the system has taken arrives even if this process is killed
# in the next moment, and before whatever settles the claim. A write that a lost connection swallowed is repeated.

#: Of a claim that was asked for longer ago it is not taken for granted that it is ours still: its session may be over.
FRESH_SECONDS: Final = 1.0
#: Nor of one of whose lock or lease this part has passed.
FRESH_PART: Final = 0.5


def begin(context: Context, claimed: Claimed) -> Procedure[None]:
    """Say that the handling of a claim prefetched begins: from here on the delivery counts. Raises `ClaimLost`.

    Of a claim of less than a second ago that is sent and not waited for: if it is lost, its settlement tells. Nothing
    is written for a claim that was not prefetched.
    """
    if claimed.lost:
        raise claim_status.claim_lost(claimed.task_id, claimed.token)
    claimed.began = now = context.run.monotonic()
    if not claimed.prefetched:
        return
    sent = False
    span = FRESH_SECONDS if claimed.span is None else min(FRESH_SECONDS, FRESH_PART * claimed.span)
    holds = claimed.session == context.run.session() and not claimed.cancelled
    if holds and claimed.sent is not None and now - claimed.sent < span:
        state = zk.Check(context.paths.task(claimed.task_id, "state"), claimed.version)
        multi = zk.Multi((state, *_checks(context, claimed), beginning(context, claimed)))
        sent = yield zk.Post(multi, partial(_note_unmarked_start, context, claimed))
    if not sent:
        yield from check_and_set(context, claimed, beginning(context, claimed), _checks(context, claimed))
    claimed.prefetched = False


def begin_again(context: Context) -> Procedure[None]:
    """Repeat the writes that were lost, unless the claim is over. After a `TransportError` they are still pending."""
    for key, claimed in context.pending.unmarked_starts.copy().items():
        if claimed.settling is not None:
            continue  # that tells whose it is; what is left then is looked at again
        try:
            yield from check_and_set(context, claimed, beginning(context, claimed), _checks(context, claimed))
        except errors.TransportError:
            raise
        except errors.ClaimLost:
            pass
        except errors.ZkmqError as error:
            path = context.paths.task(claimed.task_id)
            context.run.report(path, f"that its handler has begun is not noted, its death may count nothing: {error}")
        context.pending.unmarked_starts.pop(key, None)


def _checks(context: Context, claimed: Claimed) -> list[zk.Check]:
    """What tells a claim from another of the same task at the same version, where its mark's own path does not."""
    return [] if claimed.ends_with_session else [zk.Check(claim_status.lease_path(context, claimed.state))]


def _note_unmarked_start(context: Context, claimed: Claimed) -> None:
    """It does not stand. Called by the connection's thread, without the client's lock."""
    context.pending.unmarked_starts[claimed.task_id, claimed.token] = claimed
    context.run.finish_later()


# --- A policy that was tightened binds what is pending, too.


def attempts_exhausted(conf: Conf, state: TaskState) -> bool:
    """Whether a pending task has had as many deliveries as its policy, as it is now, allows."""
    return state.retry(conf.policy).exhausted(state.attempt)


def kill_exhausted(context: Context, current: Current, now: int) -> Procedure[bool]:
    """Move a pending task to the dead letters instead of handing it out; False if it changed meanwhile."""
    nonce, state = context.marks.nonce(), current.state
    if state.requeue:
        return (yield from next_run.rerun(context, current, nonce)).committed
    why = f"it was delivered {state.attempt} times, and its policy has been lowered to allow no more"
    error = f"{why}; the last delivery ended with: {state.error}" if state.error else why
    plan = yield from transitions.to_dead(context, current, Event.ATTEMPTS_EXHAUSTED, nonce, error, now)
    return (yield from commit(plan)).committed


# --- A task whose record was damaged while it was in hand: its consumer still knows what stood there.


def recover_record(context: Context, claimed: Claimed) -> Procedure[bool]:
    """After a `CorruptRecord`: let the next settling write over the record, if that was damaged. Raises `ClaimLost`."""
    # The claim's znode says that the task is still ours, and the version of what is read fences the write to come.
    path, claim_path = (context.paths.task(claimed.task_id, part) for part in ("state", "claim"))
    yield zk.Sync(path)
    node, claim, escrow = yield from bulk_read.read_nodes(
        (path, claim_path, context.paths.task(claimed.task_id, "requeue"))
    )
    if node is None or claim is None or claim.stat.czxid != claimed.token:
        context.claims.let_go(claimed)
        msg = f"claim {claimed.token} of task {claimed.task_id!r} is not the current one; this call changed nothing"
        raise errors.ClaimLost(msg)
    claimed.version = node.stat.version
    try:
        claimed.state = TaskState.decode(path, node.data)
    except errors.CorruptRecord as error:
        context.run.report(path, f"{error}; what its consumer knows takes its place")
        claimed.state = structs.replace(claimed.state, requeue=escrow is not None)
        return True
    return False


# --- Settling a claim: complete, fail, release, extend. Only the current claim can; a late owner changes nothing.
#
# The fence is threefold, in one transaction: the version of the task's state, which every change bumps; the claim's
# znode, which dies with its session; and the note of who is working on it, which a rescue takes away.

#: One try at ending a claim as it stands, with the nonce of the verb: how it went.
Try = Callable[[Current, str], Procedure[CommitResult]]


def complete(
    context: Context, claimed: Claimed, result: bytes | str | None = None, *, dedupe: Duration | None = None
) -> Procedure[None]:
    """Finish the task and keep `result` (bytes or text). Raises `ClaimLost`, `TaskTooLarge`.

    `dedupe`: seconds (or a duration) for which an enqueue of the same id is still refused. A run held in escrow is
    inserted: at once, or when that time has passed.
    """
    data = checked_result(claimed, result)
    window = None if dedupe is None else seconds("dedupe", dedupe)
    now = yield from server_clock.server_time(context)
    times = claimed.times(context.clock, now)
    until = now + int(window * 1000) if window else None

    def attempt(current: Current, nonce: str) -> Procedure[CommitResult]:
        if current.state.requeue and until is None:
            before = current.with_state(current.state.with_attempt("finished", times.ended, None, times.started))
            extra = [result_write(context, current, data)]
            return next_run.rerun(context, before, nonce, extra, result=True)
        finish = partial(transitions.finish, context, current, nonce, data, now, times, until)
        return _carry_out(claimed, finish)

    yield from _settle(context, claimed, "complete", attempt)


def checked_result(claimed: Claimed, result: bytes | str | None) -> bytes:
    """A result as it is kept. Raises `ConfigError`, `TaskTooLarge`."""
    data = b"" if result is None else encode_data("result", result)
    if len(data) > zk.MAX_PAYLOAD:
        msg = f"the result of task {claimed.task_id!r} has {len(data):,} bytes; ZooKeeper takes {zk.MAX_PAYLOAD:,}"
        raise errors.TaskTooLarge(msg)
    return data


def fail(
    context: Context,
    claimed: Claimed,
    error: str | BaseException,
    *,
    retry: bool = True,
    backoff: Duration | None = None,
) -> Procedure[State]:
    """The delivery failed: run again by the policy, or be dead. Returns the new state. Raises `ClaimLost`.

    `error`: a text, or the exception, which the policy may name as final. `retry=False`: it is final in any case.
    `backoff`: seconds (or a duration) until the next try, instead of the policy's.
    """
    return (yield from failed(context, claimed, error, retry=retry, backoff=backoff)).state


def failed(
    context: Context, claimed: Claimed, error: str | BaseException, *, retry: bool, backoff: Duration | None
) -> Procedure[Follows]:
    """`fail`, which returns more of what follows."""
    conf = yield from claim_status.unless_queue_gone(context, claimed, read_conf(context))
    now = yield from server_clock.server_time(context)
    times = claimed.times(context.clock, now)
    wait, rand = optional_seconds("backoff", backoff), context.run.random()
    text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)

    def attempt(current: Current, nonce: str) -> Procedure[CommitResult]:
        state = current.state.with_attempt("failed", times.ended, text, times.started)
        before, policy = current.with_state(state), state.retry(conf.policy)
        if retry and not (policy.exhausted(state.attempt) or policy.is_final(error)):
            pause = policy.backoff(state.attempt, rand) if wait is None else wait
            due = now + int(pause * 1000) if pause >= 0.001 else None
            return _carry_out(claimed, partial(transitions.fail, context, before, Event.FAIL, nonce, text, due))
        if state.requeue:
            return next_run.rerun(context, before, nonce)
        to_dead = partial(transitions.to_dead, context, before, Event.FAIL_FINAL, nonce, text, now)
        return _carry_out(claimed, to_dead)

    after = yield from _settle(context, claimed, "fail", attempt)
    pause = max(0, (after.due or 0) - now) / 1000
    return Follows(after.state, after.retry(conf.policy).attempts, pause)


def release(context: Context, claimed: Claimed, delay: Duration | None = None) -> Procedure[None]:
    """Give the task back to its old place; the delivery counts as no attempt. Raises `ClaimLost`.

    `delay`: seconds (or a duration) before it may be claimed again: the handler snoozes it.
    """
    span = optional_seconds("delay", delay) or 0.0
    now = (yield from server_clock.server_time(context)) if span else 0
    due = now + int(span * 1000) if span else None

    def attempt(current: Current, nonce: str) -> Procedure[CommitResult]:
        return _carry_out(claimed, partial(transitions.release, context, current, nonce, due))

    state = yield from _settle(context, claimed, "release", attempt)
    context.listings.forget_tried(context.paths.entry(state.place).rpartition("/")[0])


def snooze(context: Context, claimed: Claimed, delay: Duration) -> Procedure[None]:
    """Give the task back, not to be handled for `delay` seconds; counts as no attempt. Raises `ClaimLost`."""
    yield from release(context, claimed, seconds("delay", delay))


def _carry_out(claimed: Claimed, build: Callable[[], Procedure[Plan]]) -> Procedure[CommitResult]:
    """Settle: in a transaction that others may share, unless it is made to go with others already."""

    def anew(refusal: Refusal) -> Procedure[Plan | None]:
        if refusal.outcome.failure is zk.Failure.OTHER:
            raise refused("settling the claim", refusal.outcome, refusal.multi)
        return (yield from build()) if refusal.why is Why.PLACE else None

    return (yield from commit((yield from build()), anew, by=alone if claimed.chained else send))


def _settle(context: Context, claimed: Claimed, verb: str, attempt: Try) -> Procedure[TaskState]:
    """End a claim; asked again after an unknown outcome, it tells what happened.

    Raises `OutcomeUnknown` rather than `Unavailable` for as long as it is not known what became of an earlier call.
    """
    mine, sent_before = Turn(), True  # for as long as another thread's call is under way
    holding = Holding(context, claimed, f"settling task {claimed.task_id!r}")
    try:
        while claimed.settling is not None:
            yield zk.Wait(claimed.settling.end(context), 0, turn=True)  # another thread's: one of the two settles it
        claimed.settling, sent_before = mine, claimed.unsure
        while (state := (yield from _try_to_settle(context, holding, verb, attempt))) is None:
            pass
        context.claims.let_go(claimed)
        claimed.unsure, claimed.reported = False, True
        return state
    except errors.ClaimLost:
        claimed.reported = True
        raise
    except errors.Unavailable as error:
        if not sent_before:
            raise
        msg = f"what became of an earlier call that settles task {claimed.task_id!r} is not known yet: {error}"
        raise errors.OutcomeUnknown(msg) from error
    finally:
        if claimed.settling is mine:
            claimed.settling = None
        if mine.over is not None:
            mine.over.fire()
        context.claims.remember_unsure(claimed)


def _try_to_settle(context: Context, holding: Holding, verb: str, attempt: Try) -> Procedure[TaskState | None]:
    """Try once; None: it was refused, and the claim is ours still."""
    claimed = holding.claimed
    if claimed.lost:  # its session has ended, say; an earlier call may have been carried out before
        state = yield from settled_before(context, claimed, verb)
        if state is None:
            raise over(claimed)
    else:
        tried, sent = claimed.version, claimed.unsure
        claimed.unsure = True  # until the reply is known: a call may be cut off anywhere
        try:
            # Each way to settle a claim has one nonce, however often it is asked for.
            nonce = claimed.nonces.setdefault(verb, context.marks.nonce())
            committed = yield from attempt(Current(claimed.task_id, tried, claimed.state), nonce)
        except errors.Unavailable:
            claimed.unsure = sent  # nothing was sent, or what was sent was refused
            raise
        if committed.refusal is None:
            return committed.after
        claimed.unsure = sent or committed.uncertain
        state = yield from holding.after(committed.refusal.outcome, committed.refusal.multi, tried, verb)
    if state is not None:  # an earlier call settled it, which was cut off, perhaps before it ended the batch
        yield from batch_end.close_after(context, claimed.state.batch)
    return state
