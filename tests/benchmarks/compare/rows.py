"""Every row of the benchmark, in the order in which they are measured and shown."""

from __future__ import annotations

from functools import partial
from typing import Final

from tests.benchmarks.compare.jobs import AT_ONCE
from tests.benchmarks.compare.measuring import Goal, Row, Way
from tests.benchmarks.compare.peers.curator import curator_agent

#: Of a row's tasks, so many are enough for what takes milliseconds each.
_SLOW: Final = 0.3
_CONSUMERS: Final = 4
#: Bytes of a payload, and the share of the tasks.
_SIZED: Final = ((100, 1), (10_000, 0.5), (100_000, 0.2))
_ours: Final = partial(Way, ours=True)
_elsewhere: Final = partial(Way, elsewhere=True)
DEPTH: Final = 100_000
_LOCKING: Final = Way("kazoo LockingQueue", "locking-get", share=_SLOW)


_ENQUEUE: Final = Row(
    "enqueue",
    "enqueue, one by one",
    (
        _ours("enqueue()", "enqueue"),
        Way("kazoo Queue.put, one znode", "queue-put"),
        Way("kazoo LockingQueue.put", "locking-put"),
        Way("flat algorithm", "flat-enqueue", share=_SLOW),
        Way("Curator DistributedQueue", "put", agent=curator_agent),
        _elsewhere("PostgreSQL, a row", "postgres-insert"),
        _elsewhere("Redis, LPUSH", "redis-put"),
    ),
    (Goal("enqueue()", 0.9, "kazoo Queue.put, one znode"), Goal("enqueue()", 5, "flat algorithm")),
)
_ENQUEUE_MANY: Final = Row(
    "enqueue-many",
    "enqueue in bulk, 100 in a call",
    (
        _ours("enqueue_many()", "enqueue-many", share=4),
        Way("bare client, the same znodes", "bare-enqueue", share=4),
        Way("kazoo put_all, flat", "locking-put-all", share=4),
        Way("Curator DistributedQueue, asynchronous", "put-async", share=4, agent=curator_agent),
        _elsewhere("PostgreSQL, 100 rows", "postgres-insert-many", share=4),
        _elsewhere("Redis, LPUSH of 100", "redis-put-many", share=4),
    ),
    (
        Goal("enqueue_many()", 0.8, "bare client, the same znodes"),
        Goal("enqueue_many()", 0.25, "kazoo put_all, flat"),
        Goal("enqueue_many()", 100, unit="client_us"),
    ),
)
_CLAIM: Final = Row(
    "claim",
    "claim and complete, one caller",
    (
        _ours("claim()", "claim"),
        _ours("claims()", "claims"),
        _ours("claims(prefetch=32)", "claims", 32),
        _ours("claim_many(32)", "claim-many", 32),
        Way("kazoo Queue, at most once", "queue-get"),
        _LOCKING,
        Way("flat algorithm", "flat-claim", share=_SLOW),
        Way("Curator DistributedQueue, at most once", "consume", share=_SLOW, agent=curator_agent),
        Way("Curator with lock path", "consume-locked", share=_SLOW, agent=curator_agent),
        _elsewhere("PostgreSQL, SKIP LOCKED", "postgres-consume"),
        _elsewhere("Redis, LMOVE and LREM", "redis-consume"),
    ),
    (
        Goal("claims()", 2, "kazoo Queue, at most once"),
        Goal("claims()", 10, _LOCKING.name),
        Goal("claim()", 2, unit="requests"),
        Goal("claims()", 2, unit="requests"),
        Goal("claims(prefetch=32)", 1.2, unit="requests"),
        Goal("claims(prefetch=32)", 400, unit="client_us"),
        Goal("claim_many(32)", 1.2, unit="requests"),
    ),
)
_WORKER: Final = Row(
    "worker",
    "worker with an empty handler",
    (
        _ours("1 thread", "worker", 1, share=3),
        _ours("8 threads", "worker", 8, share=3),
        _ours("1 thread, prefetch=1", "worker-singly", 1),
        _ours("8 threads, prefetch=1", "worker-singly", 8),
        _LOCKING,
    ),
    (Goal("1 thread", 20, _LOCKING.name), Goal("8 threads", 20, _LOCKING.name)),
)
_HANDLERS: Final = Row(
    "handlers",
    "worker with 8 threads, by what its handler takes",
    tuple(_ours(f"{ms} ms", "worker-handlers", ms, share=share) for ms, share in ((0, 3), (1, 2), (10, 1), (100, 0.3))),
    # Eight threads cannot do more than 800 and 80 a second: half of it where the handlers are fast, else nearly all.
    (Goal("10 ms", 400), Goal("100 ms", 72)),
)
_ASYNCIO: Final = (
    Row(
        "asyncio-enqueue",
        "enqueue, 64 coroutines",
        (
            _ours("enqueue()", "asyncio-enqueue", share=3),
            Way("kazoo LockingQueue.put, one caller", "locking-put"),
            Way("Curator DistributedQueue, asynchronous", "put-async", share=3, agent=curator_agent),
            _elsewhere("PostgreSQL, 64 clients", "postgres-insert", AT_ONCE, share=3),
            _elsewhere("Redis, 64 clients", "redis-put", AT_ONCE, share=3),
        ),
        (
            Goal("enqueue()", 4, "kazoo LockingQueue.put, one caller"),
            Goal("enqueue()", 2, "Curator DistributedQueue, asynchronous"),
        ),
    ),
    Row(
        "asyncio-claim",
        "claim and complete, 64 coroutines",
        (
            _ours("claim()", "asyncio-claim", share=3),
            Way("kazoo LockingQueue, one caller", "locking-get", share=_SLOW),
            _elsewhere("PostgreSQL, 64 clients", "postgres-consume", AT_ONCE, share=3),
            _elsewhere("Redis, 64 clients", "redis-consume", AT_ONCE, share=3),
        ),
        (Goal("claim()", 20, "kazoo LockingQueue, one caller"),),
    ),
)
_PROCESSES: Final = Row(
    "processes",
    f"{_CONSUMERS} consumer processes",
    (
        _ours("claim()", "claim", processes=_CONSUMERS, share=2),
        _ours("claims(prefetch=32)", "claims", 32, processes=_CONSUMERS, share=4),
        Way("kazoo Queue, at most once", "queue-get", processes=_CONSUMERS),
        Way("kazoo LockingQueue", "locking-get", processes=_CONSUMERS, share=_SLOW),
        Way("flat algorithm", "flat-claim", processes=_CONSUMERS, share=_SLOW),
        _elsewhere("PostgreSQL, 4 clients", "postgres-consume", _CONSUMERS),
        _elsewhere("Redis, 4 clients", "redis-consume", _CONSUMERS, share=2),
    ),
    (
        Goal("claims(prefetch=32)", 8, "kazoo Queue, at most once"),
        Goal("claims(prefetch=32)", 20, "kazoo LockingQueue"),
    ),
)
_STRICT: Final = Row(
    "strict",
    f"strict order, {_CONSUMERS} consumer processes",
    (
        _ours("default order, claim()", "claim", processes=_CONSUMERS),
        _ours("strict order, claim()", "claim-strict", processes=_CONSUMERS),
        _ours("default order, claims(prefetch=32)", "claims", 32, processes=_CONSUMERS, share=2),
        _ours("strict order, claims(prefetch=32)", "claims-strict", 32, processes=_CONSUMERS, share=2),
    ),
    (
        Goal("strict order, claim()", 0.6, "default order, claim()"),
        Goal("strict order, claims(prefetch=32)", 0.6, "default order, claims(prefetch=32)"),
    ),
)
_MIXED: Final = Row(
    "mixed",
    "one thread enqueues what another consumes",
    (_ours("enqueue(), claim()", "mixed"), Way("kazoo LockingQueue", "locking-mixed", share=_SLOW)),
    (Goal("enqueue(), claim()", 1, "kazoo LockingQueue"),),
)
_SIZES: Final = {f"{size:,} bytes".replace(",", " "): (size, share) for size, share in _SIZED}
_PAYLOADS: Final = Row(
    "payloads",
    "enqueue, claim and complete, by payload",
    tuple(
        Way(f"{name}, {said}", verb, size, share=share, ours=name == "ours")
        for said, (size, share) in _SIZES.items()
        for name, verb in (("ours", "payloads"), ("kazoo LockingQueue", "locking-payloads"))
    ),
    tuple(Goal(f"ours, {said}", 1, f"kazoo LockingQueue, {said}") for said in _SIZES),
)
_GC: Final = Row(
    "gc",
    "clean-up of what has ended",
    (_ours("collect_garbage()", "gc"), Way("kazoo delete(recursive=True)", "kazoo-delete")),
    (Goal("collect_garbage()", 75, "kazoo delete(recursive=True)"),),
)
_FLOOR: Final = Way("bare write and watch", "wake-barely", share=0.2)
_IDLE: Final = tuple(
    _ours(f"{threads} idle thread{'s' if threads > 1 else ''}", "wake", threads, share=0.1) for threads in (1, 8, 64)
)
_WAKING: Final = Row(
    "waking",
    "from an enqueue to a waiting consumer's claim",
    (*_IDLE, _FLOOR, Way("the same, and a bare claim", "wake-and-claim-barely", share=0.2)),
    tuple(Goal(way.name, 1 / 3, _FLOOR.name) for way in _IDLE),
)


def _waiters(key: str, *numbers: int, heavy: bool = False) -> Row:
    """So many beside a single waiter, whom they keep waiting half as long again at the most, for no request more."""
    one, *more = (
        _ours(f"{number:,} waiter{'s' if number > 1 else ''}".replace(",", " "), "waiters", number, share=0.1)
        for number in numbers
    )
    slower = (Goal(way.name, 1 / 1.5, one.name) for way in more)
    dearer = (Goal(way.name, 1.2, one.name, "requests") for way in more)
    return Row(key, "from a completion to the one that waits for it", (one, *more), (*slower, *dearer), heavy=heavy)


_SHORT: Final = (
    _ENQUEUE,
    _ENQUEUE_MANY,
    _CLAIM,
    _WORKER,
    *_ASYNCIO,
    _PROCESSES,
    _STRICT,
    _HANDLERS,
    _MIXED,
    _WAKING,
    _waiters("waiters", 1, 100, 1_000),
    _PAYLOADS,
    _GC,
)


def _deep(key: str, title: str, verb: str, what: str, share: float, few: int, many: int) -> Row:
    """The same call with few and with many behind it; with many it takes at most 1.2 times as long."""
    ways = tuple(_ours(f"{number} {what}", verb, number, share=share) for number in (few, many))
    few_way, many_way = (way.name for way in ways)
    goals = (Goal(many_way, 1 / 1.2, few_way), Goal(many_way, 1.2, few_way, "requests"))
    return Row(key, title, ways, goals, heavy=True)


def rows(depth: int = DEPTH) -> tuple[Row, ...]:
    """The rows; those that are about depth go down to so many tasks, or a tenth as many waiters."""
    return (
        *_SHORT,
        _deep("depth", "claim and complete, by what is pending", "claim-deep", "pending", _SLOW, 100, depth),
        _deep("depth-cold", "a client's first claim, by what is pending", "claim-cold", "pending", 0.1, 100, depth),
        _deep("start", "connect, enqueue, claim and complete, by what is pending", "start", "pending", 0.1, 0, depth),
        _deep("filtered", "filtered claim, by what does not fit", "claim-filtered", "foreign", _SLOW, 0, depth),
        _waiters("waiters-many", 1, max(2, depth // 10), heavy=True),
    )
