"""What a queue decides: its configuration, when a failed task runs again, and how many are handled at once."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct

from ...errors import ConfigError
from . import values
from .filters import Declared, FilterTypes, declared_types
from .values import Duration, Span, corrupt_unless_read, dump, load, seconds
from .znode_names import WHOLE_QUEUE, limit_key

# --- When a failed task runs again, and when it is dead.

#: Carmine computes its backoff for attempts up to 36; beyond, 2**n exceeds any clamp of use.
MAX_EXPONENT: Final = 36
MAX_ATTEMPTS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how soon a task is tried.

    ``attempts``: deliveries at the most, counted before the task is handed out; None: without bound.
    ``factor``, ``min_backoff``, ``max_backoff``: durations, kept in seconds, see `backoff`; a factor of 0 retries
    after ``min_backoff``. ``final``: exceptions after which a task is not tried again, as classes or by name
    (``ValueError`` or ``package.module.Error``); their subclasses are final, too.
    """

    attempts: int | None = 5
    factor: float = 1.0
    min_backoff: float = 0.0
    max_backoff: float = 300.0
    final: tuple[str, ...] = ()

    if TYPE_CHECKING:  # what it takes, which is more than what is kept

        def __init__(
            self,
            attempts: int | None = 5,
            factor: Duration = 1.0,
            min_backoff: Duration = 0.0,
            max_backoff: Duration = 300.0,
            final: Iterable[str | type[BaseException]] | str | type[BaseException] = (),
        ) -> None: ...

    def __post_init__(self) -> None:
        final: Any = self.final
        names: list[str] = []
        for kind in tuple(final) if isinstance(final, Iterable) and not isinstance(final, str) else (final,):
            if isinstance(kind, type) and issubclass(kind, BaseException):
                names.append(_full_name(kind))
            elif isinstance(kind, str) and kind:
                names.append(kind)
            else:
                raise ConfigError(f"RetryPolicy(final={final!r}): exception classes, or their names")
        object.__setattr__(self, "final", tuple(names))
        whole = isinstance(self.attempts, int) and not isinstance(self.attempts, bool)
        if self.attempts is not None and not (whole and 1 <= self.attempts <= MAX_ATTEMPTS):
            msg = f"RetryPolicy(attempts={self.attempts!r}): a whole number from 1 to {MAX_ATTEMPTS}, or None"
            raise ConfigError(msg)
        for name in ("factor", "min_backoff", "max_backoff"):
            object.__setattr__(self, name, seconds(f"RetryPolicy's {name}", getattr(self, name)))
        if self.min_backoff > self.max_backoff:
            msg = f"RetryPolicy: min_backoff {self.min_backoff} is more than max_backoff {self.max_backoff}"
            raise ConfigError(msg)

    def exhausted(self, attempt: int) -> bool:
        """Whether attempt number `attempt` was the last."""
        return self.attempts is not None and attempt >= self.attempts

    def is_final(self, error: object) -> bool:
        """Whether `error` is an exception after which there is no other try."""
        if not self.final or not isinstance(error, BaseException):
            return False
        kinds = type(error).__mro__
        return any(name in {kind.__name__, _full_name(kind)} for kind in kinds for name in self.final)

    def backoff(self, attempt: int, rand: float) -> float:
        """Seconds to wait after attempt number `attempt` failed: Carmine's binary exponential backoff with jitter.

        ``0.5 · (2ⁿ + rand · 2ⁿ) · factor``, clamped; n counts from 0, and `rand` is in [0, 1).
        """
        if self.factor == 0:
            return self.min_backoff
        power = 2.0 ** min(max(attempt - 1, 0), MAX_EXPONENT)
        return min(max(self.min_backoff, 0.5 * (power + rand * power) * self.factor), self.max_backoff)


def checked_policy(policy: object) -> RetryPolicy | None:
    """A policy that a caller gave, or None. Raises `ConfigError` for anything else."""
    if isinstance(policy, RetryPolicy | None):
        return policy
    raise ConfigError(f"policy must be a RetryPolicy, not {type(policy).__name__}")


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def ConsumeTimes(times: int) -> RetryPolicy:  # noqa: N802  the name is ZkQueue's and public
    """ZkQueue's policy: at most `times` deliveries, at once after a failure, then the dead letter queue."""
    return RetryPolicy(attempts=times, factor=0)


def ConsumeOnce() -> RetryPolicy:  # noqa: N802  the name is ZkQueue's and public
    """ZkQueue's policy: at most one delivery."""
    return ConsumeTimes(1)


# --- How many tasks are handled at once, and how many in a period.

MAX_CONCURRENCY: Final = 100_000
MAX_RATE: Final = 1_000_000
#: In seconds: from a hundredth to about a month.
SHORTEST_PERIOD: Final = 0.01
LONGEST_PERIOD: Final = 2_700_000.0


@dataclass(frozen=True, slots=True)
class Limit:
    """How many tasks may be claimed at once, and how many in a period, over all consumers of a queue.

    ``concurrency``: so many claims at once at the most, from their claim until they are settled or given back.
    ``rate``: so many claims at the most in any span of ``per`` (a duration, or its text such as ``"1m"``; kept in
    seconds, one by default). ``by``: the name of a declared filter; each of its values has the limit to itself, and a
    task without it has none. Without ``by`` all tasks share the limit. ``Limit()`` is no limit.
    """

    concurrency: int | None = None
    rate: int | None = None
    per: float = 1.0
    by: str | None = None

    if TYPE_CHECKING:  # what it takes, which is more than what is kept

        def __init__(
            self,
            concurrency: int | None = None,
            rate: int | None = None,
            per: Duration | str = 1.0,
            by: str | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        for name, most in (("concurrency", MAX_CONCURRENCY), ("rate", MAX_RATE)):
            if getattr(self, name) is not None:
                values.whole_number(f"Limit's {name}", getattr(self, name), 1, most)
        per = values.parse_duration(self.per, "Limit's per")
        if not SHORTEST_PERIOD <= per <= LONGEST_PERIOD:
            raise ConfigError(f"Limit's per {self.per!r} is not allowed: from {SHORTEST_PERIOD} s to 31 days")
        object.__setattr__(self, "per", per)
        if self.by is not None and not isinstance(self.by, str):
            raise ConfigError(f"Limit's by {self.by!r} is not allowed: the name of a filter, or None")

    def __bool__(self) -> bool:
        """Whether it limits anything."""
        return self.concurrency is not None or self.rate is not None

    def check_against(self, filters: Container[str]) -> None:
        """Raise `ConfigError` unless a queue with these filters can have this limit."""
        if self.by is not None and self.by not in filters:
            raise ConfigError(f"the limit is by {self.by!r}, which is no declared filter of the queue: declare it, too")

    @property
    def period(self) -> int:
        """``per`` in milliseconds, rounded up."""
        return ceil(self.per * 1000)

    def key(self, filters: Mapping[str, str]) -> str | None:
        """Under which name a task with these filters is limited; None: it is not."""
        if self.concurrency is None and self.rate is None:  # as `bool`, which takes longer than this
            return None
        if self.by is None:
            return WHOLE_QUEUE
        value = filters.get(self.by)
        return None if value is None else limit_key(self.by, value)


def parse_limit(text: str) -> Limit:
    """A limit from its text form, such as ``concurrency=2,rate=10,per=1m,by=customer``, or ``none``."""
    pairs = [] if text == "none" else [part.partition("=") for part in text.split(",")]
    given: dict[str, Any] = {name: value for name, _, value in pairs}
    if len(given) < len(pairs) or not given.keys() <= {"concurrency", "rate", "per", "by"}:
        raise ConfigError(f"limit {text!r} is not understood: concurrency=, rate=, per= and by=, each once")
    if given and not given.keys() & {"concurrency", "rate"}:
        raise ConfigError(f"limit {text!r} limits nothing: it needs concurrency= or rate=; 'none' lifts a limit")
    return Limit(**given | {name: int(each) for name, each in given.items() if name != "by" and each.isdecimal()})


def checked_limit(limit: object) -> Limit:
    """A limit that a caller gave. Raises `ConfigError` for anything else."""
    if isinstance(limit, Limit):
        return limit
    raise ConfigError(f"limit must be a Limit, not {type(limit).__name__}; Limit() is none")


# --- A queue's configuration.

ORDERS: Final = ("default", "fifo")


class Settings(Struct, frozen=True, omit_defaults=True):
    """What a queue's ``conf`` holds: all of its configuration but the times of clean-up, which stand below it."""

    filters: dict[str, Declared] = {}
    policy: RetryPolicy = RetryPolicy()
    lock: Span = 0.0
    order: Literal["default", "fifo"] = "default"
    paused: bool = False
    limit: Limit = Limit()

    def encode(self) -> bytes:
        """The stored bytes; what has its default is left out."""
        return dump(self)


def load_settings(path: str, data: bytes) -> tuple[Settings, FilterTypes]:
    """The settings of a queue, and its filter types. Raises `CorruptRecord`."""
    what = "a queue's settings (configure() writes them anew)"
    settings = load(path, data, Settings, what)
    with corrupt_unless_read(path, what):
        return settings, declared_types(settings.filters)


@dataclass(frozen=True, slots=True)
class Conf:
    """A queue's configuration as last read; times in seconds."""

    types: FilterTypes
    policy: RetryPolicy
    gc_lifetime: float
    gc_interval: float
    paused: bool
    archive: int | None = None
    """Where an archive is configured: the zxid up to which ended runs are archived."""
    lock: float | None = None
    order: str = "default"
    limit: Limit | None = None
    follow: bool = False
    """Streams follow what ends: runs that leave are kept for them."""

    def wants(self, version: int) -> bool:
        """Whether a run that leaves, and ended in that transaction, is to be kept; 0: it ends with this one."""
        if self.follow or self.archive is None:
            return self.follow
        return version == 0 or version > self.archive

    @property
    def ordered(self) -> bool:
        """Whether tasks are handed out in strict order."""
        return self.order == "fifo"
