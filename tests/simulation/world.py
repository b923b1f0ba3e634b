"""The simulated world: clients whose calls are interleaved operation by operation, under a seeded scheduler.

A call is a procedure of the engine, as the fronts drive it. Calls of one client share its memory. Each of them is, at
any moment, ready to go on, waiting for a reply, or asleep; a step lets one of those that can move do so. Nothing else
ever happens between two steps, so that the same seed gives the same schedule.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from airflow_provider_zkmq.engine.core.client_state import Context
from airflow_provider_zkmq.engine.core.maintenance.due_work import finish_pending, has_pending
from airflow_provider_zkmq.engine.core.zk_operations import (
    Callback,
    Children,
    CreateContainer,
    EnsureRoot,
    Exists,
    Get,
    GetMany,
    Multi,
    Outcome,
    Pipeline,
    Post,
    Reconnect,
    SetTimeout,
    Sync,
    Wait,
    Watch,
)
from airflow_provider_zkmq.engine.errors import Unavailable
from tests.simulation import faults
from tests.simulation.parts import Call, Client, Fiber, Pause, Request, Violation, short, told_of
from tests.simulation.zookeeper import Ensemble

UNKNOWN: Final = Outcome(committed=False, unknown=True)


class World:
    """Everything of one schedule."""

    def __init__(self, seed: str, servers: int = 1) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.zk = Ensemble(servers, self._deliver)
        self.clients: list[Client] = []
        self.fibers: list[Fiber] = []
        self.reports: list[tuple[str, str]] = []
        self.trace: list[str] | None = None
        self.steps = 0
        self.executing: Fiber | None = None
        self.sender: Call | None = None
        """Whose request is carried out, though it was cancelled meanwhile."""
        self.late: list[tuple[float, int, Any]] = []
        self.quiet = False
        self.heritage: list[tuple[str, int]] = []
        """Leased claims that were left to others, by task and token."""
        self.returned: Callable[[Fiber, Call], None] = lambda _fiber, _call: None
        self.told_later: Callable[[Client, Any, Any, Exception | None], None] = lambda *_told: None
        self.sends: Callable[[Client, Any], None] = lambda _client, _op: None
        self.posted: Callable[[Client, Multi], None] = lambda _client, _multi: None
        self.kept: Any = None
        """What the servers go back to, and the oracles."""
        self.change_points: set[int] = set()
        self.scheduler = "random"
        self.lag = 0.0
        self.session_timeout, self.request_timeout = 4.0, 10.0
        self.losing: set[Client] = set()
        """Whose next write loses its reply."""
        self.interrupting: set[Client] = set()
        """Whose call that sends the next transaction is cancelled then."""
        self.cutting: dict[Client, float] = {}
        """Whose connection is cut right after the next write that nobody waits for, and for how many seconds."""

    @property
    def now(self) -> float:
        """Seconds."""
        return self.zk.ms / 1000

    def tell(self, text: str) -> None:
        """A line of the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.now - 1_700_000_000:9.3f}  {text}")

    def client(self, name: str, server: int = 0) -> Client:
        """A new client."""
        self.clients.append(Client(self, name, server))
        return self.clients[-1]

    def spawn(self, client: Client, name: str, program: Any, *, background: bool = False) -> Fiber:
        """A new fiber of a client."""
        fiber = Fiber(f"{client.name}/{name}", client, program, background=background)
        fiber.priority = self.random.random()
        self.fibers.append(fiber)
        return fiber

    def finish_later(self, client: Client, context: Context) -> None:
        """What calls have left is put right in the background, as the fronts do it."""
        if client.alive and not context.pending.finishing:
            context.pending.finishing = True
            self.spawn(client, "debts", _payer(context), background=True)

    def _deliver(self, session: int, watch: Watch) -> None:
        for client in self.clients:
            if client.session == session:
                client.armed.discard(watch)
                client.events.append(watch)
                if self.random.random() < 0.7:
                    client.receive_events()
                return
        watch.lose()

    # --- moving

    def step(self) -> bool:
        """Let one fiber move; False if none can before time passes."""
        able = self._able()
        if not able:
            return False
        self.steps += 1
        fiber = self._pick(able)
        self._move(fiber)
        if self.lag and self.random.random() > self.lag:
            server = self.random.randrange(len(self.zk.servers))
            self.zk.catch_up(server, min(len(self.zk.log), self.zk.servers[server].applied + 1))
        return True

    def _pick(self, able: list[Fiber]) -> Fiber:
        if self.scheduler != "pct":
            return able[int(self.random.random() * len(able))]
        chosen = max(able, key=lambda fiber: fiber.priority)
        if self.steps in self.change_points:
            chosen.priority = -self.random.random()
        return chosen

    def _able(self) -> list[Fiber]:
        """The fibers that can move. This runs before each step, so it is one loop."""
        now, able = self.now, []
        for fiber in self.fibers:
            state, client = fiber.state, fiber.client
            if not client.alive or client.paused_until > now:
                continue
            if state == "sent":
                flows = client.connected and client.stalled_until <= now
                can = client.send_queue and (flows or self._overdue(fiber))
            elif state == "waiting":
                can = fiber.until <= now or client.events or fiber.is_woken
            elif state == "sleeping":
                can = fiber.until <= now
            elif state == "reconnecting":
                can = client.connected or fiber.until <= now
            else:  # "program", "ready"
                can = True
            if can:
                able.append(fiber)
        return able

    def flows(self, client: Client) -> bool:
        """Whether the client's next request can be carried out."""
        return bool(client.send_queue) and client.connected and client.stalled_until <= self.now

    def _overdue(self, fiber: Fiber) -> bool:
        now = self.now
        return any(request.deadline <= now and request.fiber is fiber for request in fiber.client.send_queue)

    def _move(self, fiber: Fiber) -> None:
        match fiber.state:
            case "program":
                self._program(fiber, None)
            case "sleeping":
                self._program(fiber, None)
            case "ready":
                self._resume(fiber)
            case "sent":
                self._exchange(fiber)
            case "waiting":
                fiber.client.receive_events()
                woken = fiber.is_woken
                if fiber.op.turn and not woken and fiber.until <= self.now:
                    self._fail(fiber, Unavailable("another call of the client did not end in time"))
                elif woken or fiber.until <= self.now:
                    fiber.get_up()
                    self._ready(fiber, woken)
            case "reconnecting":
                if fiber.client.connected:
                    self._ready(fiber, None)
                else:
                    self._fail(fiber, Unavailable("no server answered"))

    def _ready(self, fiber: Fiber, result: Any) -> None:
        fiber.state, fiber.inbox, fiber.thrown = "ready", result, None
        if self.random.random() < 0.6:
            self._resume(fiber)

    def _fail(self, fiber: Fiber, error: BaseException) -> None:
        fiber.state, fiber.thrown = "ready", error

    def _program(self, fiber: Fiber, done: Call | None) -> None:
        """Let an actor go on to its next call."""
        try:
            wanted = fiber.program.send(done)
        except StopIteration:
            fiber.state, fiber.call = "done", None
            self.fibers.remove(fiber)
            return
        if isinstance(wanted, Pause):
            fiber.state, fiber.until, fiber.call = "sleeping", self.now + wanted.seconds, None
            return
        fiber.call = wanted
        wanted.began = self.now
        fiber.inbox, fiber.thrown, fiber.state, fiber.idle_requests = None, None, "ready", 0
        if self.trace is not None:
            self.tell(f"{fiber.name}: {wanted.verb} {told_of(wanted)}")

    def _resume(self, fiber: Fiber) -> None:
        """One step of a procedure: from one operation to the next."""
        call = fiber.call
        assert call is not None
        try:
            if fiber.thrown is not None:
                error, fiber.thrown = fiber.thrown, None
                op = call.procedure.throw(error)
            else:
                op = call.procedure.send(fiber.inbox)
        except StopIteration as stop:
            call.value = stop.value
            self._finish(fiber, call)
        except Violation:
            raise
        except Exception as error:  # noqa: BLE001  the call's own failure
            call.error = error
            self._finish(fiber, call)
        else:
            self._begin(fiber, op)

    def _finish(self, fiber: Fiber, call: Call) -> None:
        if self.trace is not None:
            what = "cancelled" if call.cancelled else repr(call.error) if call.error else f"-> {short(call.value)}"
            self.tell(f"{fiber.name}: {call.verb} {what}")
        self.returned(fiber, call)
        self._program(fiber, call)

    def cancel(self, fiber: Fiber) -> None:
        """Interrupt a call where it is; what it has sent stays sent."""
        call = fiber.call
        if call is None or not fiber.in_call:
            return
        for request in fiber.client.send_queue:
            if request.fiber is fiber:
                request.fiber = None
        fiber.get_up()
        call.procedure.close()
        call.cancelled = True
        self._finish(fiber, call)

    # --- operations

    def _begin(self, fiber: Fiber, op: Any) -> None:
        fiber.op = op
        client = fiber.client
        match op:
            case Multi() | Get() | Children() | GetMany() | Exists():
                self._send(fiber, client, (op,))
            case Wait(_, _, timeout, turn):
                fiber.state = "waiting"
                fiber.sit_down()
                bound = self.request_timeout if turn else 1e9 if timeout is None else timeout
                fiber.until = self.now + bound
            case SetTimeout() | EnsureRoot():
                fiber.state, fiber.inbox = "ready", None
            case Reconnect(since):
                fiber.state, fiber.until = "reconnecting", (since or self.now) + self.request_timeout
            case Callback(call):
                fiber.state, fiber.inbox = "ready", call()
            case Post():
                fiber.state, fiber.inbox = "ready", self._post(client, op)
            case Pipeline(()):
                fiber.state, fiber.inbox = "ready", []
            case _:
                self._send(fiber, client, op.ops if isinstance(op, Pipeline) else (op,))

    def _send(self, fiber: Fiber, client: Client, ops: tuple[Any, ...]) -> None:
        fiber.state, fiber.replies, fiber.missing = "sent", [None] * len(ops), len(ops)
        now = self.now
        for at, each in enumerate(ops):
            if type(each) is Multi:
                self.sends(client, each)
            client.send_queue.append(Request(each, fiber, at, now + self.request_timeout, now, call=fiber.call))
        if client in self.interrupting and any(isinstance(each, Multi) for each in ops):
            self.interrupting.discard(client)
            self.cancel(fiber)

    def _post(self, client: Client, op: Post) -> bool:
        """Nobody waits for it; it is on its way as soon as it is sent."""
        if client.connected:
            self.posted(client, op.multi)
            deadline = self.now + self.request_timeout
            client.send_queue.append(Request(op.multi, None, 0, deadline, self.now, op.lost))
            if client in self.cutting:
                faults.disconnect(self, client, back_in=self.cutting.pop(client))
            return True
        return False

    def _exchange(self, fiber: Fiber) -> None:
        client = fiber.client
        if self._overdue(fiber):
            self._time_out(fiber)
            return
        if self.flows(client):
            self.execute(client)
        if fiber.state == "sent" and self.random.random() < 0.5 and self.flows(client):
            self.execute(client)

    def execute(self, client: Client) -> None:
        """The server carries out the first of a client's requests."""
        if client.session not in self.zk.at:
            faults.disconnect(self, client, back_in=0.05)
            return
        if client in self.losing and faults.lose_reply(self, client):
            self.losing.discard(client)
            return
        request = client.send_queue.popleft()
        result = self.carry_out(client, request)
        client.receive_events()
        client.zxid = max(client.zxid, self.zk.servers[client.server].zxid)
        self.reply(request, result)

    def carry_out(self, client: Client, request: Request) -> Any:
        op, fiber = request.op, request.fiber
        self.executing, self.sender = fiber, request.call
        if fiber is not None and fiber.call is not None:
            fiber.idle_requests += 1
            if fiber.idle_requests > 400:
                raise Violation("a loop without progress", f"{fiber.name} in {fiber.call.verb}")
            fiber.call.requests += 1
        try:
            if isinstance(op, Sync):
                return self.zk.sync(client.session)
            result = self.zk.perform(client.session, op)
        except Exception as error:  # noqa: BLE001  the procedure's own: a transaction too large, say
            return error
        finally:
            self.executing = self.sender = None
        watch = getattr(op, "watch", None)
        if watch is not None and not watch.fired:
            client.armed.add(watch)
        if self.trace is not None:
            self.tell(f"  {fiber.name if fiber else client.name}: {short(op)} => {short(result)}")
        return result

    def reply(self, request: Request, result: Any) -> None:
        """A reply, an error or nothing known comes back for a request."""
        fiber = request.fiber
        if request.lost is not None and not (isinstance(result, Outcome) and result.committed):
            request.lost()
        if fiber is None:
            return
        if isinstance(result, Outcome) and result.sent != request.sent:
            result = replace(result, sent=request.sent)
        fiber.replies[request.at] = result
        fiber.missing -= 1
        if fiber.missing == 0:
            error = next((one for one in fiber.replies if isinstance(one, BaseException)), None)
            if error is not None:
                self._fail(fiber, error)
            else:
                self._ready(fiber, fiber.replies if isinstance(fiber.op, Pipeline) else fiber.replies[0])

    def _time_out(self, fiber: Fiber) -> None:
        """No reply within the driver's patience: a write may still be carried out."""
        for request in [one for one in fiber.client.send_queue if one.fiber is fiber]:
            write = isinstance(request.op, Multi | CreateContainer)
            if write and fiber.client.connected:
                fiber.client.send_queue[fiber.client.send_queue.index(request)] = Request(
                    request.op, None, 0, request.deadline, request.sent
                )
            else:
                fiber.client.send_queue.remove(request)
            sent = write and fiber.client.connected
            self.reply(request, UNKNOWN if sent else Unavailable("no server answered"))


def _payer(context: Context) -> Any:
    while has_pending(context):
        yield Call("pay", finish_pending(context))
        if has_pending(context):
            yield Pause(0.2)
    context.pending.finishing = False
