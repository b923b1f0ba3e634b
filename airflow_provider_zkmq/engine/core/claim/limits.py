"""Limits: how many tasks of a queue, or of one value of a filter, are claimed at once, and how many in a period."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from .. import zk_operations as zk
from ..client_state import Claimed, Context, LimitedKey, Schedule
from ..model.records import RecentClaims
from ..model.settings import MAX_RATE, Limit
from ..model.values import MOST_AT_ONCE, dump
from ..model.znode_names import parse_lane
from ..read.claim_status import recent_claims
from ..read.queue_existence import restored
from ..read.server_clock import server_time
from ..write.commit import Change
from ..zk_operations import Procedure

# --- At once: each claim takes a slot, and a key has as many as the limit allows.
#
# A slot is a znode, and its name one of as many numbers as are allowed. The transaction that claims creates it, and the
# task's record names it; whatever moves the task on, a settlement, a release or the rescue of a dead consumer's,
# deletes it in the same transaction. So no more are claimed than there are names, a crash leaves no slot behind, and
# none is freed twice. A key whose slots are all taken is looked at again when the watch on them fires.
#
# Where a limit was lowered, slots beyond it may be taken still. Each of them, and each slot below it that a claim could
# not have under the lower limit, takes one of the numbers that are left: see `_numbers`.
#
# --- In a period: what was claimed of late is counted in one znode for each key.
#
# The transaction that claims writes it under the version that it was read at, so that of two claims that saw the same
# room one is refused. Times are the server's: of the latest claims that of the znode's own change, which whoever writes
# next writes down. A claim counts from its transaction on for one period; one that was prefetched from when it begins
# at the latest. A key without room is looked at again when the first of its claims is as old as that.
#
# Clean-up deletes what has not been written for longer than a period, and changes the version of ``rates`` with it.
# Every claim checks that: versions begin again at 0, and one that was read before must not be taken for a later one.

#: So many times of claims are kept exactly; more are rounded, upwards, to as many parts of the period.
EXACT_TIMES: Final = 32
#: A prefetched task is begun within so many milliseconds, or given back.
PREFETCHED_MS: Final = 1_000
#: How soon to look again at a key whose last slots other threads of this client are taking: their try may fail.
SOON: Final = 0.1
#: A client remembers so many keys, and as many more as have no room.
MOST_KEYS: Final = 4_096
UNBOUNDED: Final = MAX_RATE


@dataclass(slots=True)
class Limits:
    """The limit of a queue during one look at it.

    ``schedule``: when to look again at keys that have no room now.
    """

    context: Context
    limit: Limit
    schedule: Schedule
    _chosen: dict[str, tuple[LimitedKey, int]] = field(default_factory=dict)
    """The slots that were picked, by task."""
    _counting: list[LimitedKey] = field(default_factory=list)
    """The keys whose claims this call counts; other calls of this client wait for it."""
    _keys: dict[str, LimitedKey] = field(init=False)

    def __post_init__(self) -> None:
        memory, born = self.context.limited_keys, self.context.configuration.born
        if (memory.limit, memory.born) != (self.limit, born):
            memory.limit, memory.born, memory.keys, memory.most = self.limit, born, {}, MOST_KEYS
        self._keys = memory.keys
        if len(memory.keys) > memory.most:  # those without room stay: somebody may wait for their watches
            kept = {name: each for name, each in memory.keys.items() if each.in_use or self._room(each) == 0}
            self._keys = memory.keys = kept
            memory.most = max(MOST_KEYS, 2 * len(kept))

    def blocks(self, filters: Mapping[str, str]) -> bool:
        """Whether a task with these filters certainly cannot be claimed now. What is not known is not asked for."""
        key = self.limit.key(filters)
        return key is not None and self._room(self._known(key)) == 0

    def in_turn(self, keys: Iterable[str | None], most: int) -> list[tuple[str | None, int | None]]:
        """The first keys that have room, at the most `most`: from whose tasks this client claimed longest ago leads.

        Each with how many of its tasks may be claimed, as far as is known; None: without bound, or not known.
        """
        order = sorted(keys, key=lambda key: (self._known(key or "").served, self.context.run.random()))
        rooms = ((key, None if key is None else self._room(self._known(key))) for key in order)
        return [*islice((pair for pair in rooms if pair[1] != 0), most)]

    def _known(self, key: str) -> LimitedKey:
        known = self._keys.get(key)
        if known is None:
            known = self._keys[key] = LimitedKey()
        return known

    def _room(self, known: LimitedKey) -> int | None:
        """How many tasks of a key may be claimed; None: it has to be looked at. Without room, it is on the schedule."""
        free, left = self._free(known), self._left(known)
        if free == 0 or left == 0:
            return 0
        return None if free is None or left is None else min(free, left)

    def _free(self, known: LimitedKey) -> int | None:
        """How many slots there are to be had; None: they have to be listed."""
        if self.limit.concurrency is None:
            return UNBOUNDED
        if known.watch is None:
            return None
        numbers, taken = self._numbers(known), len(known.taken)
        if known.highest >= numbers:
            taken = sum(number < numbers for number in known.taken)
        if taken >= numbers:
            return None if known.watch.fired else 0
        free = max(0, numbers - taken - len(known.trying))
        if free == 0:
            self.schedule.no_later_than(SOON)
        return free

    def _left(self, known: LimitedKey) -> int | None:
        """How many claims are left now; None: those of late have to be read."""
        if self.limit.rate is None:
            return UNBOUNDED
        if known.recent is None:
            return None
        left = self.limit.rate - known.counted
        if left >= MOST_AT_ONCE:  # enough, though some of them may count no more
            return left
        now = self.context.clock.now()
        if now is None:
            return None
        recent = self._recent(known, now)
        left = max(0, self.limit.rate - sum(count for _, count in recent))
        if left == 0:
            self.schedule.no_later_than(self.context.clock.until(recent[0][0] + self.limit.period + 1))
        return left

    def _recent(self, known: LimitedKey, now: int) -> tuple[tuple[int, int], ...]:
        """What counts still, by the server's clock that stands at `now` or later."""
        since = self.context.clock.certainly_past(now) - self.limit.period
        return tuple((until, count) for until, count in known.recent or () if until >= since)

    def _numbers(self, known: LimitedKey) -> int:
        """Up to which number, exclusively, slots may be taken: less than the limit where it was lowered."""
        most = numbers = self.limit.concurrency or 0
        while known.highest >= most and numbers and numbers + sum(number >= numbers for number in known.taken) > most:
            numbers -= 1
        return numbers

    # --- Taking room: before the transaction that claims is made, and after it.

    def admit(self, candidates: Sequence[Claimed]) -> Procedure[list[Claimed]]:
        """Those of some candidates that there is room for; each has its slot from now on, until `release`."""
        keys = {claimed.task_id: self.limit.key(claimed.state.filters) for claimed in candidates}
        wanted = {key: self._known(key) for key in keys.values() if key is not None}
        if self.limit.rate is not None:
            while busy := next((each.counting for each in wanted.values() if each.counting is not None), None):
                yield zk.Wait(busy, 0, turn=True)
            turn = self.context.run.new_signal()
            for known in wanted.values():
                known.counting = turn
                self._counting.append(known)
        yield from self.look(wanted)
        missing = {name: known for name, known in wanted.items() if not known.there}
        if missing:  # in one round: else the claim is refused at each of them
            yield zk.Pipeline(tuple(zk.CreateContainer(self.context.paths.at("slots", name)) for name in missing))
            for known in missing.values():
                known.there = True
        admitted = []
        for claimed in candidates:
            key = keys[claimed.task_id]
            if key is None or self._free(wanted[key]):
                if key is not None and self.limit.concurrency is not None:
                    self._choose(claimed, wanted[key])
                admitted.append(claimed)
        return admitted

    def _choose(self, claimed: Claimed, known: LimitedKey) -> None:
        """Pick a slot that nobody is known to have, beginning anywhere: consumers keep out of each other's way."""
        numbers = self._numbers(known)
        number = int(self.context.run.random() * numbers)
        while number in known.taken or number in known.trying:
            number = (number + 1) % numbers
        known.trying.add(number)
        self._chosen[claimed.task_id] = known, number

    def slot(self, claimed: Claimed) -> str | None:
        """The slot that was picked for a candidate."""
        picked = self._chosen.get(claimed.task_id)
        return None if picked is None else f"{self.limit.key(claimed.state.filters)}/{picked[1]}"

    def count(self, claims: Sequence[Claimed]) -> Procedure[tuple[list[Claimed], list[Change]]]:
        """Those of some claims that may be made now, and what counts them in their own transaction."""
        if self.limit.rate is None:
            return list(claims), []
        for known in self._counting:
            known.written = None  # what an earlier try was to write
        keys = {claimed.task_id: self.limit.key(claimed.state.filters) for claimed in claims}
        yield from self.look({key: self._known(key) for key in keys.values() if key is not None})
        counts, kept, changes = Counter[str](), list[Claimed](), list[Change]()
        for claimed in claims:
            key = keys[claimed.task_id]
            if key is None or (self._left(self._known(key)) or 0) > counts[key]:
                kept.append(claimed)
                counts.update([] if key is None else [key])
        now = yield from server_time(self.context)
        ahead = PREFETCHED_MS if any(claimed.prefetched for claimed in kept) else 0
        for key, count in counts.items():
            known, path = self._known(key), self.context.paths.at("rates", key)
            record = RecentClaims(self._rounded(self._recent(known, now)), count, ahead)
            write: zk.WriteOp = zk.Create(path, dump(record))
            if known.version is not None:
                write = zk.SetData(path, dump(record), known.version)
            changes.append(
                Change(self.context, "", [zk.Check(self.context.paths.at("rates"), known.rates_version), write])
            )
            # The version by now: another call may read a later one before this call has its reply.
            known.recent, known.written = None, (record, 0 if known.version is None else known.version + 1)
        return kept, changes

    def _rounded(self, recent: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        if len(recent) <= EXACT_TIMES:
            return recent
        part, rounded = -(-self.limit.period // EXACT_TIMES), Counter[int]()
        for until, count in recent:
            rounded[-(-until // part) * part] += count
        return tuple(sorted(rounded.items()))

    def counted(self, outcome: zk.Outcome) -> None:
        """The claims were made: what counts them is known without reading it."""
        for known in self._counting:
            if known.written is not None and outcome.time is not None:
                record, known.version = known.written
                known.remember(record.until(outcome.time))

    def collided(self, claimed: Claimed, path: str) -> bool:
        """Whether a claim was refused at its slot, which another one has: the key's slots are listed anew."""
        picked = self._chosen.get(claimed.task_id)
        if picked is None or path != self.context.paths.at("slots", self.slot(claimed) or ""):
            return False
        picked[0].watch = None
        return True

    def release(self, taken: Sequence[Claimed]) -> None:
        """The call is over: what was picked is taken, or free again."""
        held = {claimed.task_id for claimed in taken}
        for task_id, (known, number) in self._chosen.items():
            known.trying.discard(number)
            if task_id in held:
                known.taken.add(number)
        self._chosen.clear()
        for claimed in taken if self.limit.by is not None else ():
            self.context.limited_keys.served += 1
            self._known(self.limit.key(claimed.state.filters) or "").served = self.context.limited_keys.served
        for known in self._counting:
            turn, known.counting, known.written = known.counting, None, None
            if turn is not None:
                turn.fire()
        self._counting.clear()

    # --- Looking at keys that are not known, or where something has changed.

    def look_at(self, tasks: Iterable[Mapping[str, str]]) -> Procedure[None]:
        """Read what is not known of the keys of tasks with these filters."""
        yield from self.look(
            {key: self._known(key) for filters in tasks if (key := self.limit.key(filters)) is not None}
        )

    def look(self, keys: Mapping[str, LimitedKey]) -> Procedure[None]:
        """Read what is not known of these keys, in one round of requests."""
        if self.limit.rate is not None:
            yield from server_time(self.context)
        unknown = {key: known for key, known in keys.items() if self._room(known) is None}
        if not unknown:
            return
        bounded = self.limit.concurrency is not None
        listed = {key: self.context.new_watch() for key, known in unknown.items() if bounded and known.stale}
        counted = [key for key, known in unknown.items() if self.limit.rate is not None and known.recent is None]
        at, rates = self.context.paths.at, self.context.paths.at("rates")
        ops: list[zk.Children | zk.Get | zk.Exists] = [zk.Children(at("slots", k), w) for k, w in listed.items()]
        ops += [zk.Exists(rates), *(zk.Get(at("rates", key)) for key in counted)] if counted else []
        answers = iter((yield zk.Pipeline(tuple(ops))))
        for key, watch in listed.items():
            names, known = next(answers), unknown[key]
            known.taken, known.watch = set(self._slot_numbers(key, names or ())), watch
            known.highest, known.there = max(known.taken, default=-1), names is not None
            watch.fired = watch.fired or names is None  # no watch stands on what is not there
        if not counted:
            return
        stat: zk.Stat | None = next(answers)
        if stat is None:  # as it is after a version of this program that knew no limits
            yield from restored(self.context, f"{rates}/-")
        for key in counted:
            node, known = next(answers), unknown[key]
            known.rates_version = 0 if stat is None else stat.version
            known.version = None if node is None else node.stat.version
            known.remember(() if node is None else recent_claims(self.context, self.limit, key, node))

    def _slot_numbers(self, key: str, names: Sequence[str]) -> Iterator[int]:
        for name in names:
            if name.isascii() and name.isdigit():
                yield int(name)
            else:
                self.context.report(self.context.paths.at("slots", key, name), "no slot of ours; stepped over")


def filters_of(context: Context, segment: str, entry: str) -> Mapping[str, str]:
    """The filters of a pending task, as its lane tells, or in a mixed one what was read of it."""
    path = segment.rpartition("/")[0]
    lane = parse_lane(path.rpartition("/")[2])
    if lane is None:
        return context.listings.at(path).lane or {}
    return (context.listings.at(segment).entry_filters.get(entry) or {}) if lane.filters is None else lane.filters
