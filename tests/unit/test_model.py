"""Random histories of a queue against a model: the states agree and every task is in exactly one place.

``ZKMQ_MODEL_EXAMPLES`` sets the number of histories (default 60).
"""

from __future__ import annotations

import os
import random
from types import SimpleNamespace
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from airflow_provider_zkmq.engine.core.claiming import claim, take
from airflow_provider_zkmq.engine.core.memory import marks
from airflow_provider_zkmq.engine.core.memory.claims import Claimed
from airflow_provider_zkmq.engine.core.model.filters import OrderedEnum
from airflow_provider_zkmq.engine.core.model.messages import Message
from airflow_provider_zkmq.engine.core.model.policy import RetryPolicy
from airflow_provider_zkmq.engine.core.model.selectors import EVERYTHING
from airflow_provider_zkmq.engine.core.model.states import State
from airflow_provider_zkmq.engine.core.reading.claims import current_claim
from airflow_provider_zkmq.engine.core.tasks import configure, enqueue, operate, settle
from airflow_provider_zkmq.engine.core.upkeep import collect
from airflow_provider_zkmq.engine.errors import ClaimLost, DuplicateTask, IllegalTransition, TaskNotFound
from tests.unit.world import FakeZooKeeper, RandomLoss, check_tree, drive, new_context

ATTEMPTS = 3
WHO = st.integers(0, 2)


class QueueMachine(RuleBasedStateMachine):
    order = "default"

    def __init__(self) -> None:
        super().__init__()
        self.zk = FakeZooKeeper()
        self.loss = RandomLoss(random.Random(7), 0.1)
        # Ids and nonces must be the same in each replay of an example: they decide who claims what.
        self.entropy = mock.patch.object(marks, "os", SimpleNamespace(urandom=random.Random(11).randbytes))
        self.entropy.start()
        self.sessions = [self.zk.connect() for _ in range(3)]
        self.contexts = [new_context(self.zk, session) for session in self.sessions]
        self.ended: dict[str, State] = {}
        self.known: set[str] = set()
        self.claimed: list[tuple[int, Claimed]] = []
        self.stale: list[tuple[str, int]] = []
        types = {"c": OrderedEnum("low", "high")}
        policy = RetryPolicy(attempts=ATTEMPTS, factor=0.5)
        self.do(0, configure.configure(self.contexts[0], filters=types, policy=policy, order=self.order))

    def teardown(self):
        self.entropy.stop()

    def do(self, who, procedure):
        return drive(self.zk, self.sessions[who], procedure, self.loss)

    @rule(
        who=WHO,
        cls=st.sampled_from([None, "low", "high"]),
        priority=st.integers(-2, 2),
        delay=st.sampled_from([None, 2, 90]),
    )
    def enqueue(self, who, cls, priority, delay):
        message = Message(b"x", {"c": cls} if cls else None, priority, delay)
        self.known.add(self.do(who, enqueue.enqueue(self.contexts[who], message)))

    def accepts(self, before, *, update, requeue):
        """Carmine's rules for an id that is in use."""
        if before is None or before.state is State.CANCELLED:
            return True
        if before.state is State.FINISHED and not before.requeue and (before.dedupe or 0) <= self.zk.ms:
            return True
        if before.state in {State.CLAIMED, State.FINISHED}:
            return requeue and (update or not before.requeue)
        return update and before.state is State.INSERTED

    @rule(
        who=WHO,
        name=st.sampled_from("abc"),
        cls=st.sampled_from([None, "low", "high"]),
        update=st.booleans(),
        requeue=st.booleans(),
        delay=st.sampled_from([None, None, 2]),
        lock=st.sampled_from([None, 5]),
    )
    def enqueue_named(self, who, name, cls, update, requeue, delay, lock):
        message = Message(
            name, {"c": cls} if cls else None, delay=delay, task_id=name, lock=lock, update=update, requeue=requeue
        )
        before = check_tree(self.zk, self.contexts[who]).get(name)
        accepted = self.accepts(before, update=update, requeue=requeue)
        try:
            self.do(who, enqueue.enqueue(self.contexts[who], message))
        except DuplicateTask:
            assert not accepted
            return
        assert accepted
        self.known.add(name)
        self.ended.pop(name, None)

    @rule(who=WHO, lease=st.sampled_from([None, None, 5, 300]))
    def claim(self, who, lease):
        got = self.do(who, claim.claim(self.contexts[who], take.Wanted(EVERYTHING, lease)))
        if got is not None:
            assert got.task_id not in self.ended, "an ended task was handed out"
            assert 1 <= got.state.attempt <= ATTEMPTS
            for pair in [pair for pair in self.claimed if pair[1].task_id == got.task_id]:
                self.claimed.remove(pair)
                self.stale.append((got.task_id, pair[1].token))
            assert all(token < got.token for task, token in self.stale if task == got.task_id), "tokens must rise"
            self.claimed.append((who, got))
            if self.order == "fifo":
                self.was_first(got)

    def was_first(self, got):
        """Nothing of its priority that is pending was listed before it."""
        paths = self.contexts[0].paths
        for task, state in check_tree(self.zk, self.contexts[0]).items():
            pending = state.state is State.INSERTED and state.index is None and state.priority == got.state.priority
            if pending:
                node = self.zk.nodes[paths.entry(state.place)]
                rank = int(node.data or node.czxid)
                assert (rank, state.place) >= (got.state.rank, got.state.place), f"{task} was passed by"

    def settle(self, data, action):
        pair = data.draw(st.sampled_from(self.claimed))
        self.claimed.remove(pair)
        who, got = pair
        self.stale.append((got.task_id, got.token))
        try:
            return got.task_id, self.do(who, action(self.contexts[who], got))
        except ClaimLost:
            return None, None

    @precondition(lambda self: self.claimed)
    @rule(data=st.data(), dedupe=st.sampled_from([None, None, 4]))
    def complete(self, data, dedupe):
        before = check_tree(self.zk, self.contexts[0])
        task, _ = self.settle(data, lambda context, got: settle.complete(context, got, dedupe=dedupe))
        if task and not before[task].requeue:
            self.ended[task] = State.FINISHED

    @precondition(lambda self: self.claimed)
    @rule(data=st.data(), retry=st.booleans())
    def fail(self, data, retry):
        before = check_tree(self.zk, self.contexts[0])
        task, state = self.settle(data, lambda context, got: settle.fail(context, got, "e", retry=retry))
        if task:
            assert retry or state is (State.INSERTED if before[task].requeue else State.DEAD)

    @precondition(lambda self: self.claimed)
    @rule(data=st.data(), delay=st.sampled_from([None, 3]))
    def release(self, data, delay):
        self.settle(data, lambda context, got: settle.release(context, got, delay))

    @precondition(lambda self: self.stale)
    @rule(data=st.data(), who=WHO)
    def use_a_stale_token(self, data, who):
        task, token = data.draw(st.sampled_from(self.stale))
        with pytest.raises((ClaimLost, TaskNotFound)):
            self.do(who, current_claim(self.contexts[who], task, token))

    @rule(who=WHO)
    def expire(self, who):
        self.zk.expire(self.sessions[who])
        self.sessions[who] = self.zk.connect()
        self.contexts[who] = new_context(self.zk, self.sessions[who])
        gone = [pair for pair in self.claimed if pair[0] == who]
        self.claimed = [pair for pair in self.claimed if pair[0] != who]
        self.stale += [(got.task_id, got.token) for _, got in gone if got.state.lease is None]

    @rule(seconds=st.sampled_from([0.3, 3, 61, 400]))
    def advance(self, seconds):
        self.zk.advance(seconds)

    @precondition(lambda self: self.known)
    @rule(who=WHO, data=st.data(), what=st.sampled_from([operate.cancel, operate.redrive]))
    def operate(self, who, data, what):
        task = data.draw(st.sampled_from(sorted(self.known)))
        pending = {State.INSERTED, State.CLAIMED}
        allowed = pending if what is operate.cancel else {State.DEAD, State.CANCELLED}
        before = check_tree(self.zk, self.contexts[who])[task].state
        if before in allowed:
            self.do(who, what(self.contexts[who], task))
            self.ended.pop(task, None)
            if what is operate.cancel:
                self.ended[task] = State.CANCELLED
        else:
            with pytest.raises(IllegalTransition):
                self.do(who, what(self.contexts[who], task))

    @rule(who=WHO, lifetime=st.sampled_from([1, 300]))
    def collect(self, who, lifetime):
        before = check_tree(self.zk, self.contexts[who])
        self.do(who, collect.collect_garbage(self.contexts[who], lifetime))
        gone = self.known - set(check_tree(self.zk, self.contexts[who]))
        assert gone <= set(self.ended), "a task that had not ended was collected"
        assert all((before[task].dedupe or 0) <= self.zk.ms for task in gone), "collected in its dedupe window"
        self.known -= gone

    @invariant()
    def tree_agrees(self):
        states = check_tree(self.zk, self.contexts[0])
        assert set(states) == self.known, "a task was lost, or came twice"
        for task, state in states.items():
            assert state.attempt <= ATTEMPTS
            if task in self.ended:
                assert state.state is self.ended[task]
            else:
                assert state.state is not State.CANCELLED
                assert state.state is not State.FINISHED or state.requeue


TestQueue = QueueMachine.TestCase
EXAMPLES = int(os.environ.get("ZKMQ_MODEL_EXAMPLES", "60"))
TestQueue.settings = settings(max_examples=EXAMPLES, stateful_step_count=30, deadline=None)


class OrderedMachine(QueueMachine):
    order = "fifo"


TestOrdered = OrderedMachine.TestCase
TestOrdered.settings = TestQueue.settings
