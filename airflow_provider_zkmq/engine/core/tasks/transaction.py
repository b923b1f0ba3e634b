"""A transaction across queues: what it takes is settled, and what it puts is written, at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from ... import errors
from ..client_state import Claimed, Context, UnsettledClaim
from ..model.new_message import Message, encode_data
from ..read.configuration import default_conf, fresh_conf, read_conf
from ..read.server_clock import server_time
from ..transaction_retries import Recorded, damaged, proven, refused
from ..write import next_run, transitions
from ..write.commit import Plan, Refusal, Why, known_bucket, merge, queue_deleted
from ..write.commit import commit as commit_plan
from ..write.new_task import NewTask, insert, prepare, with_filters
from ..write.transitions import Current, notes_of
from ..zk_operations import MAX_REQUEST, Failure, Procedure, request_size
from .enqueue import ended_before, run_anew
from .settle import fail, recover_record, still_held

# --- What a transaction puts: in memory only, until its commit.


@dataclass(slots=True)
class Put:
    """A task to enqueue on commit; ``unchecked``: filters that wait for the configuration of its queue."""

    context: Context
    new_task: NewTask
    unchecked: Mapping[str, object] | None = None
    ended: Current | None = None
    """The task that has its id and has ended, as far as is known: it runs anew."""

    @property
    def task_id(self) -> str:
        """The id of its task, given by the caller or made when it was put."""
        return self.new_task.task_id


def put(puts: list[Put], context: Context, message: Message) -> str:
    """Remember a message to enqueue on commit; returns its task's id. Nothing is asked of the server, nor sent.

    What is wrong whatever the queue declares is refused now, and the filters, too, where this client remembers the
    queue's configuration; else the commit checks them. Raises `ConfigError`, `TaskTooLarge`.
    """
    conf, filters = fresh_conf(context), message.filters
    wait = conf is None and isinstance(filters, Mapping)
    new = prepare(context, conf or default_conf(), replace(message, filters=None) if wait else message)
    if new.update or new.requeue or new.only_new:
        msg = f"a transaction puts new tasks only: on_conflict={message.on_conflict!r} goes outside of it"
        raise errors.ConfigError(msg)
    puts.append(Put(context, new, dict(filters) if wait and isinstance(filters, Mapping) else None))
    return new.task_id


def check_size(size: int) -> None:
    """Raise `TaskTooLarge` for a transaction of so many bytes, where ZooKeeper does not take that at once."""
    if size > MAX_REQUEST:
        msg = (
            f"the transaction needs {size:,} bytes, ZooKeeper takes {MAX_REQUEST:,} at once; nothing was committed: "
            "take and put less in one transaction"
        )
        raise errors.TaskTooLarge(msg)


# --- ZkQueue's unit of work: take N tasks, put K, in one transaction across queues, or nothing happened.


@dataclass(slots=True)
class TransactionState:
    """What a transaction has taken and will put, and how far its end has come."""

    taken: list[tuple[Context, Claimed]] = field(default_factory=list)
    put: list[Put] = field(default_factory=list)
    sent: Plan | None = None
    """A commit that was sent and whose outcome is not known: the next one asks for that first."""
    rolling_back: bool = False
    ended: bool = False
    runs_follow: bool = True
    """What it finishes is followed at once by the run held in escrow; else clean-up inserts that, or gives it up."""


def commit(transaction: TransactionState, result: bytes | str | None = None) -> Procedure[list[str]]:
    """Finish everything taken and enqueue everything put, at once; returns the ids put.

    `result` is kept with what was taken first. A run held in escrow follows at once; an id that was put runs anew where
    its task has finished or was cancelled. Called again after `OutcomeUnknown`, it tells what became of the
    first call, and goes on if that did not happen.

    Raises `ConfigError` for what a queue that was put into refuses, `TaskTooLarge` when it does not fit into one
    ZooKeeper transaction, `ClaimLost` when something taken was lost, `DuplicateTask` with the status of the task that
    has an id; in each case nothing happened, but that queues which were put into may have been created.
    """
    data = b"" if result is None else encode_data("result", result)
    ids = [put.task_id for put in transaction.put]
    if transaction.ended or not (transaction.sent is not None or transaction.taken or ids):
        transaction.ended = True
        return ids
    requested = transaction.sent is not None
    plan = transaction.sent if transaction.sent is not None else (yield from _plan(transaction, data))
    try:
        transaction.sent = plan  # before it is sent: whoever is interrupted here does not know what became of it
        committed = yield from commit_plan(plan, partial(_anew, transaction, data), requested=requested)
    except errors.OutcomeUnknown as error:
        if requested and error.final:  # no later call asks
            transaction.sent = None
        raise
    except errors.AccessDenied:
        if not requested:  # else what an earlier call sent may have been carried out
            transaction.sent = None
        raise
    except errors.ZkmqError as error:  # not sent, or refused before it was sent
        if requested and transaction.sent is not None and isinstance(error, errors.TransportError):
            raise _not_known_yet(error) from error
        transaction.sent = None
        raise
    transaction.sent = None
    if committed.refusal is not None:
        raise _refusal(transaction, committed.refusal)
    _end(transaction)
    return ids


def _not_known_yet(error: errors.ZkmqError) -> errors.OutcomeUnknown:
    return errors.OutcomeUnknown(f"what became of an earlier call of commit is not known yet: {error}")


def _end(transaction: TransactionState) -> None:
    """Everything has been committed: no claim is left."""
    transaction.ended = True
    for context, claimed in transaction.taken:
        claimed.reported = True
        context.claims.let_go(claimed)


def _plan(transaction: TransactionState, result: bytes) -> Procedure[Plan]:
    """Each taking is finished, each put inserted; raises `ClaimLost`, `TaskTooLarge`.

    Everything put is checked by the configuration of its queue; only then are the queues created that are not there.
    """
    plans, runs_follow = list[Plan](), transaction.runs_follow
    for at, (context, claimed) in enumerate(transaction.taken):
        plans.append((yield from _finish(context, claimed, b"" if at else result, runs_follow=runs_follow)))
    for put in transaction.put:
        try:
            conf = yield from read_conf(put.context)
        except errors.QueueNotFound:
            conf = default_conf()
        if put.unchecked is not None:
            put.new_task = with_filters(put.context, conf, put.new_task, put.unchecked)
            put.unchecked = None
    check_size(sum(len(put.new_task.data) for put in transaction.put))
    for put in transaction.put:
        yield from read_conf(put.context, create=True)
    for put in transaction.put:
        if put.ended is not None:
            plans.append((yield from run_anew(put.context, put.new_task, put.ended)))
        else:
            change = yield from insert(put.context, put.new_task)
            change.proof = Recorded(put.context.paths.task(put.task_id, "state"), put.task_id, put.new_task.stamp)
            plans.append(Plan([change]))
    plan = merge(plans)
    size = request_size(plan.multi().ops)
    if size > MAX_REQUEST and runs_follow and any(claimed.state.requeue for _, claimed in transaction.taken):
        transaction.runs_follow = False
        return (yield from _plan(transaction, result))
    check_size(size)
    return plan


def _finish(context: Context, claimed: Claimed, result: bytes, *, runs_follow: bool) -> Procedure[Plan]:
    """Finish a task, and insert the run held in escrow; one that is damaged is left to clean-up, which gives it up."""
    if claimed.lost:
        msg = f"the claim of task {claimed.task_id!r} was lost; nothing was committed"
        raise errors.ClaimLost(msg)
    now = yield from server_time(context)
    times = claimed.times(context.clock, now)
    current = Current(claimed.task_id, claimed.version, claimed.state)
    nonce, plan = context.marks.nonce(), None
    if claimed.state.requeue and runs_follow:
        before = current.with_state(claimed.state.with_attempt("finished", times.ended, None, times.started))
        kept = [transitions.result_write(context, current, result)]
        with suppress(errors.CorruptRecord):
            plan = yield from next_run.next_run_plan(context, before, nonce, kept, result=True)
    if plan is None:
        plan = yield from transitions.finish(context, current, nonce, result, now, times)
    record = context.paths.task(claimed.task_id, "state")
    plan.changes[0].proof = Recorded(record, claimed.task_id, nonce, claimed.state.settled)
    for change in plan.changes:
        if change.after is not None and change.after.index is not None:
            yield from known_bucket(context, change.after.index)
    return plan


def _anew(transaction: TransactionState, result: bytes, refusal: Refusal) -> Procedure[Plan | None]:
    """The plan made anew: a segment came or went, the record of a claim that still holds has changed, an id is in use.

    Raises `DuplicateTask` for an id whose task does not run anew.
    """
    if not refusal.uncertain:  # else what was sent is asked for again, should there be no other plan
        transaction.sent = None
    if not (yield from _other_than_thought(transaction, refusal)):
        changed = refusal.why is Why.CHANGED and refusal.outcome.failure is Failure.BAD_VERSION
        if not changed and refusal.why is not Why.PLACE:
            return None
        for context, claimed in transaction.taken:
            if changed and refusal.path == context.paths.task(claimed.task_id, "state"):
                yield from still_held(context, claimed)
    transaction.sent = yield from _plan(transaction, result)
    return transaction.sent


def _other_than_thought(transaction: TransactionState, refusal: Refusal) -> Procedure[bool]:
    """Whether an id that is put, or a run in escrow, is not as it was taken to be: the next plan takes it as it is."""
    path = refusal.path
    paths = [each.context.paths.task(each.task_id) for each in transaction.put]
    changed = {Failure.BAD_VERSION, Failure.NO_NODE}
    for base, put in zip(paths, transaction.put, strict=True):
        known = (f"{base}/state", changed) if put.ended is not None else (base, {Failure.NODE_EXISTS})
        if path == known[0] and refusal.outcome.failure in known[1] and paths.count(base) == 1:
            put.ended = yield from ended_before(put.context, put.new_task)
            return True
    for context, claimed in transaction.taken if transaction.runs_follow and refusal.why is Why.OTHER else ():
        if claimed.state.requeue and path.startswith(f"{context.paths.task(claimed.task_id)}/"):
            transaction.runs_follow = False
            return True
    return False


def _refusal(transaction: TransactionState, refusal: Refusal) -> errors.ZkmqError:
    path = refusal.path
    for context, claimed in transaction.taken:
        notes = notes_of(context, claimed.task_id, claimed.state)
        if path.startswith(context.paths.task(claimed.task_id) + "/") or path in notes:
            return errors.ClaimLost(f"the claim of task {claimed.task_id!r} was lost; nothing was committed")
    for put in transaction.put:
        if put.ended is not None and path.startswith(put.context.paths.task(put.task_id) + "/"):
            return damaged(f"a new run of task {put.task_id!r}", refusal.outcome, refusal.multi)
        if refusal.outcome.failure is Failure.NO_NODE and path.startswith(put.context.paths.base + "/"):
            return queue_deleted(put.context)
        if path == put.context.paths.task(put.task_id):
            msg = f"task id {put.task_id!r} is put twice; nothing was committed"
            return errors.DuplicateTask(msg, duplicates=[put.task_id])
    return refused("commit", refusal.outcome, refusal.multi)


def rollback(transaction: TransactionState, holder: Holder | None = None) -> Procedure[None]:
    """Forget what was put and give back what was taken; what was lost meanwhile needs no giving back.

    Each taking counts as a delivery: after the last one that its policy allows, a task is dead. May be repeated: what
    could not be given back is still in `taken`. One task's trouble holds up no other; it is raised last. `holder`: the
    session that took it. Once that is over, nothing is asked: what was taken is given back with it.
    Raises `IllegalTransition` where a commit of unknown outcome turns out to have happened, and `OutcomeUnknown` where
    it may still come, which only giving something back could keep out. Cut off, its client gives back what is left
    before it claims again.
    """
    try:
        # What became of a commit is told by the server only, whatever session asks.
        if transaction.sent is not None or holder is None:
            yield from _rollback(transaction)
        else:
            yield from while_held(holder, _rollback(transaction))
    except errors.TransportError:
        remember_unsettled(transaction.taken)
        if transaction.sent is not None or holder is None or not holder.is_over():
            raise
        # Nothing is asked any more; should the session come back after all, its client gives back what is left.
        transaction.taken.clear()
        transaction.put.clear()
        transaction.ended = transaction.rolling_back = True
    except BaseException:
        remember_unsettled(transaction.taken)
        raise


def _rollback(transaction: TransactionState) -> Procedure[None]:
    if transaction.sent is not None and not (transaction.taken or transaction.rolling_back):
        yield from _not_committed(transaction)
        msg = (
            "the commit of this transaction was sent and may have happened, or happen still: "
            "it took nothing that could be given back"
        )
        raise errors.OutcomeUnknown(msg)
    transaction.rolling_back = True
    transaction.put.clear()
    error: errors.ZkmqError | None = None
    for context, claimed in reversed(transaction.taken):
        try:
            yield from roll_back(context, claimed)
        except errors.ClaimLost:  # its session ended or it was rescued: no lock of ours is left
            yield from _not_committed(transaction)
        except errors.TransportError:
            raise
        except errors.ZkmqError as trouble:
            error = trouble
            continue
        transaction.taken.remove((context, claimed))
    if error is not None:
        raise error
    transaction.ended = True


def _not_committed(transaction: TransactionState) -> Procedure[None]:
    """Look whether a commit of unknown outcome has happened. Raises `IllegalTransition`: then it has."""
    if transaction.sent is None:
        return
    only_put = not transaction.taken
    try:
        outcome = yield from proven(transaction.sent.proof)
    except errors.OutcomeUnknown:  # there is no record: it was not written yet, or has been collected meanwhile
        if only_put:
            return
        transaction.sent = None
        raise
    except errors.TransportError as error:
        raise _not_known_yet(error) from error
    if outcome is None:
        if not only_put:  # what it took has changed since: it can happen no more
            transaction.sent = None
        return
    transaction.sent = None
    _end(transaction)
    transaction.taken.clear()
    msg = "the commit of this transaction, whose outcome was not known, had happened: nothing was rolled back"
    raise errors.IllegalTransition(msg)


# --- Rolling transactions back.


@dataclass(frozen=True, slots=True)
class Holder:
    """The session that holds what a transaction has taken."""

    is_over: Callable[[], bool]
    """Whether it has ended, or has been out of reach for as long as it lives without its client."""
    reach: Callable[[], Procedure[None]]
    """Wait until the server can be asked, or the session is over. Raises `Unavailable`."""


def while_held(holder: Holder, procedure: Procedure[None]) -> Procedure[None]:
    """Carry out a procedure that waits for the connection while the session lives, else raises `Unavailable`."""
    result: object = None
    error: Exception | None = None
    try:
        while True:
            op = procedure.send(result) if error is None else procedure.throw(error)
            result = error = None
            try:
                yield from holder.reach()
                if holder.is_over():
                    raise errors.Unavailable("the session that held what was taken is over")
                result = yield op
            except Exception as raised:  # noqa: BLE001  every failure belongs to the procedure that asked
                error = raised
    except StopIteration:
        return
    finally:
        procedure.close()


def remember_unsettled(taken: Iterable[tuple[Context, Claimed]]) -> None:
    """The rollback of a transaction was cut off with these claims in it."""
    for context, claimed in taken:
        if not claimed.lost:
            context.claims.unsettled[claimed.task_id, claimed.token] = UnsettledClaim(claimed, roll_back)
            context.run.finish_later()


def roll_back(context: Context, claimed: Claimed) -> Procedure[None]:
    """Give back what a transaction had taken; the taking counts as a delivery. Raises `ClaimLost`."""
    try:
        yield from fail(context, claimed, "rolled back", backoff=0)
    except errors.CorruptRecord as error:  # its record was damaged meanwhile
        yield from recover_record(context, claimed)
        yield from fail(context, claimed, error, retry=False)
