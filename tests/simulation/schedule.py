"""One schedule: a plan made from a seed, carried out in a world, judged by the oracles; and how it is made shorter."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

from airflow_provider_zkmq.engine.core import client_state
from airflow_provider_zkmq.engine.core.maintenance.fsck import fsck
from airflow_provider_zkmq.engine.core.model.settings import Limit, RetryPolicy
from airflow_provider_zkmq.engine.core.tasks import admin
from airflow_provider_zkmq.engine.core.zk_operations import Create
from tests.simulation import actors, faults, producers, readers
from tests.simulation.limits import limit_of
from tests.simulation.oracles import Oracles
from tests.simulation.parts import Call, Client, Violation
from tests.simulation.world import World

FAULTS: Final = (
    "lose reply", "lose reply", "lose post", "disconnect", "outage", "expire", "cancel", "cut off", "pause", "stall",
    "kill",
)  # fmt: skip
#: One that is named twice is twice as likely.
ROLES: Final = (
    "consumer", "grouper", "looper", "looper", "worker", "worker", "watcher", "picker", "producer", "prefetcher",
    "prefetcher", "loader", "operator", "transactor", "upkeep", "keeper", "keeper", "heir",
)  # fmt: skip
#: Several actors that meet where one seldom does; in the first two, all of one client.
CREWS: Final = {
    # many calls of one client, whose transactions go together
    "busy": ("producer", "producer", "grouper", "looper", "consumer", "operator"),
    # handlers that begin one after the other, in several threads of one client
    "ahead": ("producer", "producer", "prefetcher", "prefetcher", "prefetcher"),
    # loops that find something at most of their steps, each of which also settles, and may be cut off
    "loops": ("producer", "producer", "producer", "looper", "looper"),
    # some wait for work and leave it to others, who are told of it
    "told": ("producer", "producer", "watcher", "watcher", "picker", "consumer"),
    # some leave claims to others, who take them over by id and token, sooner or too late
    "heirs": ("producer", "producer", "consumer", "heir", "heir", "heir"),
    # tasks are changed while several of them are claimed together
    "edited": ("producer", "producer", "producer", "grouper", "grouper", "editor"),
    # some claim for others, who begin by id and token
    "for others": ("producer", "producer", "herald", "herald", "herald"),
    # tasks that ended are run or written again while clean-up is at them
    "clean-up": ("producer", "consumer", "loader", "loader", "operator", "operator", "upkeep", "upkeep", "archiver"),
    # some read what ended
    "readers": ("follower", "follower", "upkeep", "operator"),
}
STEPS: Final = 6_000
#: In so many of all schedules somebody looks for damage, of which there is none.
INSPECTED: Final = 0.15
#: In so many of all schedules the servers go back to an older state.
RESTORED: Final = 0.01
QUIET_SECONDS: Final = 600.0


@dataclass(frozen=True)
class Actor:
    """A fiber to be started: whose, in which role, for how many rounds."""

    client: int
    role: str
    rounds: int
    seed: int


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong at a step."""

    step: int
    kind: str
    client: int
    amount: float


@dataclass(frozen=True)
class Plan:
    """All that decides a schedule."""

    seed: str
    servers: int = 1
    clients: int = 2
    order: str = "default"
    scheduler: str = "random"
    attempts: int = 4
    actors: tuple[Actor, ...] = ()
    faults: tuple[Fault, ...] = ()
    change_points: tuple[int, ...] = ()
    lag: float = 0.0
    session_timeout: float = 4.0
    request_timeout: float = 10.0
    archived: bool = False
    followed: bool = False
    limit: Limit = field(default_factory=Limit)


def plan(seed: str) -> Plan:
    """A plan: few clients, few calls, and faults of a few kinds; each seed another climate."""
    rand = random.Random(seed)
    clients = rand.choice([1, 2, 2, 3])
    length = rand.choice([40, 100, 200])
    crew = [Actor(0, "producer", rand.randint(1, 4), rand.randrange(1 << 30))]
    crew.append(Actor(rand.randrange(clients), "consumer", rand.randint(1, 4), rand.randrange(1 << 30)))
    for _ in range(rand.randint(0, 4)):
        crew.append(Actor(rand.randrange(clients), rand.choice(ROLES), rand.randint(1, 3), rand.randrange(1 << 30)))
    crews = rand.sample(sorted(CREWS), rand.choice([0, 1, 1, 2]))
    for name in crews:
        first, spread = rand.randrange(clients), 1 if name in {"busy", "ahead"} else clients
        for role in CREWS[name]:
            crew.append(Actor((first + rand.randrange(spread)) % clients, role, 3, rand.randrange(1 << 30)))
    kinds = rand.sample(FAULTS, rand.randint(1, 4))
    coming = [
        Fault(rand.randrange(length), rand.choice(kinds), rand.randrange(clients), rand.random())
        for _ in range(rand.choice([0, 1, 2, 4, 7]))
    ]
    if (chance := random.Random(f"fsck {seed}")).random() < INSPECTED:
        crew.append(Actor(chance.randrange(clients), "inspector", 3, chance.randrange(1 << 30)))
    for _ in range(rand.choice([0, 3, 9]) if "loops" in crews else 0):
        coming.append(Fault(rand.randrange(5 * length), "cut off", rand.randrange(clients), rand.random()))
    if rand.random() < RESTORED:
        steps = sorted(rand.sample(range(length), 2))
        coming += [Fault(step, kind, 0, 0) for step, kind in zip(steps, ("back up", "go back"), strict=True)]
    servers = rand.choice([1, 1, 2])
    scheduler = rand.choice(["random", "random", "pct"])
    return Plan(
        seed,
        servers,
        clients,
        rand.choice(["default", "default", "fifo"]),
        scheduler,
        rand.choice([2, 4]),
        tuple(crew),
        tuple(sorted(coming, key=lambda fault: fault.step)),
        tuple(rand.randrange(length) for _ in range(3)) if scheduler == "pct" else (),
        rand.choice([0.5, 0.9]) if servers > 1 else 0.0,
        *rand.choice([(4.0, 10.0), (4.0, 10.0), (30.0, 3.0)]),
        archived=rand.random() < 0.25,
        followed="readers" in crews,
        limit=limit_of(seed),
    )


@dataclass
class Result:
    """How a schedule ended."""

    plan: Plan
    violation: Violation | None
    steps: int
    trace: list[str]


@cache
def _freeze() -> None:
    """What is there before the first schedule is no garbage: to look through it again and again takes a sixth."""
    gc.collect()
    gc.freeze()


def run(chosen: Plan, *, trace: bool = False) -> Result:
    """Carry a plan out. Garbage is collected after it: during it, that takes an eighth of the time."""
    _freeze()
    world = World(chosen.seed, chosen.servers)
    world.trace = [] if trace else None
    entropy = random.Random(f"entropy {chosen.seed}")
    before, client_state.os = client_state.os, SimpleNamespace(urandom=entropy.randbytes)  # type: ignore[attr-defined]
    gc.disable()
    try:
        return Result(chosen, _run(chosen, world), world.steps, world.trace or [])
    finally:
        gc.enable()
        client_state.os = before  # type: ignore[attr-defined]


def _run(chosen: Plan, world: World) -> Violation | None:
    oracles = Oracles(world, chosen.attempts, chosen.order, chosen.limit)
    try:
        clients = _prepare(chosen, world)
        _stormy(chosen, world, clients, oracles)
        _quiet(world, clients, oracles)
    except Violation as violation:
        world.tell(f"VIOLATION {violation}")
        return violation
    return None


def _prepare(chosen: Plan, world: World) -> list[Client]:
    """Create the queues, and start everybody."""
    world.zk.multi(0, (Create("/zkmq"),))
    setter = Client(world, "setter")
    policy = RetryPolicy(attempts=chosen.attempts, factor=0.5)
    for queue in ("q", "r"):
        _at_once(world, setter, "configure", admin.configure(
            setter.context(queue), filters=producers.TYPES, policy=policy, order=chosen.order, archive=chosen.archived,
            follow=chosen.followed, limit=chosen.limit if queue == "q" else Limit(),
        ))  # fmt: skip
    world.zk.end(setter.session)
    for server in range(chosen.servers):
        world.zk.catch_up(server, len(world.zk.log))
    clients = [world.client(f"client{n}", n % chosen.servers) for n in range(chosen.clients)]
    for number, actor in enumerate(chosen.actors):
        client = clients[actor.client]
        name, background = f"{actor.role}{number}", actor.role in {"keeper", "upkeep"}
        world.spawn(client, name, _program(actor, client, world), background=background)
    world.session_timeout, world.request_timeout = chosen.session_timeout, chosen.request_timeout
    world.scheduler, world.change_points, world.lag = chosen.scheduler, set(chosen.change_points), chosen.lag
    return clients


def _at_once(world: World, client: Client, verb: str, procedure: Any) -> None:
    """Carry a procedure out without interleaving."""
    fiber = world.spawn(client, "setup", (one for one in (Call(verb, procedure),)))
    while fiber.state != "done":
        match fiber.state:
            case "sent":
                world.execute(client)
            case _:
                world._move(fiber)
        assert fiber.call is None or fiber.call.error is None, fiber.call.error


#: The roles whose programs need no more than a client, chance, and for how many rounds.
PROGRAMS: Final = {
    "producer": producers.producer,
    "loader": producers.loader,
    "consumer": actors.consumer,
    "watcher": actors.watcher,
    "grouper": actors.grouper,
    "looper": actors.looper,
    "prefetcher": actors.prefetcher,
    "herald": actors.herald,
    "archiver": readers.archiver,
    "inspector": readers.inspector,
    "worker": actors.worker,
    "transactor": actors.transactor,
}


def _program(actor: Actor, client: Client, world: World) -> Any:
    rand = random.Random(actor.seed)
    if actor.role in PROGRAMS:
        return PROGRAMS[actor.role](client, rand, actor.rounds)
    match actor.role:
        case "picker" | "heir" | "editor" | "operator":
            return getattr(actors, actor.role)(client, rand, actor.rounds, world)
        case "keeper":
            return actors.keeper(client)
        case "follower":
            return readers.follower(client, rand, 2 * actor.rounds)
        case _:
            return actors.upkeep(client, rand)


def _stormy(chosen: Plan, world: World, clients: list[Client], oracles: Oracles) -> None:
    """Until every actor has done its part, faults strike."""
    coming = list(chosen.faults)
    start = world.now
    while world.steps < STEPS and world.now < start + 400:
        while coming and coming[0].step <= world.steps:
            _strike(world, clients[coming[0].client], coming.pop(0), oracles)
        if all(fiber.background or not fiber.client.alive for fiber in world.fibers):
            return
        if not world.step():
            _rest(world, oracles)


def _rest(world: World, oracles: Oracles) -> None:
    behind = [n for n, server in enumerate(world.zk.servers) if server.applied < len(world.zk.log)]
    if behind:
        for server in behind:
            world.zk.catch_up(server, len(world.zk.log))
        return
    if any(client.events for client in world.clients):
        for client in world.clients:
            client.receive_events()
        return
    if left := [client for client in world.clients if world.flows(client) and client.paused_until <= world.now]:
        world.execute(left[0])  # what a cancelled call had sent
        return
    oracles.at_rest()
    faults.pass_time(world, 60.0)


def _await_a_write(world: World, client: Client, fault: Fault) -> None:
    """The connection is cut with the client's next write, if that is of this kind; or the call that sends it."""
    if fault.kind == "lose reply":
        world.losing.add(client)
    elif fault.kind == "cut off":
        world.interrupting.add(client)
    else:
        world.cutting[client] = 0.1 + 9 * fault.amount**3


def _strike(world: World, client: Client, fault: Fault, oracles: Oracles) -> None:
    if fault.kind == "back up":
        world.kept = world.zk.back_up(), oracles.back_up()
    elif fault.kind == "go back" and world.kept is not None:
        faults.go_back(world, world.kept[0])
        oracles.go_back(world.kept[1])
    elif client.alive:
        _strike_one(world, client, fault)


def _strike_one(world: World, client: Client, fault: Fault) -> None:
    match fault.kind:
        case "lose reply" | "lose post" | "cut off":
            _await_a_write(world, client, fault)
        case "disconnect":
            faults.disconnect(world, client, back_in=0.1 + fault.amount)
        case "outage":
            faults.disconnect(world, client, back_in=2 + 28 * fault.amount)
        case "expire":
            faults.end_session(world, client)
        case "cancel":
            mine = [fiber for fiber in world.fibers if fiber.client is client and fiber.in_call]
            if mine:
                world.cancel(mine[int(fault.amount * len(mine))])
        case "pause":
            faults.pause(world, client, 10 * fault.amount)
        case "stall":
            client.stalled_until = world.now + 25 * fault.amount
            client.troubled_at = max(client.troubled_at, client.stalled_until)
            world.tell(f"!! {client.name} gets no replies for {25 * fault.amount:.1f} s")
        case "kill":
            if sum(one.alive for one in world.clients) > 1:
                faults.kill(world, client)


def _quiet(world: World, clients: list[Client], oracles: Oracles) -> None:
    """The faults have stopped: every call returns, every task ends, and nothing is left in nobody's hand."""
    world.tell("-- quiet")
    world.quiet, world.lag = True, 0.0
    world.losing.clear()
    world.interrupting.clear()
    world.cutting.clear()
    world.late = [(world.now, session, op) for _, session, op in world.late]
    faults.arrive(world)  # what was late comes now: a pause, say, would outlast everybody who could end it
    living = [client for client in clients if client.alive]
    start = world.now
    oracles.quiet_since = start + 30
    world.spawn(living[0], "opener", actors.opener(living[0]))
    world.spawn(living[0], "sweeper-r", actors.sweeper(living[0], "r"), background=True)
    for client in living:
        world.spawn(client, "sweeper-q", actors.sweeper(client, "q"), background=True)
    limit = world.steps + STEPS
    while True:
        if world.step():
            if world.steps > limit:
                raise Violation("every call returns", f"{STEPS} steps were not enough: {_busy(world)}")
            continue
        _rest(world, oracles)
        if world.now > start + 40 and not _busy(world):
            oracles.lost_claims()
            if not oracles.left():
                oracles.tables()
                _inspect(world, living[0])
                return
        if world.now > start + QUIET_SECONDS:
            raise Violation("every task ends", f"{oracles.left()}; {_busy(world)}")


def _inspect(world: World, client: Client) -> None:
    """Nothing that the schedule has left is taken for damage."""
    for queue in ("q", "r"):
        _at_once(world, client, "fsck", fsck(client.context(queue)))


def _busy(world: World) -> list[str]:
    """Whoever is not asleep in the background."""
    return [
        f"{fiber.name} in {fiber.call.verb if fiber.call else 'a pause'}"
        for fiber in world.fibers
        if fiber.client.alive and not fiber.background
    ]


def shorter(chosen: Plan) -> Iterator[Plan]:
    """Plans with something left out: actors, rounds, faults, servers."""
    for at in range(len(chosen.actors)):
        yield replace(chosen, actors=chosen.actors[:at] + chosen.actors[at + 1 :])
    for at in range(len(chosen.faults)):
        yield replace(chosen, faults=chosen.faults[:at] + chosen.faults[at + 1 :])
    if chosen.servers > 1:
        yield replace(chosen, servers=1, lag=0.0)
    for at, actor in enumerate(chosen.actors):
        if actor.rounds > 1:
            fewer = replace(actor, rounds=actor.rounds - 1)
            yield replace(chosen, actors=(*chosen.actors[:at], fewer, *chosen.actors[at + 1 :]))
    if chosen.scheduler != "random":
        yield replace(chosen, scheduler="random", change_points=())


def shrink(found: Result, tries: int = 400) -> Result:
    """The shortest schedule near a failing one that breaks the same oracle."""
    assert found.violation is not None
    best, oracle = found, found.violation.oracle
    improved = True
    while improved and tries > 0:
        improved = False
        for candidate in shorter(best.plan):
            for seed in (candidate.seed, f"{candidate.seed}+", f"{candidate.seed}*"):
                tries -= 1
                result = run(replace(candidate, seed=seed))
                if result.violation is not None and result.violation.oracle == oracle:
                    best, improved = result, True
                    break
            if improved or tries <= 0:
                break
    return run(best.plan, trace=True)


def report(found: Result) -> str:
    """A failing schedule for people: its seed, a short plan near it, and that one's trace."""
    short = shrink(found)
    lines = [
        f"replay it: python -m tests.simulation --replay {found.plan.seed}",
        "a short one near it:",
        str(short.plan),
    ]
    return "\n".join([*lines, *short.trace])
