"""What clients do in a simulated world that claim, look or tend: consumers, workers, operators, clean-up."""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import replace
from functools import partial
from typing import Any

from airflow_provider_zkmq.engine.core.claim import claim, take, wait_until_ready
from airflow_provider_zkmq.engine.core.claim.claim_iterator import Loop, go_on
from airflow_provider_zkmq.engine.core.client_state import Caller, Context
from airflow_provider_zkmq.engine.core.maintenance import collect, due_work
from airflow_provider_zkmq.engine.core.model.filters import EVERYTHING, as_selector
from airflow_provider_zkmq.engine.core.model.handler_outcomes import Error, Retry, Snooze, Success
from airflow_provider_zkmq.engine.core.model.new_message import Message
from airflow_provider_zkmq.engine.core.read.claim_status import current_claim
from airflow_provider_zkmq.engine.core.tasks import admin, interventions, settle, transaction
from airflow_provider_zkmq.engine.core.tasks.settle_by_outcome import Settlement, settle_by_outcome, settle_outcome
from airflow_provider_zkmq.engine.errors import ClaimLost, SessionLost, TransportError
from tests.simulation.history import BOUNDED_LEASE, MOST_LEASES
from tests.simulation.parts import Call, Client, Pause
from tests.simulation.producers import TYPES, Program, told
from tests.simulation.world import World


def claiming(client: Client, *, lease: float | None, selector: str | None, timeout: float, queue: str = "q") -> Call:
    """A claim."""
    chosen = EVERYTHING if selector is None else as_selector(selector).bind(TYPES)
    wanted = take.Wanted(chosen, lease)
    context = client.context(queue)
    about = {"queue": queue, "selector": selector or "everything", "wanted": wanted, "types": TYPES}
    return Call("claim", claim.claim(context, wanted, timeout), about, timeout)


def claiming_many(
    client: Client, most: int, *, lease: float | None, selector: str | None, timeout: float, prefetch: bool = False
) -> Call:
    """A claim of several tasks at once; `prefetch`: all but the first of them are handled later."""
    call = claiming(client, lease=lease, selector=selector, timeout=timeout)
    call.about["wanted"] = replace(call.about["wanted"], prefetch=prefetch)
    procedure = claim.claim_many(client.context(), call.about["wanted"], most, timeout)
    return Call("claim_many", procedure, call.about, timeout)


def looking(client: Client, *, selector: str | None, timeout: float) -> Call:
    """A look for work, which claims nothing."""
    about = claiming(client, lease=None, selector=selector, timeout=timeout).about
    requested = {"selector": as_selector(selector).bind(TYPES) if selector else None, "timeout": timeout}
    return Call("ready", wait_until_ready.ready(client.context(), **requested), about, timeout)


def watcher(client: Client, rand: random.Random, rounds: int) -> Program:
    """Waits for work, as a trigger does, and leaves it to others; now and then it claims what it was told of."""
    selector = rand.choice([None, None, "c==high", "c<=low"])
    for _ in range(rounds):
        call = yield looking(client, selector=selector, timeout=rand.choice([0.0, 2.0, 20.0, 60.0]))
        assert call is not None
        if call.ok and call.value and rand.random() < 0.3:
            taken = yield claiming(client, lease=6.0, selector=selector, timeout=0.0)
            if taken is not None and taken.ok and taken.value is not None:
                yield from handle(client, taken.value, rand)
        yield Pause(0.3 if isinstance(call.error, TransportError) else rand.choice([0, 0.01, 1.0]))


def claiming_by_id(
    client: Client, task: str, *, lease: float | None, attempt: int | None, prefetch: bool = False
) -> Call:
    """A claim of one task, and of its delivery of that number; `prefetch`: it is handled later."""
    wanted = take.Wanted(EVERYTHING, lease, "all" if prefetch else False, task_id=task, attempt=attempt)
    about = {"queue": "q", "selector": "by id", "wanted": wanted, "types": TYPES, "task": task, "attempt": attempt}
    return Call("claim_task", claim.claim(client.context(), wanted), about)


def picker(client: Client, rand: random.Random, rounds: int, world: World) -> Program:
    """Claims tasks by their ids, as whoever was told of them does; most often others are at them, too."""
    for _ in range(4 * rounds):
        yield Pause(rand.choice([0, 0.005, 0.5, 4.0]))
        tasks = world.zk.leader.names(client.context().paths.at("tasks"))
        if not tasks:
            continue
        requested = {"lease": rand.choice([None, 6.0]), "attempt": rand.choice([None, None, 1, 2])}
        call = yield claiming_by_id(client, rand.choice(tasks), prefetch=rand.random() < 0.3, **requested)
        assert call is not None
        if call.ok and call.value is not None and call.value.prefetched:
            client.hands[call.value.task_id, call.value.token] = call.value
            yield from begin_and_handle(client, call.value, rand)
        elif call.ok and call.value is not None:
            yield from handle(client, call.value, rand)
        elif isinstance(call.error, TransportError):
            yield Pause(0.3)


def grouper(client: Client, rand: random.Random, rounds: int) -> Program:
    """Claims several tasks together, and handles one after the other."""
    lease = rand.choice([None, None, 6.0])
    selector = rand.choice([None, None, None, "c==high", "c<=low"])
    for _ in range(rounds):
        timeout = rand.choice([0.0, 2.0, 20.0])
        call = yield claiming_many(client, rand.choice([2, 3, 5]), lease=lease, selector=selector, timeout=timeout)
        assert call is not None
        for claimed in call.value if call.ok else ():
            client.hands[claimed.task_id, claimed.token] = claimed
        for claimed in call.value if call.ok else ():
            yield from handle(client, claimed, rand)
        if isinstance(call.error, TransportError):
            yield Pause(0.3)


def prefetcher(client: Client, rand: random.Random, rounds: int) -> Program:
    """Takes several tasks ahead; some are given back without having begun, the others begin one after the other."""
    lease = rand.choice([None, None, 6.0])
    for _ in range(rounds):
        timeout = rand.choice([0.0, 2.0, 20.0])
        call = yield claiming_many(
            client, rand.choice([3, 5]), lease=lease, selector=None, timeout=timeout, prefetch=True
        )
        assert call is not None
        claims = call.value if call.ok else []
        for claimed in claims:
            client.hands[claimed.task_id, claimed.token] = claimed
        for claimed in claims:
            yield Pause(rand.choice([0, 0, 0.01, 1.0]))
            yield from begin_and_handle(client, claimed, rand)
        if isinstance(call.error, TransportError):
            yield Pause(0.3)


def herald(client: Client, rand: random.Random, rounds: int) -> Program:
    """Claims for others, never more than leave the queue with `MOST_LEASES`, as a trigger does; runs begin by token.

    Some are never begun: they come back when their leases end, and count nothing.
    """
    selector = rand.choice([None, "c==high", "c<=low"])
    for _ in range(rounds):
        timeout = rand.choice([0.0, 2.0, 20.0])
        call = claiming_many(client, 2, lease=BOUNDED_LEASE, selector=selector, timeout=timeout)
        call.about["wanted"] = replace(call.about["wanted"], prefetch="all", max_leases=MOST_LEASES)
        call.procedure = claim.claim_many(client.context(), call.about["wanted"], 2, timeout)
        call = yield call
        assert call is not None
        for claimed in call.value if call.ok else ():
            if rand.random() < 0.7:
                client.hands[claimed.task_id, claimed.token] = claimed
                yield Pause(rand.choice([0, 0.01, 1.0, 7.0]))
                yield from accept(client, claimed, rand)
        yield Pause(rand.choice([0.01, 1.0, 7.0]))


def accept(client: Client, claimed: Any, rand: random.Random) -> Program:
    """As a run does that was told of a claim: it begins and settles it by its token, or leaves what it lost."""
    context, about = client.context(), {"queue": "q", "held": claimed}

    def held(procedure: Any, *args: Any) -> Generator[Any, Any, Any]:
        mine = yield from current_claim(context, claimed.task_id, claimed.token)
        return (yield from procedure(context, mine, *args))

    call = yield from told(lambda: Call("begin", held(settle.begin), about))
    if not call.ok:
        client.hands.pop((claimed.task_id, claimed.token), None)
        return
    client.begun.add((claimed.task_id, claimed.token))
    yield Pause(rand.choice([0, 0.01, 1.0, 7.0]))
    verb = rand.choice(["complete", "complete", "fail"])
    end = (settle.complete, b"r") if verb == "complete" else (settle.fail, "e")
    yield from until_settled(client, claimed, lambda: Call(verb, end[0](context, claimed, end[1]), about))


def heir(client: Client, rand: random.Random, rounds: int, world: World) -> Program:
    """Leaves leased claims to others, or takes over what was left: by then others may have claimed the task anew."""
    context, made = client.context(), []
    for _ in range(4 * rounds):
        yield Pause(rand.choice([0, 0.01, 1.0, 4.0]))
        if not world.heritage or rand.random() < 0.4:
            call = yield claiming(client, lease=4.0, selector=None, timeout=0.0)
            if call is not None and call.ok and call.value is not None:
                made.append(call.value)  # its client knows it for as long as somebody refers to it
                world.heritage.append((call.value.task_id, call.value.token))
            continue
        task, token = rand.choice(world.heritage)
        about = {"queue": "q", "task": task, "token": token}
        call = yield Call("claim_handle", by_token(context, task, token, rand.choice([None, 6.0])), about)
        for claimed in call.value if call is not None and call.ok else ():
            if not claimed.reported and (task, token) not in client.hands:
                yield from handle(client, claimed, rand)


def by_token(context: Context, task: str, token: int, lease: float | None) -> Generator[Any, Any, Any]:
    """A claim by its token, as the API makes it."""
    requested = yield from claim.request_handle(context, task, token, lease=lease)
    return (yield from requested.claiming(Caller()))


def looper(client: Client, rand: random.Random, rounds: int) -> Program:
    """Loops over claims; a loop ends, or is left with something in hand or prefetched."""
    lease = rand.choice([None, None, 6.0])
    selector = rand.choice([None, None, None, "c==high"])
    for _ in range(rounds):
        most, timeout = rand.choice([1, 1, 3]), rand.choice([0.0, 2.0, 20.0])
        requested = claiming(client, lease=lease, selector=selector, timeout=timeout)
        wanted = requested.about["wanted"] = replace(requested.about["wanted"], prefetch=most > 1)
        context, mine = client.context(), set[tuple[str, int]]()
        loop = Loop(context, partial(just, wanted), most, timeout, lambda: False)
        for _ in range(rand.choice([1, 6, 12])):
            before = loop.current
            about = requested.about | {"loop": loop, "former": before}
            call = yield Call("next", go_on(loop, Caller()), about, timeout)
            assert call is not None
            hold(client, loop, mine)
            if call.ok and not call.value:
                break
            if call.ok:
                yield from body(client, loop, rand)
            elif isinstance(call.error, TransportError):
                yield Pause(0.3)
        loop.leave()
        hold(client, loop, mine)


def hold(client: Client, loop: Loop, mine: set[tuple[str, int]]) -> None:
    """What a loop has is in its client's hands: what its body has, what waits for it, and what is to be completed."""
    has = {(claimed.task_id, claimed.token): claimed for claimed in (*loop.ready, *filter(None, (loop.current,)))}
    has |= {key: leaving.claimed for key, leaving in loop.handled.items()}
    for key in mine.difference(has):
        client.hands.pop(key, None)
    mine.clear()
    mine.update(has)
    client.hands.update(has)


def just(wanted: Any) -> Generator[Any, Any, Any]:
    """A procedure that asks for nothing."""
    return wanted
    yield


def body(client: Client, loop: Loop, rand: random.Random) -> Program:
    """Handle what a loop hands out; most often the loop is to settle it."""
    claimed = loop.ready[0]
    loop.result, loop.current, loop.ready = b"r", claimed, loop.ready[1:]
    client.begun.add((claimed.task_id, claimed.token))
    yield Pause(rand.choice([0, 0, 0, 0, 0.01, 1.0, 7.0]))
    if rand.random() < 0.2:
        context, about = client.context(), {"queue": "q", "held": claimed}
        client.begun.discard((claimed.task_id, claimed.token))
        yield from until_settled(client, claimed, lambda: Call("release", settle.release(context, claimed, 1), about))


def begin_and_handle(client: Client, claimed: Any, rand: random.Random) -> Program:
    """As a worker does: what cannot begin is given back."""
    context, about, claim = client.context(), {"queue": "q", "held": claimed}, (claimed.task_id, claimed.token)
    begins = rand.random() < 0.8
    if begins and claimed.prefetched:
        call = yield Call("begin", settle.begin(context, claimed), about)
        begins = call is not None and call.ok
    verb = rand.choice(["complete", "complete", "fail", "release"]) if begins else "release"
    if begins:
        client.begun.add(claim)
        yield Pause(rand.choice([0, 0, 0.01, 1.0, 7.0]))
    if verb == "release":
        client.begun.discard(claim)
    if begins and rand.random() < 0.5:
        put_down(client, claimed, rand)
        return
    make: dict[str, Any] = {
        "complete": lambda: settle.complete(context, claimed, b"r"),
        "fail": lambda: settle.fail(context, claimed, "e"),
        "release": lambda: settle.release(context, claimed),
    }
    yield from until_settled(client, claimed, lambda: Call(verb, make[verb](), about))


def put_down(client: Client, claimed: Any, rand: random.Random) -> None:
    """Have what was handled settled together with others; it is in its client's hands until that is told."""
    context, progress = client.context(), Settlement()
    outcome = rand.choice([Success(b"r"), Success(b"r"), Retry("e"), Snooze(1)])

    def told(_success: object, error: Exception | None) -> None:
        client.hands.pop((claimed.task_id, claimed.token), None)
        client.world.told_later(client, claimed, progress, error)

    if isinstance(outcome, Snooze):
        client.begun.discard((claimed.task_id, claimed.token))
    settle.settle_later(context, claimed, partial(settle_by_outcome, context, claimed, outcome, progress), told)


def consumer(client: Client, rand: random.Random, rounds: int, *, patience: float = 2.0) -> Program:
    """Claims, works, settles."""
    lease = rand.choice([None, None, None, 6.0])
    selector = rand.choice([None, None, None, "c==high", "c<=low"])
    for _ in range(rounds):
        call = yield claiming(client, lease=lease, selector=selector, timeout=rand.choice([0.0, patience, 20.0]))
        assert call is not None
        if call.ok and call.value is not None:
            yield from handle(client, call.value, rand)
        elif isinstance(call.error, TransportError):
            yield Pause(0.3)


def handle(client: Client, claimed: Any, rand: random.Random) -> Program:
    """Work on a task in hand, then settle it one way or another."""
    client.hands[claimed.task_id, claimed.token] = claimed
    yield Pause(rand.choice([0, 0, 0.01, 1.0, 7.0]))
    context, verb = client.context(), rand.choice(["complete"] * 5 + ["fail", "fail", "release", "snooze", "window"])
    make: dict[str, Any] = {
        "complete": lambda: settle.complete(context, claimed, b"r"),
        "window": lambda: settle.complete(context, claimed, b"r", dedupe=3),
        "fail": lambda: settle.fail(context, claimed, "e", retry=rand.random() < 0.8),
        "release": lambda: settle.release(context, claimed),
        "snooze": lambda: settle.snooze(context, claimed, 1),
    }
    name = "complete" if verb == "window" else verb
    yield from until_settled(client, claimed, lambda: Call(name, make[verb](), {"queue": "q", "held": claimed}))


def worker(client: Client, rand: random.Random, rounds: int) -> Program:
    """A worker's thread: what its handler does settles the task, in a transaction or not; its keeper is `keeper`."""
    transactional = rand.random() < 0.4
    lease = None if transactional else rand.choice([None, 6.0])
    for _ in range(rounds):
        call = yield claiming(client, lease=lease, selector=None, timeout=rand.choice([0.0, 20.0]))
        assert call is not None
        if call.ok and call.value is not None:
            yield from work(client, call.value, rand, transactional=transactional)
        elif isinstance(call.error, TransportError):
            yield Pause(0.5)


def work(client: Client, claimed: Any, rand: random.Random, *, transactional: bool) -> Program:
    """Handle a task, and settle it by what became of it; cut off, it goes on where it was."""
    context = client.context()
    client.hands[claimed.task_id, claimed.token] = claimed
    taken = transaction.TransactionState([(context, claimed)]) if transactional else None
    if taken is not None and rand.random() < 0.5:
        transaction.put(taken.put, client.context("r"), Message(b"out"))
    yield Pause(rand.choice([0, 0.01, 1.0, 7.0]))
    outcome = rand.choice(
        [Success(b"r"), Success(b"r"), Success(b"r", dedupe=2), Retry("e"), Error("e"), Snooze(1), Snooze(-1)]
    )
    progress = Settlement()
    about = {"queue": "q", "held": claimed}
    yield from until_settled(
        client, claimed, lambda: Call("settle", settle_outcome(context, claimed, outcome, taken, progress), about)
    )


def until_settled(client: Client, claimed: Any, make: Any) -> Program:
    """Settle, however often it takes: a worker does not let go of what it has done."""
    while True:
        call = yield make()
        assert call is not None
        if call.cancelled or (isinstance(call.error, TransportError) and not isinstance(call.error, SessionLost)):
            yield Pause(0.2)
            continue
        client.hands.pop((claimed.task_id, claimed.token), None)
        return


def keeper(client: Client) -> Program:
    """Looks after the queue beside busy threads: extends what has a deadline, rescues, promotes."""
    while True:
        for claimed in list(client.hands.values()):
            if not claimed.lost:
                client.kept.setdefault((claimed.task_id, claimed.token), client.world.now)
                about = {"queue": "q", "held": claimed, "zxid": client.world.zk.zxid}
                yield Call("extend", settle.extend(client.context(), claimed, claimed.span or 5), about)
        if client.context().registration.consumer is not None:
            yield Call("tend", due_work.maintain(client.context()))
        yield Pause(1.0)


def upkeep(client: Client, rand: random.Random) -> Program:
    """Cleans up now and then."""
    while True:
        yield Pause(rand.choice([0, 0, 0.5, 3.0, 20.0, 60.0]))
        lifetime = rand.choice([0, 0, 5, 300])
        yield Call("gc", collect.collect_garbage(client.context(), lifetime), {"lifetime": lifetime})


def operator(client: Client, rand: random.Random, rounds: int, world: World) -> Program:
    """Cancels, redrives, replaces, drops, pauses; most often only what is still as it was read."""
    context = client.context()
    for _ in range(4 * rounds):
        yield Pause(rand.choice([0, 0.01, 1.0]))
        tasks = world.zk.leader.names(context.paths.at("tasks"))
        if not tasks:
            continue
        task = rand.choice(tasks)
        record = world.zk.leader.nodes[context.paths.task(task, "state")]
        version = rand.choice([None, record.mzxid])
        yield Pause(rand.choice([0, 0.01, 1.0]))
        verb = rand.choice(
            ["cancel", "cancel", "redrive", "redrive_many", "replace", "drop", "pause", "unlock", "revoke"]
        )
        make: dict[str, Any] = {
            "cancel": lambda task=task: interventions.cancel(context, task),
            "redrive": lambda task=task, version=version: interventions.redrive(context, task, version),
            "redrive_many": lambda tasks=tasks: interventions.redrive_many(context, tasks),
            "replace": lambda task=task, version=version: interventions.replace_data(context, task, b"new", version),
            "drop": lambda task=task, version=version: interventions.drop(context, task, version),
            "revoke": lambda task=task, version=version: interventions.revoke(
                context, task, "e" if version is None else None, version=version
            ),
            "pause": lambda: admin.pause(context),
            "unlock": lambda: admin.configure(context, lock=0),
        }
        more = ["redrive_many", "cancel"] * rand.choice([0, 1, 3]) if verb == "cancel" else []
        for each in [verb, *more]:
            about = {"queue": "q", "task": task, "version": None if each in {"cancel", "redrive_many"} else version}
            yield from told(lambda each=each, make=make, about=about: Call(each, make[each](), about))
            version = None  # what follows is about the task as this has left it
        if verb == "pause":
            yield Pause(0.5)
            yield from told(lambda: Call("resume", admin.resume(context)))


def editor(client: Client, rand: random.Random, rounds: int, world: World) -> Program:
    """Replaces the payloads of tasks, most of which are about to be claimed."""
    context = client.context()
    for _ in range(12 * rounds):
        yield Pause(rand.choice([0, 0, 0.005]))
        for task in rand.sample(tasks := world.zk.leader.names(context.paths.at("tasks")), min(1, len(tasks))):
            yield Call("replace", interventions.replace_data(context, task, b"new"))


def transactor(client: Client, rand: random.Random, rounds: int) -> Program:
    """Takes from one queue and puts into another, in one transaction."""
    context, out = client.context(), client.context("r")
    for number in range(rounds):
        call = yield claiming(client, lease=None, selector=None, timeout=rand.choice([0.0, 2.0]))
        assert call is not None
        if not call.ok or call.value is None:
            yield Pause(0.3)
            continue
        claimed = call.value
        client.hands[claimed.task_id, claimed.token] = claimed
        work = transaction.TransactionState([(context, claimed)])
        name = rand.choice([None, "x", "y"])
        transaction.put(work.put, out, Message(b"out", delay=5 if number % 2 else None, task_id=name))
        yield Pause(rand.choice([0, 1.0]))
        good = number % 3 != 2
        while True:
            about = {"queue": "q", "held": claimed}
            end = transaction.commit(work, b"r") if good else transaction.rollback(work)
            done = yield Call("commit" if good else "rollback", end, about)
            assert done is not None
            if done.cancelled or (isinstance(done.error, TransportError) and not isinstance(done.error, SessionLost)):
                yield Pause(0.2)
                continue
            good = False  # what is refused, as an id is in use, is rolled back
            if done.verb == "rollback" or done.error is None or isinstance(done.error, ClaimLost | SessionLost):
                break
        client.hands.pop((claimed.task_id, claimed.token), None)


def opener(client: Client) -> Program:
    """Resumes a queue whose operator died while it was paused."""
    yield from told(lambda: Call("resume", admin.resume(client.context())))


def sweeper(client: Client, queue: str) -> Program:
    """Once the faults have stopped: takes whatever there is, and completes it."""
    context = client.context(queue)
    while True:
        call = yield claiming(client, lease=None, selector=None, timeout=1000.0, queue=queue)
        assert call is not None
        if isinstance(call.error, TransportError):
            yield Pause(0.2)
        if call.ok and call.value is not None:
            claimed = call.value
            client.hands[claimed.task_id, claimed.token] = claimed
            end = partial(settle.complete, context, claimed)
            about = {"queue": queue, "held": claimed}
            yield from until_settled(client, claimed, lambda end=end, about=about: Call("complete", end(), about))
