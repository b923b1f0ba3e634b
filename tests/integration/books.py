"""The books of a run on several servers: what clients hold, as they know it, beside what the tree says is claimed."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from airflow_provider_zkmq.engine import Queue

GRACE_S = 3.0
_Pair = tuple[str, int]


@dataclass
class Books:
    """Kept by the clients themselves: a claim that was returned is in hand, one that was settled is out of it."""

    in_hand: dict[_Pair, str] = field(default_factory=dict)
    """Task and token to client."""
    completed: list[_Pair] = field(default_factory=list)
    said: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    _under_way: set[tuple[str, float, object]] = field(default_factory=set)
    _asked: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def asking(self, client: str) -> Iterator[None]:
        """A claim of the client's is under way; one that raises gave its client no chance to give anything back."""
        call = (client, time.monotonic(), object())
        with self._lock:
            self._under_way.add(call)
        try:
            yield
            with self._lock:
                self._asked[client] = max(self._asked[client], call[1])
        finally:
            with self._lock:
                self._under_way.discard(call)

    def take(self, client: str, task_id: str, token: int) -> None:
        """A claim was returned."""
        with self._lock:
            self.in_hand[task_id, token] = client

    def complete(self, task_id: str, token: int) -> None:
        """A completion was acknowledged."""
        with self._lock:
            self.completed.append((task_id, token))

    def give(self, task_id: str, token: int) -> None:
        """It is settled, or known to be lost."""
        with self._lock:
            del self.in_hand[task_id, token]

    def note(self, what: str) -> None:
        """Something that a call said."""
        with self._lock:
            self.said[what] += 1

    def asked_since(self, client: str, moment: float) -> bool:
        """Whether a claim of the client's begun after that moment has returned, and none from before is under way."""
        with self._lock:
            older = any(who == client and began <= moment for who, began, _ in self._under_way)
            return self._asked[client] > moment and not older


class Auditor:
    """Compares, every second: a claimed task in nobody's hand for three seconds, though its client has claimed since.

    Consumers are named for their clients; all sessions of a run live on.
    """

    def __init__(self, books: Books, observer: Queue) -> None:
        self._books, self._observer = books, observer
        self._suspects: dict[_Pair, float] = {}
        self.orphans: dict[_Pair, str] = {}
        self.audits = 0
        self.most = 0
        self.failed: BaseException | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="auditor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Raises what ended the audits, if anything did."""
        self._over.set()
        self._thread.join(60)
        if self.failed is not None:
            raise self.failed

    def _run(self) -> None:
        try:
            while not self._over.wait(1.0):
                self.audit()
        except BaseException as error:  # noqa: BLE001  raised by `stop`
            self.failed = error

    def audit(self) -> None:
        """One comparison."""
        moment = time.monotonic()
        claimed = {(task.id, task.version): task for task in self._observer.tasks(state="claimed")}
        self._suspects = {pair: self._suspects.get(pair, moment) for pair in claimed if pair not in self._books.in_hand}
        for pair, since in self._suspects.items():
            client = (claimed[pair].consumer or "").partition("-")[0]
            if moment - since > GRACE_S and pair not in self.orphans and self._books.asked_since(client, since):
                self.orphans[pair] = (
                    f"{claimed[pair].data.decode()}: claimed {pair[1]:#x} by {claimed[pair].consumer}, "
                    f"in nobody's hand for {moment - since:.1f} s, though {client} has claimed since"
                )
        self.audits += 1
        self.most = max(self.most, len(claimed))
