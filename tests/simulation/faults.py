"""What goes wrong in a simulated world, and what happens in it by itself when its time has come."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_zkmq.engine.core.zk_operations import CreateContainer, Multi, Outcome
from tests.simulation.parts import Client, short

if TYPE_CHECKING:
    from tests.simulation.world import World

UNKNOWN: Final = Outcome(committed=False, unknown=True)


def disconnect(world: World, client: Client, *, back_in: float, late: bool = False) -> None:
    """Cut a connection; unless it comes back within the session's time-out, the session ends."""
    if not client.connected or not client.alive:
        return
    world.tell(f"!! {client.name} is disconnected for {back_in:.1f} s")
    client.connected, client.back_at = False, world.now + back_in
    client.troubled_at = max(client.troubled_at, world.now + back_in)
    client.expires_at = client.expires_at or world.now + world.session_timeout
    if client.session in world.zk.at:
        world.zk.server(client.session).drop(client.session)
    client.receive_events()  # fired by the client itself, as every other watch that it had
    for watch in list(client.armed):
        watch.lose()
    client.armed.clear()
    waiting, client.send_queue = list(client.send_queue), deque()
    for request in waiting:
        if not isinstance(request.op, Multi | CreateContainer):
            if request.fiber is not None:
                client.send_queue.append(request)
            continue
        fate = world.random.random()
        if fate < 0.4 and client.session in world.zk.at:  # carried out, the reply is lost
            world.carry_out(client, request)
            client.receive_events()
        elif fate < 0.7 or late:
            world.late.append((world.now + world.random.random() * back_in * 2, client.session, request.op))
        world.reply(request, UNKNOWN)


def pause(world: World, client: Client, seconds: float) -> None:
    """A client stands still, its session as well: past its time-out that ends."""
    world.tell(f"!! {client.name} stands still for {seconds:.1f} s")
    client.paused_until = world.now + seconds
    client.troubled_at = max(client.troubled_at, client.paused_until)
    client.expires_at = client.expires_at or world.now + world.session_timeout


def end_session(world: World, client: Client) -> None:
    """The server ends a session; its client learns of it at once or with its next request."""
    if client.session in world.zk.at:
        world.tell(f"!! the session of {client.name} ends")
        world.zk.end(client.session)
        if client.connected and world.random.random() < 0.5:
            disconnect(world, client, back_in=0.1)


def lose_reply(world: World, client: Client) -> bool:
    """Carry out the client's first request if it is a write, then cut the connection for a moment."""
    if not client.connected or not client.alive or not client.send_queue or client.session not in world.zk.at:
        return False
    request = client.send_queue[0]
    if not isinstance(request.op, Multi | CreateContainer):
        return False
    client.send_queue.popleft()
    world.carry_out(client, request)
    disconnect(world, client, back_in=0.1)
    world.tell(f"!! {client.name} loses the reply")
    world.reply(request, UNKNOWN)
    return True


def kill(world: World, client: Client) -> None:
    """A client dies; its session ends by itself. What it has given to the system is still delivered."""
    world.tell(f"!! {client.name} dies")
    _deliver(world, client)
    client.alive, client.connected, client.back_at = False, False, None
    client.hands.clear()
    world.late.append((world.now + world.session_timeout, client.session, None))


def _deliver(world: World, client: Client) -> None:
    """In the order of sending, up to the last post at least; what follows may have waited for a thread to send it.

    Only a network that delivers nothing at that time keeps it back, for longer than the session lives or not.
    """
    requests, client.send_queue = list(client.send_queue), deque()
    if not client.connected or client.session not in world.zk.at:
        return
    given = max((at + 1 for at, request in enumerate(requests) if request.lost is not None), default=0)
    given = world.random.randint(given, len(requests))
    writes = [request.op for request in requests[:given] if isinstance(request.op, Multi | CreateContainer)]
    for op in writes:
        if client.stalled_until <= world.now:
            world.tell(f"!! after its death: {short(op)}")
            world.zk.perform(client.session, op)
        else:
            world.late.append((client.stalled_until, client.session, op))


def go_back(world: World, kept: tuple[Any, ...]) -> None:
    """The servers are restored from an older state. Sessions of that time live on, unless they have seen more."""
    for client in world.clients:
        disconnect(world, client, back_in=0.1 + 20 * world.random.random() ** 3)
    world.zk.go_back(kept)
    world.tell(f"!! the servers have gone back to {world.zk.zxid}")
    for client in world.clients:
        if client.zxid > world.zk.zxid:  # no server would take it: it learns that when it connects
            client.session, client.zxid, client.restored = 0, 0, client.restored + 1
    used = {client.session for client in world.clients if client.alive}
    world.late = [item for item in world.late if item[2] is None]
    world.late += [(world.now, session, None) for session in world.zk.at if session not in used]


def reconnect(world: World, client: Client) -> None:
    ended = client.session not in world.zk.at
    server = world.random.randrange(len(world.zk.servers))
    if ended:
        client.session = world.zk.connect(server)
    else:
        world.zk.move(client.session, server)
    client.server, client.connected, client.back_at, client.expires_at = server, True, None, None
    world.tell(f"!! {client.name} is back{' in a new session' if ended else ''}")
    for context in client.contexts.values():
        context.signal.fire()


def pass_time(world: World, most: float) -> float:
    """Let time pass until something can happen, at most so many seconds; returns how many passed."""
    now = world.now
    times = [now + most, *(when for when, _, _ in world.late)]
    for fiber in world.fibers:
        if fiber.client.alive and fiber.state in {"waiting", "sleeping", "reconnecting"}:
            times.append(fiber.until)
    for client in world.clients:
        times += [when for when in (client.back_at, client.expires_at) if when is not None]
        times += [client.paused_until, client.stalled_until, *(request.deadline for request in client.send_queue)]
    nearest = min(when for when in times if when > now)
    span = max(0.001, nearest - now)
    world.zk.advance(span)
    _due(world)
    for fiber in world.fibers:
        fiber.idle_requests = 0
    return span


def _due(world: World) -> None:
    """What happens by itself when its time has come."""
    for client in [one for one in world.clients if one.alive]:
        if client.expires_at is not None and client.expires_at <= world.now:
            client.expires_at = None
            end_session(world, client)
        if client.paused_until and client.paused_until <= world.now and client.connected:
            client.paused_until, client.expires_at = 0.0, None
        if client.back_at is not None and client.back_at <= world.now:
            reconnect(world, client)
    arrive(world)


def arrive(world: World) -> None:
    """What was late and has come: writes of connections that are gone, and the ends of dead clients' sessions."""
    for item in [one for one in world.late if one[0] <= world.now]:
        world.late.remove(item)
        _, session, op = item
        if op is None:
            world.zk.end(session)
        elif session in world.zk.at:
            world.tell(f"!! late: {short(op)}")
            world.zk.perform(session, op)
